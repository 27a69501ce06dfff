"""Store in PostgreSQL, from which several processes can serve at once.

A thread takes all calls that arrived while it was busy and runs them in one database transaction: it loads what they
need with a few queries, locks the rows of their users, and commits. Calls for users that another process has locked
wait for the next transaction, so that they do not delay the others. Nothing is acknowledged before it is on disk.
Nothing about users stays in memory between two database transactions.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any
from uuid import uuid4

import psycopg

from departing.model.errors import InputError
from departing.service import tracing
from departing.service.event_id import new_epoch, parse_event_id
from departing.service.store import base, queries
from departing.service.store.base import (
    CLOSE_SECONDS,
    NO_PREFETCH,
    RETRY_AFTER,
    OverloadedError,
    Prefetch,
    Store,
    StoreError,
    T,
    Transaction,
)
from departing.service.store.cache import Cache, Decision
from departing.service.store.connection import PostgresDatabase, Rows, opening
from departing.service.store.futures import resolve
from departing.service.store.schema import prepare

MAX_BATCH = 200  # calls in one database transaction; bounds the work that is repeated after a conflict
MAX_ATTEMPTS = 5  # for a call that conflicts with another process
MAX_STATEMENT_SECONDS = 20  # far longer than a batch takes
MAX_WAITING = 10_000  # calls that wait; beyond it they are refused rather than delayed for seconds
MAX_WAITING_SECONDS = 5.0  # for which a call waits for its turn, a hundred times a batch
LOCKED_DELAY = 0.01  # seconds until calls are tried again if all of them are for locked users: a short transaction
WATCH_SECONDS = 1.0  # between two looks at the age of calls
RECONNECT_DELAY = 0.5  # seconds between attempts to connect again: a trade-off of load against downtime
CHECK_DATABASE = "Check that PostgreSQL runs; the service connects again by itself."
SESSION = (
    "enable_seqscan = off",  # tables grow faster than the planner's statistics
    "jit = off",  # compilation pays for long queries only, and these are short
    f"statement_timeout = {1000 * MAX_STATEMENT_SECONDS}",
    f"idle_in_transaction_session_timeout = {1000 * MAX_STATEMENT_SECONDS}",
)
LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
LOCKED = psycopg.errors.LockNotAvailable
CONFLICTS = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class _PostponedError(Exception):
    """Calls of a database transaction wait for the next one; the others, `ready`, run again without them."""

    def __init__(self, ready: "list[_Job]") -> None:
        super().__init__()
        self.ready = ready


class _Job:
    """A call, and the future of its result."""

    def __init__(self, call: Callable[[Transaction], Any], prefetch: Prefetch) -> None:
        self.call, self.prefetch, self.since = call, prefetch, time.monotonic()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class _BatchCache(Cache):
    """Records and writes of one database transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[base.Write] = []
        self.numbers: dict[str, int] = {}  # of users by name
        self.new_numbers: dict[str, list[int]] = {"events": [], "numbers": []}

    def add_decisions(self, rows: Rows) -> None:
        for row in rows:
            self.add_decision(Decision(*row))


class PostgresStore(Store):
    """A PostgreSQL database, in which the tables are created if there are none."""

    shared = True
    batch_rows = 200  # less than 10 ms
    cache: _BatchCache
    inactive_users = queries.INACTIVE_USERS + queries.PG_SKIP_LOCKED

    def __init__(self, address: str, missing_feedback: str = "no-click") -> None:
        super().__init__(missing_feedback)
        self.address, self.worker = address, uuid4().hex
        self._database = _connect(address)
        self.name = self._database.name
        with opening(self._database):
            prepare(self._database)
            ((self.active_users,),) = self._database.execute(queries.ACTIVE_USERS)
            ((self._tables,),) = self._database.execute(queries.PG_TABLES_ID)
        self.cache = _BatchCache()
        self._last_event = -1  # number of the latest event of this process
        self._open: Transaction | None = None  # the call that is running
        self._flushed = False  # whether writes of that call were sent to the database
        self._written_counters: dict[str, int] = {}
        self._since: float | None = None  # when the present database transaction began
        self._jobs: list[_Job] = []
        self._running: list[_Job] = []  # the calls of the present database transaction
        self._all_locked = False  # whether all of them were postponed
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    # Calls

    async def transaction(
        self, call: Callable[[Transaction], T], prefetch: Prefetch = NO_PREFETCH, *, durable: bool = True
    ) -> T:
        """Run a call as one unit, together with others in one database transaction; it is committed on return."""
        job = _Job(call, prefetch)
        with self._wake:
            if self.failure is not None:
                raise StoreError(self.failure)
            if len(self._jobs) >= MAX_WAITING:
                waiting = f"{MAX_WAITING:,} calls are already waiting for the store"
                raise OverloadedError(f"{waiting}. Try again later.", RETRY_AFTER)
            self._jobs.append(job)
            self._wake.notify()
        result: T = await job.future
        return result

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._closing or self.failure is not None)
                jobs, self._jobs = self._jobs[:MAX_BATCH], self._jobs[MAX_BATCH:]
                self._running = jobs
                if self._closing and not jobs:
                    return
            if self.failure is None:
                self._all_locked = False
                self._run_batch(jobs)
                self._running = []
                if self._all_locked:  # not before the end of the transaction, which locks other users of these calls
                    time.sleep(random.uniform(0.5, 1.5) * LOCKED_DELAY)
                continue
            self._running = []
            _fail(jobs, StoreError(self.failure))
            if not jobs:
                self._reconnect()

    def _watch(self) -> None:
        """Abort a connection that does not respond, so that no call waits forever."""
        while not self._closing or self._thread.is_alive():
            since, limit = self._since, CLOSE_SECONDS if self._closing else 1.5 * MAX_STATEMENT_SECONDS
            with self._wake:
                if since is not None and time.monotonic() - since > limit and since == self._since:
                    self.failure = f"The store cannot be reached: it does not respond. {CHECK_DATABASE}"
                    self._database.abort()
                    self._wake.notify()
                oldest = time.monotonic() - MAX_WAITING_SECONDS
                late = [job for job in self._jobs if job.since < oldest]
                self._jobs = [job for job in self._jobs if job.since >= oldest]
            waited = f"The store did not start this call within {MAX_WAITING_SECONDS:g} seconds"
            cause = "other calls come first, or another process has locked the user"
            _fail(late, OverloadedError(f"{waited}: {cause}. Try again later.", RETRY_AFTER))
            time.sleep(WATCH_SECONDS)

    @property
    def unwritten(self) -> int:
        """Number of calls that wait for the database."""
        return len(self._jobs) + len(self._running)

    @property
    def oldest_unwritten(self) -> float:
        """Age of the oldest of them in seconds, 0.0 if there is none."""
        with self._wake:
            times = [job.since for job in (*self._running, *self._jobs)]
        return time.monotonic() - min(times) if times else 0.0

    def problem(self) -> str | None:
        """Return why calls fail at present: the database cannot be reached, or does not respond."""
        age = self.oldest_unwritten
        if self.failure is None and age > MAX_WAITING_SECONDS + WATCH_SECONDS:
            return f"The store has not been written for {age:.0f} seconds: the database does not respond."
        return self.failure

    def _reconnect(self) -> None:
        """Connect again, and wait a little if the database cannot be written yet."""
        with suppress(Exception):
            self._database.close()
        try:
            self._since = time.monotonic()
            self._database = _connect(str(self.address))
            self._database.execute(queries.SET, queries.WRITE_CHECK_KEY, "")
            self._reload()
            self._since = self.failure = None
        except (InputError, psycopg.Error) as error:
            self._since, self.failure = None, str(error).strip()
            time.sleep(RECONNECT_DELAY)

    def notice_restore(self) -> None:
        """Draw a new epoch if the tables are others than before: a backup was restored without a reconnection."""
        ((tables,),) = self._database.execute(queries.PG_TABLES_ID)
        if tables != self._tables:
            self._reload()

    def _reload(self) -> None:
        """Read what depends on commits of this process: the last one may have succeeded although it failed here.

        The database may also have been restored from a backup meanwhile.
        """
        stored: dict[str, int] = dict(self._database.execute(queries.PG_WORKER_COUNTERS, self.worker))
        ((active_users,),) = self._database.execute(queries.ACTIVE_USERS)
        ((self._tables,),) = self._database.execute(queries.PG_TABLES_ID)
        for name in {*stored, *self.counters}:  # others than these are counted without a transaction: problems
            value, written = stored.get(name, 0), self._written_counters.get(name, 0)
            if self.counters[name] == written != value:
                self.counters[name] = value
        self._written_counters, self.active_users, self.epoch = stored, active_users, new_epoch()

    def _run_batch(self, jobs: list[_Job], attempts: int = MAX_ATTEMPTS) -> None:
        """Run calls in one database transaction; one by one if they cannot share it."""
        while jobs:
            jobs = self._try_batch(jobs, attempts)

    def _try_batch(self, jobs: list[_Job], attempts: int) -> list[_Job]:
        """Run calls in one database transaction.

        If some must be postponed, nothing is run, so that users whom those would keep locked are free again, and the
        others are returned.
        """
        self._since, active_before = time.monotonic(), self.active_users
        transactions: list[Transaction] = []
        try:
            with tracing.span("store.commit", calls=len(jobs)), self._database.transaction():
                locked = self._prefetch([job.prefetch for job in jobs])
                if locked:
                    self._postpone(jobs, [job for job in jobs if self._user_numbers(job.prefetch) & locked])
                results = [self._run_call(job, jobs, transactions) for job in jobs]
                self._open = None
                counters = Counter(chain.from_iterable([tx.counted for tx in transactions]))
                written = self._write_counters(counters)
                self._flush()
        except BaseException as error:  # of any kind: callers wait for the result
            for tx in reversed(transactions):
                tx.rollback()
            self._since = self._open = None
            self.cache, self.active_users = _BatchCache(), active_before
            if isinstance(error, _PostponedError):
                return error.ready
            self._after_failure(jobs, error, attempts)
        else:
            self._since, self.cache, self._running = None, _BatchCache(), []
            self.counters.update(counters)
            self._written_counters.update(written)
            resolve([job.future for job in jobs], results)
        return []

    def _run_call(self, job: _Job, jobs: list[_Job], transactions: list[Transaction]) -> Any:
        """Run one call and return its result, or the exception after which nothing of it is kept."""
        tx = self._open = Transaction(self)
        self._flushed = False
        transactions.append(tx)
        try:
            result = job.call(tx)
            self.cache.writes += tx.end()
        except LOCKED:  # a row that was not prefetched
            self._postpone(jobs, [job])
        except psycopg.Error:
            raise
        except BaseException as error:
            if self._flushed:  # the database has some of it: roll back, and run the other calls without this one
                raise
            tx.rollback()
            return error
        self.active_users += tx.active_change
        return result

    def _after_failure(self, jobs: list[_Job], error: BaseException, attempts: int) -> None:
        if isinstance(error, LOST) and not isinstance(error, CONFLICTS):
            sentence = str(error).strip().splitlines() or ["the connection was lost"]
            self.failure = f"The store cannot be reached: {sentence[0].rstrip('.')}. {CHECK_DATABASE}"
            _fail(jobs, StoreError(self.failure))
        elif len(jobs) > 1:
            for job in jobs:
                if self.failure is None:
                    self._run_batch([job])
                else:
                    _fail([job], StoreError(self.failure))
        elif isinstance(error, CONFLICTS) and attempts > 1:
            self._run_batch(jobs, attempts - 1)
        elif isinstance(error, psycopg.DataError):
            _fail(jobs, InputError(f"Invalid request: {str(error).rstrip('.')}."))
        else:
            _fail(jobs, error)

    def _postpone(self, jobs: list[_Job], postponed: list[_Job]) -> None:
        """Let some calls wait, behind all others: there may be more of them than one transaction takes.

        Raises `_PostponedError` if there are any.
        """
        if not postponed:
            return
        ready = [job for job in jobs if job not in postponed]
        with self._wake:
            self._running, self._all_locked = ready, not ready
            self._jobs += postponed
        raise _PostponedError(ready)

    def _user_numbers(self, prefetch: Prefetch) -> set[int]:
        """Return the numbers of the users that a call needs."""
        cache = self.cache
        numbers = {cache.numbers.get(name, -1) for name in prefetch.users}
        for event_id in prefetch.event_ids:
            parsed = parse_event_id(event_id)
            number = cache.event_numbers.find(event_id) if parsed is None else parsed[1]
            decision = None if number is None else cache.decisions.find(number)
            if decision is not None:
                numbers.add(decision.user_number)
        return numbers

    def _prefetch(self, prefetches: Sequence[Prefetch]) -> set[int]:
        """Load what calls need, and lock the rows of their users; return the users that others have locked."""
        cache = self.cache
        names = [name for each in prefetches for name in each.users]
        event_ids = [event_id for each in prefetches for event_id in each.event_ids]
        parsed = [parse_event_id(event_id) for event_id in event_ids]
        event_numbers = [each[1] for each in parsed if each is not None]
        client_event_ids = [event_id for event_id, each in zip(event_ids, parsed, strict=True) if each is None]
        new_event_ids = [each.client_event_id for each in prefetches if each.client_event_id is not None]
        if not names and not event_ids:
            return set()
        by_number, by_client_event_id, users = self._database.query_pipeline(
            (queries.PG_DECISIONS, (event_numbers,)),
            (queries.PG_DECISIONS_BY_CLIENT_EVENT_ID, (client_event_ids,)),
            (queries.PG_USER_NUMBERS, (names,)),
        )
        cache.add_decisions([*by_number, *by_client_event_id])
        cache.numbers = {name: number for number, name in users}
        cache.absent = set(names) - cache.numbers.keys()
        needed = {number for number, _ in users} | {decision.user_number for decision in cache.decisions.values()}
        new_events = sum(each.new_event for each in prefetches)
        new_users = len(cache.absent & {name for each in prefetches if each.new_event for name in each.users})
        events = list(cache.decisions)
        states, existing, feedback, *new_numbers = self._database.query_pipeline(
            (queries.PG_LOCK_USERS, (list(needed),)),
            (queries.PG_DECISIONS_BY_CLIENT_EVENT_ID, (new_event_ids,)),
            (queries.PG_FEEDBACK, (events,)),
            (queries.PG_NEXT, ("events", new_events)),
            (queries.PG_NEXT, ("numbers", new_users)),
        )
        for _, state in states:
            cache.add_user(base.decode_user(state))
        cache.event_numbers.update(dict.fromkeys(new_event_ids))
        cache.add_decisions(existing)
        cache.feedback.update(dict.fromkeys(events))
        cache.feedback.update({row[0]: base.feedback_of_row(row[1:]) for row in feedback})
        for name, rows in zip(cache.new_numbers, new_numbers, strict=True):
            cache.new_numbers[name] = [number for (number,) in rows][::-1]
        missing = needed - {number for number, _ in states}
        return (
            {number for (number,) in self._database.execute(queries.PG_EXISTING, list(missing))} if missing else set()
        )

    def _write_counters(self, counters: Counter[str]) -> dict[str, int]:
        """Write the counters that changed, together with what they count; return them."""
        values = {name: self.counters[name] + counters[name] for name in {*counters, *self.counters}}
        changed = {name: value for name, value in values.items() if value != self._written_counters.get(name, 0)}
        self.cache.writes += [(queries.SAVE_COUNTER, (self.worker, *each)) for each in changed.items()]
        return changed

    def _flush(self) -> None:
        """Send all writes so far to the database, those of the running call included."""
        writes, self.cache.writes = self.cache.writes, []
        if self._open is not None:
            own = self._open.take_writes()
            self._flushed = self._flushed or bool(own)
            writes += own
        self._database.execute_pipeline(base.grouped(writes))

    def rows(self, query: str, *values: Any) -> Rows:
        """Return the rows of a query, with everything written before in the transaction."""
        self._flush()
        return self._database.execute(query, *values)

    def user_rows(self, query: str, value: str | int) -> Rows:
        """Return and lock the row of a user who was not prefetched; event numbers drawn before may be too small."""
        self.cache.new_numbers["events"] = []
        return self.rows(query + queries.PG_FOR_UPDATE, value)

    # Numbers

    def new_event_number(self) -> int:
        """Return the number of a new event."""
        number = self._new_number("events")
        if number <= self._last_event:  # a backup was restored without a reconnection
            self._reload()
        self._last_event = number
        return number

    def new_user_number(self) -> int:
        """Return the number of a new user."""
        return self._new_number("numbers")

    def _new_number(self, sequence: str) -> int:
        numbers = self.cache.new_numbers[sequence]
        return int(numbers.pop() if numbers else self._database.execute(queries.PG_NEXT, sequence, 1)[0][0])

    def next_user_number(self) -> int:
        """Return a lower bound of the numbers of future users."""
        return int(self._database.execute(queries.PG_NEXT_USER_NUMBER)[0][0])

    def close(self) -> None:
        """Finish the calls that wait, and close the connection."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(3 * CLOSE_SECONDS)
        self._database.close()


def _connect(address: str) -> PostgresDatabase:
    """Connect with settings for short transactions."""
    database = PostgresDatabase(address)
    for setting in SESSION:
        database.execute(f"SET {setting}")
    return database


def _fail(jobs: Sequence[_Job], error: BaseException) -> None:
    """Let calls raise an error."""
    resolve([job.future for job in jobs], [error] * len(jobs))
