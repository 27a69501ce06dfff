"""The trainer: a process of its own that takes what users did from the store, plans, and publishes policies."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import msgspec
import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.bayes import Bayes, planned
from departing.learning.files import alive, plain
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.service.policy_version import Version, told_of
from departing.service.rollout import allotments
from departing.service.store.connection import Database, connect
from departing.service.store.schema import SET
from departing.simulation.sample_log import sample_log

T = TypeVar("T")
WAIT = 1.0  # seconds between two tries to be the one that trains
PAUSE = 0.2  # seconds between two looks at the store
DISTINCT = 20_000  # different counts that inference looks at; with more it looks at a sample of the users
NODES = 1_000_000  # counts that are followed to tell what a policy is worth
TRUST = 1000  # users that an instance is worth with which the service was begun


class ServedBayes(Bayes):
    """The Bayes learner, told of histories by a store instead of step by step."""

    told: MixtureLikelihood | None = None

    def evidence(self) -> MixtureLikelihood | None:
        """What the store tells that users did."""
        return self.told

    def block(
        self, arrived: int, told: MixtureLikelihood | None, allowed: tuple[int, ...] | None = None
    ) -> list[tuple[Policy, int]]:
        """What the next users get, given how many came, what they did, and which categories may be shown."""
        self.arrived, self.told, self.allowed = arrived, told, allowed
        if allowed is not None:
            self._tried = [policy for policy in self._tried if set(policy.phase_categories.tolist()) <= set(allowed)]
        return self._block()


def histogram(database: Database, n_categories: int) -> tuple[Integers, Integers]:
    """Distinct settled counts `[n, K, 4]` of users, and how many have each."""
    rows = database.rows("SELECT counts, count(*) FROM users GROUP BY counts")
    if len(rows) > DISTINCT:
        share = len(rows) // DISTINCT + 1
        query = "SELECT counts, count(*) * ? FROM users WHERE number % ? = 0 GROUP BY counts"
        rows = database.rows(query, share, share)
    counts, users = np.zeros((len(rows), 4 * n_categories), np.int64), np.zeros(len(rows), np.int64)
    for i, (blob, n) in enumerate(rows):
        known = msgspec.msgpack.decode(blob, type=list[int])
        counts[i, : len(known)] = known
        users[i] = n
    some = counts.any(axis=1)
    return counts[some].reshape(-1, n_categories, 4), users[some]


def _imagined(instance: Instance, n_categories: int) -> tuple[Integers, Integers]:
    """Histories of users of an instance, so that it counts as much as so many users."""
    seen = sample_log(instance, TRUST, seed=0, days=10_000).histories
    counts = np.zeros((len(seen.counts), n_categories, 4), np.int64)
    counts[:, : instance.n_categories] = seen.counts
    return counts, seen.multiplicity


def _together(
    counts: Integers, users: Integers, more_counts: Integers, more_users: Integers
) -> tuple[Integers, Integers]:
    return np.concatenate([counts, more_counts]), np.concatenate([users, more_users])


def _in_order(instance: Instance, names: Sequence[str]) -> Instance:
    """The instance with names, and types in the order of what they like best, so that each keeps its place."""
    order = np.lexsort((-instance.prior, instance.click.argmax(axis=0)))
    click, depart, on_click = (
        field[:, order] for field in (instance.click, instance.depart, instance.depart_on_click)
    )
    return Instance(instance.prior[order], click, depart, on_click, names)


class Trainer:
    """Looks at the store now and then, and publishes what is best by now."""

    def __init__(self, database: Database, types: int, seed: int = 0, growth: float = 0.1) -> None:
        self.types, self.seed, self.growth, self.database = types, seed, growth, database
        self.learner = self._resume()
        self._trained_at = -1 if self.learner is None else self.learner.arrived
        self._allowed = self._kept("allowed", tuple)

    def _given(self) -> Instance | None:
        """The instance that the service was begun with."""
        return self._kept("instance", lambda document: Instance.from_dict(document, "the instance"))

    def _kept(self, key: str, made: Callable[[Any], T]) -> T | None:
        """What is kept in the store under a name."""
        rows = self.database.rows("SELECT value FROM meta WHERE key = ?", key)
        return made(json.loads(rows[0][0])) if rows else None

    def _resume(self) -> ServedBayes | None:
        """The learner of an earlier process, if it thought of as many types."""
        learner = self._kept("learner", lambda state: ServedBayes.from_state(alive(state)))
        assert learner is None or isinstance(learner, ServedBayes)
        return learner if learner is not None and learner.n_types == self.types else None

    def step(self) -> bool:
        """Train if enough users have come since the last time; whether a policy was published."""
        with self.database.snapshot():
            rows = self.database.rows("SELECT name, retired FROM categories ORDER BY category")
            names, allowed = [name for name, _ in rows], tuple(a for a, (_, gone) in enumerate(rows) if gone is None)
            ((arrived,),) = self.database.rows("SELECT count(*) FROM users")
            changed = self._allowed is not None and self._allowed != allowed
            if not changed and self._trained_at >= 0 and arrived < max(self._trained_at * (1 + self.growth), 1):
                return False
            counts, users = histogram(self.database, len(names))
            given = self._given()
        if not len(users) and (self._trained_at >= 0 or given is not None):
            return False
        if given is not None and given.n_categories <= len(names):
            counts, users = _together(counts, users, *_imagined(given, len(names)))
        learner = self._learner(len(names))
        evidence = MixtureLikelihood.from_counts(counts, users, self.types) if len(users) else None
        parts = learner.block(arrived, evidence, allowed if len(allowed) < len(names) else None)
        self._trained_at, self._allowed = arrived, allowed
        self._publish(names, parts, learner)
        return True

    def _learner(self, n_categories: int) -> ServedBayes:
        if self.learner is None or self.learner.n_categories != n_categories:
            self.learner = ServedBayes(self.types, n_categories, self.seed, growth=self.growth)
        return self.learner

    def _publish(self, names: Sequence[str], parts: list[tuple[Policy, int]], learner: ServedBayes) -> None:
        named = _in_order(learner.instance(), names)
        best = planned(named, learner.allowed)
        largest = max(range(len(parts)), key=lambda i: parts[i][1])
        made = [self._version(policy, named, best, learner) for policy, _ in parts]
        made[largest].about |= {"source": "the best by now", "loss": learner.loss}
        state = json.dumps(plain(learner.state()))
        database = self.database
        with database.transaction():
            ((latest,),) = database.rows("SELECT coalesce(max(version), -1) FROM policies")
            for number, version in enumerate(made, latest + 1):
                version.number = number
            allotted = [(version.number, users) for version, (_, users) in zip(made, parts, strict=True)]
            database.many("INSERT INTO policies VALUES (?, ?, ?, ?)", [version.row() for version in made])
            database.rows("DELETE FROM meta WHERE key LIKE ?", "first %")
            for query, values in allotments(allotted, made[largest].number):
                database.rows(query, *values)
            database.rows(SET, "learner", state)
            database.rows(SET, "allowed", json.dumps(self._allowed))

    def _version(self, policy: Policy, named: Instance, best: Plan, learner: ServedBayes) -> Version:
        worth = evaluate(named, policy, 1e-3, NODES)
        about = told_of(policy, named) | {
            "lower": worth.lower,
            "upper": best.upper,
            "source": "tried to find out",
            "arrived": learner.arrived,
        }
        return Version(-1, time.time(), policy, named.n_categories, about)


def main(types: str, seed: str, server: str) -> None:
    """Train until the server, our parent, is gone; of several trainers of a store one does, the others wait."""
    os.nice(19)  # recommending goes first
    try:
        _train(int(types), int(seed), int(server), os.environ["DEPARTING_STORE"])
    except (InputError, OSError, RuntimeError) as error:
        _end(error)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("psycopg", "sqlite3"):
            raise
        _end(error)


def _end(error: Exception) -> None:
    """Tell why training has ended, in a line; it is begun again."""
    sys.exit(
        json.dumps({"time": round(time.time(), 3), "event": "trainer ends", "error": " ".join(str(error).split())})
    )


def _train(types: int, seed: int, parent: int, address: str) -> None:
    with closing(connect(address)) as database:
        while os.getppid() == parent and not database.lead():
            time.sleep(WAIT)
        trainer = Trainer(database, types, seed)
        while os.getppid() == parent:
            began = time.monotonic()
            if not trainer.step():
                time.sleep(max(PAUSE, 20 * (time.monotonic() - began)))


if __name__ == "__main__":
    main(*sys.argv[1:])
