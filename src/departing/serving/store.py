"""The store of a service in one SQLite file: durable, and never waited for but where that is promised.

Writes go to a thread that commits many at a time (group commit); `flushed` tells when all written so far are on disk.
What was written and may not be on disk yet is kept in memory, so that reading sees it.
"""

import asyncio
import fcntl
import sqlite3
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from departing.model.errors import InputError
from departing.serving.people import User, counts_to_learn_from

SCHEMA = 1
TABLES = """
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
SAVE_USER = (
    "INSERT INTO users VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET name = excluded.name, "
    "state = excluded.state, counts = excluded.counts, departed = excluded.departed, seen = excluded.seen"
)
INSERT_DECISION = "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
SAVE_ANSWER = "INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT (event) DO UPDATE SET departed = excluded.departed"
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "busy_timeout = 30000",
    "cache_size = -64000",
)
RESERVED = 100_000  # numbers of events that are reserved at a time
RECENT = 100_000  # answers and keys that are kept in memory
Write = tuple[str, tuple[Any, ...]]


class Answer(msgspec.Struct, frozen=True):
    """What was told of an event."""

    clicked: bool
    departed: bool | None


class Decision(msgspec.Struct, frozen=True):
    """What was recommended, to whom."""

    event: int
    key: str | None
    user: int
    time: float
    category: int
    propensity: float | None  # None where the caller decided and did not say
    version: int
    ours: int  # the category we would have shown, which differs in shadow mode only


class SqliteStore:
    """All that a service must not forget, in the file `path`, which is made if there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _locked(path)
        try:
            self._reader = connect(path)
            self._prepare()
        except (sqlite3.Error, InputError) as error:
            self._lock.close()
            raise InputError(f"The store {str(path)!r} cannot be opened: {error}.") from error
        self._encode = msgspec.msgpack.Encoder().encode
        self._users: dict[str, User] = {}  # those met since the start; departed ones are let go once they are on disk
        self._names: dict[int, str] = {}
        self._leaving: deque[tuple[int, User]] = deque()  # who departed, and which write tells so
        self.unanswered = "no-click"
        self._answers: OrderedDict[int, Answer] = OrderedDict()
        self._decisions: OrderedDict[int, Decision] = OrderedDict()
        self._keys: OrderedDict[str, int] = OrderedDict()
        self.next_user = self._one("SELECT coalesce(max(number), -1) + 1 FROM users")
        mark = self._reader.execute("SELECT value FROM meta WHERE key = 'mark'").fetchone()
        used = self._one("SELECT coalesce(max(event), 0) + 1 FROM decisions")
        self.next_event = max(used, 0 if mark is None else int(mark[0]))
        self._writer = _Writer(path)
        self._mark = self.next_event
        self.reserve()
        self.settle()

    def reserve(self) -> None:
        """Write up to where events may be numbered, so that no number is given twice, even after a crash."""
        if self.next_event + RESERVED // 2 > self._mark:
            self._mark = self.next_event + RESERVED
            self.write(("INSERT OR REPLACE INTO meta VALUES ('mark', ?)", (str(self._mark),)))

    def _prepare(self) -> None:
        with closing(self._reader.cursor()) as cursor:
            if not cursor.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                cursor.executescript(f"BEGIN;{TABLES} INSERT INTO meta VALUES ('schema', '{SCHEMA}'); COMMIT;")
            found = cursor.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if found is None or int(found[0]) > SCHEMA:
            raise InputError(f"The store {str(self.path)!r} is of a later release; this one knows schema {SCHEMA}.")

    def _one(self, query: str, *values: Any) -> Any:
        return self._reader.execute(query, values).fetchone()[0]

    # Reading

    def user(self, name: str) -> User | None:
        """The user of this name."""
        found = self._users.get(name)
        if found is None:
            row = self._reader.execute("SELECT state FROM users WHERE name = ?", (name,)).fetchone()
            if row is not None:
                found = msgspec.msgpack.decode(row[0], type=User)
                if self._names.get(found.number, name) == name:  # or else it was renamed, which is not on disk yet
                    self._keep(found)
                else:
                    found = None
        return found

    def user_of(self, number: int) -> User | None:
        """The user of this number."""
        name = self._names.get(number)
        if name is None:
            row = self._reader.execute("SELECT name FROM users WHERE number = ?", (number,)).fetchone()
            name = None if row is None else row[0]
        return None if name is None else self.user(name)

    def decision(self, event: int) -> Decision | None:
        """What was recommended at an event."""
        found = self._decisions.get(event)
        if found is None:
            row = self._reader.execute("SELECT * FROM decisions WHERE event = ?", (event,)).fetchone()
            found = None if row is None else Decision(*row)
        return found

    def decision_of(self, key: str) -> Decision | None:
        """What was recommended under an id that the client made."""
        event = self._keys.get(key)
        if event is not None:
            return self.decision(event)
        row = self._reader.execute("SELECT * FROM decisions WHERE key = ?", (key,)).fetchone()
        return None if row is None else Decision(*row)

    def answer(self, event: int) -> Answer | None:
        """What was told of an event."""
        found = self._answers.get(event)
        if found is None:
            row = self._reader.execute("SELECT clicked, departed FROM answers WHERE event = ?", (event,)).fetchone()
            found = None if row is None else Answer(bool(row[0]), None if row[1] is None else bool(row[1]))
        return found

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of what is on disk."""
        return self._reader.execute(query, values).fetchall()

    def silent(self, before: float, most: int) -> list[User]:
        """Users who are here and were not seen since."""
        query = "SELECT number FROM users WHERE NOT departed AND seen < ? ORDER BY seen LIMIT ?"
        found = (self.user_of(number) for (number,) in self.rows(query, before, most))
        return [user for user in found if user is not None and not user.departed and user.seen < before]

    def trim(self) -> None:
        """Let go of departed users who are on disk."""
        done = self._writer.done
        while self._leaving and self._leaving[0][0] <= done:
            _, user = self._leaving.popleft()
            if self._users.get(user.name) is user:
                del self._users[user.name]
                self._names.pop(user.number, None)

    def categories(self) -> Iterator[tuple[str, bool]]:
        """Names in order, and whether each is retired."""
        for name, retired in self.rows("SELECT name, retired FROM categories ORDER BY category"):
            yield name, retired is not None

    # Writing

    def save(self, user: User, *writes: Write) -> None:
        """Write what became of a user, together with `writes`, all or nothing."""
        self._keep(user)
        counts, state = self._encode(counts_to_learn_from(user, self.unanswered)), self._encode(user)
        row = (SAVE_USER, (user.number, user.name, state, counts, user.departed, user.seen))
        place = self._writer.put([*writes, row])
        if user.departed:
            self._leaving.append((place, user))

    def write(self, *writes: Write) -> None:
        """Write something else, all or nothing."""
        self._writer.put(list(writes))

    def decided(self, decision: Decision) -> Write:
        """The write of a decision."""
        _note(self._decisions, decision.event, decision)
        if decision.key is not None:
            _note(self._keys, decision.key, decision.event)
        return INSERT_DECISION, msgspec.structs.astuple(decision)

    def answered(self, event: int, answer: Answer, now: float) -> Write:
        """The write of an answer; what was told before of whether the user departed may be added to."""
        _note(self._answers, event, answer)
        return SAVE_ANSWER, (event, now, answer.clicked, answer.departed)

    def rename(self, user: User, name: str) -> None:
        """Give a user another name; `save` writes it."""
        self._users.pop(user.name, None)
        user.name = name

    def _keep(self, user: User) -> None:
        self._users[user.name] = user
        self._names[user.number] = user.name

    async def flushed(self) -> None:
        """Wait until all that was written so far is on disk."""
        await self._writer.flushed()

    def settle(self) -> None:
        """The same where nothing else is going on."""
        asyncio.run(self.flushed())

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more."""
        return self._writer.failure

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self.failure is None:
            self.write(("INSERT OR REPLACE INTO meta VALUES ('mark', ?)", (str(self.next_event),)))
        self._writer.close()
        self._reader.close()
        self._lock.close()


def _locked(path: Path) -> IO[bytes]:
    """The lock of a store, which is held as long as it is open."""
    try:
        lock = path.with_name(path.name + ".lock").open("ab")
    except OSError as error:
        raise InputError(f"The store {str(path)!r} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise InputError(f"The store {str(path)!r} is served by another process already.") from error
    return lock


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the file: write-ahead log, everything on disk when it is committed."""
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _note(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > RECENT:
        kept.popitem(last=False)


class _Writer:
    """Commits what is put, in order, as much at a time as has come while the last commit was under way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch: list[list[Write]] = []
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._busy = False
        self._put = self.done = 0  # how many were put, and are on disk
        self._wake = threading.Condition()
        self._closing = False
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, writes: list[Write]) -> int:
        """Put something to be written; its place among all that was put."""
        with self._wake:
            if self.failure is not None:
                raise StoreError(self.failure)
            self._batch.append(writes)
            self._put += 1
            self._wake.notify()
            return self._put

    async def flushed(self) -> None:
        loop = asyncio.get_running_loop()
        with self._wake:
            if self.failure is not None:
                raise StoreError(self.failure)
            if not self._batch and not self._busy:
                return
            future = loop.create_future()
            self._futures.append((loop, future))
            self._wake.notify()
        await future

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        connection = connect(self._path)
        while True:
            with self._wake:
                while not self._batch and not self._futures and not self._closing:
                    self._wake.wait()
                batch, self._batch = self._batch, []
                futures, self._futures = self._futures, []
                self._busy = True
                if self._closing and not batch and not futures:
                    break
            failure = self._commit(connection, batch)
            with self._wake:
                self._busy, self.failure = False, failure
                self.done += len(batch) if failure is None else 0
                if failure is not None:
                    futures += self._futures
            _resolve(futures, failure)
            if failure is not None:
                break
        connection.close()

    def _commit(self, connection: sqlite3.Connection, batch: list[list[Write]]) -> str | None:
        """Commit all of it or nothing; why it failed, if it did."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            for query, rows in _grouped(batch):
                connection.executemany(query, rows)
            connection.execute("COMMIT")
        except Exception as error:  # whatever it is, nobody must wait for ever
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            return f"The store cannot be written: {error}."
        return None


def _grouped(batch: list[list[Write]]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The same writes with those of one kind together, and of a user only the last; others keep their place."""
    kinds: dict[str, list[tuple[Any, ...]]] = {INSERT_DECISION: [], SAVE_ANSWER: [], SAVE_USER: []}
    users: dict[int, tuple[Any, ...]] = {}

    def so_far() -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        kinds[SAVE_USER] = list(users.values())
        yield from ((query, rows) for query, rows in kinds.items() if rows)

    for writes in batch:
        for query, values in writes:
            if query == SAVE_USER:
                users[values[0]] = values
            elif query in kinds:
                kinds[query].append(values)
            else:
                yield from so_far()
                kinds, users = {query: [] for query in kinds}, {}
                yield query, [values]
    yield from so_far()


class StoreError(Exception):
    """Nothing can be written any more; what was acknowledged is safe."""


def _resolve(futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]], failure: str | None) -> None:
    def tell() -> None:
        for _, future in futures:
            if not future.done():
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(StoreError(failure))

    if futures:
        futures[0][0].call_soon_threadsafe(tell)
