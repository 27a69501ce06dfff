"""Contract of a store, and the transaction in which a call reads and writes."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from departing.service.event_id import new_epoch, parse_event_id
from departing.service.store import queries
from departing.service.store.cache import MISSING, Cache, Decision, Recent
from departing.service.store.connection import Database, Rows, read_snapshot
from departing.service.store.files import RESTORE
from departing.service.user import RecordedFeedback, User

RETRY_AFTER = 2.0  # seconds after which a refused call should be sent again: a stall ends at once or lasts
# For the last commit, so that a disk or a database that hangs does not keep the service from stopping.
CLOSE_SECONDS = 5.0
T = TypeVar("T")
Write = tuple[str, tuple[Any, ...]]
encode = msgspec.msgpack.Encoder().encode
_decode_user = msgspec.msgpack.Decoder(User).decode


class StoreError(Exception):
    """The store cannot be written at present; everything acknowledged is safe."""


class OverloadedError(StoreError):
    """More calls than the store can write at present; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def decode_user(state: bytes) -> User:
    """Return a user from the encoded state."""
    try:
        return _decode_user(state)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"The store is damaged: the state of a user is invalid ({error}). {RESTORE}.") from error


class Prefetch(msgspec.Struct, frozen=True, gc=False):
    """The records that a call will read, so that a store can load them for many calls at once."""

    users: tuple[str, ...] = ()
    event_ids: tuple[str, ...] = ()  # of events that get feedback
    client_event_id: str | None = None  # the ID that a client chose for a new event
    new_event: bool = False  # whether the call creates an event, and possibly a user


NO_PREFETCH = Prefetch()


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
    def users(self) -> Collection[int]:
        """Numbers of the users that were read or added."""
        return self._users.keys()

    @property
    def active_users(self) -> int:
        """Number of users who have not departed, as far as this process knows."""
        return self.store.active_users + self.active_change

    def user(self, name: str) -> User | None:
        """Return the user of this name."""
        user = self._cache.users.get(name) or self._cache.user(name)
        if user is None and name not in self._cache.absent:
            user = self._load_user(queries.USER_BY_NAME, name)
            if user is not None and self._cache.user_by_number(user.number):  # its later state has another name
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
        return self._cache.decisions.find(event_number) or _decision(self.rows(queries.DECISION, event_number))

    def decision_by_event_id(self, event_id: str) -> Decision | None:
        """Return the decision of an event ID, whether the service issued it or a client chose it."""
        parsed = parse_event_id(event_id)
        if parsed is None:
            return self.decision_by_client_event_id(event_id)
        epoch, event_number = parsed
        decision = self.decision(event_number)
        return decision if decision is not None and decision.epoch == epoch else None

    def decision_by_client_event_id(self, event_id: str) -> Decision | None:
        """Return the decision with an event ID that the client chose."""
        event_number = self._cache.event_numbers.find(event_id, MISSING)
        if event_number is not MISSING:
            return None if event_number is None else self.decision(event_number)
        return _decision(self.rows(queries.DECISION_BY_CLIENT_EVENT_ID, event_id))

    def feedback(self, event_number: int) -> RecordedFeedback | None:
        """Return the feedback recorded for an event."""
        feedback: RecordedFeedback | None = self._cache.feedback.find(event_number, MISSING)
        if feedback is not MISSING:
            return feedback
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
        self._undo.append((self._cache.decisions, decision.event_number, MISSING))
        self._cache.decisions[decision.event_number] = decision
        if decision.client_event_id is not None:
            self.assign(self._cache.event_numbers, decision.client_event_id, decision.event_number)
        self._writes.append((queries.ADD_DECISION, msgspec.structs.astuple(decision)))
        self.save_user(user)

    def record_feedback(self, user: User, event_number: int, feedback: RecordedFeedback, now: float) -> None:
        """Write feedback together with the user's state; a later call may add the departure and the reward."""
        self.assign(self._cache.feedback, event_number, feedback)
        departed = None if feedback.departed is None else int(feedback.departed)
        row = (event_number, now, int(feedback.clicked), departed, feedback.reward)
        self._writes.append((queries.SAVE_FEEDBACK, row))
        self.save_user(user)

    def record_departure(self, user: User, now: float, cause: str) -> None:
        """Write a departure together with the user's state; `cause` is "reported" or "inactive"."""
        self.active_change -= 1
        self._writes.append((queries.ADD_DEPARTURE, (user.number, now, cause)))
        self.save_user(user)

    def end_visit(self, user: User) -> None:
        """Write the state of a user whose visit is over without a departure."""
        self.active_change -= 1
        self.save_user(user)

    def record_assignment(self, user: User, stage: int) -> None:
        """Write the arm of a user who enters an experiment, or returns to it."""
        row = (user.number, user.experiment, stage, user.arm, user.entry, user.arrived)
        self._writes.append((queries.ADD_ASSIGNMENT, row))

    def lock_settings(self) -> None:
        """Wait until no other process changes settings, and keep the others waiting until this call ends."""
        self.store.user_rows(queries.SETTING, queries.SCHEMA_KEY)

    def remove_departure(self, user: User) -> None:
        """Delete the departure of a user who is active again."""
        self.active_change += 1
        self._writes.append((queries.REMOVE_DEPARTURE, (user.number,)))
        self.save_user(user)

    def forget_client_event_ids(self, users: Iterable[User]) -> None:
        """Delete the event IDs that a client chose for the events of users."""
        numbers = {user.number for user in users}
        for decision in self._cache.decisions_of(numbers):  # also those that are not on disk yet
            if decision.client_event_id is not None:
                self.discard(self._cache.event_numbers, decision.client_event_id)
                anonymous = msgspec.structs.replace(decision, client_event_id=None)
                self.discard(self._cache.decisions, decision.event_number)
                self.assign(self._cache.decisions, decision.event_number, anonymous)
        for number in numbers:
            for (event_id,) in self.rows(queries.CLIENT_EVENT_IDS, number):
                self.discard(self._cache.event_numbers, event_id)
            self.write(queries.FORGET_CLIENT_EVENT_IDS, number)

    def write(self, query: str, *values: Any) -> None:
        """Run a statement when the transaction commits."""
        self._writes.append((query, values))

    def count(self, counter: str) -> None:
        """Increase a counter."""
        self.counted.append(counter)

    def assign(self, records: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Change something in memory until a rollback."""
        self._undo.append((records, key, records.get(key, MISSING)))
        records[key] = value

    def discard(self, records: MutableMapping[Any, Any], key: Any) -> None:
        """Remove something from memory until a rollback."""
        remove = records.remove if isinstance(records, Recent) else records.pop
        self._undo.append((records, key, remove(key, MISSING)))

    # Ending

    def rollback(self) -> None:
        """Restore what was in memory before, the latest change first."""
        self.active_change = 0
        self.counted.clear()
        while self._undo:
            records, key, value = self._undo.pop()
            if value is MISSING:
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


RunSlice = Callable[[Callable[[Transaction], Any], Prefetch], Awaitable[Any]]  # runs a transaction of a batch


class Store(ABC):
    """Durable state of a service.

    Callers read by `read` and change by `transaction`; rows and numbers serve transactions.
    """

    address: str | Path
    name: str  # the address without secrets
    worker: str  # ID under which this process keeps its counters
    shared: bool  # whether other processes serve from the store too
    batch_rows: int  # rows of feedback of one transaction, after which other calls have their turn
    inactive_users = queries.INACTIVE_USERS

    def __init__(self, missing_feedback: str = "no-click") -> None:
        self.missing_feedback = missing_feedback
        self.counters: Counter[str] = Counter()
        self.damage: str | None = None  # what could not be read since the start
        self.failure: str | None = None  # why the store cannot be written at present
        self.active_users = 0  # approximate where other processes serve too
        self.lost_transactions = 0  # that the database refused for good, since this process started
        self.cache = Cache()
        self.epoch = new_epoch()

    @abstractmethod
    async def transaction(
        self, call: Callable[[Transaction], T], prefetch: Prefetch = NO_PREFETCH, *, durable: bool = True
    ) -> T:
        """Run a call as one unit: all of its writes are kept or, after any exception, none.

        The unit is a function rather than a context because a store may run several in one database transaction, and
        run one again after a conflict with another process. With `durable`, everything is on disk when this returns.
        """

    def batch(self, event_ids: Sequence[str]) -> AbstractAsyncContextManager[RunSlice]:
        """Return a context for a batch of feedback in several transactions, in which no reading delays other calls.

        Its value runs one of them. At its end everything is on disk; it raises `StoreError` if a part is not.
        """
        return nullcontext(partial(self.transaction, durable=False))

    @property
    @abstractmethod
    def unwritten(self) -> int:
        """Number of rows that are not on disk yet, or of calls that wait for the database."""

    @property
    @abstractmethod
    def oldest_unwritten(self) -> float:
        """Age of the oldest of them in seconds, 0.0 if there is none."""

    def warnings(self) -> list[str]:
        """Return sentences about the store that an operator should read."""
        warnings = [] if self.damage is None else [self.damage]
        if self.lost_transactions:
            lost = f"{self.lost_transactions:,} transactions were dropped, because the database refused them"
            warnings.append(f"{lost}; see transaction_dropped in the log, and report it.")
        return warnings

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

    def problem(self) -> str | None:
        """Return why calls fail at present, None if they do not."""
        return self.failure

    def notice_restore(self) -> None:
        """Draw a new epoch if a backup was restored beneath this process."""

    def trim(self) -> None:
        """Drop records from memory that need not be kept there."""


def user_write(user: User, missing_feedback: str) -> Write:
    """Return the write of a user."""
    counts = user.training_counts(missing_feedback)
    clicks = sum(user.counts[0::4]) + sum(user.counts[3::4])
    if user.departed:
        clicks += sum(step.clicked is True for step in user.open)  # of a user who is finished
    state, departed, seen = encode(user), int(user.departed), user.last_seen
    row = (user.number, user.name, state, encode(counts), departed, seen, user.version, clicks, user.steps)
    return queries.SAVE_USER, (*row, user.arrived, user.segment)


def _decision(rows: Rows) -> Decision | None:
    return Decision(*rows[0]) if rows else None


def feedback_of_row(row: tuple[Any, ...]) -> RecordedFeedback:
    """Return feedback from its columns."""
    return RecordedFeedback(bool(row[0]), None if row[1] is None else bool(row[1]), row[2])


def grouped(writes: Iterable[Write]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Group bulk writes by statement, with one row per key; other statements keep their place."""
    groups: dict[str, dict[Any, tuple[Any, ...]]] = {}
    counter, feedback = queries.SAVE_COUNTER, queries.SAVE_FEEDBACK
    for query, values in writes:
        rows = groups.get(query)
        if rows is None:
            if query not in queries.BULK:
                yield from ((each, [*rows.values()]) for each, rows in groups.items())
                groups = {}
                yield query, [values]
                continue
            rows = groups[query] = {}
        key = values[:2] if query is counter else values[0]
        if query is feedback and key in rows:  # later feedback can only add the departure and the reward
            values = (*rows[key][:3], *values[3:])
        rows[key] = values
    yield from ((each, [*rows.values()]) for each, rows in groups.items())
