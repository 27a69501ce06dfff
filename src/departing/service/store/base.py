"""What a service asks of its store, whichever database that is in."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from departing.service.store.schema import FORGET_KEYS, INSERT_DECISION, SAVE_ANSWER, SAVE_COUNTER, SAVE_USER
from departing.service.user import User, counts_to_learn_from

T = TypeVar("T")
Write = tuple[str, tuple[Any, ...]]
USER, DECISION, DECISION_OF, ANSWER = (
    "SELECT state FROM users WHERE name = ?",
    "SELECT * FROM decisions WHERE event = ?",
    "SELECT * FROM decisions WHERE key = ?",
    "SELECT clicked, departed FROM answers WHERE event = ?",
)
encode = msgspec.msgpack.Encoder().encode
decode_user = msgspec.msgpack.Decoder(User).decode


class Answer(msgspec.Struct, frozen=True):
    """What was told of an event."""

    clicked: bool
    departed: bool | None

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> "Answer":
        """An answer as it is stored."""
        return cls(bool(row[0]), None if row[1] is None else bool(row[1]))


class Decision(msgspec.Struct, frozen=True):
    """What was recommended, to whom."""

    event: int
    key: str | None
    user: int
    time: float
    category: int
    propensity: float | None  # None where the caller decided and did not say
    version: int
    ours: int  # the category we would have shown, which differs in shadow mode only
    shadow: int = 0  # 1 where the caller decided


class Prefetch(msgspec.Struct, frozen=True):
    """What a call will look at, so that a store may get it for many calls at once."""

    users: tuple[str, ...] = ()
    told: tuple[str, ...] = ()  # names of events that are told of
    key: str | None = None  # the id that a client made for a new event
    new: bool = False  # whether there will be a new event, and perhaps a new user


NOTHING = Prefetch()


class StoreError(Exception):
    """Nothing can be written at present; what was acknowledged is safe."""


class Store(ABC):
    """All that a service must not forget."""

    address: str | Path
    name: str  # what people may see of the address
    worker: str  # under which this process keeps its counters
    shared: bool  # whether other processes serve from it too

    def __init__(self) -> None:
        self.unanswered = "no-click"
        self.counters: Counter[str] = Counter()
        self.failure: str | None = None  # why nothing can be written at present
        self.here = 0  # users who are, about
        self.undone: Callable[[], None] = lambda: None  # called when what calls did came to nothing

    @abstractmethod
    async def act(self, need: Prefetch, call: Callable[[], T], durable: bool = True) -> T:
        """Run a call that reads and writes; what it wrote is on disk when this returns, if it is to be `durable`."""

    @abstractmethod
    def user(self, name: str) -> User | None:
        """The user of this name."""

    @abstractmethod
    def user_of(self, number: int) -> User | None:
        """The user of this number."""

    @abstractmethod
    def decision(self, event: int) -> Decision | None:
        """What was recommended at an event."""

    @abstractmethod
    def decision_of(self, key: str) -> Decision | None:
        """What was recommended under an id that the client made."""

    @abstractmethod
    def answer(self, event: int) -> Answer | None:
        """What was told of an event."""

    @abstractmethod
    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds."""

    @abstractmethod
    def silent(self, before: float, most: int) -> list[User]:
        """Users who are here and were not seen since."""

    @abstractmethod
    def new_event(self) -> int:
        """The number of a new event, larger than all before of the same user."""

    @abstractmethod
    def new_number(self) -> int:
        """The number of a new user."""

    @abstractmethod
    def next_number(self) -> int:
        """The number that a user who comes now would get, or a larger one."""

    @abstractmethod
    def write(self, *writes: Write) -> None:
        """Write something, all or nothing."""

    @abstractmethod
    def save(self, user: User, *writes: Write) -> None:
        """Write what became of a user, together with `writes`, all or nothing."""

    @abstractmethod
    def rename(self, user: User, name: str) -> None:
        """Give a user another name; `save` writes it."""

    @abstractmethod
    def decided(self, decision: Decision) -> Write:
        """The write of a decision."""

    @abstractmethod
    def answered(self, event: int, answer: Answer, now: float) -> Write:
        """The write of an answer; what was told before of whether the user departed may be added to."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and close."""

    def trim(self) -> None:
        """Let go of what need not be kept in memory."""

    def forget_keys(self, number: int) -> None:
        """Forget the ids that a client made for the events of a user."""
        self.write((FORGET_KEYS, (number,)))

    def meta(self) -> dict[str, str]:
        """Small things under their names."""
        return dict(self.rows("SELECT key, value FROM meta WHERE key <> 'learner'"))

    def categories(self) -> list[tuple[str, bool]]:
        """Names in order, and whether each is retired."""
        rows = self.rows("SELECT name, retired FROM categories ORDER BY category")
        return [(name, retired is not None) for name, retired in rows]

    def totals(self) -> Counter[str]:
        """The counters of all processes there ever were."""
        query = "SELECT name, sum(value) FROM counters WHERE worker <> ? GROUP BY name"
        others = Counter({name: int(value) for name, value in self.rows(query, self.worker)})
        return others + self.counters


def row_of(user: User, unanswered: str) -> Write:
    """The write of a user."""
    counts = counts_to_learn_from(user, unanswered)
    clicks = sum(user.counts[0::4]) + sum(user.counts[3::4])
    state = encode(user)
    return SAVE_USER, (
        *(user.number, user.name, state, encode(counts), int(user.departed), user.seen),
        *(user.version, clicks, user.steps),
    )


def row_of_decision(decision: Decision) -> Write:
    """The write of a decision."""
    return INSERT_DECISION, msgspec.structs.astuple(decision)


def row_of_answer(event: int, answer: Answer, now: float) -> Write:
    """The write of an answer."""
    return SAVE_ANSWER, (event, now, int(answer.clicked), None if answer.departed is None else int(answer.departed))


def grouped(batch: Iterable[Sequence[Write]]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The same writes with those of one kind together, and of a user only the last; others keep their place."""
    decisions: list[tuple[Any, ...]] = []
    counters: list[tuple[Any, ...]] = []
    answers, users = dict[int, tuple[Any, ...]](), dict[int, tuple[Any, ...]]()

    def so_far() -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        kinds = {
            INSERT_DECISION: decisions,
            SAVE_ANSWER: [*answers.values()],
            SAVE_USER: [*users.values()],
            SAVE_COUNTER: counters,
        }
        yield from ((query, rows) for query, rows in kinds.items() if rows)

    for writes in batch:
        for query, values in writes:
            if query == SAVE_USER:
                users[values[0]] = values
            elif query == INSERT_DECISION:
                decisions.append(values)
            elif query == SAVE_COUNTER:
                counters.append(values)
            elif query == SAVE_ANSWER:
                answers[values[0]] = (*answers.get(values[0], values)[:3], values[3])
            else:
                yield from so_far()
                decisions, counters, answers, users = [], [], {}, {}
                yield query, [values]
    yield from so_far()


def event_number(name: str) -> int | None:
    """The number of an event that the service named; None if a client made the name."""
    if name.startswith("e-") and name[2:].isdecimal() and len(name) < 20:
        return int(name[2:])
    return None
