"""Tables of a store in SQLite and PostgreSQL, and migrations from earlier schemas."""

import msgspec

from departing.model.errors import InputError
from departing.service.store import queries
from departing.service.store.connection import Database, PostgresDatabase

SCHEMA = 5
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE categories (
    category {int} PRIMARY KEY, name TEXT NOT NULL UNIQUE, added {real} NOT NULL, retired {real}
);
CREATE TABLE users (
    number {int} PRIMARY KEY, name TEXT NOT NULL UNIQUE, state {bytes} NOT NULL, counts {bytes} NOT NULL,
    departed {int} NOT NULL, last_seen {real} NOT NULL, version {int} NOT NULL DEFAULT 0,
    clicks {int} NOT NULL DEFAULT 0, steps {int} NOT NULL DEFAULT 0, arrived {real} NOT NULL DEFAULT 0, segment TEXT
);
CREATE INDEX users_arrived ON users (arrived);
CREATE INDEX users_active ON users (last_seen) WHERE departed = 0;
CREATE TABLE decisions (
    event {int} PRIMARY KEY, key TEXT, number {int} NOT NULL, time {real} NOT NULL, category {int} NOT NULL,
    propensity {real}, version {int} NOT NULL, policy_category {int} NOT NULL, shadow {int} NOT NULL DEFAULT 0,
    epoch {int} NOT NULL DEFAULT 0, experiment {int}, arm TEXT
);
CREATE UNIQUE INDEX decisions_key ON decisions (key) WHERE key IS NOT NULL;
CREATE INDEX decisions_user ON decisions ({by_user});
CREATE INDEX decisions_shadow ON decisions (event) WHERE shadow = 1;
CREATE TABLE feedback (
    event {int} PRIMARY KEY, time {real} NOT NULL, clicked {int} NOT NULL, departed {int}, reward {real}
);
{segments};
CREATE TABLE departures (number {int} PRIMARY KEY, time {real} NOT NULL, cause TEXT NOT NULL);
CREATE TABLE policies (
    version {int} PRIMARY KEY, created {real} NOT NULL, document TEXT NOT NULL, details TEXT NOT NULL
);
CREATE TABLE allocations (position {int} PRIMARY KEY, version {int} NOT NULL, users {int} NOT NULL);
{experiments};
CREATE TABLE counters (worker TEXT, name TEXT, value {int} NOT NULL, PRIMARY KEY (worker, name));
INSERT INTO meta VALUES ('schema', '{schema}')
"""
_SEGMENTS = """
CREATE TABLE segments (name TEXT PRIMARY KEY, added {real} NOT NULL);
CREATE INDEX feedback_rewards ON feedback (event) WHERE reward IS NOT NULL
"""
_EXPERIMENTS = """
CREATE TABLE experiments (id {int} PRIMARY KEY, created {real} NOT NULL, document TEXT NOT NULL);
CREATE TABLE assignments (
    number {int} PRIMARY KEY, experiment {int} NOT NULL, stage {int} NOT NULL, arm TEXT NOT NULL,
    entry {int} NOT NULL, time {real} NOT NULL
);
CREATE INDEX assignments_entry ON assignments (entry);
CREATE INDEX assignments_time ON assignments (experiment, time)
"""
_SEQUENCES = "; CREATE SEQUENCE events; CREATE SEQUENCE numbers MINVALUE 0 START 0"
_COLUMN_TYPES = {
    # An index of SQLite contains the primary key anyway. Without it PostgreSQL looks for the last event of a user,
    # which the log needs for every row, among all events.
    False: {"int": "INTEGER", "real": "REAL", "bytes": "BLOB", "by_user": "number"},
    True: {"int": "BIGINT", "real": "DOUBLE PRECISION", "bytes": "BYTEA", "by_user": "number, event"},
}


def prepare(database: Database) -> None:
    """Create the tables of a new database, or migrate those of an earlier release."""
    with database.transaction():
        if not database.has_tables():
            for statement in _creation(isinstance(database, PostgresDatabase)):
                database.execute(statement)
        rows = database.execute(queries.SETTING, queries.SCHEMA_KEY)
        schema = int(rows[0][0]) if rows else SCHEMA + 1
        if schema > SCHEMA:
            raise InputError(
                f"The store {database.name} was written by a later release; this release supports schema {SCHEMA}. "
                "Upgrade departing."
            )
        if schema < 2:
            _to_2(database)
        if schema < 3:
            _to_3(database)
        if schema < 4:
            _to_4(database)
        if schema < 5:
            _to_5(database)
        if schema < SCHEMA:
            database.execute(queries.SET, queries.SCHEMA_KEY, str(SCHEMA))


def _creation(postgres: bool) -> list[str]:
    """Return the statements that create the tables."""
    return _statements(_TABLES + (_SEQUENCES if postgres else ""), postgres)


def _statements(text: str, postgres: bool) -> list[str]:
    """Return statements with the column types of a database."""
    text = text.replace("{experiments}", _EXPERIMENTS).replace("{segments}", _SEGMENTS)
    return text.format(schema=SCHEMA, **_COLUMN_TYPES[postgres]).split(";")


_TO_2 = """
ALTER TABLE decisions RENAME COLUMN user TO number;
ALTER TABLE departures RENAME COLUMN user TO number;
ALTER TABLE users ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN clicks INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE decisions ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0;
UPDATE decisions SET shadow = 1 WHERE propensity IS NULL;
DROP INDEX users_here;
CREATE INDEX users_here ON users (seen) WHERE departed = 0;
CREATE INDEX decisions_shadow ON decisions (event) WHERE shadow = 1;
CREATE TABLE counters (worker TEXT, name TEXT, value INTEGER NOT NULL, PRIMARY KEY (worker, name));
INSERT INTO counters SELECT 'one', 'arrived', count(*) FROM users;
INSERT INTO counters SELECT 'one', 'recommended', count(*) FROM decisions;
INSERT INTO counters SELECT 'one', 'answered', count(*) FROM answers;
INSERT INTO counters SELECT 'one', 'clicked', coalesce(sum(clicked), 0) FROM answers;
INSERT INTO counters SELECT 'one', 'departed', count(*) FROM departures
"""
_USER_STATES = "SELECT number, state FROM users WHERE number > ? ORDER BY number LIMIT 10000"
_SET_USER_COLUMNS = "UPDATE users SET version = ?, clicks = ?, steps = ? WHERE number = ?"
_INSTANCE_1 = (
    "SELECT about FROM policies WHERE json_extract(about, '$.source') = 'the instance' ORDER BY version DESC LIMIT 1"
)


def _to_2(database: Database) -> None:
    """Add columns for parts of the users' state, marks of shadow decisions, and counters.

    Only SQLite files have schema 1.
    """
    for statement in _TO_2.split(";"):
        database.execute(statement)
    number = -1
    while rows := database.execute(_USER_STATES, number):
        database.execute_many(_SET_USER_COLUMNS, [(*_columns_of_state(state), each) for each, state in rows])
        number = rows[-1][0]
    for (about,) in database.execute(_INSTANCE_1):
        instance = msgspec.json.encode(msgspec.json.decode(about)["instance"]).decode()
        database.execute(queries.SET, queries.INSTANCE_KEY, instance)


def _columns_of_state(state: bytes) -> tuple[int, int, int]:
    """Return version, clicks and steps from the encoded state of a user."""
    _, _, version, counts, _, steps, *_ = msgspec.msgpack.decode(state)
    return version, sum(counts[0::4]) + sum(counts[3::4]), steps


_TO_3 = """
ALTER TABLE answers RENAME TO feedback;
ALTER TABLE allotments RENAME TO allocations;
ALTER TABLE allocations RENAME COLUMN place TO position;
ALTER TABLE users RENAME COLUMN seen TO last_seen;
DROP INDEX users_here;
DROP INDEX IF EXISTS departures_time;
CREATE INDEX users_active ON users (last_seen) WHERE departed = 0;
ALTER TABLE decisions RENAME COLUMN ours TO policy_category;
ALTER TABLE departures RENAME COLUMN why TO cause;
UPDATE departures SET cause = CASE cause WHEN 'told' THEN 'reported' ELSE 'inactive' END;
ALTER TABLE policies RENAME COLUMN made TO created;
ALTER TABLE policies RENAME COLUMN about TO details;
DELETE FROM meta WHERE key = 'learner'
"""
_COUNTERS_3 = {
    "arrived": "new_users",
    "recommended": "recommendations",
    "answered": "feedback",
    "clicked": "clicks",
    "departed": "departures",
    "returned": "returned_users",
    "repeated": "repeated_feedback",
    "forgotten": "forgotten_users",
    "refused_unknown": "rejected_feedback_unknown_event",
    "refused_contradiction": "rejected_feedback_conflicting_feedback",
    "refused_came_back": "rejected_feedback_user_returned",
    "refused_closed": "rejected_feedback_event_closed",
}
_SOURCES_3 = {
    "the instance": "instance",
    "the best by now": "learned",
    "tried to find out": "exploration",
    "the start": "initial",
}
_DETAILS_3 = {"words": "description", "graph": "tree", "arrived": "users"}


def _to_3(database: Database) -> None:
    """Rename tables, columns, counters and the fields of policy details.

    The trainer rebuilds its learner, whose format changed, from the users' counts.
    """
    for statement in _TO_3.split(";"):
        database.execute(statement)
    renamed = [(new, old) for old, new in _COUNTERS_3.items()]
    database.execute_many("UPDATE counters SET name = ? WHERE name = ?", renamed)
    updates = []
    for version, text in database.execute("SELECT version, details FROM policies"):
        details = {_DETAILS_3.get(key, key): value for key, value in msgspec.json.decode(text).items()}
        details["source"] = _SOURCES_3.get(details.get("source", ""), "")
        updates.append((msgspec.json.encode(details).decode(), version))
    database.execute_many("UPDATE policies SET details = ? WHERE version = ?", updates)


_TO_4 = """
DROP INDEX decisions_user;
CREATE INDEX decisions_user ON decisions ({by_user});
ALTER TABLE users ADD COLUMN arrived {real} NOT NULL DEFAULT 0;
UPDATE users SET arrived = coalesce((SELECT min(time) FROM decisions d WHERE d.number = users.number), last_seen);
CREATE INDEX users_arrived ON users (arrived);
ALTER TABLE decisions ADD COLUMN epoch {int} NOT NULL DEFAULT 0;
ALTER TABLE decisions ADD COLUMN experiment {int};
ALTER TABLE decisions ADD COLUMN arm TEXT;
{experiments};
INSERT INTO counters SELECT 'one', 'reported_departures', count(*) FROM departures WHERE cause = 'reported';
DELETE FROM meta WHERE key = 'mark'
"""


def _to_4(database: Database) -> None:
    """Add epochs of event IDs, the users' arrival times, experiments, and a counter of reported departures.

    Reserved event numbers ('mark') are not needed any more: events with the same number differ in their epochs.
    """
    for statement in _statements(_TO_4, isinstance(database, PostgresDatabase)):
        database.execute(statement)


_TO_5 = """
ALTER TABLE users ADD COLUMN segment TEXT;
ALTER TABLE feedback ADD COLUMN reward {real};
{segments}
"""


def _to_5(database: Database) -> None:
    """Add segments of users, and rewards of clicks."""
    for statement in _statements(_TO_5, isinstance(database, PostgresDatabase)):
        database.execute(statement)
