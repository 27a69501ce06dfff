"""Figures of the dashboard, read from a snapshot of the store in a thread, at most once a second."""

import asyncio
import time
from math import sqrt

import msgspec

from departing.fitting.type_description import describe_type
from departing.model.instance import Instance
from departing.service import messages as m
from departing.service.export import history_events
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.connection import Database

RECENT_USERS = 20_000  # users of the statistics: enough for a standard error below 1 %, read in milliseconds
MAX_STEPS = 20  # of the survival curve
RECENT_EVENTS = 8  # rows of the table, as many as fit beside the charts
TIME_BINS = 30  # of the chart of clicks, from the first departure of a recent user to now
MAX_LEARNING_POINTS = 300  # versions of the learning curve, about one per pixel
CACHE_SECONDS = 1.0  # for which figures are reused


class DashboardReader:
    """Reads the figures of a service, and keeps them for a second."""

    def __init__(self, service: Service, learning: bool = False) -> None:
        self._service, self._learning = service, learning
        self._figures: m.Dashboard | None = None
        self._read_at, self._lock = 0.0, asyncio.Lock()

    async def read(self) -> m.Dashboard:
        """Return the present figures."""
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
        learned = [
            (version, version.details)
            for _, version in sorted(self._service.rollout.state.versions.items())
            if version.details.get("loss") is not None
        ]
        return [
            m.LearningPoint(
                *(version.number, version.created, details.get("users", 0)),
                *(details.get("lower"), details.get("upper"), details["loss"]),
            )
            for version, details in learned[-MAX_LEARNING_POINTS:]
        ]


def _types(instance: Instance) -> list[m.TypeShare]:
    return [
        m.TypeShare(name, share, describe_type(instance, x).partition(": ")[2])
        for x, (name, share) in enumerate(zip(instance.types, instance.prior.tolist(), strict=True))
    ]


def _category_activity(snapshot: Database, since: int, n_categories: int) -> list[tuple[int, int]]:
    """Return how often each category was shown to recent users, and how often they departed right after it."""
    shown, departures = [0] * n_categories, [0] * n_categories
    for blob, users in snapshot.execute(queries.RECENT_COUNTS, since):
        for index, count in enumerate(msgspec.msgpack.decode(blob)[: 4 * n_categories]):
            category, outcome = divmod(index, 4)
            shown[category] += count * users
            departures[category] += count * users if outcome >= 2 else 0
    return list(zip(shown, departures, strict=True))


def _survival(snapshot: Database, since: int) -> list[float]:
    """Return the share of departed recent users with at least 0, 1, … steps."""
    survivors = [0] * (MAX_STEPS + 1)
    for steps, users in snapshot.execute(queries.RECENT_STEPS, since):
        for step in range(min(steps, MAX_STEPS) + 1):
            survivors[step] += users
    return [count / survivors[0] if survivors[0] else 1.0 for count in survivors]


def _clicks_over_time(snapshot: Database, since: int, now: float) -> list[m.ClicksBin]:
    """Return clicks per user of departed recent users, by time of departure and version."""
    ((first,),) = snapshot.execute(queries.FIRST_DEPARTURE, since)
    if first is None:
        return []
    width = max(now - first, 1.0) / TIME_BINS
    rows = snapshot.execute(queries.CLICKS_OVER_TIME, first, int(1000 * width), since)
    return [_clicks_bin(first + (span + 0.5) * width, *map(int, rest)) for span, *rest in rows]


def _clicks_bin(time: float, version: int, n: int, clicks: int, squares: int) -> m.ClicksBin:
    mean = clicks / n
    stderr = sqrt(max(squares / n - mean**2, 0.0) / max(n - 1, 1))
    return m.ClicksBin(time, version, n, mean, max(mean - 1.96 * stderr, 0.0), mean + 1.96 * stderr)
