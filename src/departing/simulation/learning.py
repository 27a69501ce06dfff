"""Simulation of learners: whole blocks of users at a time, or step by step with delayed feedback."""

from collections import deque

import numpy as np

from departing.evaluation.traversal import Booleans, Level, first_level
from departing.learning.protocol import AssignsPolicies, LastOutcomeRule, Learner, SupportsBlocks
from departing.model.counts import Integers, clicks, steps
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Floats, Instance
from departing.model.sampling import sample_outcomes, sample_type_counts
from departing.simulation.aggregate import aggregate
from departing.simulation.last_outcome import first_last_outcome_level
from departing.simulation.reference import FinishedUsers, Users, UsersProgress, new_users
from departing.simulation.run import exact_total
from departing.simulation.run_record import RunRecord

MAX_NODES = 10**8  # distinct counts of one block: beyond it the run would exhaust the memory (32 K bytes a count)


def run_blocks(
    instance: Instance,
    learner: SupportsBlocks,
    users: int,
    rng: np.random.Generator,
    record: RunRecord,
    progress: UsersProgress,
) -> Histories:
    """Simulate `users` users under the policies that a learner keeps for a block of users each."""
    checkpoints, finished = record.checkpoints, FinishedUsers()
    arrived, interval = 0, 0
    while arrived < users:
        policy, n = learner.admit(int(checkpoints[interval]) - arrived)
        by_type = sample_type_counts(instance, n, rng)
        if isinstance(policy, LastOutcomeRule):
            first: Level = first_last_outcome_level(instance, policy, by_type)
            observed_steps = None
        else:
            first, observed_steps = first_level(instance, policy, by_type), learner.depth
        histories = aggregate(
            first, rng, instance.horizon, MAX_NODES, np.inf, progress, learner.learn, observed_steps
        )
        if histories is None:
            raise InputError(f"These users have more than {MAX_NODES:g} distinct counts; use fewer users.")
        finished.add(histories.counts, histories.multiplicity)
        record.assign(arrived, policy, n)
        rewards = None
        if "reward" in instance.extensions:
            rewards = float(user_rewards(instance, histories.counts) @ histories.multiplicity)
        record.depart(interval, exact_total(histories.clicks, histories.multiplicity), n, rewards)
        arrived += n
        interval += int(arrived == checkpoints[interval])
    return finished.histories(instance.n_categories)


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
    arrive, finished = new_users(instance, users, rng), FinishedUsers()
    first = learner.next_user_id if isinstance(learner, AssignsPolicies) else 0  # IDs of earlier runs are taken
    assigned = _AssignedPolicies(learner, record, first)
    ready, arrived, active = arrive(0), 0, 0
    pending: deque[tuple[int, Users, Integers, Integers]] = deque()
    while True:
        new = arrive(open_users if delay else open_users - active)
        arrived, active = arrived + len(new), active + len(new)
        served = Users.concatenate(ready, new)
        if len(served):
            categories = np.asarray(learner.recommend(served.ids + first))
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
            finished.add(observed.counts[over])
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


def user_rewards(instance: Instance, counts: Integers) -> Floats:
    """Rewards `[n]` of users with `counts[n, K, 4]`."""
    return np.asarray((counts[..., CLICK] + counts[..., CLICK_DEPART]) @ instance.reward)


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
