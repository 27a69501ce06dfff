"""Many connections to a server: silent ones, ones that send a byte at a time, and idle keep-alive ones.

`python -m helpers.crowd PORT SIZE` keeps SIZE connections open until its input ends, and replaces those that the
server drops.
"""

import resource
import selectors
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

REQUEST = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
KINDS = ("silent", "slow", "keep-alive")
TICK = 0.5  # seconds between two bytes of a slow connection
IDLE_TICKS = 6  # between two requests of an idle connection


class Crowd:
    """A process with `size` connections to a port; `answers` counts responses when it has ended."""

    def __init__(self, port, size):
        self.answers = 0
        folder = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.crowd", str(port), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.answers = int(self._process.communicate(timeout=60)[0])


class Connections:
    """The connections of the process."""

    def __init__(self, port, size):
        self.port, self.missing, self.answers = port, list(range(size)), 0
        self.selector, self.sent = selectors.DefaultSelector(), {}

    def tick(self):
        """Open what is missing, read what arrived, and send what is due."""
        self.missing = [number for number in self.missing if not self._open(number)]
        for key, _ in self.selector.select(0):
            if not self._receive(key.fileobj):
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
                self.missing.append(key.data)
        for key in self.selector.get_map().values():
            self._send(key.fileobj, key.data)

    def _open(self, number):
        connection = socket.socket()
        connection.settimeout(TICK)
        try:
            connection.connect(("127.0.0.1", self.port))
        except OSError:  # the server is down
            connection.close()
            return False
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, number)
        self.sent[number] = 0
        return True

    def _receive(self, connection):
        """Read what arrived; return False if the connection is closed."""
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.answers += data.count(b"HTTP/1.1 200")
        return bool(data)

    def _send(self, connection, number):
        kind, ticks = KINDS[number % len(KINDS)], self.sent[number]
        self.sent[number] = ticks + 1
        with suppress(OSError):
            if kind == "slow":
                connection.send(REQUEST[ticks % 20 :][:1])  # the headers never end
            elif kind == "keep-alive" and ticks % IDLE_TICKS == 0:
                connection.send(REQUEST)


def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = Connections(*map(int, sys.argv[1:]))
    with selectors.DefaultSelector() as stdin:
        stdin.register(sys.stdin, selectors.EVENT_READ)
        while not stdin.select(0):
            connections.tick()
            time.sleep(TICK)
    print(connections.answers)


if __name__ == "__main__":
    main()
