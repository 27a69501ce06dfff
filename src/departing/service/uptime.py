"""Times in which users could not be seen: downtime, and a clock that was set ahead.

Inactivity counts uptime only. The store keeps a heartbeat; a gap after it is downtime of the service or its database,
or the clock has jumped ahead. Both look alike, and neither makes a user inactive.
"""

import datetime as dt
import json
import logging

from departing.model.errors import InputError
from departing.service.departures import duration
from departing.service.event_log import log_event
from departing.service.store import queries
from departing.service.store.base import Transaction
from departing.service.store.connection import Database, Rows

HEARTBEAT_SECONDS = 60.0  # between writes of the heartbeat; one small commit a minute
MIN_GAP = 300.0  # seconds: longer than a restart, and than the clocks of two hosts differ
MAX_GAPS = 1000  # the latest ones are kept: one a night of almost three years; every sweep reads them in under 1 ms
WARNING_SECONDS = 86400.0  # a gap of this length, or the time since, is worth a warning
Gaps = list[tuple[float, float]]  # start and end, in order


def cutoff_time(gaps: Gaps, now: float, period: float) -> float:
    """Return the time that is `period` seconds of uptime before `now`."""
    time = now - period
    for start, end in reversed(gaps):
        if time >= end:
            break
        time -= end - start
    return time


def read_gaps(rows: Rows) -> Gaps:
    """Return the stored gaps from the rows of the heartbeat; an empty list if there are none."""
    stored: dict[str, str] = dict(rows)
    return [(start, end) for start, end in json.loads(stored.get(queries.GAPS_KEY, "[]"))]


def latest_time(snapshot: Database) -> float:
    """Return the latest time in a store: the service's clock, as far as another process can know it.

    The clock of that process may differ, because the service does not follow changes of the system time.
    """
    times = [float(value) for key, value in snapshot.execute(queries.HEARTBEAT) if key == queries.HEARTBEAT_KEY]
    times += [time for query in queries.LATEST_TIMES for (time,) in snapshot.execute(query) if time is not None]
    return max(times, default=0.0)


class Uptime:
    """Gaps in the uptime of a store, the same for all processes that serve from it."""

    def __init__(self) -> None:
        self._gaps: Gaps = []

    def cutoff(self, now: float, period: float) -> float:
        """Return the time that is `period` seconds of uptime before `now`."""
        return cutoff_time(self._gaps, now, period)

    def start(self, tx: Transaction, now: float, accept_clock: bool = False) -> None:
        """Compare the clock with the latest time in the store; raise if the clock is behind.

        With `accept_clock` the time in the store counts as wrong.
        """
        latest = self._heartbeat(tx)
        if latest is None:  # a new store, or one of an earlier release
            times = [time for query in queries.LATEST_TIMES for (time,) in tx.rows(query) if time is not None]
            latest = max(times, default=now)
        if now < latest - MIN_GAP:
            behind = duration(latest - now)
            if not accept_clock:
                raise InputError(
                    f"The clock says {_utc(now)}, but the store has records until {_utc(latest)}: the clock is "
                    f"{behind} behind, or it was ahead before. Set the clock; if it is right now, start with "
                    "--accept-clock."
                )
            log_event("clock_accepted", logging.WARNING, clock=_utc(now), store=_utc(latest), behind=behind)
            self._write(tx, [gap for gap in self._gaps if gap[1] <= now], now)
        else:
            self._beat(tx, now, latest)

    def beat(self, tx: Transaction, now: float) -> None:
        """Write the heartbeat if it is due, and adopt gaps."""
        latest = self._heartbeat(tx)
        if latest is not None and now >= latest + HEARTBEAT_SECONDS:
            self._beat(tx, now, latest)

    def _beat(self, tx: Transaction, now: float, latest: float) -> None:
        gaps = self._gaps
        if now > latest + MIN_GAP:
            gaps = [*gaps, (latest, now)][-MAX_GAPS:]
            log_event("downtime", logging.WARNING, since=_utc(latest), until=_utc(now), length=duration(now - latest))
        self._write(tx, gaps, max(now, latest))

    def _heartbeat(self, tx: Transaction) -> float | None:
        """Adopt the stored gaps, and return the latest heartbeat."""
        rows = tx.rows(queries.HEARTBEAT)
        stored: dict[str, str] = dict(rows)
        if queries.GAPS_KEY in stored:
            tx.assign(vars(self), "_gaps", read_gaps(rows))
        return float(stored[queries.HEARTBEAT_KEY]) if queries.HEARTBEAT_KEY in stored else None

    def _write(self, tx: Transaction, gaps: Gaps, now: float) -> None:
        tx.assign(vars(self), "_gaps", gaps)
        tx.write(queries.SET, queries.GAPS_KEY, json.dumps(gaps))
        tx.write(queries.SET, queries.HEARTBEAT_KEY, repr(now))

    def warnings(self, now: float) -> list[str]:
        """Return a sentence about a long gap of the last day."""
        return [
            f"Nothing was recorded from {_utc(start)} to {_utc(end)} ({duration(end - start)}): the service was "
            "down, or the clock is ahead. This time does not count as inactivity of users. If the clock is wrong, "
            "set it and restart the service."
            for start, end in self._gaps
            if end - start >= WARNING_SECONDS > now - end
        ]


def _utc(time: float) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).isoformat(" ", "seconds")
