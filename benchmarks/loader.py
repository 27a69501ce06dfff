"""A client that asks as fast as it is answered, over 64 connections, in a process of its own.

`python -m benchmarks.loader PORT KIND TOTAL` prints the rate and the quantiles of the time to an answer as JSON; the
kind `crowd` plays users of the magazine, as many at once as there are connections, from their first step to the last.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Iterator

import numpy as np

from departing.model.examples import magazine
from departing.serving.crowd import Crowd, Talk, best_of, converse, post

CONNECTIONS = 64
ROWS = 500
PACE = 400  # users of a crowd who may come in a second


def talks(kind: str, total: int) -> list[Talk]:
    """What each connection says."""
    if kind == "crowd":
        crowd = Crowd(magazine(), total, best_of(magazine())[1], PACE)
        return [crowd.talk() for _ in range(CONNECTIONS)]
    counter = iter(range(total))
    return [plain(kind, counter) for _ in range(CONNECTIONS)]


def plain(kind: str, counter: Iterator[int]) -> Talk:
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


async def main(port: int, kind: str, total: int) -> None:
    said, times = talks(kind, total), array("d")
    started = time.perf_counter()
    await converse(f"http://127.0.0.1:{port}", said, times)
    seconds = time.perf_counter() - started
    quantiles = np.quantile(times, [0.5, 0.99])
    print(json.dumps({"rate": len(times) / seconds, "median": quantiles[0], "p99": quantiles[1]}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
