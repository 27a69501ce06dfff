"""Training data of a service: the counts of its users, with departures that are not known yet.

A departure by inactivity is known one inactivity period late, but a stay at the user's next request. Counts of recent
users would therefore hold their stays and lack their departures, and a fit would expect users to stay for good. Users
who arrived within the period count as if they departed after their latest recommendation: the value of a policy
is then underestimated until the period is over, instead of unbounded.
"""

from math import inf, isfinite
from typing import NamedTuple

import msgspec
import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.service.departures import read_rule
from departing.service.late_feedback import infer_departure
from departing.service.store import queries
from departing.service.store.base import decode_user
from departing.service.store.connection import Database
from departing.service.uptime import cutoff_time, read_gaps

STEPS_PER_HALF_LIFE = 16  # of the age of users, rounded down: relative to each other, weights are accurate to 2 %
MAX_WEIGHTED_USERS = 1_000_000  # with more, every n-th of them is used: their counts and ages hardly repeat
MAX_HISTORIES = 20_000  # distinct counts in a fit; with more, the fit uses a sample of the users


def pending_since(snapshot: Database, now: float) -> float:
    """Return the time of arrival after which departures of users may not be known yet; only uptime counts."""
    rule = read_rule(snapshot.execute(queries.SETTING, queries.DEPARTURES_KEY))
    if rule.reported or not isfinite(rule.inactive_after):
        return inf
    return cutoff_time(read_gaps(snapshot.execute(queries.HEARTBEAT)), now, rule.inactive_after)


def pending_users(snapshot: Database, since: float) -> int:
    """Return the number of active users who arrived after `since`."""
    return int(snapshot.execute(queries.PENDING_COUNT, since)[0][0]) if isfinite(since) else 0


def histogram(snapshot: Database, n_categories: int, since: float = inf) -> tuple[Integers, Integers]:
    """Return distinct counts `[n, K, 4]` of users, and the number of users `[n]` with each.

    Counts are settled, except those of active users who arrived after `since`.
    """
    rows = snapshot.execute(queries.COUNTS, since)
    if len(rows) > MAX_HISTORIES:
        every = len(rows) // MAX_HISTORIES + 1
        rows = snapshot.execute(queries.SAMPLED_COUNTS, every, every, since)
    known = [(msgspec.msgpack.decode(blob, type=list[int]), n) for blob, n in rows]
    known += _pending_counts(snapshot, since)
    counts, users = np.zeros((len(known), 4 * n_categories), np.int64), np.zeros(len(known), np.int64)
    for i, (row, n) in enumerate(known):
        counts[i, : len(row)] = row
        users[i] = n
    observed = counts.any(axis=1)
    return counts[observed].reshape(-1, n_categories, 4), users[observed]


class WeightedUsers(NamedTuple):
    """Distinct counts `[n, K, 4]`, the sum of the weights of their users `[n]`, and the effective sample size."""

    counts: Integers
    weights: Floats
    effective: float


def weighted_histogram(
    snapshot: Database, n_categories: int, since: float, half_life: float, now: float
) -> WeightedUsers:
    """Return `histogram` with weights: that of a user is halved in every half-life since the arrival."""
    ((users,),) = snapshot.execute(queries.USER_COUNT)
    step, every = half_life / STEPS_PER_HALF_LIFE, users // MAX_WEIGHTED_USERS + 1
    sums: dict[bytes, list[float]] = {}
    for blob, age, n in snapshot.execute(queries.AGED_COUNTS, now, step, every, every, since):
        weight = 0.5 ** (max(age, 0) / STEPS_PER_HALF_LIFE)
        each = sums.setdefault(bytes(blob), [0.0, 0.0])
        each[0] += weight * n
        each[1] += weight**2 * n
    rows, pending = [msgspec.msgpack.decode(blob, type=list[int]) for blob in sums], _pending_counts(snapshot, since)
    rows += [row for row, _ in pending]
    counts = np.zeros((len(rows), 4 * n_categories), np.int64)
    weights = np.array([*sums.values(), *([n, n] for _, n in pending)], np.float64).reshape(-1, 2)
    for i, row in enumerate(rows):
        counts[i, : len(row)] = row
    kept = counts.any(axis=1) & (weights[:, 0] > 0)
    total, squares = weights[kept].sum(axis=0) if kept.any() else (0.0, 1.0)
    return WeightedUsers(counts[kept].reshape(-1, n_categories, 4), weights[kept, 0], float(total**2 / squares))


def _pending_counts(snapshot: Database, since: float) -> list[tuple[list[int], int]]:
    """Return the counts of active users who arrived after `since`, as if they had departed, each with its weight."""
    n = pending_users(snapshot, since)
    if not n:
        return []
    every = n // MAX_HISTORIES + 1
    settings = snapshot.execute(queries.SETTING, queries.MISSING_FEEDBACK_KEY)
    missing_feedback = settings[0][0] if settings else "no-click"
    counts = []
    for (state,) in snapshot.execute(queries.PENDING_STATES, since, every):
        user = decode_user(state)
        infer_departure(user, 0.0, missing_feedback)
        counts.append((user.counts, every))
    return counts
