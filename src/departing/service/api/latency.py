"""Latency histograms of requests, by route and status class, summed over the workers of one command."""

import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from departing.service.workers.supervisor import METRICS, WORKER

# Upper bounds of the buckets in seconds: Prometheus' usual ones, continued below 5 ms, where most requests are.
BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
OTHER = ("other", "other")  # method and path of requests without a route
NAME = "departing_request_duration_seconds"
_NANOSECONDS = tuple(round(1e9 * bound) for bound in BOUNDS)
_SUM = len(BOUNDS) + 1  # position of the sum of durations, after the buckets and the one without a bound
_WIDTH = _SUM + 1
SLOT = 1 << 17  # bytes of one worker
MAX_ROUTES = SLOT // (8 * len(CLASSES) * _WIDTH)  # 192, `OTHER` included


def shared_file(workers: int) -> int:
    """Return the descriptor of a file, without a name, in which this number of workers count."""
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), workers * SLOT)
        return os.dup(file.fileno())


class Latency:
    """Histograms of request durations, in memory that the workers of one command share.

    Parameters
    ----------
    routes
        Method and path of each route, fewer than `MAX_ROUTES`.
    """

    def __init__(self, routes: Sequence[tuple[str, str]]) -> None:
        if len(routes) >= MAX_ROUTES:  # they would count in the slot of another worker
            raise ValueError(f"There are {len(routes)} routes; expected fewer than {MAX_ROUTES}. Increase SLOT.")
        index, _, workers = os.environ.get(WORKER, "0/1").partition("/")
        descriptor = int(os.environ.get(METRICS, "-1"))
        memory = mmap.mmap(descriptor, int(workers) * SLOT if descriptor >= 0 else SLOT)
        cells = memoryview(memory).cast("Q")
        n = SLOT // 8
        self._slots = [cells[i : i + n] for i in range(0, len(cells), n)]
        self._own = self._slots[int(index) if descriptor >= 0 else 0]
        self._offsets = {route: len(CLASSES) * _WIDTH * i for i, route in enumerate([*routes, OTHER])}

    def observe(self, method: str, path: str, status: int, nanoseconds: int) -> None:
        """Count a request; one without a route counts as `OTHER`."""
        offset = self._offsets.get((method, path))
        if offset is None:
            offset = self._offsets[OTHER]
        own, start = self._own, offset + (status // 100 - 1) * _WIDTH
        own[start + bisect_left(_NANOSECONDS, nanoseconds)] += 1
        own[start + _SUM] += nanoseconds

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format of Prometheus, of routes and status classes that occurred."""
        yield f"# HELP {NAME} Time from the start of a request's handling to its response."
        yield f"# TYPE {NAME} histogram"
        for (method, path), offset in self._offsets.items():
            for i, status in enumerate(CLASSES):
                start = offset + i * _WIDTH
                values = [sum(slot[start + j] for slot in self._slots) for j in range(_WIDTH)]
                if not any(values[:_SUM]):
                    continue
                labels = f'method="{method}",route="{path}",status="{status}"'
                count = 0
                for bound, value in zip((*BOUNDS, "+Inf"), values[:_SUM], strict=True):
                    count += value
                    yield f'{NAME}_bucket{{{labels},le="{bound}"}} {count}'
                yield f"{NAME}_sum{{{labels}}} {values[_SUM] / 1e9:.9f}"
                yield f"{NAME}_count{{{labels}}} {count}"
