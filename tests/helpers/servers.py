"""Servers for tests: `departing serve` as a child process on a free port."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from departing.client import Client


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def children(pid):
    """Running child processes of a process."""
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []


def descendants(pid):
    """Children of a process, and their descendants."""
    found = children(pid)
    return found + [one for child in found for one in descendants(child)]


def command_of(pid):
    """The command line of a process, empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


class Running:
    """A server that can be stopped, killed and restarted on the same store."""

    def __init__(self, folder, *options, environment=None, store=None, setup=""):
        self.folder, self.options, self.environment, self.setup = folder, options, environment or {}, setup
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.store = store or folder / "store.sqlite"
        self.process = None

    def start(self):
        code = f"{self.setup}\nfrom departing.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--store", self.store, "--port", self.port, *self.options]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stderr=log, env=os.environ | self.environment
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError((self.folder / "log.txt").read_text())
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.05)
        raise AssertionError("the server does not listen")

    def kill(self):
        """Kill the server and all of its processes at once, as a power failure would."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while self.listeners():  # workers die a moment later; a new server must not be taken for them
            time.sleep(0.01)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0

    def listeners(self):
        """The number of processes that listen on the port."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)

    def client(self, key=None):
        return Client(self.url, key)


@contextmanager
def serving(folder, *options, environment=None, store=None, setup=""):
    """A running server; `setup` is Python code that it runs first, such as one that changes a time limit."""
    server = Running(folder, *options, environment=environment, store=store, setup=setup).start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def request(server, path, body=None, method=None, key=None, headers=None):
    """The status and the body of a response."""
    headers = (headers or {}) | ({"authorization": f"Bearer {key}"} if key else {})
    sent = urllib.request.Request(server.url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(sent) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
