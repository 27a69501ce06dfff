"""Migration of stores with earlier schemas: complete, or not at all."""

import asyncio
import json
import sqlite3
from contextlib import closing

import msgspec
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.policy.files import policy_to_dict
from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store import queries, schema
from departing.service.store.connection import connect, is_postgres
from departing.service.workers.shadow import ShadowReporter
from departing.service.workers.trainer import Trainer
from helpers.load import check
from helpers.services import recommend, service

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
# name, version, settled counts, open steps, number of steps, latest event, last seen, departed
ANN = ("ann", 0, [2, 1, 0, 0, 0, 0, 0, 1], [], 4, 4, 104.0, True)
BOB = ("bob", 1, [0, 1], [[6, 2, None, None], [7, 2, True, None]], 3, 7, 107.0, False)
EVE = ("eve", 0, [], [[8, 1, None, None]], 1, 8, 108.0, False)
DECISIONS = [  # event, key, user, time, category, propensity, version, the policy's own choice
    *((1, "ann 1", 0, 101.0, 0, 0.9, 0, 0), (2, None, 0, 102.0, 0, 0.9, 0, 0), (3, None, 0, 103.0, 0, 0.1, 0, 2)),
    *((4, None, 0, 104.0, 1, 0.9, 0, 1), (5, None, 1, 105.0, 0, 0.9, 1, 0), (6, None, 1, 106.0, 2, 0.9, 1, 2)),
    *((7, "bob 7", 1, 107.0, 2, 0.9, 1, 2), (8, None, 2, 108.0, 1, None, 0, 2)),
]
ANSWERS = [(1, 101.5, 1, None), (2, 102.5, 1, 0), (4, 104.5, 1, 1), (5, 105.5, 0, None), (7, 107.5, 1, None)]


@pytest.fixture
def old(tmp_path):
    """A file with schema 1, with two active users and one who departed."""
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
            settled = [0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0] if name == "bob" else counts  # and one missing feedback
            row = (number, name, state, msgspec.msgpack.encode(settled), int(rest[-1]), rest[-2])
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


def test_a_store_with_schema_1_is_migrated(old):
    service = open_service(str(old), [], None, Settings(explore=0.0), seed=1)
    with closing(service.store):
        users = service.store.rows("SELECT number, departed, version, clicks, steps FROM users ORDER BY number")
        assert users == [(0, 1, 0, 3, 4), (1, 0, 1, 0, 3), (2, 0, 0, 0, 1)]
        assert service.store.rows("SELECT event FROM decisions WHERE shadow = 1") == [(8,)]
        assert service.store.rows("SELECT arrived FROM users ORDER BY number") == [(101.0,), (105.0,), (108.0,)]
        assert service.store.rows("SELECT DISTINCT epoch, experiment, arm FROM decisions") == [(0, None, None)]
        assert service.store.rows(queries.SETTING, "mark") == []
        assert service.store.active_users == 2
        ann, bob = run(service.user_state("ann")), run(service.user_state("bob"))
        assert (ann.departed, ann.counts["news"], ann.counts["sport"]) == (
            True,
            m.OutcomeCounts(2, 1, 0, 0),
            m.OutcomeCounts(0, 0, 0, 1),
        )
        assert [event.event for event in bob.history] == ["bob 7", "e-6", "e-5"]
        assert bob.counts["music"] == m.OutcomeCounts(1, 1, 0, 0)
        assert [row.source for row in run(service.policies()).versions] == ["learned", "instance"]
        assert run(service.policy()).version == 1
        assert run(ShadowReporter(service).report()).decisions == 1
    with closing(connect(old)) as training:
        assert Trainer(training, types=3).given_instance() == magazine()


def test_a_migrated_service_continues_where_it_stopped(old):
    settings = Settings(explore=0.0, departures_reported=True, learn=True)
    service = open_service(str(old), [], magazine(), settings, seed=1)
    with closing(service.store):
        repeated = run(service.recommend(m.RecommendRequest("ann", event="ann 1")))
        assert repeated.category == "news"
        assert run(service.feedback([m.Feedback("e-6", True), m.Feedback("bob 7", True, True)]))[0].accepted
        assert not run(service.feedback([m.Feedback("e-5", True)]))[0].accepted
        assert run(service.feedback([m.Feedback("e-9", True)]))[0].code == "lost_event"
        assert run(service.user_state("bob")).departed
        shown = [run(service.recommend(m.RecommendRequest(name))) for name in ("ann", "eve", "new")]
        assert [row.event for row in shown] == [f"e-{service.store.epoch}-{number}" for number in (9, 10, 11)]
        assert [row.version for row in shown] == [1, 0, 1]
        assert service.store.active_users == 3
        ((arrived,),) = service.store.rows("SELECT arrived FROM users WHERE name = 'eve'")
        assert arrived == 108.0  # eve was saved again
        assert run(service.feedback([m.Feedback("e-9", True)]))[0].code == "lost_event"  # 9 is another event now
    acknowledged = {
        "ann 1": (True, None),
        "e-2": (True, False),
        "e-4": (True, True),
        "e-6": (True, None),
        "bob 7": (True, True),
    }
    check(old, acknowledged)
    with closing(open_service(str(old), [], None, Settings(), seed=1).store) as store:
        assert store.rows(queries.SETTING, "schema") == [(str(schema.SCHEMA),)]


def test_a_migration_that_fails_leaves_the_file_unchanged(old, monkeypatch):
    before, states = dump(old), []

    def full(state):
        states.append(state)
        if len(states) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        return 0, 0, 0

    with monkeypatch.context() as patched:
        patched.setattr(schema, "_columns_of_state", full)
        with pytest.raises(dp.InputError, match="cannot be opened: database or disk is full"):
            open_service(str(old), [], None, Settings())
    assert dump(old) == before
    open_service(str(old), [], None, Settings()).store.close()
    check(old, {})


TABLES_2 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE categories (
    category {int} PRIMARY KEY, name TEXT NOT NULL UNIQUE, added {real} NOT NULL, retired {real}
);
CREATE TABLE users (
    number {int} PRIMARY KEY, name TEXT NOT NULL UNIQUE, state {bytes} NOT NULL, counts {bytes} NOT NULL,
    departed {int} NOT NULL, seen {real} NOT NULL, version {int} NOT NULL DEFAULT 0, clicks {int} NOT NULL DEFAULT 0,
    steps {int} NOT NULL DEFAULT 0
);
CREATE INDEX users_here ON users (seen) WHERE departed = 0;
CREATE TABLE decisions (
    event {int} PRIMARY KEY, key TEXT, number {int} NOT NULL, time {real} NOT NULL, category {int} NOT NULL,
    propensity {real}, version {int} NOT NULL, ours {int} NOT NULL, shadow {int} NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX decisions_key ON decisions (key) WHERE key IS NOT NULL;
CREATE INDEX decisions_user ON decisions (number);
CREATE INDEX decisions_shadow ON decisions (event) WHERE shadow = 1;
CREATE TABLE answers (event {int} PRIMARY KEY, time {real} NOT NULL, clicked {int} NOT NULL, departed {int});
CREATE TABLE departures (number {int} PRIMARY KEY, time {real} NOT NULL, why TEXT NOT NULL);
CREATE INDEX departures_time ON departures (time);
CREATE TABLE policies (version {int} PRIMARY KEY, made {real} NOT NULL, document TEXT NOT NULL, about TEXT NOT NULL);
CREATE TABLE allotments (place {int} PRIMARY KEY, version {int} NOT NULL, users {int} NOT NULL);
CREATE TABLE counters (worker TEXT, name TEXT, value {int} NOT NULL, PRIMARY KEY (worker, name));
INSERT INTO meta VALUES ('schema', '2')
"""
SEQUENCES_2 = "; CREATE SEQUENCE events START 9; CREATE SEQUENCE numbers MINVALUE 0 START 3"


@pytest.fixture
def schema_2(address):
    """A store with schema 2, with two departed users and an active one."""
    with closing(connect(address)) as database, database.transaction():
        postgres = is_postgres(address)
        types = {"int": "BIGINT", "real": "DOUBLE PRECISION", "bytes": "BYTEA"}
        types = types if postgres else {"int": "INTEGER", "real": "REAL", "bytes": "BLOB"}
        for statement in (TABLES_2 + SEQUENCES_2 * postgres).format(**types).split(";"):
            database.execute(statement)
        for category, name in enumerate(magazine().categories):
            database.execute("INSERT INTO categories VALUES (?, ?, 1.0, NULL)", category, name)
        for number, (name, version, counts, *rest) in enumerate((ANN, BOB, EVE)):
            departed = name != "eve"
            state = msgspec.msgpack.encode([number, name, version, counts, [], *rest[1:4], departed])
            row = (number, name, state, msgspec.msgpack.encode(counts), int(departed), rest[3], version, 3, rest[1])
            database.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
        for decision in DECISIONS:
            database.execute(
                "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *decision, int(decision[0] == 8)
            )
        for answer in ANSWERS:
            database.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", *answer)
        database.execute("INSERT INTO departures VALUES (0, 104.5, 'told')")
        database.execute("INSERT INTO departures VALUES (1, 110.0, 'silent')")
        about = {"words": "always music", "lower": 1.0, "upper": 9.0, "loss": 0.5, "arrived": 3}
        document = json.dumps(policy_to_dict(dp.Fixed(2)) | {"categories_known": 3})
        for version, source in enumerate(("the instance", "tried to find out", "the best by now")):
            details = json.dumps(about | {"source": source, "instance": magazine().to_dict()})
            database.execute("INSERT INTO policies VALUES (?, 100.0, ?, ?)", version, document, details)
        database.execute("INSERT INTO allotments VALUES (0, 2, 0)")
        counters = {"arrived": 3, "answered": 5, "refused_contradiction": 2, "problems_422": 1}
        for name, value in counters.items():
            database.execute("INSERT INTO counters VALUES ('one', ?, ?)", name, value)
        database.execute("INSERT INTO meta VALUES ('learner', '{}')")
        database.execute("INSERT INTO meta VALUES ('instance', ?)", json.dumps(magazine().to_dict()))
    return address


def test_a_store_with_schema_2_is_migrated(schema_2):
    service = open_service(schema_2, [], None, Settings(explore=0.0), seed=1)
    with closing(service.store), closing(connect(schema_2)) as training:
        totals = {
            "new_users": 3,
            "feedback": 5,
            "reported_departures": 1,
            "rejected_feedback_conflicting_feedback": 2,
            "problems_422": 1,
        }
        assert run(service.totals()) == totals
        assert service.store.active_users == 1
        versions = run(service.policies()).versions
        assert [row.source for row in versions] == ["learned", "exploration", "instance"]
        assert {row.description for row in versions} == {"always music"}
        figures = run(DashboardReader(service).read())
        assert (figures.learning_curve[0].users, figures.learning_curve[0].expected_regret) == (3, 0.5)
        with service.store.read() as snapshot:
            assert snapshot.execute("SELECT cause FROM departures ORDER BY number") == [("reported",), ("inactive",)]
        assert run(ShadowReporter(service).report()).decisions == 1
        assert run(service.user_state("ann")).history[0].departed is True
        assert run(service.recommend(m.RecommendRequest("new"))).version == 2
        trainer = Trainer(training, types=3)
        assert trainer.learner is None  # it is rebuilt from the counts
        assert trainer.given_instance() == magazine()


def test_a_store_with_schema_4_is_migrated(address):
    with service(address) as served:
        recommend(served, "ann", event="1")
        run(served.feedback([m.Feedback("1", True)]))
    with closing(connect(address)) as database, database.transaction():
        for statement in (
            *("ALTER TABLE users DROP COLUMN segment", "DROP INDEX feedback_rewards", "DROP TABLE segments"),
            *("ALTER TABLE feedback DROP COLUMN reward", "UPDATE meta SET value = '4' WHERE key = 'schema'"),
        ):
            database.execute(statement)
        state = database.execute("SELECT state FROM users")[0][0]
        old = msgspec.msgpack.encode(msgspec.msgpack.decode(state)[:16])
        database.execute("UPDATE users SET state = ?", old)
    with service(address) as served:
        assert run(served.user_state("ann")).segment is None
        assert run(served.feedback([m.Feedback("1", True, None, 2.0)]))[0].accepted
        assert recommend(served, "bob", segment="mobile").code is m.UNSET
        run(served.flush())
        with served.store.read() as snapshot:
            assert snapshot.execute("SELECT segment FROM users ORDER BY number") == [(None,), ("mobile",)]
            assert snapshot.execute("SELECT reward FROM feedback") == [(2.0,)]
            assert snapshot.execute(queries.SETTING, "schema") == [(str(schema.SCHEMA),)]
