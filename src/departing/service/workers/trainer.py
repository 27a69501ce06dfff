"""Trainer: a process that learns from the users' counts in the store, plans, and publishes policy versions."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from typing import Any, TypeVar

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.bayes import parse_types
from departing.learning.files import decode_state, encode_state
from departing.learning.model_learner import plan_for_learning
from departing.learning.type_numbers import MIN_NUMBER
from departing.model.errors import InputError
from departing.model.instance import CLICKS, Instance
from departing.model.names import default_names
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed
from departing.service import tracing
from departing.service.event_log import json_lines, log_event
from departing.service.policy_version import EXPLORATION, LEARNED, PolicyVersion, policy_details
from departing.service.rollout import publication
from departing.service.settings import DEFAULT_UNIT
from departing.service.store import queries
from departing.service.store.connection import Database, connect
from departing.service.uptime import latest_time
from departing.service.workers.evidence import (
    MIN_SEGMENT_USERS,
    TrainingUsers,
    histogram,
    large_segments,
    mean_rewards,
    pending_since,
    pending_users,
    training_users,
)
from departing.service.workers.served_learner import Part, ServedBayes
from departing.simulation.sample_log import sample_log

T = TypeVar("T")
LOCK_SECONDS = 1.0  # between attempts to become the trainer
MIN_PAUSE = 0.2  # seconds between polls of the store
IDLE_FACTOR = 20  # pause after an idle poll, as a multiple of its duration: 5% load
MAX_NODES = 1_000_000  # of the count graph, to evaluate a policy for the dashboard; takes about a second
PRIOR_USERS = 1000  # users whose evidence the given instance is worth; a trade-off between trust in it and learning


def _with_prior_histories(
    parts: list[Part], segments: Sequence[str], instance: Instance, n_categories: int, weight: float
) -> None:
    """Add sampled histories of `PRIOR_USERS` users of an instance, which stand for the instance in a fit.

    Each has the `weight` of the average user, so that they are forgotten with the users.
    """
    sample = sample_log(instance.replace(horizon=None), PRIOR_USERS, seed=0, days=10_000).histories
    counts = np.zeros((len(sample.counts), n_categories, 4), np.int64)
    counts[:, : instance.n_categories] = sample.counts
    place = np.full(len(counts), len(parts) - 1)
    if sample.segment is not None and sample.segments is not None:
        known = {name: i for i, name in enumerate(segments)}
        own = np.array([known.get(name, len(parts) - 1) for name in sample.segments] + [len(parts) - 1])
        place = own[sample.segment]
    for i, (before, users) in enumerate(parts):
        added = place == i
        joined = np.concatenate([users, weight * sample.multiplicity[added]])
        parts[i] = np.concatenate([before, counts[added]]), joined


def _ordered(instance: Instance, names: Sequence[str]) -> Instance:
    """Name the categories, and order types by their favourite category, so that each type keeps its position."""
    order = np.lexsort((-instance.prior, instance.click.argmax(axis=0)))
    types = default_names("type", instance.n_types)
    return instance.relabel(types=order.tolist()).replace(categories=names, types=types)


def _upper_bound(instance: Instance, allowed: tuple[int, ...] | None) -> float:
    """Return an upper bound on the value of all policies, with the segments of the instance."""
    if instance.segments is None:
        return plan_for_learning(instance, allowed).upper
    uppers = [plan_for_learning(instance.in_segment(name), allowed).upper for name in instance.segments.names]
    return float(instance.segments.share @ np.array(uppers))


class Trainer:
    """Publishes new policy versions when enough users have come or the categories have changed."""

    def __init__(self, database: Database, types: int | str, seed: int = 0, growth: float = 0.1) -> None:
        self.types, self.seed, self.growth, self.database = types, seed, growth, database
        self._start()

    def _start(self) -> None:
        """Continue from what the store holds."""
        self.learner = self._resume()
        self._trained_at = -1 if self.learner is None else self.learner.arrived
        self._pending = 0  # users of the last training whose departures were not known yet
        self._allowed = self._setting(queries.ALLOWED_KEY, tuple)

    def _setting(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Return a stored JSON document, parsed; None if there is none."""
        rows = self.database.execute(queries.SETTING, key)
        return parse(json.loads(rows[0][0])) if rows else None

    def given_instance(self) -> Instance | None:
        """Return the instance with which the service was started."""
        return self._setting(queries.INSTANCE_KEY, lambda document: Instance.from_dict(document, "the instance"))

    def half_life(self) -> float | None:
        """Return the half-life of the weight of users, in seconds; None if all count alike."""
        return self._setting(queries.HALF_LIFE_KEY, float)

    def _resume(self) -> ServedBayes | None:
        """Return the learner of an earlier process, if its state is valid and it has as many types."""
        try:
            learner = self._setting(queries.LEARNER_KEY, lambda state: ServedBayes.from_state(decode_state(state)))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            log_event("learner_discarded", logging.WARNING, error)  # step learns from the counts
            return None
        assert learner is None or isinstance(learner, ServedBayes)
        return learner if learner is not None and learner.types == self.types else None

    def step(self) -> bool:
        """Train if enough users have come since the last time; return whether versions were published."""
        database, started = self.database, time.monotonic()
        with database.snapshot():
            rows = database.execute(queries.CATEGORIES)
            names = [name for name, _ in rows]
            allowed = tuple(a for a, (_, retired) in enumerate(rows) if retired is None)
            ((arrived,),) = database.execute(queries.USER_COUNT)
            since = pending_since(database, latest_time(database))
            pending = pending_users(database, since)
            if arrived < self._trained_at:  # a backup was restored
                self._start()
            changed = self._allowed is not None and self._allowed != allowed
            if not changed and not self._has_news(arrived, pending):
                return False
            given, half_life, now = self.given_instance(), self.half_life(), latest_time(database)
            if given is not None and given.n_categories > len(names):
                given = None
            data, segments = self._read(names, since, half_life, now, given)
            reward = self._rewards(given, len(names), half_life, now)
        if not data.users and (self._trained_at >= 0 or given is not None):
            return False
        weight = None if half_life is None else float(sum(users.sum() for _, users in data.parts))
        if given is not None:
            _with_prior_histories(data.parts, segments, given, len(names), data.mean_weight)
        learner = self._learner_for(names, segments, given)
        learner.set_reward(*reward)
        with tracing.span("trainer.step", users=arrived):
            trials = learner.block(arrived, data.parts, allowed if len(allowed) < len(names) else None, weight)
            self._trained_at, self._pending, self._allowed = arrived, pending, allowed
            weights = {} if half_life is None else {"half_life": half_life, "effective_users": data.effective}
            self._publish(names, trials, learner, weights)
        seconds = round(time.monotonic() - started, 3)
        log_event("policies_published", users=arrived, pending=pending, versions=len(trials), seconds=seconds)
        return True

    def _read(
        self, names: Sequence[str], since: float, half_life: float | None, now: float, given: Instance | None
    ) -> tuple[TrainingUsers, tuple[str, ...]]:
        """Return the users in the store, and the segments with a prior of their own."""
        period = inf if half_life is None else half_life
        current = () if self.learner is None else self.learner.segments or ()
        expected = dict[str, float]()  # users of each segment for whom the instance stands
        if given is not None and given.segments is not None:
            shares = zip(given.segments.names, given.segments.share.tolist(), strict=True)
            expected = {name: max(PRIOR_USERS * share, MIN_SEGMENT_USERS) for name, share in shares}
        segments = large_segments(self.database, current, period, now, expected)
        if half_life is None and not segments:
            counts, users = histogram(self.database, len(names), since)
            return TrainingUsers([(counts, users)], float(users.sum())), segments
        return training_users(self.database, len(names), since, segments, period, now), segments

    def _rewards(
        self, given: Instance | None, n_categories: int, half_life: float | None, now: float
    ) -> tuple[list[float] | None, str, int | None]:
        """Return the mean reward of each category, the unit and the horizon."""
        own = given.reward.tolist() if given is not None and "reward" in given.extensions else None
        reward = mean_rewards(self.database, n_categories, inf if half_life is None else half_life, now, own)
        horizon = None if given is None else given.horizon
        if reward is None:
            return None, CLICKS, horizon
        stored = self.database.execute(queries.SETTING, queries.UNIT_KEY)
        of_instance = CLICKS if given is None else given.unit
        default = of_instance if of_instance != CLICKS else DEFAULT_UNIT
        return reward, str(stored[0][0]) if stored else default, horizon

    def _learner_for(self, names: Sequence[str], segments: tuple[str, ...], given: Instance | None) -> ServedBayes:
        """Return the learner, with these segments, the categories that were added, and no fewer types than given."""
        learner = self.learner
        if learner is None or learner.n_categories > len(names):  # an older backup was restored
            learner = ServedBayes(self.types, names, self.seed, growth=self.growth)
        learner.set_fewest_types(MIN_NUMBER if given is None else max(given.n_types, MIN_NUMBER))
        learner.set_segments(segments)
        learner.set_reward(None, CLICKS, None)  # they are set for all categories together
        for name in names[learner.n_categories :]:
            learner.add_category(name)
        self.learner = learner
        return learner

    def _has_news(self, arrived: int, pending: int) -> bool:
        """Return True if enough users have come, or departures have become known, since the last training."""
        before, growth = self._trained_at, 1 + self.growth
        counted = before if self.learner is None else self.learner.effective_users
        if before < 0 or arrived >= max(before + self.growth * counted, 1):
            return True
        resolved = before - self._pending
        return self._pending > self.growth * before and arrived - pending >= max(resolved * growth, resolved + 1)

    def _publish(
        self,
        names: Sequence[str],
        trials: list[tuple[Policy, int]],
        learner: ServedBayes,
        weights: dict[str, float],
    ) -> None:
        """Publish the policies of the next users; the one with most users is for all after them."""
        instance = _ordered(learner.instance(), names)
        upper = _upper_bound(instance, learner.allowed)
        versions = [self._version(policy, instance, upper, learner) for policy, _ in trials]
        largest = max(range(len(trials)), key=lambda i: trials[i][1])
        versions[largest].details |= {"source": LEARNED, "loss": learner.loss}
        for version in versions:
            version.details |= weights
        state = json.dumps(encode_state(learner.state()))
        if not learner.arrived:  # nothing is known yet; the planner was compiled for the first users
            versions, largest = [self._uniform(len(names))], 0
            trials = [(versions[0].policy, trials[0][1])]
        with self.database.transaction():
            ((latest,),) = self.database.execute(queries.LATEST_POLICY)
            for number, version in enumerate(versions, latest + 1):
                version.number = number
            allocations = [(version.number, users) for version, (_, users) in zip(versions, trials, strict=True)]
            for query, values in publication(versions, allocations, versions[largest].number):
                self.database.execute(query, *values)
            self.database.execute(queries.UNSET_LIKE, queries.FIRST_USER_KEY.format("%"))
            self.database.execute(queries.SET, queries.LEARNER_KEY, state)
            self.database.execute(queries.SET, queries.ALLOWED_KEY, json.dumps(self._allowed))

    def _uniform(self, n_categories: int) -> PolicyVersion:
        description = "all categories with equal probability"
        details = {"description": description, "source": LEARNED, "uniform": True, "users": 0}
        return PolicyVersion(-1, time.time(), Fixed(0), n_categories, details)

    def _version(self, policy: Policy, instance: Instance, upper: float, learner: ServedBayes) -> PolicyVersion:
        value = evaluate(instance, policy, 1e-3, MAX_NODES)
        details = policy_details(policy, instance) | {
            "lower": value.lower,
            "upper": upper,
            "source": EXPLORATION,
            "users": learner.arrived,
        }
        return PolicyVersion(-1, time.time(), policy, instance.n_categories, details)


def main(types: str, seed: str, parent: str) -> None:
    """Train until the parent process has ended; of several trainers of a store one trains and the others wait."""
    os.nice(19)  # the service has priority
    with json_lines("trainer"):
        tracing.start("trainer")
        try:
            _train(parse_types(types), int(seed), int(parent), os.environ["DEPARTING_STORE"])
        except Exception as error:
            expected = isinstance(error, InputError | OSError | RuntimeError)
            if not expected and type(error).__module__.partition(".")[0] not in ("psycopg", "sqlite3"):
                raise
            log_event("trainer_failed", logging.ERROR, error=" ".join(str(error).split()))
            sys.exit(1)  # it is restarted


def _train(types: int | str, seed: int, parent: int, address: str) -> None:
    with closing(connect(address)) as database:
        while os.getppid() == parent and not database.acquire_trainer_lock():
            time.sleep(LOCK_SECONDS)
        trainer = Trainer(database, types, seed)
        while os.getppid() == parent:
            started = time.monotonic()
            if not trainer.step():
                time.sleep(max(MIN_PAUSE, IDLE_FACTOR * (time.monotonic() - started)))


if __name__ == "__main__":
    main(*sys.argv[1:])
