"""Thread that commits the writes of many transactions at a time to a SQLite file (group commit).

Writes that wait are bounded in number and age, so that a slow disk or a foreign lock delays and then refuses calls
instead of acknowledging what is not on disk.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path

from departing.service import tracing
from departing.service.event_log import log_event
from departing.service.store import base, queries
from departing.service.store.base import CLOSE_SECONDS, RETRY_AFTER, OverloadedError, Store, StoreError, Write
from departing.service.store.connection import SqliteDatabase
from departing.service.store.entries import Claim, Entry, LostError
from departing.service.store.files import StoreFiles, explain
from departing.service.store.futures import resolve

COMMIT_DELAY = 0.03  # seconds that writes are gathered for which nobody waits
RETRY_DELAY = 1.0  # seconds until a failed commit is tried again
LOCK_SECONDS = 0.5  # that one attempt waits for a lock of another process, so that a stop is noticed meanwhile
# Rows that may wait: about two seconds of recommendations, at two rows each. Further calls wait until there is room.
MAX_UNWRITTEN = 40_000
# Age of the oldest write in seconds beyond which calls fail; commits take milliseconds, checkpoints 1 s.
MAX_UNWRITTEN_SECONDS = 5.0
WATCH_SECONDS = 0.25  # between checks of that age: a twentieth of it
MAX_VACUUM_BYTES = 64_000_000  # of a store that is written again after users were forgotten: half a second
VACUUM_FACTOR = 20  # pause after that, as a multiple of its duration: 5 % load


class Writer:
    """Commits writes in order, each time all that have arrived during the last commit.

    Writes that fail because of the machine, as on a full disk, are kept and tried again; until then calls are
    refused. A transaction that can never be written, as after a violated constraint, is dropped together with those
    that build on it: `take_lost` returns them.
    """

    def __init__(self, path: Path, store: Store, files: StoreFiles) -> None:
        self._database, self._store, self._files = SqliteDatabase(path), store, files
        self._database.execute(f"PRAGMA busy_timeout = {1000 * LOCK_SECONDS:.0f}")
        self.attention = False  # True if `admit` must run before the next transaction
        self.unwritten = 0  # rows handed over and not yet on disk
        self.done = 0  # number of entries that were committed or dropped
        self.position = 0  # number of entries handed over
        self._batch: list[Entry] = []
        self._batch_since = self._commit_since = 0.0  # when the oldest entry of each arrived
        self._waiting: list[tuple[Claim, asyncio.Future[None]]] = []  # for entries to be committed
        self._committing: list[tuple[Claim, asyncio.Future[None]]] = []  # those whose entries are being committed
        self._batches: list[list[Claim]] = []  # of calls that wait together, after the last of them
        self._blocked: list[asyncio.Future[None]] = []  # of calls that wait for room
        self._busy, self._idle = False, False
        self._stalled, self._locked = False, False  # whether the commit takes too long, and whether because of a lock
        self._lost: dict[int, Entry] = {}  # dropped, and still in the memory of the store; by position
        self._lost_users: set[int] = set()  # users of those
        self._scrub = True  # whether the write-ahead log may hold names that were forgotten, here or before a crash
        # Whether unused parts of pages may hold such names.
        self._remnants = bool(self._database.execute(queries.SETTING, queries.REMNANTS_KEY))
        self._next_scrub = self._next_vacuum = 0.0
        self._unnoted = False  # whether the counters of the last commit could not be recorded beside the store
        self._lock = threading.RLock()  # of the condition; entering the condition itself takes three times as long
        self._wake = threading.Condition(self._lock)
        self._closing, self._deadline, self._stopped = False, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    # Calls from the event loop

    def put(self, entry: Entry) -> int:
        """Hand over a transaction; return its position in the order of commits."""
        counters, writes = self._store.counters, entry.writes
        with self._lock:
            for name in entry.counted:
                counters[name] += 1
            if writes:
                if not self._batch:
                    self._batch_since = time.monotonic()
                self._batch.append(entry)
                self.position += 1
                self.unwritten += len(writes)
                if self.unwritten >= MAX_UNWRITTEN:
                    self.attention = True
                if self._idle:
                    self._wake.notify()
            return self.position

    async def admit(self) -> None:
        """Wait until there is room for another transaction; raise `StoreError` if the store cannot be written."""
        while True:
            with self._wake:
                if self._store.failure is not None:
                    raise self._failure()
                if self.unwritten < MAX_UNWRITTEN:
                    self.attention = False
                    return
                future = asyncio.get_running_loop().create_future()
                self._blocked.append(future)
                self._wake.notify()
            await future

    async def flushed(self, own: bool = False, users: Collection[int] = ()) -> None:
        """Wait until everything handed over so far is on disk, on behalf of a call that has just ended.

        With `own` the latest transaction is that of the call; `users` are those that it read. Raise `StoreError` if
        its transaction, or an earlier one of these users, was dropped.
        """
        with self._wake:
            if self._store.failure is not None:
                raise self._failure()
            claim = self._claim(own, users)
            if claim.lost:
                raise LostError
            if not self._batch and not self._busy:
                return
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((claim, future))
            self._wake.notify()
        await future

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Callable[[bool, Collection[int]], None]]:
        """Return a context for several calls, at whose end everything is on disk.

        Its value is a function to call after each of them, with the arguments of `flushed`.
        """
        claims: list[Claim] = []

        def add(own: bool, users: Collection[int]) -> None:
            with self._lock:
                claims.append(self._claim(own, users))

        with self._lock:
            self._batches.append(claims)
        try:
            yield add
            await self.flushed()
            if any(claim.lost for claim in claims):
                raise LostError(batch=True)
        finally:
            with self._lock:
                self._batches = [each for each in self._batches if each is not claims]

    def _claim(self, own: bool, users: Collection[int]) -> Claim:
        """Return the claim of a call that has just ended; something may have been dropped since it began."""
        claim = Claim(self.position, own, users)
        for position, entry in self._lost.items():
            claim.note_drop(position, entry.users())
        return claim

    @property
    def age(self) -> float:
        """Seconds for which the oldest write has waited."""
        with self._wake:
            return self._age()

    def _age(self) -> float:
        if self._busy and self.unwritten:
            return time.monotonic() - self._commit_since
        return time.monotonic() - self._batch_since if self._batch else 0.0

    def take_lost(self) -> list[Entry]:
        """Return the dropped transactions, with those that build on them, once; they must be dropped from memory."""
        with self._wake:
            first = self.position - len(self._batch) + 1
            for i, entry in enumerate(self._batch):
                if self._lost_users and self._lost_users & entry.users():
                    self._drop(entry, first + i)
                    self._batch[i] = Entry([])
            lost, self._lost, self._lost_users = list(self._lost.values()), {}, set()
            return lost

    def close(self) -> None:
        """Commit what is left, and stop the thread; log what could not be written in time."""
        if self._stopped.is_set():
            return
        with self._wake:
            self._closing, self._deadline = True, time.monotonic() + CLOSE_SECONDS
            self._wake.notify()
        self._thread.join(CLOSE_SECONDS + 2 * LOCK_SECONDS)
        self._stopped.set()
        with self._wake:
            if self.unwritten:
                reason = self._store.failure or self._stall_message()
                seconds = round(self._age(), 1)
                log_event(
                    "stopped_unwritten", logging.ERROR, rows=self.unwritten, oldest_seconds=seconds, reason=reason
                )

    # The two threads

    def _watch(self) -> None:
        """Refuse calls, also those that wait, while the oldest write is too old."""
        while not self._stopped.wait(WATCH_SECONDS):
            with self._wake:
                if self._store.failure is not None or self._age() <= MAX_UNWRITTEN_SECONDS:
                    continue
                self._store.failure, self._stalled, self.attention = self._stall_message(), True, True
                futures = [future for _, future in self._committing + self._waiting] + self._blocked
                self._committing, self._waiting, self._blocked = [], [], []
                error = self._failure()
                log_event("store_stalled", logging.ERROR, reason=self._store.failure, rows=self.unwritten)
            resolve(futures, [error] * len(futures))

    def _stall_message(self) -> str:
        cause = "another process has locked it" if self._locked else "the disk does not respond"
        return f"The store has not been written for {self._age():.0f} seconds: {cause}."

    def _failure(self) -> StoreError:
        """Return the exception of a call that is refused."""
        message = self._store.failure or ""
        return OverloadedError(message, RETRY_AFTER) if self._stalled else StoreError(message)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle = True
                # After a failure an empty commit shows whether the store can be written again.
                retry = self._scrub or self._store.failure is not None
                self._wake.wait_for(self._has_work, RETRY_DELAY if retry else None)
                self._idle = False
                if not self._waiting and not self._blocked and not self._closing:
                    self._wake.wait(COMMIT_DELAY)
                batch, self._batch, counters = self._batch, [], dict(self._store.counters)
                self._committing, self._waiting = self._waiting, []
                lost_users = set(self._lost_users)
                self._commit_since = self._batch_since if batch else time.monotonic()
                self._busy = True
                if self._closing and not batch and not self._committing:
                    break
            try:
                failure, dropped = self._commit(batch, counters, lost_users)
            except Exception as error:  # a defect: nobody else would write
                log_event("writer_failed", logging.ERROR, error)
                failure, dropped = f"The store cannot be written: {explain(error)}.", {}
            with self._wake:
                self._end_commit(batch, failure, dropped)
                if failure is not None and self._wake.wait_for(lambda: self._closing, RETRY_DELAY):
                    break
            if failure is None:
                self._erase_forgotten()
        self._database.close()

    def _end_commit(self, batch: list[Entry], failure: str | None, dropped: dict[int, Exception]) -> None:
        """Note what a commit has changed, and answer those who wait for it."""
        for i, error in dropped.items():
            self._drop(batch[i], self.done + i + 1, error)
        waiting, self._committing = self._committing, []
        blocked, self._blocked = self._blocked, []
        recovered = failure is None and self._store.failure is not None
        self._store.failure, self._busy, self._stalled, self._locked = failure, False, False, False
        if failure is not None:
            self.attention = True
            self._batch, self._batch_since = batch + self._batch, self._commit_since
            waiting, self._waiting = waiting + self._waiting, []
            futures = [future for _, future in waiting] + blocked
            resolve(futures, [self._failure()] * len(futures))
            return
        self.unwritten -= sum(len(entry.writes) for entry in batch)
        self.done += len(batch)
        results = [LostError() if claim.lost else None for claim, _ in waiting] + [None] * len(blocked)
        resolve([future for _, future in waiting] + blocked, results)
        if recovered:
            log_event("store_recovered")

    def _drop(self, entry: Entry, position: int, error: Exception | None = None) -> None:
        """Take a transaction out of the counters, and note it for `take_lost` and for calls that rely on it."""
        if not entry.writes:
            return
        users = entry.users()
        for claim in chain([claim for claim, _ in self._committing + self._waiting], *self._batches):
            claim.note_drop(position, users)
        self._store.counters.subtract(entry.counted)
        self._store.lost_transactions += 1
        self._lost[position] = entry
        self._lost_users |= users
        self.attention = True
        if error is None:  # dropped before its turn
            self.unwritten -= len(entry.writes)
        reason = str(LostError() if error is None else error)
        log_event(
            "transaction_dropped", logging.ERROR, error, position=position, reason=reason, rows=len(entry.writes)
        )

    def _has_work(self) -> bool:
        return bool(self._batch or self._waiting or self._blocked or self._closing)

    def _commit(
        self, batch: list[Entry], counters: dict[str, int], lost_users: set[int]
    ) -> tuple[str | None, dict[int, Exception]]:
        """Commit everything or nothing; return why it failed, if it did, and the entries that must be dropped."""
        one_by_one, problem = bool(lost_users), self._files.problem()
        if problem is not None:
            return problem, {}
        while True:
            dropped: dict[int, Exception] = {}
            kept = dict(counters)  # of the entries that are not dropped in this attempt
            try:
                with tracing.span("store.commit", calls=len(batch)), self._database.transaction():
                    if one_by_one:
                        dropped = self._write_one_by_one(batch, lost_users)
                        for name in chain.from_iterable(batch[i].counted for i in dropped):
                            kept[name] -= 1
                    else:
                        self._write(chain.from_iterable([entry.writes for entry in batch]))
                    self._database.execute(queries.SET, queries.COMMITS_KEY, str(self._files.commits + 1))
                    self._database.execute_many(
                        queries.SAVE_COUNTER, [(self._store.worker, *each) for each in kept.items()]
                    )
            except Exception as error:  # of any kind: callers wait for the result
                if _is_lock(error) and not (self._closing and time.monotonic() > self._deadline):
                    self._locked = True
                elif _is_temporary(error) or one_by_one:
                    return f"The store cannot be written: {explain(error)}.", {}
                else:
                    one_by_one = True
            else:
                self._files.commits += 1
                self._note_written(kept)
                return None, dropped

    def _note_written(self, counters: dict[str, int]) -> None:
        """Record the counters beside the store; an older record is correct too, so that a failure is only logged."""
        try:
            self._files.written(counters)
        except OSError as error:
            if not self._unnoted:
                log_event("lock_file_not_written", logging.WARNING, error, reason=explain(error))
            self._unnoted = True
        else:
            self._unnoted = False

    def _write(self, writes: Iterable[Write]) -> None:
        for query, rows in base.grouped(writes):
            try:
                self._database.execute_many(query, rows)
            except sqlite3.OperationalError as error:
                if query not in queries.BULK or _is_temporary(error):
                    raise
                # The tables have changed: nothing can be written.
                raise _UnsuitableTablesError(str(error)) from error
            if query == queries.FORGET_CLIENT_EVENT_IDS:
                self._database.execute(queries.SET, queries.REMNANTS_KEY, "1")
                self._scrub = self._remnants = True

    def _write_one_by_one(self, batch: list[Entry], lost_users: set[int]) -> dict[int, Exception]:
        """Write all entries that can be written; return the errors of the others by their index."""
        dropped: dict[int, Exception] = {}
        for i, entry in enumerate(batch):
            users = entry.users()
            self._database.execute("SAVEPOINT entry")
            try:
                if users & lost_users:
                    raise LostError
                self._write(entry.writes)
            except Exception as error:
                if _is_temporary(error):
                    raise
                self._database.execute("ROLLBACK TO entry")
                dropped[i] = error
                lost_users = lost_users | users
            self._database.execute("RELEASE entry")
        return dropped

    def _erase_forgotten(self) -> None:
        """Erase names that were forgotten from unused parts of the store and from the write-ahead log.

        SQLite overwrites what is deleted, but not the copies that are left where it moved rows to another page. The
        log is truncated as soon as no other process reads it.
        """
        now = time.monotonic()
        if not self._scrub or now < self._next_scrub:
            return
        self._next_scrub = now + RETRY_DELAY / 2
        try:
            self._database.execute("PRAGMA busy_timeout = 0")  # readers, such as an export, must not delay commits
            is_busy = self._truncate_wal()
            if self._remnants and now >= self._next_vacuum:
                self._vacuum()
                is_busy = self._truncate_wal()
            self._scrub = is_busy or self._remnants
        except Exception as error:  # such as a full disk; it is tried again, and must not end the thread
            if not _is_lock(error):
                log_event("names_not_erased", logging.WARNING, error, reason=explain(error))
        with suppress(sqlite3.Error):
            self._database.execute(f"PRAGMA busy_timeout = {1000 * LOCK_SECONDS:.0f}")

    def _truncate_wal(self) -> bool:
        """Empty the write-ahead log; return whether another process still reads it."""
        self._files.expect_truncation()
        ((is_busy, *_),) = self._database.execute(queries.TRUNCATE_WAL)
        if not is_busy:
            self._files.truncated()
        return bool(is_busy)

    def _vacuum(self) -> None:
        """Write a small store again without unused parts; of a large one this would delay commits for too long."""
        started = time.monotonic()
        try:
            if self._files.size <= MAX_VACUUM_BYTES:
                self._database.execute("VACUUM")
                self._database.execute(queries.UNSET, queries.REMNANTS_KEY)
            self._remnants = False
        finally:
            pause = VACUUM_FACTOR * (time.monotonic() - started)
            self._next_vacuum = time.monotonic() + max(pause, 10 * RETRY_DELAY)


class _UnsuitableTablesError(Exception):
    """Statements of the service that the tables do not support."""


def _is_lock(error: Exception) -> bool:
    """Return True if another process has locked the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _is_temporary(error: Exception) -> bool:
    """Return True if the cause is the machine or the file, such as a full disk, rather than what is written."""
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_ERROR  # SQL that cannot be run
    return type(error) is sqlite3.DatabaseError or isinstance(error, MemoryError | OSError | _UnsuitableTablesError)
