"""Figures of the dashboard, read from a snapshot of the store in a thread, at most once a second."""

import asyncio
import time
from math import sqrt

import msgspec
import numpy as np

from departing.fitting.type_description import describe_type
from departing.model.instance import CLICK_DEPART, DEPART, Instance
from departing.service import messages as m
from departing.service.export import history_events
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.connection import Database
from departing.service.user import counts_array

RECENT_USERS = 20_000  # users in the statistics: enough for a standard error below 1 %, read in milliseconds
MAX_STEPS = 20  # of the survival curve
RECENT_EVENTS = 8  # rows of the table, as many as fit beside the charts
TIME_BINS = 30  # of the chart of clicks, from the first departure of a recent user to now
MAX_LEARNING_POINTS = 300  # versions of the learning curve, about one per pixel
CACHE_SECONDS = 1.0  # for which figures are reused


class DashboardReader:
    """Reads the figures of a service, and caches them for a second."""

    def __init__(self, service: Service, learning: bool = False) -> None:
        self._service, self._learning = service, learning
        self._figures: m.Dashboard | None = None
        self._read_at, self._lock = 0.0, asyncio.Lock()

    async def read(self) -> m.Dashboard:
        """Return the current figures."""
        async with self._lock:
            if self._figures is None or time.monotonic() - self._read_at > CACHE_SECONDS:
                policy, totals = await self._service.policy(), await self._service.totals()
                self._figures = await asyncio.to_thread(self._read, policy, totals)
                self._read_at = time.monotonic()
        return self._figures

    def _read(self, policy: m.PolicyVersionInfo, totals: dict[str, int]) -> m.Dashboard:
        state, now = self._service.rollout.state, self._service.now()
        instance, tree = state.current.instance, state.current.details.get("tree")
        with self._service.store.read() as snapshot:
            names = [name for name, _ in snapshot.execute(queries.CATEGORIES)]
            ((users, departed),) = snapshot.execute(queries.USER_TOTALS)
            ((latest,),) = snapshot.execute(queries.LATEST_USER)
            since = latest - RECENT_USERS
            activity = enumerate(zip(names, _category_activity(snapshot, since, len(names)), strict=True))
            return m.Dashboard(
                now,
                users,
                users - int(departed),
                totals,
                [m.CategoryActivity(name, a in state.retired, *counts) for a, (name, counts) in activity],
                [] if instance is None else _types(instance),
                self._learning,
                state.shadow,
                policy,
                None if tree is None else msgspec.convert(tree, m.Branch),
                _clicks_over_time(snapshot, since, now),
                self._learning_curve(),
                _survival(snapshot, since),
                history_events(snapshot.execute(queries.LATEST_HISTORY, RECENT_EVENTS), names),
            )

    def _learning_curve(self) -> list[m.LearningPoint]:
        """Return the bounds and the expected regret of each learned version when it was published."""
        versions = sorted(self._service.rollout.state.versions.items())
        learned = [version for _, version in versions if version.details.get("loss") is not None]
        points = []
        for version in learned[-MAX_LEARNING_POINTS:]:
            users, loss = version.details.get("users", 0), version.details["loss"]
            bounds = version.details.get("lower"), version.details.get("upper")
            points.append(m.LearningPoint(version.number, version.created, users, *bounds, loss))
        return points


def _types(instance: Instance) -> list[m.TypeShare]:
    return [
        m.TypeShare(name, share, describe_type(instance, x).partition(": ")[2])
        for x, (name, share) in enumerate(zip(instance.types, instance.prior.tolist(), strict=True))
    ]


def _category_activity(snapshot: Database, since: int, n_categories: int) -> list[tuple[int, int]]:
    """Return the impressions of each category among recent users, and the departures right after them."""
    counts = np.zeros((n_categories, 4), np.int64)
    for blob, users in snapshot.execute(queries.RECENT_COUNTS, since):
        counts += users * counts_array(msgspec.msgpack.decode(blob), n_categories)
    return list(zip(counts.sum(axis=1).tolist(), counts[:, [DEPART, CLICK_DEPART]].sum(axis=1).tolist(), strict=True))


def _survival(snapshot: Database, since: int) -> list[float]:
    """Return the share of departed recent users with at least 0, 1, … steps."""
    rows = snapshot.execute(queries.RECENT_STEPS, since)
    survivors = [sum(users for steps, users in rows if steps >= step) for step in range(MAX_STEPS + 1)]
    return [count / survivors[0] if survivors[0] else 1.0 for count in survivors]


def _clicks_over_time(snapshot: Database, since: int, now: float) -> list[m.ClicksBin]:
    """Return clicks per user of departed recent users, by time of departure and version."""
    ((first,),) = snapshot.execute(queries.FIRST_DEPARTURE, since)
    if first is None:
        return []
    width = max(now - first, 1.0) / TIME_BINS
    bins = []
    for row in snapshot.execute(queries.CLICKS_OVER_TIME, first, int(1000 * width), since):
        span, version, n, clicks, squares = map(int, row)
        mean = clicks / n
        margin = 1.96 * sqrt(max(squares / n - mean**2, 0.0) / max(n - 1, 1))
        middle = first + (span + 0.5) * width
        bins.append(m.ClicksBin(middle, version, n, mean, max(mean - margin, 0.0), mean + margin))
    return bins
