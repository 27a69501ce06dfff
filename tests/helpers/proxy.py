"""A proxy before a PostgreSQL server that loses connections at a chosen moment."""

import select
import socket
import threading
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections; once armed, it loses a connection around the next COMMIT.

    `lose("before")` drops the COMMIT, `lose("after")` forwards it and drops the response, `lose(function)` forwards
    it and calls the function once the server has responded, for example to kill the server.
    """

    def __init__(self, port):
        self._target, self._lose, self._stop = port, None, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.lost = self._listener.getsockname()[1], 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose(self, how):
        self._lose = how

    def address(self, address):
        """The address of a database through the proxy."""
        return address.replace(f":{self._target}/", f":{self.port}/")

    def _accept(self):
        while not self._stop.is_set():
            if select.select([self._listener], [], [], 0.1)[0]:
                client = self._listener.accept()[0]
                self._threads.append(threading.Thread(target=self._forward, args=(client,), daemon=True))
                self._threads[-1].start()

    def _forward(self, client):
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            while not self._stop.is_set():
                for end in select.select([client, server], [], [], 0.1)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is client and self._lose is not None and b"COMMIT" in data:
                        how, self._lose = self._lose, None
                        self.lost += 1
                        if how != "before":
                            server.sendall(data)
                            server.recv(1 << 16)  # the response: the commit is on disk
                        if callable(how):
                            how()
                        return
                    (server if end is client else client).sendall(data)

    def close(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()


@contextmanager
def proxy(server):
    """A proxy before a `Postgres`."""
    opened = Proxy(server.port)
    try:
        yield opened
    finally:
        opened.close()
