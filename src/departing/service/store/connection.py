"""Connections to the database of a store, a SQLite file or PostgreSQL: the little that is asked of both.

Queries are written once, with `?` for values.
"""

import os
import re
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from departing.model.errors import InputError
from departing.model.files import atomic_write
from departing.service.store.schema import IN_BULK, SCHEMA, migrate, tables

PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "busy_timeout = 30000",
    "cache_size = -64000",
    "wal_autocheckpoint = 10000",
)
AT_ONCE = (128, 16)  # rows in one statement
PATIENCE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
PART = 5000  # rows that are read at a time
CANNOT = "The store {} cannot be opened: {}."
Rows = list[tuple[Any, ...]]


class UnreachableError(InputError):
    """A database that cannot be opened."""


class Database(ABC):
    """A connection, used by one thread at a time."""

    name: str  # what people may see of its address

    @abstractmethod
    def rows(self, query: str, *values: Any) -> Rows:
        """What a query finds; nothing for a statement."""

    @abstractmethod
    def many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with each of `rows`."""

    @abstractmethod
    def stream(self, query: str) -> Iterator[Rows]:
        """What a query finds, part by part, all as of one moment."""

    @abstractmethod
    def lead(self) -> bool:
        """Whether this connection is the one that leads: at most one is, until it is closed."""

    @abstractmethod
    def transaction(self) -> Any:
        """A context in which all is written, or nothing."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A context in which everything is read as of one moment."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def prepare(self) -> None:
        """Make the tables of a new database; bring those of an earlier release up to date."""
        with self.transaction():
            if not self._has_tables():
                for statement in tables(isinstance(self, PostgresDatabase)):
                    self.rows(statement)
            found = self.rows("SELECT value FROM meta WHERE key = 'schema'")
            if not found or int(found[0][0]) > SCHEMA:
                raise InputError(f"The store {self.name} is of a later release; this one knows schema {SCHEMA}.")
            migrate(self.rows, self.many, int(found[0][0]))

    @abstractmethod
    def _has_tables(self) -> bool: ...


class SqliteDatabase(Database):
    """A connection to a file: write-ahead log, everything on disk when it is committed."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = repr(str(path)), path
        self._lead: IO[bytes] | None = None
        try:
            self._connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
            for pragma in PRAGMAS:
                self._connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error as error:
            raise UnreachableError(CANNOT.format(self.name, error)) from error

    def rows(self, query: str, *values: Any) -> Rows:
        """What a query finds; nothing for a statement."""
        return self._connection.execute(query, values).fetchall()

    def many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with each of `rows`, those that come in bulk many at a time.

        Other threads are kept from running far less by a few long statements than by many short ones.
        """
        place = 0
        for size in AT_ONCE if query in IN_BULK else ():
            while len(rows) - place >= size:
                values = list(chain.from_iterable(rows[place : place + size]))
                self._connection.execute(_repeated(query, size), values)
                place += size
        self._connection.executemany(query, rows[place:])

    def stream(self, query: str) -> Iterator[Rows]:
        """What a query finds, part by part, all as of one moment."""
        found = self._connection.execute(query)
        while part := found.fetchmany(PART):
            yield part

    def lead(self) -> bool:
        """Whether this connection holds the lock of the one that trains; tries to get it."""
        self._lead = self._lead or try_lock(self._path.with_name(self._path.name + ".trainer.lock"))
        return self._lead is not None

    @contextmanager
    def transaction(self, how: str = "IMMEDIATE") -> Iterator[None]:
        """A context in which all is written, or nothing."""
        self._connection.execute(f"BEGIN {how}")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def snapshot(self) -> Any:
        """A context in which everything is read as of one moment."""
        return self.transaction("DEFERRED")

    def copy(self, target: Path) -> None:
        """Copy the store to another file, while it is in use: all of it or nothing."""
        try:
            self.rows("SELECT value FROM meta WHERE key = 'schema'")
            with atomic_write(target) as part, closing(sqlite3.connect(part)) as other:
                self._connection.backup(other)
        except sqlite3.Error as error:
            raise InputError(f"The store {self.name} cannot be copied: {error}.") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        if self._lead is not None:
            self._lead.close()

    def _has_tables(self) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_schema LIMIT 1"))


class PostgresDatabase(Database):
    """A connection to PostgreSQL."""

    def __init__(self, address: str) -> None:
        import psycopg

        try:
            self._connection = psycopg.connect(address, autocommit=True, connect_timeout=5, **PATIENCE)
            self._connection.execute("SET synchronous_commit = on")
        except psycopg.Error as error:
            shown = re.sub(r"'[^']*@", "'", " ".join(str(error).split()).rstrip("."))  # a part of a password
            raise UnreachableError(CANNOT.format("in PostgreSQL", shown)) from error
        self._psycopg, info = psycopg, self._connection.info
        self.name = f"postgresql://{info.host}/{info.dbname}"

    def rows(self, query: str, *values: Any) -> Rows:
        """What a query finds; nothing for a statement."""
        found = self._connection.execute(_theirs(query), values)
        return [] if found.description is None else found.fetchall()

    def several(self, *queries: tuple[str, tuple[Any, ...]]) -> list[Rows]:
        """What several queries find, for one journey to the database and back."""
        with self._connection.pipeline():
            found = [self._connection.execute(_theirs(query), values) for query, values in queries]
        return [cursor.fetchall() for cursor in found]

    def many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with each of `rows`, those that come in bulk in one go."""
        if query in IN_BULK:
            self._connection.execute(IN_BULK[query], (msgspec.json.encode(rows).decode(),))
        else:
            with self._connection.cursor() as cursor:
                cursor.executemany(_theirs(query), rows)

    def all(self, groups: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """Run statements, each with many rows, for one journey to the database and back."""
        listed = list(groups)
        if listed:
            with self._connection.pipeline():
                for query, rows in listed:
                    self.many(query, rows)

    def stream(self, query: str) -> Iterator[Rows]:
        """What a query finds, part by part, all as of one moment."""
        with self._connection.transaction(), self._connection.cursor("part by part") as cursor:
            cursor.execute(query)
            while part := cursor.fetchmany(PART):
                yield part

    def lead(self) -> bool:
        """Whether this connection holds the lock of the one that trains; tries to get it."""
        return bool(self.rows("SELECT pg_try_advisory_lock(hashtext('departing'), hashtext(current_schema()))")[0][0])

    def transaction(self) -> Any:
        """A context in which all is written, or nothing."""
        return self._connection.transaction()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A context in which everything is read as of one moment."""
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def cut(self) -> None:
        """End the connection from another thread, whatever is going on with it."""
        with suppress(OSError, self._psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def _has_tables(self) -> bool:
        self.rows("SELECT pg_advisory_xact_lock(hashtext('departing tables'))")  # one at a time makes them
        return self.rows("SELECT to_regclass('meta')")[0][0] is not None


def try_lock(path: Path) -> IO[bytes] | None:
    """A lock by a file, held until that is closed; None if another process holds it."""
    try:
        import fcntl
    except ImportError as error:
        raise InputError("Serving from a file needs Linux or macOS; on Windows use PostgreSQL or WSL.") from error
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


@cache
def _repeated(query: str, size: int) -> str:
    """An insertion of one row as one of so many."""
    before, row, after = re.fullmatch(r"(.* VALUES )(\([?, ]*\))(.*)", query).groups()  # type: ignore[union-attr]
    return before + ", ".join([row] * size) + after


@cache
def _theirs(query: str) -> str:
    """A query as psycopg wants it."""
    return query.replace("%", "%%").replace("?", "%s")


def is_postgres(address: str | Path) -> bool:
    """Whether an address is that of a PostgreSQL database; others are files."""
    return str(address).startswith(("postgresql://", "postgres://"))


def connect(address: str | Path) -> Database:
    """A connection to the database of a store."""
    return PostgresDatabase(str(address)) if is_postgres(address) else SqliteDatabase(Path(address))
