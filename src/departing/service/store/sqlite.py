"""The store of a service in one SQLite file: durable, and never waited for but where that is promised.

Writes go to a thread that commits many at a time (group commit). What was written and may not be on disk yet is kept
in memory, so that reading sees it.
"""

import asyncio
import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

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
    grouped,
    row_of,
    row_of_answer,
    row_of_decision,
)
from departing.service.store.connection import CANNOT, SqliteDatabase, try_lock
from departing.service.store.schema import FORGET_KEYS, SAVE_COUNTER, SET
from departing.service.user import User

RESERVED = 100_000  # numbers of events that are reserved at a time
RECENT = 100_000  # answers and keys that are kept in memory
LINGER = 0.03  # seconds that writes are gathered for which nobody waits
AGAIN = 1.0  # seconds after which what could not be written is tried again


class SqliteStore(Store):
    """The file `path`, which is made if there is none."""

    worker, shared = "one", False

    def __init__(self, path: Path) -> None:
        super().__init__()
        path = path.resolve()
        self.address, self.name = path, str(path)
        self._lock = _locked(path)
        try:
            self._reader = SqliteDatabase(path)
            self._prepare()
        except (sqlite3.Error, InputError) as error:
            self._lock.close()
            known = isinstance(error, InputError)
            raise error if known else InputError(CANNOT.format(repr(str(path)), error)) from error
        self._users: dict[str, User] = {}  # those met since the start; departed ones are let go once they are on disk
        self._names: dict[int, str] = {}
        self._leaving: OrderedDict[int, tuple[int, User]] = OrderedDict()  # who departed, and which write tells so
        self._pending: list[Write] | None = None  # what a call wrote so far
        self._answers: OrderedDict[int, Answer] = OrderedDict()
        self._decisions: OrderedDict[int, Decision] = OrderedDict()
        self._keys: OrderedDict[str, int] = OrderedDict()
        self.counters = Counter(dict(self.rows("SELECT name, value FROM counters")))
        self._next_number = int(self.rows("SELECT coalesce(max(number), -1) + 1 FROM users")[0][0])
        ((used,),) = self.rows("SELECT coalesce(max(event), 0) + 1 FROM decisions")
        self._next_event: int = max(used, int(self.meta().get("mark", "0")))
        self._writer = _Writer(path, self)
        self._mark = self._next_event
        self._reserve()
        try:
            self.settle()
        except StoreError as error:
            self.close()
            raise InputError(CANNOT.format(repr(str(path)), str(error).rstrip("."))) from error

    def _prepare(self) -> None:
        try:
            self._reader.prepare()
        except BaseException:
            self._reader.close()
            raise

    def _reserve(self) -> None:
        """Write up to where events may be numbered, so that no number is given twice, even after a crash."""
        if self._next_event + RESERVED // 2 > self._mark:
            self._mark = self._next_event + RESERVED
            self.write((SET, ("mark", str(self._mark))))

    async def act(self, need: Prefetch, call: Callable[[], T], durable: bool = True) -> T:
        """Run a call now; what it wrote is on disk when this returns, if it is to be `durable`."""
        if self.failure is not None:
            raise StoreError(self.failure)
        self._pending = []
        try:
            done = call()
        finally:
            writes, self._pending = self._pending, None
            if writes:
                self._writer.put(writes, self.counters)
        if durable:
            await self.flushed()
        return done

    # Reading

    def user(self, name: str) -> User | None:
        """The user of this name."""
        found = self._users.get(name)
        if found is None:
            rows = self.rows(USER, name)
            if rows:
                found = decode_user(rows[0][0])
                if self._names.get(found.number, name) != name:  # it was renamed, which is not on disk yet
                    found = None
                elif not found.departed:
                    self._keep(found)
        return found

    def user_of(self, number: int) -> User | None:
        """The user of this number."""
        name = self._names.get(number)
        if name is None:
            rows = self.rows("SELECT name FROM users WHERE number = ?", number)
            name = rows[0][0] if rows else None
        return None if name is None else self.user(name)

    def decision(self, event: int) -> Decision | None:
        """What was recommended at an event."""
        found = self._decisions.get(event)
        if found is None:
            rows = self.rows(DECISION, event)
            found = Decision(*rows[0]) if rows else None
        return found

    def decision_of(self, key: str) -> Decision | None:
        """What was recommended under an id that the client made."""
        event = self._keys.get(key)
        if event is not None:
            return self.decision(event)
        rows = self.rows(DECISION_OF, key)
        return Decision(*rows[0]) if rows else None

    def answer(self, event: int) -> Answer | None:
        """What was told of an event."""
        found = self._answers.get(event)
        if found is None:
            rows = self.rows(ANSWER, event)
            found = Answer.of_row(rows[0]) if rows else None
        return found

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds on disk."""
        return self._reader.rows(query, *values)

    def silent(self, before: float, most: int) -> list[User]:
        """Users who are here and were not seen since."""
        query = "SELECT number FROM users WHERE departed = 0 AND seen < ? ORDER BY seen LIMIT ?"
        found = (self.user_of(number) for (number,) in self.rows(query, before, most))
        return [user for user in found if user is not None and not user.departed and user.seen < before]

    def trim(self) -> None:
        """Let go of departed users who are on disk."""
        done = self._writer.done
        for number, (place, user) in list(self._leaving.items()):
            if place > done:
                break
            del self._leaving[number]
            if self._users.get(user.name) is user:
                del self._users[user.name]
                self._names.pop(user.number, None)

    # Writing

    def new_event(self) -> int:
        """The number of a new event."""
        self._next_event += 1
        self._reserve()
        return self._next_event - 1

    def new_number(self) -> int:
        """The number of a new user."""
        self._next_number += 1
        return self._next_number - 1

    def next_number(self) -> int:
        """The number that the next user will get."""
        return self._next_number

    def save(self, user: User, *writes: Write) -> None:
        """Write what became of a user, together with `writes`, all or nothing."""
        self._keep(user)
        place = self._put([*writes, row_of(user, self.unanswered)])
        self._leaving.pop(user.number, None)
        if user.departed:
            self._leaving[user.number] = place, user

    def write(self, *writes: Write) -> None:
        """Write something else, all or nothing."""
        self._put(list(writes))

    def _put(self, writes: list[Write]) -> int:
        """Have something written, all of a call together; the place of that among all that is written."""
        if self._pending is None:
            return self._writer.put(writes, self.counters)
        self._pending += writes
        return self._writer.next

    def forget_keys(self, number: int) -> None:
        """Forget the ids that a client made for the events of a user."""
        for event, key in self.rows("SELECT event, key FROM decisions WHERE number = ? AND key IS NOT NULL", number):
            self._decisions.pop(event, None)
            self._keys.pop(key, None)
        super().forget_keys(number)

    def decided(self, decision: Decision) -> Write:
        """The write of a decision."""
        _note(self._decisions, decision.event, decision)
        if decision.key is not None:
            _note(self._keys, decision.key, decision.event)
        return row_of_decision(decision)

    def answered(self, event: int, answer: Answer, now: float) -> Write:
        """The write of an answer."""
        _note(self._answers, event, answer)
        return row_of_answer(event, answer, now)

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

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self.failure is None:
            self.write((SET, ("mark", str(self._next_event))))
        self._writer.close()
        self.failure = None
        self._reader.close()
        self._lock.close()


def _locked(path: Path) -> IO[bytes]:
    """The lock of a store, which is held as long as it is open."""
    try:
        lock = try_lock(path.with_name(path.name + ".lock"))
    except OSError as error:
        raise InputError(CANNOT.format(repr(str(path)), error.strerror)) from error
    if lock is None:
        raise InputError(f"The store {str(path)!r} is served by another process already.")
    return lock


def _note(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > RECENT:
        kept.popitem(last=False)


class _Writer:
    """Commits what is put, in order, as much at a time as has come while the last commit was under way.

    What cannot be written, as on a full disk, is kept and tried again; until then `act` refuses everything.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self._database, self._store = SqliteDatabase(path), store
        self._batch: list[list[Write]] = []
        self._counters: dict[str, int] = {}
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._busy, self._idle = False, False
        self._put = self.done = 0  # how many were put, and are on disk
        self.scrub = False  # whether names are in the write-ahead log that nobody should know any more
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, writes: list[Write], counters: Counter[str]) -> int:
        """Put something to be written, and the counters that go with it; its place among all that was put."""
        with self._wake:
            self._batch.append(writes)
            self._counters = dict(counters)
            self._put += 1
            if self._idle:
                self._wake.notify()
            return self._put

    @property
    def next(self) -> int:
        """The place of what is put next."""
        return self._put + 1

    async def flushed(self) -> None:
        loop = asyncio.get_running_loop()
        with self._wake:
            if self._store.failure is not None:
                raise StoreError(self._store.failure)
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
        while True:
            with self._wake:
                while not self._batch and not self._futures and not self._closing:
                    self._idle = True
                    if not self._wake.wait(AGAIN if self.scrub else None):
                        break
                self._idle = False
                if not self._futures and not self._closing:  # nobody waits: more may come meanwhile
                    self._wake.wait(LINGER)
                batch, self._batch, counters = self._batch, [], self._counters
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
            _resolve(futures, failure)
            if failure is not None:
                with self._wake:
                    if self._closing or (self._wake.wait(AGAIN) and self._closing):
                        break
        self._database.close()

    def _commit(self, batch: list[list[Write]], counters: dict[str, int]) -> str | None:
        """Commit all of it or nothing; why it failed, if it did."""
        try:
            with self._database.transaction():
                for query, rows in grouped(batch):
                    self._database.many(query, rows)
                    self.scrub = self.scrub or query == FORGET_KEYS
                self._database.many(SAVE_COUNTER, [(self._store.worker, *each) for each in counters.items()])
            if self.scrub:
                ((busy, *_),) = self._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
                self.scrub = bool(busy)
        except Exception as error:  # whatever it is, nobody must wait for ever
            return f"The store cannot be written: {error}."
        return None


def _resolve(futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]], failure: str | None) -> None:
    def tell() -> None:
        for _, future in futures:
            if not future.done():
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(StoreError(failure))

    if futures:
        with suppress(RuntimeError):  # nobody is there any more
            futures[0][0].call_soon_threadsafe(tell)
