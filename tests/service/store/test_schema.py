"""Stores as earlier releases wrote them: opened, all is known, and nothing is changed if that fails."""

import asyncio
import json
import sqlite3
from contextlib import closing

import msgspec
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.policy.files import policy_to_dict
from departing.service.api import messages as m
from departing.service.service import Settings
from departing.service.startup import open_service
from departing.service.store import queries, schema
from departing.service.store.training import TrainingStore
from departing.service.workers.shadow import ShadowReporter
from departing.service.workers.trainer import Trainer
from helpers.load import check

TABLES_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE categories (category INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, added REAL NOT NULL, retired REAL);
CREATE TABLE users (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state BLOB NOT NULL, counts BLOB NOT NULL,
    departed INTEGER NOT NULL, seen REAL NOT NULL
);
CREATE INDEX users_here ON users (seen) WHERE NOT departed;
CREATE TABLE decisions (
    event INTEGER PRIMARY KEY, key TEXT, user INTEGER NOT NULL, time REAL NOT NULL, category INTEGER NOT NULL,
    propensity REAL, version INTEGER NOT NULL, ours INTEGER NOT NULL
);
CREATE UNIQUE INDEX decisions_key ON decisions (key) WHERE key IS NOT NULL;
CREATE INDEX decisions_user ON decisions (user);
CREATE TABLE answers (event INTEGER PRIMARY KEY, time REAL NOT NULL, clicked INTEGER NOT NULL, departed INTEGER);
CREATE TABLE departures (user INTEGER PRIMARY KEY, time REAL NOT NULL, why TEXT NOT NULL);
CREATE TABLE policies (
    version INTEGER PRIMARY KEY, made REAL NOT NULL, document TEXT NOT NULL, about TEXT NOT NULL
);
CREATE TABLE allotments (place INTEGER PRIMARY KEY, version INTEGER NOT NULL, users INTEGER NOT NULL);
"""
# name, version, settled counts, open steps, steps, the latest event, when seen, departed; not who they were before
ANN = ("ann", 0, [2, 1, 0, 0, 0, 0, 0, 1], [], 4, 4, 104.0, True)
BOB = ("bob", 1, [0, 1], [[6, 2, None, None], [7, 2, True, None]], 3, 7, 107.0, False)
EVE = ("eve", 0, [], [[8, 1, None, None]], 1, 8, 108.0, False)
DECISIONS = [  # event, key, user, time, category, propensity, version, what we would have shown
    *((1, "ann 1", 0, 101.0, 0, 0.9, 0, 0), (2, None, 0, 102.0, 0, 0.9, 0, 0), (3, None, 0, 103.0, 0, 0.1, 0, 2)),
    *((4, None, 0, 104.0, 1, 0.9, 0, 1), (5, None, 1, 105.0, 0, 0.9, 1, 0), (6, None, 1, 106.0, 2, 0.9, 1, 2)),
    *((7, "bob 7", 1, 107.0, 2, 0.9, 1, 2), (8, None, 2, 108.0, 1, None, 0, 2)),
]
ANSWERS = [(1, 101.5, 1, None), (2, 102.5, 1, 0), (4, 104.5, 1, 1), (5, 105.5, 0, None), (7, 107.5, 1, None)]


@pytest.fixture
def old(tmp_path):
    """A file of schema 1, with two users who are here and one who departed."""
    path, site = tmp_path / "old.sqlite", magazine()
    document = json.dumps(policy_to_dict(dp.Fixed(2)) | {"categories_known": 3})
    about = {"words": "always music", "lower": 1.0, "upper": 9.0, "instance": site.to_dict()}
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.executescript(f"BEGIN;{TABLES_1} INSERT INTO meta VALUES ('schema', '1'); COMMIT;")
        store.executemany("INSERT INTO meta VALUES (?, ?)", [("mark", "1000"), ("shadow", "0")])
        store.executemany("INSERT INTO categories VALUES (?, ?, 1.0, NULL)", enumerate(site.categories))
        for number, (name, version, counts, *rest) in enumerate((ANN, BOB, EVE)):
            state = msgspec.msgpack.encode([number, name, version, counts, *rest])
            learned = (
                [0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0] if name == "bob" else counts
            )  # with the step without an answer
            row = (number, name, state, msgspec.msgpack.encode(learned), int(rest[-1]), rest[-2])
            store.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?)", row)
        store.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", DECISIONS)
        store.executemany("INSERT INTO answers VALUES (?, ?, ?, ?)", ANSWERS)
        store.execute("INSERT INTO departures VALUES (0, 104.5, 'told')")
        for version, source in enumerate(("the instance", "the best by now")):
            row = (version, 100.0, document, json.dumps(about | {"source": source}))
            store.execute("INSERT INTO policies VALUES (?, ?, ?, ?)", row)
        store.execute("INSERT INTO allotments VALUES (0, 1, 0)")
    return path


def dump(path):
    with closing(sqlite3.connect(path)) as store:
        return list(store.iterdump())


def run(call):
    return asyncio.run(call)


def test_a_store_of_an_earlier_release_is_taken_over(old):
    service = open_service(str(old), [], None, Settings(explore=0.0), seed=1)
    with closing(service.store):
        found = service.store.rows("SELECT number, departed, version, clicks, steps FROM users ORDER BY number")
        assert found == [(0, 1, 0, 3, 4), (1, 0, 1, 0, 3), (2, 0, 0, 0, 1)]
        assert service.store.rows("SELECT event FROM decisions WHERE shadow = 1") == [(8,)]
        assert service.store.active_users == 2
        ann, bob = run(service.user_state("ann")), run(service.user_state("bob"))
        assert (ann.departed, ann.counts["news"], ann.counts["sport"]) == (
            True,
            m.OutcomeCounts(2, 1, 0, 0),
            m.OutcomeCounts(0, 0, 0, 1),
        )
        assert [past.event for past in bob.history] == ["bob 7", "e-6", "e-5"]
        assert bob.counts["music"] == m.OutcomeCounts(1, 1, 0, 0)
        assert [row.source for row in run(service.policies()).versions] == ["learned", "instance"]
        assert run(service.policy()).version == 1
        assert run(ShadowReporter(service).report()).decisions == 1
    with closing(TrainingStore(old)) as training:
        assert Trainer(training, types=3).given_instance() == magazine()


def test_it_goes_on_where_it_was(old):
    service = open_service(str(old), [], magazine(), Settings(explore=0.0), seed=1)
    with closing(service.store):
        assert (
            run(service.recommend(m.RecommendRequest("ann", event="ann 1"))).category == "news"
        )  # as it was answered then
        assert run(service.feedback([m.Feedback("e-6", True), m.Feedback("bob 7", True, True)]))[0].accepted
        assert not run(service.feedback([m.Feedback("e-5", True)]))[0].accepted
        assert run(service.user_state("bob")).departed
        shown = [run(service.recommend(m.RecommendRequest(name))) for name in ("ann", "eve", "new")]
        assert [row.event for row in shown] == ["e-1000", "e-1001", "e-1002"]
        assert [row.version for row in shown] == [1, 0, 1]
        assert service.store.active_users == 3
    told = {
        "ann 1": (True, None),
        "e-2": (True, False),
        "e-4": (True, True),
        "e-6": (True, None),
        "bob 7": (True, True),
    }
    check(old, told)
    with closing(open_service(str(old), [], None, Settings(), seed=1).store) as store:
        assert store.rows(queries.SETTING, "schema") == [(str(schema.SCHEMA),)]


def test_it_is_unchanged_if_that_fails_in_the_middle(old, monkeypatch):
    before, seen = dump(old), []

    def full(state):
        seen.append(state)
        if len(seen) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        return 0, 0, 0

    with monkeypatch.context() as patched:
        patched.setattr(schema, "_columns_of_state", full)
        with pytest.raises(dp.InputError, match="cannot be opened: database or disk is full"):
            open_service(str(old), [], None, Settings())
    assert dump(old) == before
    open_service(str(old), [], None, Settings()).store.close()
    check(old, {})
