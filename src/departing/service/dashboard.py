"""Figures of the dashboard, read from a snapshot of the store in a thread, at most once a second."""

import asyncio
import time
from math import inf
from typing import NamedTuple

import msgspec

from departing.fitting.type_description import describe_type
from departing.model.instance import CLICKS, Instance
from departing.service import messages as m
from departing.service.cohorts import CALLER
from departing.service.export import history_events
from departing.service.follow_up import UserSample
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.connection import Database

RECENT_STEPS = 20_000  # latest recommendations in which categories are looked for
RECENT_EVENTS = 8  # rows of the table, as many as fit beside the charts
MAX_LEARNING_POINTS = 300  # versions of the learning curve, about one per pixel
CACHE_SECONDS = 1.0  # for which figures are reused
STATISTICS_FACTOR = 20  # the same for statistics, as a multiple of the time that they take: 5 % load
WRITE_DELAY = 1.0  # seconds within which other workers write; what this one has not written is known


class DashboardReader:
    """Reads the figures of a service, and caches them."""

    def __init__(self, service: Service, learning: bool = False) -> None:
        self._service, self._learning = service, learning
        self._figures: m.Dashboard | None = None
        self._statistics: _Statistics | None = None
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
            ((active,),) = snapshot.execute(queries.ACTIVE_USERS)
            current = CALLER if state.shadow else policy.version
            rewarded = totals.get("rewarded_clicks", 0) > 0
            statistics = self._read_statistics(snapshot, len(names), current, instance, rewarded, now)
            categories = zip(names, statistics.outcomes, statistics.shown, strict=True)
            return m.Dashboard(
                now,
                totals.get("new_users", 0),
                active,
                totals,
                [
                    m.CategoryActivity(name, a in state.retired, *outcomes, shown)
                    for a, (name, outcomes, shown) in enumerate(categories)
                ],
                [] if instance is None else _types(instance),
                statistics.segments,
                self._service.drift,
                self._learning,
                state.shadow,
                None if state.running is None else state.running.id,
                policy,
                None if tree is None else msgspec.convert(tree, m.Branch),
                statistics.follow_up,
                statistics.settled_after,
                self._learning_curve(),
                history_events(snapshot.execute(queries.LATEST_HISTORY, RECENT_EVENTS), names),
                self._service.warnings(),
            )

    def _read_statistics(
        self,
        snapshot: Database,
        n_categories: int,
        version: int,
        instance: Instance | None,
        rewarded: bool,
        now: float,
    ) -> "_Statistics":
        started = time.monotonic()
        last = self._statistics
        if last is not None and started < last.expires and len(last.shown) == n_categories:
            return last
        period = self._service.settings.inactive_after
        delay = 0.0 if period == inf else now - self._service.uptime.cutoff(now, period)
        known_until = now - WRITE_DELAY - self._service.store.oldest_unwritten
        unit = self._service.unit if rewarded else CLICKS
        sample = UserSample.read(snapshot, known_until, delay, unit)
        cohort = sample.cohort()
        figures = (
            sample.follow_up(cohort, version),
            sample.segments(cohort, instance),
            sample.window + sample.delay,
            sample.outcomes(n_categories),
        )
        shown = _shown(snapshot, n_categories)
        ended = time.monotonic()
        self._statistics = _Statistics(*figures, shown, ended + STATISTICS_FACTOR * (ended - started))
        return self._statistics

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


class _Statistics(NamedTuple):
    """Figures that take longer to read."""

    follow_up: m.FollowUp
    segments: list[m.SegmentActivity]
    settled_after: float
    outcomes: list[tuple[int, int]]
    shown: list[bool | None]
    expires: float


def _types(instance: Instance) -> list[m.TypeShare]:
    return [
        m.TypeShare(name, share, describe_type(instance, x).partition(": ")[2])
        for x, (name, share) in enumerate(zip(instance.types, instance.prior.tolist(), strict=True))
    ]


def _shown(snapshot: Database, n_categories: int) -> list[bool | None]:
    """Return whether each category was shown; None for one that was not shown recently."""
    ((next_event,),) = snapshot.execute(queries.NEXT_EVENT)
    since = next_event - 1 - RECENT_STEPS
    recent = {category for (category,) in snapshot.execute(queries.CATEGORIES_SINCE, since)}
    otherwise = None if since > 0 else False
    return [True if a in recent else otherwise for a in range(n_categories)]
