"""A load generator on one thread: prepared requests, plain sockets, no HTTP library.

`python -m benchmarks.loader PORT KIND TOTAL [--connections N] [--rate R] [--events FILE] [--rows N] [--wait]` prints
the request rate and quantiles of the latency as JSON. Without a rate each connection sends its next request as soon
as it has a response (closed loop). With one, requests are due at fixed times whatever the server does (open loop).
A latency then counts from the time that a request was due. `recommend` writes the event IDs to a file that `feedback`
and `batch` read. With `--wait` it prints a line when all requests are prepared, and sends them after it has read one.
"""

import argparse
import json
import resource
import select
import socket
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

ROWS = 500  # of one batch
USERS = 20_000  # who take turns
MAX_PREPARED = 500_000  # requests that are encoded before the first one is sent
BUFFER = 1 << 18  # bytes; larger than the response to a batch


def post(path: str, body: object) -> bytes:
    """Return a POST request."""
    content = msgspec.json.encode(body)
    return b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (
        path.encode(),
        len(content),
        content,
    )


def requests(kind: str, total: int, events: list[str], n_rows: int = ROWS) -> Iterator[bytes]:
    """Yield the requests of one kind."""
    if kind == "echo":
        yield from (post("/", {"user": f"user {i % USERS}"}) for i in range(total))
    elif kind == "recommend":
        yield from (post("/v1/recommend", {"user": f"user {i % USERS}"}) for i in range(total))
    elif kind == "everybody":
        yield from (post("/v1/recommend", {"user": f"user {i}"}) for i in range(total))
    elif kind == "feedback":
        for i, event in enumerate(islice(events, total)):
            yield post("/v1/feedback", {"event": event, "clicked": i % 3 == 0})
    else:
        for i in range(0, n_rows * total, n_rows):
            rows = [{"event": event, "clicked": j % 3 == 0} for j, event in enumerate(events[i : i + n_rows])]
            yield post("/v1/feedback", rows)


class Load:
    """Requests over many connections, one at a time on each, with the latencies of the responses.

    `receive` is called with each request and the body of its response.
    """

    def __init__(
        self,
        port: int,
        connections: int,
        queue: Iterator[bytes],
        rate: float | None,
        receive: Callable[[bytes, bytes], None] | None = None,
    ) -> None:
        self._queue, self._interval, self._callback = queue, None if rate is None else 1 / rate, receive
        self._poll, self._idle = select.epoll(), deque[socket.socket]()
        self._sockets = {}
        for _ in range(connections):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)
            self._idle.append(connection)
        self._sent, self._parts = dict[int, tuple[float, bytes]](), dict[int, bytes]()
        self.latencies = array("d")
        self.statuses = Counter[bytes]()

    def run(self) -> float:
        """Send everything; return the seconds that it took."""
        began = due = time.perf_counter()
        more = True
        while more or self._sent:
            while more and self._idle and (self._interval is None or due <= time.perf_counter()):
                item = next(self._queue, None)
                more = item is not None
                if item is not None:
                    self._send(item, due)
                    due += self._interval or 0.0
            if not more and not self._sent:
                break
            waits = more and self._interval is not None and bool(self._idle)
            for number, _ in self._poll.poll(max(due - time.perf_counter(), 0.0) if waits else None):
                self._receive(number)
        return time.perf_counter() - began

    def _send(self, item: bytes, due: float) -> None:
        connection = self._idle.popleft()
        self._sent[connection.fileno()] = time.perf_counter() if self._interval is None else due, item
        connection.sendall(item)

    def _receive(self, number: int) -> None:
        data = self._sockets[number].recv(BUFFER)
        if not data:
            raise ConnectionError("The server closed a connection.")
        data = self._parts.pop(number, b"") + data
        head = data.find(b"\r\n\r\n")
        length = data.find(b"content-length: ")
        if head < 0 or len(data) < head + 4 + int(data[length + 16 : data.index(b"\r", length)]):
            self._parts[number] = data
            return
        since, request = self._sent.pop(number)
        self.latencies.append(time.perf_counter() - since)
        self.statuses[data[9:12]] += 1
        if self._callback is not None and data.startswith(b"HTTP/1.1 200"):
            self._callback(request, data[head + 4 :])
        self._idle.append(self._sockets[number])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("kind")
    parser.add_argument("total", type=int)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--events", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--wait", action="store_true")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    keep, bodies = given.kind == "recommend" and given.events is not None, list[bytes]()
    events = [] if given.events is None or keep else json.loads(given.events.read_text())
    queue = requests(given.kind, given.total, events, given.rows)
    prepared = iter(list(queue)) if given.total <= MAX_PREPARED else queue
    receive = (lambda _, body: bodies.append(body)) if keep else None
    load = Load(given.port, given.connections, prepared, given.rate, receive)
    if given.wait:
        print("ready", flush=True)
        input()
    before = time.process_time()
    seconds = load.run()
    own = (time.process_time() - before) / len(load.latencies)
    if keep:
        given.events.write_text(json.dumps([json.loads(body)["event"] for body in bodies]))
    p50, p99 = np.quantile(load.latencies, [0.5, 0.99]).tolist()
    failed = len(load.latencies) - load.statuses[b"200"]
    rate = load.statuses[b"200"] / seconds
    print(json.dumps({"rate": rate, "median": p50, "p99": p99, "own": own, "failed": failed}))


if __name__ == "__main__":
    main()
