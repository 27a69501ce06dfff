"""The tables of a store, for SQLite and PostgreSQL, and how those of earlier releases become these."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

SCHEMA = 2
TABLES = """
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
INSERT INTO meta VALUES ('schema', '{schema}')
"""
SEQUENCES = "; CREATE SEQUENCE events; CREATE SEQUENCE numbers MINVALUE 0 START 0"
KINDS = {
    False: {"int": "INTEGER", "real": "REAL", "bytes": "BLOB"},
    True: {"int": "BIGINT", "real": "DOUBLE PRECISION", "bytes": "BYTEA"},
}
INSERT_DECISION = "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
SAVE_USER_END = (
    " ON CONFLICT (number) DO UPDATE SET name = excluded.name, state = excluded.state, counts = excluded.counts, "
    "departed = excluded.departed, seen = excluded.seen, version = excluded.version, clicks = excluded.clicks, "
    "steps = excluded.steps"
)
SAVE_USER = f"INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?){SAVE_USER_END}"
SAVE_ANSWER_END = " ON CONFLICT (event) DO UPDATE SET departed = excluded.departed"
SAVE_ANSWER = f"INSERT INTO answers VALUES (?, ?, ?, ?){SAVE_ANSWER_END}"
SAVE_COUNTER_END = " ON CONFLICT (worker, name) DO UPDATE SET value = excluded.value"
SAVE_COUNTER = f"INSERT INTO counters VALUES (?, ?, ?){SAVE_COUNTER_END}"
SET = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
UNSET = "DELETE FROM meta WHERE key = ?"
FORGET_KEYS = "UPDATE decisions SET key = NULL WHERE number = ?"
CASTS = {"int": "({})::bigint", "real": "({})::float8", "text": "{}", "bytes": "decode({}, 'base64')"}


def _of_json(table: str, kinds: str, end: str = "") -> str:
    """The same insertion for PostgreSQL, of all rows at once as JSON."""
    columns = ", ".join(CASTS[kind].format(f"v ->> {i}") for i, kind in enumerate(kinds.split()))
    return f"INSERT INTO {table} SELECT {columns} FROM jsonb_array_elements(%s::jsonb) v{end}"


IN_BULK = {
    INSERT_DECISION: _of_json("decisions", "int text int real int real int int int"),
    SAVE_USER: _of_json("users", "int text bytes bytes int real int int int", SAVE_USER_END),
    SAVE_ANSWER: _of_json("answers", "int real int int", SAVE_ANSWER_END),
    SAVE_COUNTER: _of_json("counters", "text text int", SAVE_COUNTER_END),
}
Read = Callable[..., list[tuple[Any, ...]]]
Many = Callable[[str, Sequence[tuple[Any, ...]]], None]


def tables(postgres: bool) -> Iterator[str]:
    """The statements that make the tables."""
    text = TABLES + (SEQUENCES if postgres else "")
    yield from text.format(schema=SCHEMA, **KINDS[postgres]).split(";")


def migrate(read: Read, many: Many, schema: int) -> None:
    """Bring tables of an earlier `schema` up to date."""
    if schema < 2:
        _to_2(read, many)
    if schema < SCHEMA:
        read(SET, "schema", str(SCHEMA))


def _to_2(read: Read, many: Many) -> None:
    """Columns of what was only in the state of users; what is decided in shadow is marked; counters are kept.

    Only SQLite files are as old as that.
    """
    for table in ("decisions", "departures"):
        read(f"ALTER TABLE {table} RENAME COLUMN user TO number")
    for name in ("version", "clicks", "steps"):
        read(f"ALTER TABLE users ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    read("ALTER TABLE decisions ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0")
    read("UPDATE decisions SET shadow = 1 WHERE propensity IS NULL")
    read("DROP INDEX users_here")
    for statement in tables(False):
        if any(name in statement for name in ("users_here", "decisions_shadow", "departures_time", "TABLE counters")):
            read(statement)
    number = -1
    while found := read("SELECT number, state FROM users WHERE number > ? ORDER BY number LIMIT 10000", number):
        rows = [(*_of_state(state), each) for each, state in found]
        many("UPDATE users SET version = ?, clicks = ?, steps = ? WHERE number = ?", rows)
        number = found[-1][0]
    for name, counted in {
        "arrived": "count(*) FROM users",
        "recommended": "count(*) FROM decisions",
        "answered": "count(*) FROM answers",
        "clicked": "coalesce(sum(clicked), 0) FROM answers",
        "departed": "count(*) FROM departures",
    }.items():
        read(f"INSERT INTO counters SELECT 'one', '{name}', {counted}")
    given = "SELECT about FROM policies WHERE json_extract(about, '$.source') = 'the instance' ORDER BY version DESC"
    for (about,) in read(f"{given} LIMIT 1"):
        read(SET, "instance", msgspec.json.encode(msgspec.json.decode(about)["instance"]).decode())


def _of_state(state: bytes) -> tuple[int, int, int]:
    """The version, clicks and steps of a user, of the list that is kept of one."""
    _, _, version, counts, _, steps, *_ = msgspec.msgpack.decode(state)
    return version, sum(counts[0::4]) + sum(counts[3::4]), steps
