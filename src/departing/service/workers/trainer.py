"""Trainer: a process that learns from the users' counts in the store, plans, and publishes policy versions."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.bayes import Bayes, parse_types
from departing.learning.files import decode_state, encode_state
from departing.learning.model_learner import plan_for_learning
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed
from departing.service import tracing
from departing.service.event_log import json_lines, log_event
from departing.service.policy_version import EXPLORATION, LEARNED, PolicyVersion, policy_details
from departing.service.rollout import publication
from departing.service.store import queries
from departing.service.store.connection import Database, connect
from departing.service.uptime import latest_time
from departing.service.workers.evidence import histogram, pending_since, pending_users, weighted_histogram
from departing.simulation.sample_log import sample_log

T = TypeVar("T")
LOCK_SECONDS = 1.0  # between attempts to become the trainer
MIN_PAUSE = 0.2  # seconds between polls of the store
IDLE_FACTOR = 20  # pause after an idle poll, as a multiple of its duration: 5% load
MAX_NODES = 1_000_000  # of the count graph, to evaluate a policy for the dashboard; takes about a second
PRIOR_USERS = 1000  # users whose evidence the given instance is worth; a trade-off between trust in it and learning


class ServedBayes(Bayes):
    """The Bayes learner with evidence from a store instead of single steps."""

    stored: MixtureLikelihood | None = None

    def evidence(self) -> MixtureLikelihood | None:
        """Return the evidence in the store."""
        return self.stored

    def block(
        self, arrived: int, stored: MixtureLikelihood | None, allowed: tuple[int, ...] | None = None
    ) -> list[tuple[Policy, int]]:
        """Return the policies of the next users and how many get each.

        `arrived` users have come so far; `allowed` are the categories that may be shown.
        """
        self.arrived, self.stored = arrived, stored
        self.restrict(allowed)
        return self._block()


def _prior_histories(instance: Instance, n_categories: int) -> tuple[Integers, Integers]:
    """Sample histories of `PRIOR_USERS` users of an instance, which stand for the instance in a fit."""
    sample = sample_log(instance, PRIOR_USERS, seed=0, days=10_000).histories
    counts = np.zeros((len(sample.counts), n_categories, 4), np.int64)
    counts[:, : instance.n_categories] = sample.counts
    return counts, sample.multiplicity


def _ordered(instance: Instance, names: Sequence[str]) -> Instance:
    """Name the categories, and order types by their favourite category, so that each type keeps its position."""
    order = np.lexsort((-instance.prior, instance.click.argmax(axis=0)))
    click, depart, on_click = (
        field[:, order] for field in (instance.click, instance.depart, instance.depart_on_click)
    )
    return Instance(instance.prior[order], click, depart, on_click, names)


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
            half_life, effective = self.half_life(), None
            users: Integers | Floats
            if half_life is None:
                counts, users = histogram(database, len(names), since)
            else:
                counts, users, effective = weighted_histogram(
                    database, len(names), since, half_life, latest_time(database)
                )
            given = self.given_instance()
        if not len(users) and (self._trained_at >= 0 or given is not None):
            return False
        if given is not None and given.n_categories <= len(names):
            prior_counts, prior_users = _prior_histories(given, len(names))
            counts, users = np.concatenate([counts, prior_counts]), np.concatenate([users, prior_users])
        learner = self.learner
        if learner is None or learner.n_categories > len(names):  # an older backup was restored
            learner = self.learner = ServedBayes(self.types, names, self.seed, growth=self.growth)
        for name in names[learner.n_categories :]:
            learner.add_category(name)
        evidence = MixtureLikelihood.from_counts(counts, users, learner.posterior.n_types) if len(users) else None
        with tracing.span("trainer.step", users=arrived):
            trials = learner.block(arrived, evidence, allowed if len(allowed) < len(names) else None)
            self._trained_at, self._pending, self._allowed = arrived, pending, allowed
            weights = {} if half_life is None else {"half_life": half_life, "effective_users": effective}
            self._publish(names, trials, learner, weights)
        seconds = round(time.monotonic() - started, 3)
        log_event("policies_published", users=arrived, pending=pending, versions=len(trials), seconds=seconds)
        return True

    def _has_news(self, arrived: int, pending: int) -> bool:
        """Return True if enough users have come, or departures have become known, since the last training."""
        before, growth = self._trained_at, 1 + self.growth
        if before < 0 or arrived >= max(before * growth, 1):
            return True
        resolved = before - self._pending
        return self._pending > self.growth * before and arrived - pending >= max(resolved * growth, resolved + 1)

    def _publish(
        self,
        names: Sequence[str],
        trials: list[tuple[Policy, int]],
        learner: ServedBayes,
        weights: dict[str, float | None],
    ) -> None:
        """Publish the policies of the next users; the one with most users is for all after them."""
        instance = _ordered(learner.instance(), names)
        best = plan_for_learning(instance, learner.allowed)
        versions = [self._version(policy, instance, best, learner) for policy, _ in trials]
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

    def _version(self, policy: Policy, instance: Instance, best: Plan, learner: ServedBayes) -> PolicyVersion:
        value = evaluate(instance, policy, 1e-3, MAX_NODES)
        details = policy_details(policy, instance) | {
            "lower": value.lower,
            "upper": best.upper,
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
