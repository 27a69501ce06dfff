"""Simulation of learners: whole blocks of users at a time, or step by step with delayed feedback."""

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from departing.evaluation.evaluate import segment_shares
from departing.evaluation.traversal import Booleans, Level, first_level
from departing.learning.protocol import AssignedPolicy, AssignsPolicies, LastOutcomeRule, Learner, SupportsBlocks
from departing.model.counts import Integers, clicks, steps
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import DEPART, Instance
from departing.model.sampling import sample_outcomes, sample_type_counts
from departing.policy.protocol import checked_categories, policy_in_segment
from departing.simulation.aggregate import ObserveUsers, aggregate
from departing.simulation.last_outcome import first_last_outcome_level
from departing.simulation.reference import FinishedUsers, Users, UsersProgress, new_users
from departing.simulation.run import exact_total, total_reward, user_rewards
from departing.simulation.run_record import RunRecord
from departing.simulation.segments import FinishedInSegments, join_histories, joined_instance

MAX_NODES = 10**8  # distinct counts of one block: beyond it the run would exhaust the memory (32 K bytes a count)


@dataclass
class _Part:
    """Users of one segment, or all users: their name, instance and final counts, and who learns from them."""

    name: str | None
    instance: Instance
    learn: ObserveUsers
    finished: FinishedUsers


def _parts(instance: Instance, learner: SupportsBlocks) -> list[_Part]:
    """The users of an instance by segment."""
    if instance.segments is None:
        return [_Part(None, instance, learner.learn, FinishedUsers())]
    parts, known = [], getattr(learner, "segments", None)
    for name in instance.segments.names:
        learn: ObserveUsers = learner.learn
        if known is not None:
            own: Any = learner.learn
            learn = partial(own, segment=known.index(name) if name in known else -1)
        parts.append(_Part(name, instance.in_segment(name), learn, FinishedUsers()))
    return parts


def run_blocks(
    instance: Instance,
    learner: SupportsBlocks,
    users: int,
    rng: np.random.Generator,
    record: RunRecord,
    progress: UsersProgress,
) -> Histories:
    """Simulate `users` users under the policies that a learner keeps for a block of users each.

    The users of a block are split by segment, and those of each segment simulated by themselves.
    """
    checkpoints, parts = record.checkpoints, _parts(instance, learner)
    shares = segment_shares(instance)
    arrived, interval = 0, 0
    while arrived < users:
        policy, n = learner.admit(int(checkpoints[interval]) - arrived)
        numbers = rng.multinomial(n, shares).tolist() if len(shares) else [n]
        record.assign(arrived, policy, n)
        total, rewards = 0, 0.0
        for part, number in zip(parts, numbers, strict=True):
            if number:
                histories = _play_block(part, learner.depth, policy, number, rng, progress)
                part.finished.add(histories.counts, histories.multiplicity)
                total += exact_total(histories.clicks, histories.multiplicity)
                if "reward" in instance.extensions:
                    rewards += total_reward(instance, histories)
        record.depart(interval, total, n, rewards)
        arrived += n
        interval += int(arrived == checkpoints[interval])
    every = [part.finished.histories(instance.n_categories) for part in parts]
    return every[0] if instance.segments is None else join_histories(every, instance.segments)


def _play_block(
    part: _Part,
    depth: int | None,
    policy: AssignedPolicy,
    users: int,
    rng: np.random.Generator,
    progress: UsersProgress,
) -> Histories:
    """Simulate users of one segment under a policy; the learner observes the first `depth` steps."""
    by_type = sample_type_counts(part.instance, users, rng)
    if isinstance(policy, LastOutcomeRule):
        first: Level = first_last_outcome_level(part.instance, policy, by_type)
        depth = None
    else:
        first = first_level(part.instance, policy_in_segment(policy, part.name), by_type)
    histories = aggregate(first, rng, part.instance.horizon, MAX_NODES, np.inf, progress, part.learn, depth)
    if histories is None:
        raise InputError(f"These users have more than {MAX_NODES:g} distinct counts; use fewer users.")
    return histories


def run_steps(
    instance: Instance,
    learner: Learner,
    users: int,
    rng: np.random.Generator,
    open_users: int,
    delay: int,
    record: RunRecord,
    progress: UsersProgress,
) -> Histories:
    """Request every single recommendation from a learner, with at most `open_users` active users.

    With a `delay` the learner observes the outcome of a user's step when `delay` more users have arrived, and
    `open_users` arrive at a time; after the last arrival the pending outcomes are observed in turn.
    """
    finished, segments = FinishedUsers(), _Segments(instance, learner)
    if instance.segments is not None:
        finished = FinishedInSegments(segments=instance.segments, n_types=instance.n_types)
        instance = joined_instance(instance)
    arrive = new_users(instance, users, rng)
    first = learner.next_user_id if isinstance(learner, AssignsPolicies) else 0  # IDs of earlier runs are taken
    assigned = _AssignedPolicies(learner, record, first)
    ready, arrived, active = arrive(0), 0, 0
    pending: deque[tuple[int, Users, Integers, Integers]] = deque()
    while True:
        new = arrive(open_users if delay else open_users - active)
        arrived, active = arrived + len(new), active + len(new)
        served = Users.concatenate(ready, new)
        if len(served):
            given = learner.recommend(served.ids + first, **segments.of(served))
            categories = checked_categories(type(learner).__name__, given, len(served), instance.n_categories)
            assigned.add(new.ids)
            outcomes = sample_outcomes(instance, categories, served.types, rng.random(len(served)))
            served.counts[np.arange(len(served)), categories, outcomes] += 1
            pending.append((arrived + delay, served, categories, outcomes))
        if not pending:
            break
        parts = [arrive(0)]
        while pending and (pending[0][0] <= arrived or arrived == users):
            _, observed, categories, outcomes = pending.popleft()
            learner.observe(observed.ids + first, categories, outcomes)
            over = outcomes >= DEPART
            if instance.horizon is not None:
                over |= _finish_at_horizon(instance.horizon, learner, observed, over, first)
            finished.add_users(observed, np.flatnonzero(over))
            departed = int(over.sum())
            intervals = np.searchsorted(record.checkpoints, observed.ids[over] + 1)
            rewards = user_rewards(instance, observed.counts[over]) if "reward" in instance.extensions else None
            record.depart(intervals, clicks(observed.counts[over]), departed, rewards)
            active -= departed
            progress(departed)
            parts.append(observed.select(np.flatnonzero(~over)))
            if arrived == users and delay:
                break
        ready = Users.concatenate(*parts)
    return finished.histories(instance.n_categories)


def _finish_at_horizon(horizon: int, learner: Learner, users: Users, departed: Booleans, first: int) -> Booleans:
    """Return which users have made `horizon` steps, and finish those who have not departed."""
    at_horizon = steps(users.counts) >= horizon
    finish = getattr(learner, "finish", None)
    rest = users.ids[at_horizon & ~departed] + first
    if finish is not None and len(rest):
        finish(rest)
    return at_horizon


class _Segments:
    """Segments of users of a joined instance, for learners that distinguish them."""

    def __init__(self, instance: Instance, learner: Learner) -> None:
        known = instance.segments is not None and getattr(learner, "segments", None) is not None
        self._names = instance.segments.names if known and instance.segments is not None else None
        self._n_types = instance.n_types

    def of(self, users: Users) -> dict[str, list[str]]:
        """The argument `segments` of `recommend`; none for other learners."""
        if self._names is None:
            return {}
        return {"segments": [self._names[segment] for segment in (users.types // self._n_types).tolist()]}


class _AssignedPolicies:
    """Policies that users were given, if the learner reports them."""

    def __init__(self, learner: Learner, record: RunRecord, first: int) -> None:
        self._learner = learner if isinstance(learner, AssignsPolicies) else None  # checked once: protocols are slow
        self._record, self._first = record, first

    def add(self, ids: Integers) -> None:
        """Record the policies of new users, in the order of their ids."""
        if self._learner is None or not len(ids):
            return
        versions = self._learner.versions(ids + self._first)
        starts = np.flatnonzero(np.diff(versions, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            policy = self._learner.policy(int(versions[start]))
            self._record.assign(int(ids[start]), policy, int(end - start))
