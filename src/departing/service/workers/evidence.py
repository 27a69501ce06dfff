"""Training data of a service: the counts of its users, with departures that are not known yet.

A departure by inactivity is known one inactivity period late, but a stay at the user's next request. Counts of recent
users would therefore hold their stays and lack their departures, and a fit would expect users to stay for good. Users
who arrived within the period count as if they departed after their latest recommendation: the value of a policy
is then underestimated until the period is over, instead of unbounded.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from departing.model.counts import Integers
from departing.service.departures import read_rule
from departing.service.late_feedback import infer_departure
from departing.service.store import queries
from departing.service.store.base import decode_user
from departing.service.store.connection import Database
from departing.service.uptime import cutoff_time, read_gaps
from departing.service.workers.served_learner import Part

MIN_SEGMENT_USERS, MAX_SEGMENTS = 50, 20  # of a segment, and segments, with priors of their own: a block takes longer
# Users of a segment that has a prior count this many times, so that segments of one size do not take turns: of two
# with 50 users each, one gets twice as many as the other with a probability of 0.1 %, and less with more users.
KEEP_FACTOR = 2.0
NO_AGE = 1e15  # seconds; no user is as old
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
    known += [(row, n) for row, _, n in _pending_counts(snapshot, since)]
    counts, users = np.zeros((len(known), 4 * n_categories), np.int64), np.zeros(len(known), np.int64)
    for i, (row, n) in enumerate(known):
        counts[i, : len(row)] = row
        users[i] = n
    observed = counts.any(axis=1)
    return counts[observed].reshape(-1, n_categories, 4), users[observed]


class TrainingUsers(NamedTuple):
    """Distinct counts and the weights of their users, for each segment and unknown ones; ESS and mean weight."""

    parts: list[Part]
    effective: float
    mean_weight: float = 1.0

    @property
    def users(self) -> int:
        """Number of distinct counts."""
        return sum(len(weights) for _, weights in self.parts)


def large_segments(
    snapshot: Database,
    current: Sequence[str] = (),
    half_life: float = inf,
    now: float = 0.0,
    given: Mapping[str, float] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return the segments with enough users for a prior of their own; none if there is only one.

    Users have the weights of `training_users`. The `current` segments stay until others are clearly larger. An
    instance stands for the `given` number of users of its segments.
    """
    weights = dict(given)
    for name, age, n in snapshot.execute(queries.AGED_SEGMENTS, now, _age_step(half_life)):
        kept = KEEP_FACTOR if name in current else 1.0
        weights[name] = weights.get(name, 0.0) + kept * n * _weight(age)
    large = sorted((-weight, name) for name, weight in weights.items() if weight >= MIN_SEGMENT_USERS)
    names = sorted(name for _, name in large[:MAX_SEGMENTS])
    return tuple(names) if len(names) > 1 else ()


def _age_step(half_life: float) -> float:
    """Return the unit of ages, in seconds."""
    return min(half_life / STEPS_PER_HALF_LIFE, NO_AGE)


def _weight(age: int) -> float:
    """Return the weight of a user, or of a reward, by the age in steps."""
    return float(0.5 ** (max(age, 0) / STEPS_PER_HALF_LIFE))


def training_users(
    snapshot: Database,
    n_categories: int,
    since: float,
    segments: Sequence[str] = (),
    half_life: float = inf,
    now: float = 0.0,
) -> TrainingUsers:
    """Return users by segment, with weights: that of a user is halved in every half-life since the arrival."""
    ((users,),) = snapshot.execute(queries.USER_COUNT)
    step, every = _age_step(half_life), users // MAX_WEIGHTED_USERS + 1
    place = {name: i for i, name in enumerate(segments)}
    sums = [dict[tuple[int, ...], list[float]]() for _ in range(len(segments) + 1)]

    def add(row: Sequence[int], segment: str | None, weight: float, n: int) -> None:
        each = sums[place.get(segment or "", -1)].setdefault(tuple(row), [0.0, 0.0, 0.0])
        for power in range(3):
            each[power] += weight**power * n

    for blob, segment, age, n in snapshot.execute(queries.AGED_COUNTS, now, step, every, every, since):
        add(msgspec.msgpack.decode(blob, type=list[int]), segment, _weight(age), n)
    for row, segment, n in _pending_counts(snapshot, since):
        add(row, segment, 1.0, n)
    totals, parts = np.zeros(3), list[Part]()  # of the users, of their weights, and of the squares
    for each in sums:
        known = {row: values for row, values in each.items() if any(row) and values[1] > 0}
        counts = np.zeros((len(known), 4 * n_categories), np.int64)
        for i, outcomes in enumerate(known):
            counts[i, : len(outcomes)] = outcomes
        weights = np.array([*known.values()], np.float64).reshape(-1, 3)
        parts.append((counts.reshape(-1, n_categories, 4), weights[:, 1]))
        totals += weights.sum(axis=0)
    number, weight, squares = totals.tolist()
    return TrainingUsers(parts, weight**2 / squares, weight / number) if squares else TrainingUsers(parts, 0.0)


def mean_rewards(
    snapshot: Database, n_categories: int, half_life: float, now: float, given: Sequence[float] | None
) -> list[float] | None:
    """Return the mean reward of a click in each category, None if no click has one.

    Those of categories without rewards are the ones assumed when they were added, the `given` ones, or the mean
    of the others.
    """
    assumed = {int(category): float(value) for category, value in snapshot.execute(queries.ASSUMED_REWARDS)}
    sums = np.zeros((n_categories, 2))
    for category, age, n, total in snapshot.execute(queries.AGED_REWARDS, now, _age_step(half_life)):
        sums[category] += _weight(age) * np.array([n, total])
    known = sums[:, 0] > 0
    if not sums[:, 1].any():
        if given is None:
            return None
        means = np.full(n_categories, float(np.mean(given)))
        means[: len(given)] = given
        for category, reward in assumed.items():
            means[category] = reward
        return [float(mean) for mean in means]
    means = np.full(n_categories, float((sums[known, 1] / sums[known, 0]).mean()))
    if given is not None:
        means[: len(given)] = given
    for category, reward in assumed.items():
        means[category] = reward
    means[known] = sums[known, 1] / sums[known, 0]
    return [float(mean) for mean in means]


def _pending_counts(snapshot: Database, since: float) -> list[tuple[list[int], str | None, int]]:
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
        counts.append((user.counts, user.segment, every))
    return counts
