"""A client that asks as fast as it is answered, over 64 connections, in a process of its own.

`python -m benchmarks.loader PORT KIND TOTAL` prints the rate and the quantiles of the time to an answer as JSON.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Iterator

import numpy as np

from departing.loadtest.connection import Talk, converse, post

CONNECTIONS = 64
ROWS = 500


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
    counter, times = iter(range(total)), array("d")
    said = [plain(kind, counter) for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    await converse(f"http://127.0.0.1:{port}", said, times)
    seconds = time.perf_counter() - started
    quantiles = np.quantile(times, [0.5, 0.99])
    print(json.dumps({"rate": len(times) / seconds, "median": quantiles[0], "p99": quantiles[1]}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
