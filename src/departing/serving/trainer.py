"""The trainer: a process of its own that takes what users did from the store, plans, and publishes policies."""

import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.fitting.likelihood import Evidence
from departing.learning.bayes import Bayes, planned
from departing.learning.files import alive, plain
from departing.model.counts import Integers
from departing.model.instance import Instance
from departing.policy.library import describe
from departing.policy.protocol import Policy
from departing.serving.store import connect
from departing.serving.versions import Version
from departing.simulation.visits import visits

PAUSE = 0.2  # seconds between two looks at the store
DISTINCT = 20_000  # different counts that inference looks at; with more it looks at a sample of the users
NODES = 20_000
TRUST = 1000  # users that an instance is worth with which the service was begun


class ServedBayes(Bayes):
    """The Bayes learner, told of histories by a store instead of step by step."""

    told: Evidence | None = None

    def evidence(self) -> Evidence | None:
        """What the store tells that users did."""
        return self.told

    def block(self, arrived: int, told: Evidence | None) -> list[tuple[Policy, int]]:
        """What the next users get, given how many came and what they did."""
        self.arrived, self.told = arrived, told
        return self._block()


def histogram(connection: sqlite3.Connection, n_categories: int) -> tuple[Integers, Integers]:
    """Distinct settled counts `[n, K, 4]` of users, and how many have each."""
    rows = connection.execute("SELECT counts, count(*) FROM users GROUP BY counts").fetchall()
    if len(rows) > DISTINCT:
        share = len(rows) // DISTINCT + 1
        query = "SELECT counts, count(*) * ? FROM users WHERE number % ? = 0 GROUP BY counts"
        rows = connection.execute(query, (share, share)).fetchall()
    counts, users = np.zeros((len(rows), 4 * n_categories), np.int64), np.zeros(len(rows), np.int64)
    for i, (blob, n) in enumerate(rows):
        known = msgspec.msgpack.decode(blob, type=list[int])
        counts[i, : len(known)] = known
        users[i] = n
    some = counts.any(axis=1)
    return counts[some].reshape(-1, n_categories, 4), users[some]


def _imagined(instance: Instance, n_categories: int) -> tuple[Integers, Integers]:
    """Histories of users of an instance, so that it counts as much as so many users."""
    seen = visits(instance, TRUST, seed=0, days=10_000).histories
    counts = np.zeros((len(seen.counts), n_categories, 4), np.int64)
    counts[:, : instance.n_categories] = seen.counts
    return counts, seen.multiplicity


def _together(
    counts: Integers, users: Integers, more_counts: Integers, more_users: Integers
) -> tuple[Integers, Integers]:
    return np.concatenate([counts, more_counts]), np.concatenate([users, more_users])


class Trainer:
    """Looks at the store now and then, and publishes what is best by now."""

    def __init__(self, path: Path, types: int, seed: int = 0, growth: float = 0.1) -> None:
        self.types, self.seed, self.growth = types, seed, growth
        self.connection = connect(path)
        self.given = self._given()
        self.learner = self._resume()
        self._trained_at = -1 if self.learner is None else self.learner.arrived

    def _given(self) -> Instance | None:
        """The instance that the service was begun with."""
        given = "json_extract(about, '$.source') = 'the instance'"
        query = f"SELECT about FROM policies WHERE {given} ORDER BY version DESC"
        row = self.connection.execute(query).fetchone()
        return None if row is None else Instance.from_document(json.loads(row[0])["instance"], "the instance")

    def _resume(self) -> ServedBayes | None:
        """The learner of an earlier process, if it thought of as many types."""
        row = self.connection.execute("SELECT value FROM meta WHERE key = 'learner'").fetchone()
        if row is None:
            return None
        learner = ServedBayes.of_state(alive(json.loads(row[0])))
        assert isinstance(learner, ServedBayes)
        return learner if learner.n_types == self.types else None

    def step(self) -> bool:
        """Train if enough users have come since the last time; whether a policy was published."""
        names = [name for (name,) in self.connection.execute("SELECT name FROM categories ORDER BY category")]
        (arrived,) = self.connection.execute("SELECT count(*) FROM users").fetchone()
        changed = self.learner is not None and self.learner.n_categories != len(names)
        if not changed and self._trained_at >= 0 and arrived < max(self._trained_at * (1 + self.growth), 1):
            return False
        counts, users = histogram(self.connection, len(names))
        if not len(users) and (self._trained_at >= 0 or self.given is not None):
            return False
        if self.given is not None and self.given.n_categories <= len(names):
            counts, users = _together(counts, users, *_imagined(self.given, len(names)))
        learner = self._learner(len(names))
        parts = learner.block(arrived, Evidence.of(counts, users, self.types) if len(users) else None)
        self._trained_at = arrived
        self._publish(names, parts, learner)
        return True

    def _learner(self, n_categories: int) -> ServedBayes:
        if self.learner is None or self.learner.n_categories != n_categories:
            self.learner = ServedBayes(self.types, n_categories, self.seed, growth=self.growth)
        return self.learner

    def _publish(self, names: Sequence[str], parts: list[tuple[Policy, int]], learner: ServedBayes) -> None:
        instance = learner.instance()
        named = Instance(instance.prior, instance.click, instance.depart, instance.depart_on_click, names)
        best = planned(named)
        largest = max(parts, key=lambda part: part[1])[0]
        made = []
        for policy, _ in parts:
            worth = evaluate(named, policy, 1e-3, NODES)
            about: dict[str, Any] = {
                "words": describe(policy, named),
                "lower": worth.lower,
                "upper": best.upper,
                "source": "the best by now" if policy is largest else "tried to find out",
                "instance": named.document(),
                "arrived": learner.arrived,
            }
            made.append(Version(-1, time.time(), policy, len(names), about))
        state = json.dumps(plain(learner.state()))
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            (latest,) = self.connection.execute("SELECT coalesce(max(version), -1) FROM policies").fetchone()
            for number, version in enumerate(made, latest + 1):
                version.number = number
            allotted = [(version.number, users) for version, (_, users) in zip(made, parts, strict=True)]
            current = max(allotted, key=lambda part: part[1])[0]
            listed = [(place, *part) for place, part in enumerate([*allotted, (current, 0)])]
            self.connection.executemany("INSERT INTO policies VALUES (?, ?, ?, ?)", [each.row() for each in made])
            self.connection.execute("DELETE FROM allotments")
            self.connection.executemany("INSERT INTO allotments VALUES (?, ?, ?)", listed)
            self.connection.execute("INSERT OR REPLACE INTO meta VALUES ('learner', ?)", (state,))


def main(path: str, types: str, seed: str, server: str) -> None:
    """Train until the server, our parent, is gone."""
    parent = int(server)
    trainer = Trainer(Path(path), int(types), int(seed))
    with closing(trainer.connection):
        while os.getppid() == parent:
            if not trainer.step():
                time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
