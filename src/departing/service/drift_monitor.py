"""Monitor of drift: looks for changes in the store from time to time, and remembers those that were detected."""

import asyncio
import datetime as dt
import json
import logging
import time
from math import inf
from typing import Any

import msgspec
import numpy as np

from departing.service import messages as m
from departing.service.cohorts import DAY
from departing.service.drift import MAX_STRATA, Change, FirstOutcomes, find_change
from departing.service.event_log import log_event
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.base import Transaction, decode_user
from departing.service.store.connection import Database, Rows
from departing.service.uptime import MAX_GAPS, Gaps, read_gaps

MAX_WINDOW = DAY  # in which a first click and a second recommendation count, where the inactivity period is longer
MAX_USERS = 1 << 15  # of a sample; a look then takes about a second
MIN_PAUSE = 60.0  # seconds before the first look, and between two
LOAD_FACTOR = 100  # pause after a look, as a multiple of its duration: 1 % load
GROWTH = 1.01  # factor by which the users must grow until the next look
MAX_KEPT = 20  # detections
WARNING_SECONDS = 7 * DAY  # for which a detection is a warning, unless a policy is published after it
WRITE_DELAY = 1.0  # seconds within which all processes write


class DriftMonitor:
    """Looks for changes in the first recommendations of users since the start, or since the latest detection."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since = -1.0
        self._next_look, self._seen = time.monotonic() + MIN_PAUSE, 0
        service.add_warnings(self.warnings)

    def warnings(self) -> dict[str, str]:
        """Return a warning after a detection, until a policy is published or for a week."""
        service = self._service
        latest = service.drift[-1] if service.drift else None
        if latest is None or service.now() - latest.time > WARNING_SECONDS:
            return {}
        if service.rollout.state.current.created > latest.time:
            return {}
        return {f"drift_{latest.time:.0f}": f"{describe(latest)} {_next_step(service)}"}

    async def check(self) -> None:
        """Adopt what was detected by any process, and look for a change if it is time."""
        rows = await self._service.store.transaction(
            lambda tx: tx.rows(queries.SETTING, queries.DRIFT_KEY), durable=False
        )
        self._adopt(rows)
        if time.monotonic() < self._next_look:
            return
        started = time.monotonic()
        found = await asyncio.to_thread(self._look)
        ended = time.monotonic()
        self._next_look = ended + max(MIN_PAUSE, LOAD_FACTOR * (ended - started))
        if found is not None:
            await self._record(found)

    def _adopt(self, rows: Rows) -> None:
        """Adopt the stored state."""
        state: dict[str, Any] = json.loads(rows[0][0]) if rows else {"since": 0.0, "detections": []}
        if state["since"] != self._since:
            self._since, self._seen = state["since"], 0
        self._service.drift = msgspec.convert(state["detections"], list[m.Drift])

    def _look(self) -> Change | None:
        with self._service.store.read() as snapshot:
            window = min(self._service.settings.inactive_after, MAX_WINDOW)
            rows = snapshot.execute(queries.HEARTBEAT)
            # Downtime is known until the latest heartbeat, and since the first gap if earlier ones were dropped.
            stored: dict[str, str] = dict(rows)
            gaps, heartbeat = read_gaps(rows), float(stored.get(queries.HEARTBEAT_KEY, inf))
            since = max(self._since, gaps[0][0]) if len(gaps) == MAX_GAPS else self._since
            now = min(self._service.now(), heartbeat)
            until = now - window - WRITE_DELAY - self._service.store.oldest_unwritten
            ((last,),) = snapshot.execute(queries.LATEST_USER)
            starts = snapshot.execute(queries.FIRST_ARRIVAL_SINCE, since)
            first = starts[0][0] if starts else last + 1
            if last + 1 - first < GROWTH * self._seen:
                return None
            level = max((last - first) // MAX_USERS, 0).bit_length()
            outcomes = first_outcomes(snapshot, first, 1 << level, last, since, until, window)
            self._seen = last + 1 - first
        outcomes = outside_gaps(outcomes, gaps, window)
        return find_change(outcomes, level) if len(outcomes.time) else None

    async def _record(self, change: Change) -> None:
        """Store a detection, unless another process did; the next looks start from here."""

        def record(tx: Transaction) -> m.Drift | None:
            if tx.store.shared:
                tx.lock_settings()
            before = self._since
            self._adopt(tx.rows(queries.SETTING, queries.DRIFT_KEY))
            if self._since != before:
                return None
            now, names = self._service.now(), self._service.rollout.state.names
            name, rates = names[change.category], (change.before, change.after)
            drift = m.Drift(now, name, change.outcome, *rates, change.since)
            detections = [*self._service.drift, drift][-MAX_KEPT:]
            document: dict[str, Any] = {"since": now, "detections": msgspec.to_builtins(detections)}
            tx.write(queries.SET, queries.DRIFT_KEY, json.dumps(document))
            tx.count("drift_detections")
            return drift

        drift = await self._service.store.transaction(record)
        if drift is not None:
            self._since, self._seen = drift.time, 0
            self._service.drift = [*self._service.drift, drift][-MAX_KEPT:]
            fields = msgspec.to_builtins(drift) | {"detected": drift.time}
            del fields["time"]
            log_event("drift_detected", logging.WARNING, **fields)


def first_outcomes(
    snapshot: Database, first: int, every: int, last: int, since: float, until: float, window: float
) -> FirstOutcomes:
    """Read the first recommendations of every n-th user who arrived after `since` and until `until`.

    A user departed after the first recommendation if there is no second one within the window. Recommendations of the
    caller and of users who returned do not count: they depend on more than the segment.
    """
    rows = snapshot.execute(queries.SAMPLED_FIRST, first, every, last, window, since, until) if first <= last else []
    strata: dict[str | None, int] = {}
    figures = []
    for state, arrived, segment, category, clicked, second in rows:
        if decode_user(state).previous < 0:
            stratum = strata.setdefault(segment, min(len(strata), MAX_STRATA))
            departed = second is None or second > arrived + window
            figures.append((arrived, category, stratum, clicked, departed))
    columns = np.array(figures, float).reshape(-1, 5).T
    category, stratum = columns[1:3].astype(np.int64)
    return FirstOutcomes(columns[0], category, stratum, columns[3] > 0, columns[4] > 0)


def outside_gaps(data: FirstOutcomes, gaps: Gaps, window: float) -> FirstOutcomes:
    """Leave out users whose window after the arrival overlaps a gap: they could not click or come back in it."""
    kept = np.ones(len(data.time), bool)
    for start, end in gaps:
        kept &= (data.time + window <= start) | (data.time >= end)
    return FirstOutcomes(*(values[kept] for values in vars(data).values()))


def describe(drift: m.Drift) -> str:
    """Describe a detection in one sentence."""
    since = dt.datetime.fromtimestamp(drift.since, dt.UTC).isoformat(" ", "minutes")
    return (
        f"Drift: the {drift.outcome} rate of {drift.category!r:.60} at the first recommendation changed from "
        f"{drift.before:.1%} to {drift.after:.1%} at about {since}."
    )


def _next_step(service: Service) -> str:
    if service.settings.learn:
        return "A new version follows; restart with a shorter --half-life if old users should count less."
    return "Fit a new instance to recent users (departing fit --half-life DURATION), or restart with --learn."
