"""Contract of a store, and the transaction in which a call reads and writes."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from departing.service.store import queries
from departing.service.store.connection import Database, Rows, read_snapshot
from departing.service.user import RecordedFeedback, User

T = TypeVar("T")
Write = tuple[str, tuple[Any, ...]]
encode = msgspec.msgpack.Encoder().encode
decode_user = msgspec.msgpack.Decoder(User).decode


class StoreError(Exception):
    """The store cannot be written at present; everything acknowledged is safe."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A recommendation as it was made; the fields are in the order of the table's columns."""

    event_number: int
    client_event_id: str | None
    user_number: int
    time: float
    category: int
    propensity: float | None  # None where the caller decided and did not give it
    version: int
    policy_category: int  # the policy's own choice; differs from `category` where it explored or the caller decided
    shadow: int = 0  # 1 where the caller decided


class Prefetch(msgspec.Struct, frozen=True, gc=False):
    """The records that a call will read, so that a store can load them for many calls at once."""

    users: tuple[str, ...] = ()
    event_ids: tuple[str, ...] = ()  # of events that get feedback
    client_event_id: str | None = None  # the ID that a client chose for a new event
    new_event: bool = False  # whether the call creates an event, and possibly a user


NO_PREFETCH = Prefetch()
_MISSING = object()


class Cache:
    """Records in memory: committed ones that may not be on disk yet, and ones that were loaded."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.names: dict[int, str] = {}
        self.absent: set[str] = set()  # names that are known to be free
        self.decisions: OrderedDict[int, Decision] = OrderedDict()
        self.event_numbers: OrderedDict[str, int | None] = OrderedDict()  # by the client's event ID
        self.feedback: OrderedDict[int, RecordedFeedback | None] = OrderedDict()

    def user_by_number(self, user_number: int) -> User | None:
        """Return the user of this number, if in memory."""
        name = self.names.get(user_number)
        return None if name is None else self.users[name]


class Transaction:
    """Reads and writes of one call.

    Users and records in the cache are changed at once, and what was there before is kept here: if the call raises any
    exception, `rollback` restores it, and nothing of the call remains in memory or on disk. The copies are those that
    are kept for a rollback, because short-lived objects cost the garbage collector nothing.
    """

    def __init__(self, store: "Store") -> None:
        self.store, self._cache = store, store.cache
        self._users: dict[int, User] = {}  # users that were read or added
        self._before: dict[int, User] = {}  # copies of cached users as they were before the call
        self._writes: list[Write] = []
        self._undo: list[tuple[MutableMapping[Any, Any], Any, Any]] = []  # mapping, key and the value before
        self.saved: dict[int, User] = {}
        self.counted: list[str] = []  # a counter's name for each time that it increases
        self.active_change = 0

    # Reading

    @property
    def active_users(self) -> int:
        """Number of users who have not departed, as far as this process knows."""
        return self.store.active_users + self.active_change

    def user(self, name: str) -> User | None:
        """Return the user of this name."""
        user = self._cache.users.get(name)
        if user is None and name not in self._cache.absent:
            user = self._load_user(queries.USER_BY_NAME, name)
            if user is not None and user.number in self._cache.names:  # the later state in memory has another name
                return None
        return None if user is None else self._own(user)

    def user_by_number(self, user_number: int) -> User | None:
        """Return the user of this number."""
        user = self._users.get(user_number)
        if user is not None:
            return user
        user = self._cache.user_by_number(user_number) or self._load_user(queries.USER_BY_NUMBER, user_number)
        return None if user is None else self._own(user)

    def _load_user(self, query: str, value: str | int) -> User | None:
        rows = self.store.user_rows(query, value)
        return decode_user(rows[0][0]) if rows else None

    def inactive_users(self, before: float, limit: int) -> list[User]:
        """Return users who have not departed and were last seen before a time, the longest inactive first."""
        stored = [decode_user(state) for (state,) in self.rows(self.store.inactive_users, before, limit)]
        users = [self._own(self._cache.user_by_number(user.number) or user) for user in stored]
        return [user for user in users if not user.departed and user.last_seen < before]

    def decision(self, event_number: int) -> Decision | None:
        """Return the decision of an event."""
        return self._cache.decisions.get(event_number) or _decision(self.rows(queries.DECISION, event_number))

    def decision_by_client_event_id(self, event_id: str) -> Decision | None:
        """Return the decision with an event ID that the client chose."""
        if event_id in self._cache.event_numbers:
            event_number = self._cache.event_numbers[event_id]
            return None if event_number is None else self.decision(event_number)
        return _decision(self.rows(queries.DECISION_BY_CLIENT_EVENT_ID, event_id))

    def feedback(self, event_number: int) -> RecordedFeedback | None:
        """Return the feedback recorded for an event."""
        if event_number in self._cache.feedback:
            return self._cache.feedback[event_number]
        rows = self.rows(queries.FEEDBACK, event_number)
        return feedback_of_row(rows[0]) if rows else None

    def settings(self) -> dict[str, str]:
        """Return the stored settings by name."""
        return dict(self.rows(queries.SETTINGS))

    def totals(self) -> Counter[str]:
        """Return the counters of all processes that ever used the store."""
        others = self.rows(queries.COUNTERS, self.store.worker)
        own = dict(self.store.counters)  # copied at once, because another thread may add counters meanwhile
        return Counter({name: int(value) for name, value in others}) + Counter(own)

    def rows(self, query: str, *values: Any) -> Rows:
        """Return the rows of a query on disk, where SQLite writes with a short delay."""
        return self.store.rows(query, *values)

    def _own(self, user: User) -> User:
        """Return the user that this call may change: the one in the cache, or the one that was loaded first."""
        number = user.number
        own = self._users.get(number)
        if own is None:
            own = self._users[number] = user
            if number in self._cache.names:
                self._before[number] = user.copy()
        return own

    # Writing

    def add_user(self, user: User) -> None:
        """Add a new, active user."""
        self.active_change += 1
        self.save_user(user)

    def save_user(self, user: User) -> None:
        """Write the user's state as it is at the end of the call."""
        number = user.number
        if number not in self.saved:
            self.saved[number] = self._users[number] = user
            if number not in self._cache.names:
                self.assign(self._cache.users, user.name, user)
                self.assign(self._cache.names, number, user.name)

    def rename_user(self, user: User, name: str) -> None:
        """Give a user another name, so that the old one is free."""
        self.save_user(user)
        self.discard(self._cache.users, user.name)
        user.name = name
        self.assign(self._cache.users, name, user)
        self.assign(self._cache.names, user.number, name)

    def record_decision(self, user: User, decision: Decision) -> None:
        """Write a decision together with the user's state."""
        self._undo.append((self._cache.decisions, decision.event_number, _MISSING))
        self._cache.decisions[decision.event_number] = decision
        if decision.client_event_id is not None:
            self.assign(self._cache.event_numbers, decision.client_event_id, decision.event_number)
        self._writes.append((queries.ADD_DECISION, msgspec.structs.astuple(decision)))
        self.save_user(user)

    def record_feedback(self, user: User, event_number: int, feedback: RecordedFeedback, now: float) -> None:
        """Write feedback together with the user's state; a later call may add whether the user departed."""
        self.assign(self._cache.feedback, event_number, feedback)
        departed = None if feedback.departed is None else int(feedback.departed)
        self._writes.append((queries.SAVE_FEEDBACK, (event_number, now, int(feedback.clicked), departed)))
        self.save_user(user)

    def record_departure(self, user: User, now: float, cause: str) -> None:
        """Write a departure together with the user's state; `cause` is "reported" or "inactive"."""
        self.active_change -= 1
        self._writes.append((queries.ADD_DEPARTURE, (user.number, now, cause)))
        self.save_user(user)

    def forget_client_event_ids(self, user: User) -> None:
        """Delete the event IDs that a client chose for the events of a user."""
        for event_number, event_id in self.rows(queries.CLIENT_EVENT_IDS, user.number):
            self.discard(self._cache.decisions, event_number)
            self.discard(self._cache.event_numbers, event_id)
        self.write(queries.FORGET_CLIENT_EVENT_IDS, user.number)

    def write(self, query: str, *values: Any) -> None:
        """Run a statement when the transaction commits."""
        self._writes.append((query, values))

    def count(self, counter: str) -> None:
        """Increase a counter."""
        self.counted.append(counter)

    def assign(self, records: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Change something in memory until a rollback."""
        self._undo.append((records, key, records.get(key, _MISSING)))
        records[key] = value

    def discard(self, records: MutableMapping[Any, Any], key: Any) -> None:
        """Remove something from memory until a rollback."""
        self._undo.append((records, key, records.pop(key, _MISSING)))

    # Ending

    def rollback(self) -> None:
        """Restore what was in memory before, the latest change first."""
        self.active_change = 0
        self.counted.clear()
        while self._undo:
            records, key, value = self._undo.pop()
            if value is _MISSING:
                records.pop(key, None)
            else:
                records[key] = value
        self._restore_users(self._before)

    def _restore_users(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            user = self._before[number]
            self._cache.users[user.name] = user

    def end(self) -> list[Write]:
        """Discard the changes of users that were not saved, and return the writes."""
        if len(self.saved) < len(self._users):
            self._restore_users(self._before.keys() - self.saved.keys())
        return self.take_writes()

    def take_writes(self) -> list[Write]:
        """Return the writes since the last time, and those of all saved users as they are now."""
        writes, self._writes = self._writes, []
        for user in self.saved.values():
            writes.append(user_write(user, self.store.missing_feedback))
        return writes


class Store(ABC):
    """Durable state of a service.

    Callers read by `read` and change by `transaction`; rows and numbers serve transactions.
    """

    address: str | Path
    name: str  # the address without secrets
    worker: str  # ID under which this process keeps its counters
    shared: bool  # whether other processes serve from the store too
    inactive_users = queries.INACTIVE_USERS

    def __init__(self, missing_feedback: str = "no-click") -> None:
        self.missing_feedback = missing_feedback
        self.counters: Counter[str] = Counter()
        self.failure: str | None = None  # why the store cannot be written at present
        self.active_users = 0  # approximate where other processes serve too
        self.cache = Cache()

    @abstractmethod
    async def transaction(
        self, call: Callable[[Transaction], T], prefetch: Prefetch = NO_PREFETCH, *, durable: bool = True
    ) -> T:
        """Run a call as one unit: all of its writes are kept or, after any exception, none.

        The unit is a function rather than a context because a store may run several in one database transaction, and
        run one again after a conflict with another process. With `durable`, everything is on disk when this returns.
        """

    def read(self) -> AbstractContextManager[Database]:
        """Open a snapshot of what is on disk, with a connection of its own: for threads and long reads."""
        return read_snapshot(self.address)

    def recount_active_users(self) -> None:
        """Count the active users of all processes."""
        with self.read() as snapshot:
            ((self.active_users,),) = snapshot.execute(queries.ACTIVE_USERS)

    @abstractmethod
    def rows(self, query: str, *values: Any) -> Rows:
        """Return the rows of a query on disk, where SQLite writes with a short delay."""

    def user_rows(self, query: str, value: str | int) -> Rows:
        """Return the row of a user that is going to be changed."""
        return self.rows(query, value)

    @abstractmethod
    def new_event_number(self) -> int:
        """Return the number of a new event, larger than all earlier events of the same user."""

    @abstractmethod
    def new_user_number(self) -> int:
        """Return the number of a new user; numbers increase."""

    @abstractmethod
    def next_user_number(self) -> int:
        """Return a lower bound of the numbers of future users."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending, and close."""

    def trim(self) -> None:
        """Drop records from memory that need not be kept there."""


def user_write(user: User, missing_feedback: str) -> Write:
    """Return the write of a user."""
    counts = user.training_counts(missing_feedback)
    clicks = sum(user.counts[0::4]) + sum(user.counts[3::4])
    state, departed, seen = encode(user), int(user.departed), user.last_seen
    row = (user.number, user.name, state, encode(counts), departed, seen, user.version, clicks, user.steps)
    return queries.SAVE_USER, row


def _decision(rows: Rows) -> Decision | None:
    return Decision(*rows[0]) if rows else None


def feedback_of_row(row: tuple[Any, ...]) -> RecordedFeedback:
    """Return feedback from its columns."""
    return RecordedFeedback(bool(row[0]), None if row[1] is None else bool(row[1]))


def grouped(writes: Iterable[Write]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Group bulk writes by statement, with one row per key; other statements keep their place."""
    groups: dict[str, dict[Any, tuple[Any, ...]]] = {}
    for query, values in writes:
        rows = groups.get(query)
        if rows is None:
            if query not in queries.BULK:
                yield from ((each, [*rows.values()]) for each, rows in groups.items())
                groups = {}
                yield query, [values]
                continue
            rows = groups[query] = {}
        key = values[0]
        if query is queries.SAVE_COUNTER:
            key = values[:2]
        elif query is queries.SAVE_FEEDBACK and key in rows:  # later feedback can only add the departure
            values = (*rows[key][:3], values[3])
        rows[key] = values
    yield from ((each, [*rows.values()]) for each, rows in groups.items())


def resolve(futures: Iterable["asyncio.Future[Any]"], results: Iterable[Any]) -> None:
    """Hand results to futures of any thread's event loop; a result that is an exception is raised there."""
    by_loop = defaultdict(list)
    for pair in zip(futures, results, strict=True):
        by_loop[pair[0].get_loop()].append(pair)
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set_results, pairs)


def _set_results(pairs: list[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


def parse_event_id(event_id: str) -> int | None:
    """Return the number in an event ID made by the service; None if a client chose the ID."""
    if event_id.startswith("e-") and event_id[2:].isdecimal() and len(event_id) < 20:
        return int(event_id[2:])
    return None
