"""Memory of a service under steady load: `python -m benchmarks.soak MINUTES`.

Simulated users arrive, get recommendations, send feedback and depart, at 70 % of the measured capacity. The resident
memory is sampled; after a warm-up its slope, plus two standard errors, must be at most `MAX_SLOPE` MB per minute.
"""

import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread

import msgspec
import numpy as np

from benchmarks.loader import Load, post
from benchmarks.serve import LOAD_CORE, PLAN, SERVER_CORE, pinned, server_pid, serving

SHARE = 0.7  # of the capacity
DEPARTING = 0.2  # probability that a user departs after a step
WARM_UP = 0.3  # share of the time before the memory is judged: caches fill up to their limits
MAX_SLOPE = 1.0  # MB per minute; a leak of 100 bytes per request would be 40
SAMPLE_SECONDS = 1.0


class Visits:
    """Requests of users who come, and go with probability `DEPARTING` after each step."""

    def __init__(self) -> None:
        self._rng, self._users, self._feedback = Random(0), 0, deque[bytes]()
        self._active = deque[str]()
        self._event = msgspec.json.Decoder(msgspec.defstruct("Event", [("event", str)])).decode

    def requests(self, total: int) -> Iterator[bytes]:
        """Yield feedback as soon as there is an event for it, else requests of known and new users."""
        for _ in range(total):
            if self._feedback:
                yield self._feedback.popleft()
            else:
                yield post("/v1/recommend", {"user": self._next_user()})

    def _next_user(self) -> str:
        if self._active and self._rng.random() > DEPARTING:
            return self._active.popleft()
        self._users += 1
        return f"user {self._users}"

    def receive(self, request: bytes, body: bytes) -> None:
        """Prepare the feedback on a recommendation."""
        if not request.startswith(b"POST /v1/recommend"):
            return
        departed = self._rng.random() < DEPARTING
        event = self._event(body).event
        self._feedback.append(
            post("/v1/feedback", {"event": event, "clicked": self._rng.random() < 0.5, "departed": departed})
        )
        if not departed:
            self._active.append(msgspec.json.decode(request.partition(b"\r\n\r\n")[2])["user"])


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder, "soak.sqlite"), *PLAN, core=SERVER_CORE) as port,
        pinned(LOAD_CORE),
    ):
        visits, pid = Visits(), server_pid(port)
        warm = Load(port, 64, visits.requests(40_000), None, visits.receive)
        capacity = 40_000 / warm.run()
        rate = SHARE * capacity
        samples, stopped = list[tuple[float, float]](), Event()

        def sample() -> None:
            while not stopped.wait(SAMPLE_SECONDS):
                samples.append((time.monotonic(), resident(pid)))

        sampler = Thread(target=sample)
        sampler.start()
        load = Load(port, 64, visits.requests(int(60 * minutes * rate)), rate, visits.receive)
        seconds = load.run()
        stopped.set()
        sampler.join()
    at, memory = np.array(samples).T
    kept = at >= at[0] + WARM_UP * (at[-1] - at[0])
    slope, error = robust_slope((at[kept] - at[kept][0]) / 60, memory[kept])
    flat = slope + 2 * error <= MAX_SLOPE
    p50, p99 = 1e3 * np.quantile(load.latencies, [0.5, 0.99])
    failed = len(load.latencies) - load.statuses[b"200"]
    sent = f"{len(load.latencies) / seconds:,.0f} requests/s, 70 % of a capacity of {capacity:,.0f}/s"
    sizes = f"{memory[0]:.0f} MB at first, {memory[kept][0]:.0f} MB after the warm-up, {memory[-1]:.0f} MB at the end"
    print(
        f"Load test of {seconds / 60:.1f} minutes with {sent}: {failed:,} failed, latency median {p50:.1f} ms, p99 "
        f"{p99:.1f} ms. Memory {sizes}; slope {slope:+.2f} ± {2 * error:.2f} MB per minute: "
        f"{'flat' if flat else 'growing'}."
    )
    sys.exit(0 if flat and not failed else 1)


def robust_slope(minutes: np.ndarray, memory: np.ndarray) -> tuple[float, float]:
    """Slope in MB per minute by least squares, and its standard error from ten blocks, because samples depend."""
    blocks = [
        (x.mean(), y.mean()) for x, y in zip(np.array_split(minutes, 10), np.array_split(memory, 10), strict=True)
    ]
    x, y = np.array(blocks).T
    slope, level = np.polyfit(x, y, 1)
    residual = y - slope * x - level
    return float(slope), float(np.sqrt(residual @ residual / (len(x) - 2) / ((x - x.mean()) ** 2).sum()))


if __name__ == "__main__":
    main()
