"""Store in one SQLite file.

A thread commits the writes of many transactions at a time (group commit). Records that may not be on disk yet are
kept in memory, so that transactions see them.
"""

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from departing.model.errors import InputError
from departing.service.store import base, queries
from departing.service.store.base import NO_PREFETCH, Prefetch, Store, StoreError, T, Transaction, Write
from departing.service.store.connection import CANNOT_OPEN, Rows, SqliteDatabase, opening
from departing.service.store.schema import prepare

RESERVED_EVENTS = 100_000  # event numbers reserved at a time: one small write per 50,000 recommendations
MAX_CACHED = 100_000  # decisions, client event IDs and feedback in memory; ten seconds of them at 10,000 a second
CACHED_CHECK = 100  # transactions between checks of that limit
COMMIT_DELAY = 0.03  # seconds that writes are gathered for which nobody waits
RETRY_DELAY = 1.0  # seconds until a failed commit is tried again


class SqliteStore(Store):
    """The file `path`, which is created if it does not exist."""

    worker, shared = queries.SQLITE_WORKER, False

    def __init__(self, path: Path, missing_feedback: str = "no-click") -> None:
        super().__init__(missing_feedback)
        path = path.resolve()
        self.address, self.name = path, str(path)
        self._departed: OrderedDict[int, int] = OrderedDict()  # cached until that commit is on disk
        self._reader = SqliteDatabase(path)
        with opening(self._reader):
            if not self._reader.acquire_lock(".lock"):
                raise InputError(f"The store {str(path)!r} is already in use by another process; stop it first.")
            prepare(self._reader)
            self.counters = Counter(dict(self.rows(queries.OWN_COUNTERS)))
            ((self.active_users,),) = self.rows(queries.ACTIVE_USERS)
            self._next_user = int(self.rows(queries.NEXT_USER_NUMBER)[0][0])
            numbers = self.rows(queries.NEXT_EVENT) + self.rows(queries.SETTING, queries.RESERVED_EVENTS_KEY)
            self._next_event = max(int(number) for (number,) in numbers)
            self._writer = _Writer(path, self)
        self._reserve_events()
        try:
            asyncio.run(self._writer.flushed())
        except StoreError as error:
            self.close()
            raise InputError(CANNOT_OPEN.format(repr(str(path)), str(error).rstrip("."))) from error

    async def transaction(
        self, call: Callable[[Transaction], T], prefetch: Prefetch = NO_PREFETCH, *, durable: bool = True
    ) -> T:
        """Run a call as one unit; with `durable`, everything is on disk when this returns."""
        if self.failure is not None:
            raise StoreError(self.failure)
        tx = Transaction(self)
        try:
            result = call(tx)
            writes = tx.end()
        except BaseException:
            tx.rollback()
            raise
        self._commit(tx, writes)
        if durable:
            await self._writer.flushed()
        return result

    def _commit(self, tx: Transaction, writes: list[Write]) -> None:
        """Keep a transaction: hand its writes to the writer, and limit what is in memory."""
        self.active_users += tx.active_change
        position = self._writer.put(writes, tx.counted)
        for number, user in tx.saved.items():
            if user.departed:
                self._departed[number] = position
                self._departed.move_to_end(number)
        if position % CACHED_CHECK == 0:
            for records in (self.cache.decisions, self.cache.event_numbers, self.cache.feedback):
                while len(records) > MAX_CACHED:
                    records.popitem(last=False)

    def rows(self, query: str, *values: Any) -> Rows:
        """Return the rows of a query on disk."""
        return self._reader.execute(query, *values)

    def trim(self) -> None:
        """Drop departed users whose departure is on disk."""
        for number, position in list(self._departed.items()):
            if position > self._writer.done:
                break
            del self._departed[number]
            del self.cache.users[self.cache.names.pop(number)]

    # Numbers

    def new_event_number(self) -> int:
        """Return the number of a new event."""
        event = self._next_event
        self._next_event = event + 1
        if event + RESERVED_EVENTS // 2 >= self._reserved:
            self._reserve_events()
        return event

    def _reserve_events(self) -> None:
        """Write up to where events may be numbered, so that no number is used twice, even after a crash."""
        self._reserved = self._next_event + RESERVED_EVENTS
        self._writer.put([(queries.SET, (queries.RESERVED_EVENTS_KEY, str(self._reserved)))])

    def new_user_number(self) -> int:
        """Return the number of a new user."""
        self._next_user += 1
        return self._next_user - 1

    def next_user_number(self) -> int:
        """Return the number of the next user."""
        return self._next_user

    def close(self) -> None:
        """Write what is pending, and close the file."""
        if self.failure is None:
            self._writer.put([(queries.SET, (queries.RESERVED_EVENTS_KEY, str(self._next_event)))])
        self._writer.close()
        self.failure = None
        self._reader.close()


class _Writer:
    """Thread that commits writes in order, each time all that have arrived during the last commit.

    Writes that fail, as on a full disk, are kept and tried again; until then `transaction` raises `StoreError`.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self._database, self._store = SqliteDatabase(path), store
        self._batch: list[list[Write]] = []
        self._futures: list[asyncio.Future[None]] = []
        self._busy, self._idle = False, False
        self._put = self.done = 0  # numbers of write lists handed over, and committed
        self._scrub = False  # whether the write-ahead log holds names that were forgotten
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, writes: list[Write], counted: Sequence[str] = ()) -> int:
        """Hand over writes and the names of counters to increase; return the position in the order of commits."""
        counters = self._store.counters
        with self._wake:
            for name in counted:
                counters[name] += 1
            if writes:
                self._batch.append(writes)
                self._put += 1
                if self._idle:
                    self._wake.notify()
            return self._put

    async def flushed(self) -> None:
        """Wait until everything handed over so far is on disk."""
        with self._wake:
            if self._store.failure is not None:
                raise StoreError(self._store.failure)
            if not self._batch and not self._busy:
                return
            future = asyncio.get_running_loop().create_future()
            self._futures.append(future)
            self._wake.notify()
        await future

    def close(self) -> None:
        """Commit what is left, and stop the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle = True
                self._wake.wait_for(self._has_work, RETRY_DELAY if self._scrub else None)
                self._idle = False
                if not self._futures and not self._closing:
                    self._wake.wait(COMMIT_DELAY)
                batch, self._batch, counters = self._batch, [], dict(self._store.counters)
                futures, self._futures = self._futures, []
                self._busy = True
                if self._closing and not batch and not futures:
                    break
            failure = self._commit(batch, counters)
            with self._wake:
                self._store.failure = failure
                if failure is None:
                    self._busy = False
                    self.done += len(batch)
                else:
                    self._batch = batch + self._batch
                    futures, self._futures = futures + self._futures, []
            base.resolve(futures, [None if failure is None else StoreError(failure)] * len(futures))
            if failure is not None:
                with self._wake:
                    if self._wake.wait_for(lambda: self._closing, RETRY_DELAY):
                        break
        self._database.close()

    def _has_work(self) -> bool:
        return bool(self._batch or self._futures or self._closing)

    def _commit(self, batch: list[list[Write]], counters: dict[str, int]) -> str | None:
        """Commit everything or nothing; return why it failed, None if it did not."""
        try:
            with self._database.transaction():
                for query, rows in base.grouped(chain.from_iterable(batch)):
                    self._database.execute_many(query, rows)
                    self._scrub = self._scrub or query == queries.FORGET_CLIENT_EVENT_IDS
                self._database.execute_many(
                    queries.SAVE_COUNTER, [(self._store.worker, *each) for each in counters.items()]
                )
            if self._scrub:
                ((busy, *_),) = self._database.execute(queries.TRUNCATE_WAL)
                self._scrub = bool(busy)
        except Exception as error:  # of any kind: callers wait for the result
            return f"The store cannot be written: {error}."
        return None
