"""Connections to the database of a store: the few operations that SQLite and PostgreSQL share."""

import os
import re
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from departing.model.errors import InputError
from departing.model.files import atomic_write
from departing.service.store import queries
from departing.service.store.files import MODE, Inode, connections, explain, is_temporary, open_private, try_lock

PRAGMAS = (
    "journal_mode = WAL",  # readers and the writer do not block each other
    "synchronous = FULL",  # a commit is on disk when it returns, even if the power fails
    "secure_delete = ON",  # names that were forgotten are overwritten
    "busy_timeout = 30000",  # milliseconds for the other process, of service and trainer, to finish a transaction
    "cache_size = -64000",  # 64 MB: memory traded for fewer reads while tables grow
    "wal_autocheckpoint = 10000",  # pages, a checkpoint every 40 MB: the size of the log traded for fewer syncs
)
# Rows of one SQLite statement. SQLite takes at most 32,766 values, of which 128 users use 1,152.
BULK_ROWS = (128, 16)
# A PostgreSQL host that vanished is noticed after 5 idle seconds and two probes 5 seconds apart, or 10 seconds after
# data that was sent is not confirmed: in about 15 seconds, less than a statement may take (`MAX_STATEMENT_SECONDS`).
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
CONNECT_SECONDS = 5  # for a connection to PostgreSQL: many round trips, and calls are refused meanwhile
STREAM_ROWS = 5000  # rows held in memory while a large result is streamed, about 1 MB
STORE_TABLES = {"meta", "users", "decisions"}  # in all schemas
CANNOT_OPEN = "The store {} cannot be opened: {}."
Rows = list[tuple[Any, ...]]
_snapshots: "set[PostgresDatabase]" = set()  # open ones of this process


class UnreachableError(InputError):
    """A database that cannot be opened."""


class TemporarilyUnreachableError(UnreachableError):
    """A database that cannot be opened at present, such as one that has not started or that is locked."""

    exit_code = 1


class SqliteDatabase:
    """A connection to a SQLite file, used by one thread at a time."""

    error = sqlite3.Error
    is_temporary = staticmethod(is_temporary)

    def __init__(self, path: Path) -> None:
        self.name, self._path = repr(str(path)), path
        self._locks: dict[str, int] = {}  # descriptors of files by suffix
        try:
            if not path.exists():
                os.close(open_private(path))
            self._connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise UnreachableError(CANNOT_OPEN.format(self.name, explain(error))) from error
        self._file: Inode | None = connections.opened(path)
        with opening(self):
            tables = {name for (name,) in self.execute(queries.TABLES)}
            if tables and not tables >= STORE_TABLES:
                raise InputError(
                    f"The file {self.name} is a database of another application, not a store of departing. "
                    "Give another file."
                )
            for pragma in PRAGMAS:
                self._connection.execute(f"PRAGMA {pragma}")

    def execute(self, query: str, *values: Any) -> Rows:
        """Run a query or a statement and return its rows, none for a statement."""
        return self._connection.execute(query, values).fetchall()

    def execute_many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with each of `rows`, bulk statements with many rows at a time.

        A few long statements hold the interpreter lock far less than many short ones.
        """
        start = 0
        for size in BULK_ROWS if query in queries.BULK else ():
            while len(rows) - start >= size:
                values = list(chain.from_iterable(rows[start : start + size]))
                self._connection.execute(_with_rows(query, size), values)
                start += size
        self._connection.executemany(query, rows[start:])

    def stream(self, query: str) -> Iterator[Rows]:
        """Run a query and yield its rows in parts, all from one snapshot."""
        cursor = self._connection.execute(query)
        while part := cursor.fetchmany(STREAM_ROWS):
            yield part

    def acquire_trainer_lock(self) -> bool:
        """Try to acquire the store's trainer lock, held until the connection closes; return whether it is held."""
        return self.acquire_lock(".trainer.lock")

    def acquire_lock(self, suffix: str) -> bool:
        """Try to lock a file beside the store until the connection closes; return whether it is locked."""
        if suffix not in self._locks:
            self._locks[suffix] = open_private(self._path.with_name(self._path.name + suffix))
        return try_lock(self._locks[suffix])

    @contextmanager
    def transaction(self, mode: str = "IMMEDIATE") -> Iterator[None]:
        """Return a context in which either everything is written or nothing."""
        self._connection.execute(f"BEGIN {mode}")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which all reads see one moment."""
        return self.transaction("DEFERRED")

    def copy(self, target: Path) -> None:
        """Copy the store to another file while it is in use, completely or not at all."""
        try:
            self.execute(queries.SETTING, queries.SCHEMA_KEY)
            with atomic_write(target, MODE) as part:
                # Page by page, parts of names that were forgotten would be copied too.
                self._connection.execute("VACUUM INTO ?", (str(part),))
                with closing(sqlite3.connect(part)) as other:
                    other.execute("PRAGMA journal_mode = DELETE")  # also marks the copy, see `StoreFiles`
        except sqlite3.Error as error:
            raise InputError(f"The store {self.name} cannot be copied: {explain(error)}.") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        if self._file is not None:
            connections.closed(self._file)
            self._file = None
        while self._locks:
            os.close(self._locks.popitem()[1])

    def has_tables(self) -> bool:
        """Return whether the tables were created."""
        return bool(self.execute(queries.HAS_TABLES))


class PostgresDatabase:
    """A connection to PostgreSQL with the same operations, used by one thread at a time."""

    def __init__(self, address: str) -> None:
        import psycopg

        try:
            self._connection = psycopg.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS, **KEEPALIVE)
            self._connection.execute("SET synchronous_commit = on")
        except psycopg.Error as error:
            shown = re.sub(r"'[^']*@", "'", " ".join(str(error).split()).rstrip("."))  # a part of a password
            kind = UnreachableError if isinstance(error, psycopg.ProgrammingError) else TemporarilyUnreachableError
            raise kind(CANNOT_OPEN.format("in PostgreSQL", shown)) from error
        self.error, info = psycopg.Error, self._connection.info
        self.name = f"postgresql://{info.host}/{info.dbname}"

    def is_temporary(self, error: BaseException) -> bool:
        """Return True if what failed may succeed later; a missing privilege, for example, stays missing."""
        import psycopg

        return isinstance(error, psycopg.OperationalError | OSError)

    def execute(self, query: str, *values: Any) -> Rows:
        """Run a query or a statement and return its rows, none for a statement."""
        cursor = self._connection.execute(_psycopg_text(query), values)
        return [] if cursor.description is None else cursor.fetchall()

    def query_pipeline(self, *query_values: tuple[str, tuple[Any, ...]]) -> list[Rows]:
        """Run several queries in one round trip."""
        with self._connection.pipeline():
            cursors = [self._connection.execute(_psycopg_text(query), values) for query, values in query_values]
        return [cursor.fetchall() for cursor in cursors]

    def execute_many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with each of `rows`, bulk statements with all rows at once."""
        if query in queries.BULK:
            self._connection.execute(queries.PG_BULK_SQL[query], (msgspec.json.encode(rows).decode(),))
        else:
            with self._connection.cursor() as cursor:
                cursor.executemany(_psycopg_text(query), rows)

    def execute_pipeline(self, groups: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """Run statements, each with many rows, in one round trip."""
        groups = list(groups)
        if groups:
            with self._connection.pipeline():
                for query, rows in groups:
                    self.execute_many(query, rows)

    def stream(self, query: str) -> Iterator[Rows]:
        """Run a query and yield its rows in parts, all from one snapshot."""
        with self._connection.transaction(), self._connection.cursor("stream") as cursor:
            cursor.execute(query)
            while part := cursor.fetchmany(STREAM_ROWS):
                yield part

    def acquire_trainer_lock(self) -> bool:
        """Try to acquire the store's trainer lock, held until the connection closes; return whether it is held."""
        return bool(self.execute(queries.PG_TRAINER_LOCK)[0][0])

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context in which either everything is written or nothing."""
        return self._connection.transaction()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Return a context in which all reads see one moment."""
        with self._connection.transaction():
            self._connection.execute(queries.PG_READ_ONLY_SNAPSHOT)
            yield

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abort(self) -> None:
        """Shut the socket down from another thread, whatever the connection is doing."""
        with suppress(OSError, self.error), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def has_tables(self) -> bool:
        """Return whether the tables were created."""
        self.execute(queries.PG_CREATION_LOCK)  # one process at a time creates them
        return bool(self.execute(queries.PG_HAS_TABLES))


Database = SqliteDatabase | PostgresDatabase


@contextmanager
def opening(database: Database) -> Iterator[None]:
    """Return a context for what must succeed before a database is used; if it fails, the database is closed."""
    try:
        yield
    except BaseException as error:
        database.close()
        if isinstance(error, database.error | OSError):
            temporary = database.is_temporary(error)
            kind = TemporarilyUnreachableError if temporary else UnreachableError
            raise kind(CANNOT_OPEN.format(database.name, explain(error))) from error
        raise


@cache
def _with_rows(query: str, size: int) -> str:
    """Return an insertion of one row as an insertion of `size` rows."""
    before, row, after = re.fullmatch(r"(.* VALUES )(\([?, ]*\))(.*)", query).groups()  # type: ignore[union-attr]
    return before + ", ".join([row] * size) + after


@cache
def _psycopg_text(query: str) -> str:
    """Return a query with psycopg's placeholders."""
    return query.replace("%", "%%").replace("?", "%s")


def is_postgres(address: str | Path) -> bool:
    """Return whether an address is that of a PostgreSQL database; others are files."""
    return str(address).startswith(("postgresql://", "postgres://"))


def connect(address: str | Path) -> Database:
    """Connect to the database of a store."""
    return PostgresDatabase(str(address)) if is_postgres(address) else SqliteDatabase(Path(address))


@contextmanager
def read_snapshot(address: str | Path) -> Iterator[Database]:
    """Open a read-only view of a store as of one moment, from any process or thread."""
    if not is_postgres(address) and not Path(address).exists():  # rather than create it
        raise UnreachableError(CANNOT_OPEN.format(repr(str(address)), explain(FileNotFoundError())))
    with closing(connect(address)) as database, _abortable(database), database.snapshot():
        yield database


@contextmanager
def _abortable(database: Database) -> Iterator[None]:
    """Return a context in which `abort_snapshots` aborts a connection."""
    if isinstance(database, SqliteDatabase):  # which waits for no other host
        yield
        return
    _snapshots.add(database)
    try:
        yield
    finally:
        _snapshots.discard(database)


def abort_snapshots() -> bool:
    """Abort all open snapshots of PostgreSQL, for which a database that hangs may never respond.

    Return False if none is open. Their threads raise an error of the database.
    """
    opened = list(_snapshots)
    for database in opened:
        database.abort()
    return bool(opened)
