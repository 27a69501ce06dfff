"""A client that asks as fast as it is answered, over 64 connections, in a process of its own.

`python -m benchmarks.loader PORT KIND TOTAL` prints the rate and the quantiles of the time to an answer as JSON; the
kind `crowd` plays users of the magazine, as many at once as there are connections, from their first step to the last.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from departing.model.examples import magazine

CONNECTIONS = 64
ROWS = 500


def post(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(content), content)


class Asker(asyncio.Protocol):
    """Sends what `talk`, a generator of requests, wants to send, and gives it the answers."""

    def __init__(self, talk: Iterator[bytes], times: list[float], done: Callable[[], None]) -> None:
        self.talk, self.times, self.done, self.buffer = talk, times, done, b""

    def connection_made(self, transport) -> None:  # type: ignore[no-untyped-def]
        self.transport = transport
        self.say(next(self.talk, None))

    def say(self, request: bytes | None) -> None:
        if request is None:
            self.transport.close()
            self.done()
            return
        if not request:  # nothing to say yet
            asyncio.get_running_loop().call_later(0.02, lambda: self.say(next(self.talk, None)))
            return
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        fields = self.buffer[:head].lower()
        place = fields.find(b"content-length:")
        length = int(fields[place + 15 :].split(b"\r\n", 1)[0])
        if len(self.buffer) < head + 4 + length:
            return
        if b" 200" not in self.buffer[:20]:
            sys.exit(f"refused: {self.buffer!r}")
        answer, self.buffer = self.buffer[head + 4 : head + 4 + length], b""
        self.times.append(time.perf_counter() - self.started)
        try:
            self.say(self.talk.send(json.loads(answer)))  # type: ignore[attr-defined]
        except StopIteration:
            self.say(None)


def talks(kind: str, total: int) -> list[Iterator[bytes]]:
    """What each connection says."""
    counter = iter(range(total))
    if kind == "crowd":
        return [crowd(counter, np.random.default_rng(i)) for i in range(CONNECTIONS)]
    return [plain(kind, counter) for _ in range(CONNECTIONS)]


def plain(kind: str, counter: Iterator[int]) -> Iterator[bytes]:
    for i in counter:
        if kind == "echo":
            yield post("/", {"user": f"user {i % 20_000}"})
        elif kind == "recommend":
            yield post("/v1/recommend", {"user": f"user {i % 20_000}"})
        elif kind == "everybody":
            yield post("/v1/recommend", {"user": f"user {i}"})
        elif kind == "feedback":
            yield post("/v1/feedback", {"event": f"e-{i + 1}", "clicked": i % 3 == 0})
        else:
            rows = range(i * ROWS + 1, (i + 1) * ROWS + 1)
            yield post("/v1/feedback", [{"event": f"e-{row}", "clicked": row % 3 == 0} for row in rows])


def crowd(counter: Iterator[int], rng: np.random.Generator) -> Iterator[bytes]:
    site, begun = magazine(), time.perf_counter()
    for i in counter:
        while i > PACE * (time.perf_counter() - begun):  # not yet
            yield b""
        kind, gone = int(rng.choice(site.n_types, p=site.shares)), False
        while not gone:
            shown = yield post("/v1/recommend", {"user": f"crowd {i}"})
            chances = site.chances[site.category(shown["category"]), :, kind]
            outcome = int(np.searchsorted(chances.cumsum(), rng.random()))
            gone = outcome >= 2
            yield post("/v1/feedback", {"event": shown["event"], "clicked": outcome in (0, 3), "departed": gone})


PACE = 400  # users of a crowd who may come in a second


async def main(port: int, kind: str, total: int) -> None:
    loop, times, left = asyncio.get_running_loop(), list[float](), CONNECTIONS
    over = loop.create_future()

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set_result(None)

    started = time.perf_counter()
    for talk in talks(kind, total):
        await loop.create_connection(lambda talk=talk: Asker(talk, times, done), "127.0.0.1", port)
    await over
    seconds = time.perf_counter() - started
    quantiles = np.quantile(times, [0.5, 0.99])
    print(json.dumps({"rate": len(times) / seconds, "median": quantiles[0], "p99": quantiles[1]}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
