"""Store in one SQLite file.

A thread commits the writes of many transactions at a time (`Writer`). Records that may not be on disk yet are kept in
memory, so that transactions see them.
"""

import asyncio
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from departing.service.store import queries
from departing.service.store.base import NO_PREFETCH, Prefetch, RunSlice, Store, StoreError, T, Transaction, Write
from departing.service.store.connection import (
    CANNOT_OPEN,
    Rows,
    SqliteDatabase,
    TemporarilyUnreachableError,
    UnreachableError,
    opening,
)
from departing.service.store.entries import Entry
from departing.service.store.files import StoreFiles, explain, is_damage, is_temporary
from departing.service.store.loader import Loader, install, missing
from departing.service.store.schema import prepare
from departing.service.store.writer import Writer

EVICTION_ROWS = 200  # rows between evictions from memory, each of at most twice as many records: well below 1 ms


class SqliteStore(Store):
    """The file `path`, which is created if it does not exist."""

    worker, shared = queries.SQLITE_WORKER, False
    batch_rows = 50  # less than 1 ms

    def __init__(self, path: Path, missing_feedback: str = "no-click", accept_loss: bool = False) -> None:
        super().__init__(missing_feedback)
        path = path.resolve()
        self.address, self.name = path, str(path)
        self._departed: OrderedDict[int, int] = OrderedDict()  # cached until that commit is on disk
        try:
            self._files = StoreFiles(path, accept_loss)
        except OSError as error:
            kind = TemporarilyUnreachableError if is_temporary(error) else UnreachableError
            raise kind(CANNOT_OPEN.format(repr(str(path)), explain(error))) from error
        try:
            self._open(path)
        except BaseException as error:
            self._files.close()
            if isinstance(error, StoreError):
                raise UnreachableError(str(error)) from error
            raise

    def _open(self, path: Path) -> None:
        self._reader = SqliteDatabase(path)
        with opening(self._reader):
            if not self._reader.has_tables():
                self._files.verify(None, {})
            elif self._identity():  # schema 4
                self._files.commits = sum(int(n) for (n,) in self.rows(queries.SETTING, queries.COMMITS_KEY))
                self._files.verify(self._identity(), dict(self.rows(queries.ALL_COUNTERS)))
            prepare(self._reader)
            self._reader.execute(queries.SET_IF_ABSENT, queries.IDENTITY_KEY, uuid4().hex)
            self.counters = Counter(dict(self.rows(queries.ALL_COUNTERS)))
            ((self.active_users,),) = self.rows(queries.ACTIVE_USERS)
            self._next_user = int(self.rows(queries.NEXT_USER_NUMBER)[0][0])
            self._next_event = int(self.rows(queries.NEXT_EVENT)[0][0])
            self._files.begin(self._identity(), self.counters)
            self._writer = Writer(path, self, self._files)
        self._rows_since_eviction = 0
        self._loader = Loader(path)
        self._changed: list[set[int]] = []  # for each batch that is being loaded, the users that changed meanwhile

    def _identity(self) -> str:
        """Return the random ID of the store, which its copies share."""
        rows = self.rows(queries.SETTING, queries.IDENTITY_KEY)
        return str(rows[0][0]) if rows else ""

    async def transaction(
        self,
        call: Callable[[Transaction], T],
        prefetch: Prefetch = NO_PREFETCH,
        *,
        durable: bool = True,
        claim: Callable[[bool, Collection[int]], None] | None = None,
    ) -> T:
        """Run a call as one unit; with `durable`, everything is on disk when this returns.

        `claim` is called with what the call relies on, see `Writer.batch`.
        """
        if self._writer.attention:
            await self._writer.admit()
            self._drop_lost()
        tx = Transaction(self)
        try:
            result = call(tx)
            writes = tx.end()
        except BaseException:
            tx.rollback()
            raise
        self._commit(tx, writes)
        if claim is not None:
            claim(bool(writes), tx.users)
        if durable:
            await self._writer.flushed(bool(writes), tx.users)
        return result

    def _commit(self, tx: Transaction, writes: list[Write]) -> None:
        """Keep a transaction: hand its writes to the writer, and limit what is in memory."""
        self.active_users += tx.active_change
        position = self._writer.put(Entry(writes, tx.counted, tx.active_change))
        for number, user in tx.saved.items():
            if user.departed:
                self._departed[number] = position
                self._departed.move_to_end(number)
            elif self._departed:
                self._departed.pop(number, None)  # reopened
        for changed in self._changed:
            changed.update(tx.saved)
        self._rows_since_eviction += len(writes)
        if self._rows_since_eviction >= EVICTION_ROWS:
            self.cache.sample_size(tx.saved.values())
            self._evict(2 * self._rows_since_eviction)

    def _evict(self, limit: int) -> None:
        """Evict up to `limit` records of each kind from memory whose changes are on disk, departed users first."""
        self._rows_since_eviction, done = 0, self._writer.done
        for number, position in list(islice(self._departed.items(), limit)):
            if position > done:
                break
            del self._departed[number]
            self.cache.remove_user(number)
        self.cache.evict(limit, self._writer.position, done)

    @asynccontextmanager
    async def batch(self, event_ids: Sequence[str]) -> AsyncIterator[RunSlice]:
        """Load what a batch of feedback needs into memory, so that its slices read nothing from disk."""
        users = await self._load(event_ids)
        async with self._writer.batch() as claim:
            try:
                yield partial(self.transaction, durable=False, claim=claim)
            finally:  # the slices are in memory; they may have reopened users
                for number in users:
                    user = self.cache.user_by_number(number)
                    if user is not None and user.departed:
                        self._departed.setdefault(number, self._writer.position)

    async def _load(self, event_ids: Sequence[str]) -> list[int]:
        """Load decisions, users and feedback of events into memory; return the numbers of the users."""
        absent, changed = missing(self.cache, event_ids), set[int]()
        if not absent:
            return []
        self._changed.append(changed)
        try:
            await self._writer.flushed()  # changes from here on are in `changed`
            loaded = await asyncio.get_running_loop().run_in_executor(self._loader.thread, self._loader.load, absent)
        except sqlite3.DatabaseError as error:
            raise self._read_error(error) from error
        finally:
            self._changed = [each for each in self._changed if each is not changed]
        self._rows_since_eviction += len(absent)
        return install(self.cache, loaded, changed)

    def _drop_lost(self) -> None:
        """Drop records from memory whose transactions the database refused, so that the rows on disk count."""
        for entry in self._writer.take_lost():
            self.active_users -= entry.active_change
            for query, values in entry.writes:
                if query is queries.SAVE_USER:
                    self._departed.pop(values[0], None)
                    self.cache.remove_user(values[0])
                elif query is queries.ADD_DECISION:
                    self.cache.decisions.remove(values[0])
                    self.cache.event_numbers.remove(values[1])
                elif query is queries.SAVE_FEEDBACK:
                    self.cache.feedback.remove(values[0])

    @property
    def unwritten(self) -> int:
        """Number of rows that are not on disk yet."""
        return self._writer.unwritten

    @property
    def oldest_unwritten(self) -> float:
        """Age of the oldest of them in seconds, 0.0 if there is none."""
        return self._writer.age

    def warnings(self) -> list[str]:
        """Return sentences about the store that an operator should read."""
        return super().warnings() + ([] if self._files.warning is None else [self._files.warning])

    def rows(self, query: str, *values: Any) -> Rows:
        """Return the rows of a query on disk."""
        try:
            return self._reader.execute(query, *values)
        except sqlite3.DatabaseError as error:
            raise self._read_error(error) from error

    def _read_error(self, error: sqlite3.DatabaseError) -> Exception:
        """Return the exception of a call that could not read; note damage."""
        if not is_damage(error):
            return error
        self.damage = f"The store {self.name!r} cannot be read: {explain(error)}."
        return StoreError(self.damage)

    def problem(self) -> str | None:
        """Return why calls fail at present: the file cannot be written or read, or is not the one that was opened."""
        try:
            self.rows(queries.SETTING, queries.SCHEMA_KEY)
        except (StoreError, sqlite3.Error) as error:
            return self.failure or str(error)
        return self.failure or self._files.problem()

    def trim(self) -> None:
        """Evict departed users whose departure is on disk, also while no other calls arrive."""
        self._evict(len(self._departed))

    # Numbers

    def new_event_number(self) -> int:
        """Return the number of a new event."""
        self._next_event += 1
        return self._next_event - 1

    def new_user_number(self) -> int:
        """Return the number of a new user."""
        self._next_user += 1
        return self._next_user - 1

    def next_user_number(self) -> int:
        """Return the number of the next user."""
        return self._next_user

    def close(self) -> None:
        """Write what is pending, and close the file."""
        self._writer.close()
        closed = self.failure is None and not self.unwritten
        self._loader.close()
        self.failure = None
        self._reader.close()
        self._files.close(self.counters if closed else None)
