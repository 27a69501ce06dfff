"""The store of a service in PostgreSQL, which several processes may serve from at once.

A thread takes the calls that have come while it was busy and runs them in one transaction: it gets what they need
with a few queries, holds the rows of their users, and commits. So of two processes that are told of one user at once,
one waits for the other, and nothing is acknowledged before it is on disk. Nothing of users is kept in memory in
between.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg

from departing.model.errors import InputError
from departing.service.store.base import (
    ANSWER,
    DECISION,
    DECISION_OF,
    USER,
    Answer,
    Decision,
    Prefetch,
    Store,
    StoreError,
    T,
    Write,
    decode_user,
    event_number,
    grouped,
    row_of,
    row_of_answer,
    row_of_decision,
)
from departing.service.store.connection import CANNOT, PostgresDatabase
from departing.service.store.schema import SAVE_COUNTER
from departing.service.user import User

MOST = 200  # calls in one transaction
TRIES = 5  # for a call that is in the way of another process
LONGEST = 20.0  # seconds that a statement may take
WAITING = 10_000  # calls that may wait
AGAIN = 0.5  # seconds after which a lost connection is made anew
NEW = "SELECT nextval(?) FROM generate_series(1, ?)"
DECISIONS = "SELECT * FROM decisions WHERE event = ANY(?)"
KEYED = "SELECT * FROM decisions WHERE key = ANY(?) AND key IS NOT NULL"
NUMBERS = "SELECT number, name FROM users WHERE name = ANY(?)"
HOLD = "SELECT state FROM users WHERE number = ANY(?) ORDER BY number FOR UPDATE"
ANSWERS = "SELECT event, clicked, departed FROM answers WHERE event = ANY(?)"
ALIVE = "INSERT INTO meta VALUES ('alive', '') ON CONFLICT (key) DO UPDATE SET value = excluded.value"
CLOSING = 5.0  # seconds that the last transaction may take
TIMEOUTS = tuple(
    f"{name} = {int(1000 * LONGEST)}" for name in ("statement_timeout", "idle_in_transaction_session_timeout")
)
LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
IN_THE_WAY = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class _Job:
    """A call, and who waits for what it gives."""

    def __init__(self, need: Prefetch, call: Callable[[], Any]) -> None:
        self.need, self.call, self.loop = need, call, asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class _Known:
    """What is known within one transaction."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.names: dict[int, str] = {}
        self.absent: set[str] = set()  # names that nobody has
        self.decisions: dict[int, Decision] = {}
        self.keys: dict[str, int | None] = {}
        self.answers: dict[int, Answer | None] = {}
        self.writes: list[Sequence[Write]] = []
        self.numbers: dict[str, list[int]] = {"events": [], "numbers": []}

    def keep(self, user: User) -> User:
        self.users[user.name] = user
        self.names[user.number] = user.name
        return user

    def keep_decisions(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            decision = self.decisions[row[0]] = Decision(*row)
            if decision.key is not None:
                self.keys[decision.key] = decision.event


class PostgresStore(Store):
    """A database, the tables of which are made if there are none."""

    shared = True

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.worker = address, uuid4().hex
        self._database = _opened(address)
        self.name = self._database.name
        try:
            self._database.prepare()
        except (psycopg.Error, InputError) as error:
            self._database.close()
            known = isinstance(error, InputError)
            raise error if known else InputError(CANNOT.format(self.name, error)) from error
        self._known = _Known()
        self._stale = False  # whether what is kept in memory may be of a transaction that came to nothing
        self._since: float | None = None  # when the present transaction began
        self._jobs: list[_Job] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    # Calls

    async def act(self, need: Prefetch, call: Callable[[], T], durable: bool = True) -> T:
        """Run a call within a transaction; it is committed when this returns."""
        job = _Job(need, call)
        with self._wake:
            if self.failure is not None:
                raise StoreError(self.failure)
            if len(self._jobs) >= WAITING:
                raise StoreError(f"There are {WAITING:,} calls waiting for the store already.")
            self._jobs.append(job)
            self._wake.notify()
        found: T = await job.future
        return found

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing and self.failure is None:
                    self._wake.wait()
                jobs, self._jobs = self._jobs[:MOST], self._jobs[MOST:]
                if self._closing and not jobs:
                    return
            if self.failure is None:
                self._together(jobs)
                continue
            _refuse(jobs, StoreError(self.failure))
            if not jobs:
                self._connect()

    def _watch(self) -> None:
        """Cut a connection on which nothing comes back, so that nobody waits for ever."""
        while not self._closing or self._thread.is_alive():
            since = self._since
            if since is not None and time.monotonic() - since > (CLOSING if self._closing else 1.5 * LONGEST):
                self.failure = "The store cannot be reached: it does not answer."
                self._database.cut()
            time.sleep(1.0)

    def _connect(self) -> None:
        """Make a lost connection anew, if something can be written with it; or else wait a little."""
        with suppress(Exception):
            self._database.close()
        try:
            self._since = time.monotonic()
            self._database = _opened(str(self.address))
            self._database.rows(ALIVE)
            self._since = self.failure = None
        except (InputError, psycopg.Error) as error:
            self._since, self.failure = None, str(error).strip()
            time.sleep(AGAIN)

    def _together(self, jobs: list[_Job], tries: int = TRIES) -> None:
        """Run calls in one transaction; one by one if they cannot be together."""
        before, here, self._since = Counter(self.counters), self.here, time.monotonic()
        try:
            with self._database.transaction():
                if self._stale:
                    self.undone()
                self._prefetch([job.need for job in jobs])
                done = [_run(job.call) for job in jobs]
                self._count(before)
                self._write_out()
        except Exception as error:
            self._since, self._known, self._stale, self.here = None, _Known(), True, here
            for name in [name for name in self.counters if not name.startswith("problems")]:
                self.counters[name] = before[name]
            self._apart(jobs, error, tries)
        else:
            self._since, self._known, self._stale = None, _Known(), False
            _tell(jobs, done)

    def _apart(self, jobs: list[_Job], error: Exception, tries: int) -> None:
        lost = isinstance(error, LOST)
        if lost and not isinstance(error, IN_THE_WAY):
            sentence = str(error).strip().splitlines() or ["the connection was lost"]
            self.failure = f"The store cannot be reached: {sentence[0].rstrip('.')}."
            _refuse(jobs, StoreError(self.failure))
        elif len(jobs) > 1:
            for job in jobs:
                if self.failure is None:
                    self._together([job])
                else:
                    _refuse([job], StoreError(self.failure))
        elif isinstance(error, IN_THE_WAY) and tries > 1:
            self._together(jobs, tries - 1)
        elif isinstance(error, psycopg.DataError):  # such as a name with a NUL in it
            _refuse(jobs, InputError(f"The request is not as it should be: {str(error).rstrip('.')}."))
        else:
            _refuse(jobs, error)

    def _prefetch(self, needs: Sequence[Prefetch]) -> None:
        """Get what calls need, and hold the rows of their users, in the order of their numbers."""
        known = self._known
        names = [name for need in needs for name in need.users]
        told = [event for need in needs for event in need.told]
        events = [number for number in map(event_number, told) if number is not None]
        others = [event for event in told if event_number(event) is None]
        keys = [need.key for need in needs if need.key is not None]
        if not names and not told:
            return
        queries = (DECISIONS, (events,)), (KEYED, (others,)), (NUMBERS, (names,))
        numbered, named, numbers = self._database.several(*queries)
        known.keep_decisions([*numbered, *named])
        known.absent = set(names) - {name for _, name in numbers}
        held = [number for number, _ in numbers] + [decision.user for decision in known.decisions.values()]
        new_events = sum(need.new for need in needs)
        new_numbers = len(known.absent & {name for need in needs if need.new for name in need.users})
        states, keyed, answers, *given = self._database.several(
            (HOLD, (held,)),
            (KEYED, (keys,)),
            (ANSWERS, (list(known.decisions),)),
            (NEW, ("events", new_events)),
            (NEW, ("numbers", new_numbers)),
        )
        for (state,) in states:
            known.keep(decode_user(state))
        known.keys.update(dict.fromkeys(keys))
        known.keep_decisions(keyed)
        known.answers.update(dict.fromkeys(known.decisions))
        known.answers.update({row[0]: Answer.of_row(row[1:]) for row in answers})
        for name, rows in zip(known.numbers, given, strict=True):
            known.numbers[name] = [number for (number,) in rows][::-1]

    def _count(self, before: Counter[str]) -> None:
        """Write what was counted with what it counts."""
        changed = [(name, value) for name, value in list(self.counters.items()) if value != before[name]]
        self.write(*((SAVE_COUNTER, (self.worker, *each)) for each in changed))

    def _write_out(self) -> None:
        writes, self._known.writes = self._known.writes, []
        self._database.all(grouped(writes))

    # Reading

    def user(self, name: str) -> User | None:
        """The user of this name, held until the transaction ends."""
        found = self._known.users.get(name)
        if found is None and name not in self._known.absent:
            rows = self.rows(f"{USER} FOR UPDATE", name)
            found = self._held(rows)
        return found

    def user_of(self, number: int) -> User | None:
        """The user of this number, held until the transaction ends."""
        name = self._known.names.get(number)
        if name is not None:
            return self._known.users[name]
        return self._held(self.rows("SELECT state FROM users WHERE number = ? FOR UPDATE", number))

    def _held(self, rows: list[tuple[Any, ...]]) -> User | None:
        """A user who was not held from the beginning; events that were numbered before may be too early for them."""
        self._known.numbers["events"] = []
        return self._known.keep(decode_user(rows[0][0])) if rows else None

    def decision(self, event: int) -> Decision | None:
        """What was recommended at an event."""
        if event not in self._known.decisions:
            self._known.keep_decisions(self.rows(DECISION, event))
        return self._known.decisions.get(event)

    def decision_of(self, key: str) -> Decision | None:
        """What was recommended under an id that the client made."""
        if key not in self._known.keys:
            self._known.keys[key] = None
            self._known.keep_decisions(self.rows(DECISION_OF, key))
        event = self._known.keys[key]
        return None if event is None else self._known.decisions[event]

    def answer(self, event: int) -> Answer | None:
        """What was told of an event."""
        if event not in self._known.answers:
            rows = self.rows(ANSWER, event)
            self._known.answers[event] = Answer.of_row(rows[0]) if rows else None
        return self._known.answers[event]

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds, with all that was written before."""
        self._write_out()
        return self._database.rows(query, *values)

    def silent(self, before: float, most: int) -> list[User]:
        """Users who are here and were not seen since, but those whom another process holds."""
        query = "SELECT state FROM users WHERE departed = 0 AND seen < ? ORDER BY seen LIMIT ? FOR UPDATE SKIP LOCKED"
        return [self._known.keep(decode_user(state)) for (state,) in self.rows(query, before, most)]

    # Writing

    def new_event(self) -> int:
        """The number of a new event."""
        return self._new("events")

    def new_number(self) -> int:
        """The number of a new user."""
        return self._new("numbers")

    def _new(self, sequence: str) -> int:
        given = self._known.numbers[sequence]
        return int(given.pop() if given else self._database.rows(NEW, sequence, 1)[0][0])

    def next_number(self) -> int:
        """The number that a user who comes now would get, or a larger one."""
        return int(self._database.rows("SELECT last_value + CAST(is_called AS int) FROM numbers")[0][0])

    def write(self, *writes: Write) -> None:
        """Write something, when the transaction ends."""
        self._known.writes.append(writes)

    def save(self, user: User, *writes: Write) -> None:
        """Write what became of a user, together with `writes`."""
        self._known.keep(user)
        self.write(*writes, row_of(user, self.unanswered))

    def decided(self, decision: Decision) -> Write:
        """The write of a decision."""
        self._known.decisions[decision.event] = decision
        self._known.answers[decision.event] = None
        if decision.key is not None:
            self._known.keys[decision.key] = decision.event
        return row_of_decision(decision)

    def answered(self, event: int, answer: Answer, now: float) -> Write:
        """The write of an answer."""
        self._known.answers[event] = answer
        return row_of_answer(event, answer, now)

    def rename(self, user: User, name: str) -> None:
        """Give a user another name; `save` writes it."""
        self._known.users.pop(user.name, None)
        self._known.absent.add(user.name)
        user.name = name

    def close(self) -> None:
        """Finish what is under way, and close the connection."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(3 * CLOSING)
        self._database.close()


def _opened(address: str) -> PostgresDatabase:
    """A connection for short transactions: tables grow faster than what is known of them to plan queries by."""
    database = PostgresDatabase(address)
    for setting in ("enable_seqscan = off", "jit = off", *TIMEOUTS):
        database.rows(f"SET {setting}")
    return database


def _run(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call gives, or the sentence with which it was refused."""
    try:
        return call(), None
    except (InputError, StoreError) as error:
        return None, error


def _refuse(jobs: Sequence[_Job], error: Exception) -> None:
    """Tell that calls came to nothing."""
    _tell(jobs, [(None, error)] * len(jobs))


def _tell(jobs: Sequence[_Job], done: Sequence[tuple[Any, Exception | None]]) -> None:
    """Tell those who wait, each loop once."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, Exception | None]]] = {}
    for job, (found, error) in zip(jobs, done, strict=True):
        waiting.setdefault(job.loop, []).append((job.future, found, error))
    for loop, told in waiting.items():
        with suppress(RuntimeError):  # nobody is there any more
            loop.call_soon_threadsafe(_resolve, told)


def _resolve(told: Sequence[tuple["asyncio.Future[Any]", Any, Exception | None]]) -> None:
    for future, found, error in told:
        if future.done():
            continue
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)
