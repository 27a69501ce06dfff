"""A load generator: 64 connections, each sending its next request as soon as it has a response.

`python -m benchmarks.loader PORT KIND TOTAL` prints the request rate and quantiles of the latency as JSON.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Iterator

import numpy as np

from departing.loadtest.connection import Session, post_request, run_sessions

CONNECTIONS = 64
ROWS = 500


def session(kind: str, counter: Iterator[int]) -> Session:
    for i in counter:
        if kind == "echo":
            yield post_request("/", {"user": f"user {i % 20_000}"})
        elif kind == "recommend":
            yield post_request("/v1/recommend", {"user": f"user {i % 20_000}"})
        elif kind == "everybody":
            yield post_request("/v1/recommend", {"user": f"user {i}"})
        elif kind == "feedback":
            yield post_request("/v1/feedback", {"event": f"e-{i + 1}", "clicked": i % 3 == 0})
        else:
            rows = range(i * ROWS + 1, (i + 1) * ROWS + 1)
            yield post_request("/v1/feedback", [{"event": f"e-{row}", "clicked": row % 3 == 0} for row in rows])


async def main(port: int, kind: str, total: int) -> None:
    counter, latencies = iter(range(total)), array("d")
    sessions = [session(kind, counter) for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    await run_sessions(f"http://127.0.0.1:{port}", sessions, latencies)
    seconds = time.perf_counter() - started
    quantiles = np.quantile(latencies, [0.5, 0.99])
    print(json.dumps({"rate": len(latencies) / seconds, "median": quantiles[0], "p99": quantiles[1]}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
