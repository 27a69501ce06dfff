"""Records in memory."""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from departing.service.user import RecordedFeedback, User

K = TypeVar("K")
V = TypeVar("V")
MISSING: Any = object()
MAX_RECORDS = 100_000  # decisions, client event IDs and feedback of one generation: ten seconds at 10,000 a second
MAX_CACHED_USERS = 150_000  # users of one generation; two generations take 150 MB with 5 categories
# Estimated size of the users of one generation: the limit from about 40 categories on, where counts are most of it.
MAX_USER_BYTES = 250_000_000
USER_BYTES, COUNT_BYTES = 350, 8  # of a user without counts, and of each of four counts per category
SIZE_WEIGHT = 1 / 32  # of a new sample in the mean size: adapts within a few thousand calls


class Decision(msgspec.Struct, frozen=True, gc=False, array_like=True):
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
    epoch: int = 0  # of the process that made the decision; 0 in schema 3 and earlier
    experiment: int | None = None  # ID of the experiment that the user takes part in
    arm: str | None = None  # "treatment", "control" or "holdout"


class Recent(dict[K, V]):
    """Records in two generations: those that were used recently, and `old` ones, which are evicted next.

    A record that is used again returns from the old generation. When the recent one has grown to its limit, it
    becomes the old one. This approximates the order of use without a cost per use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.old: dict[K, V] = {}
        self._order: list[K] = []  # keys of the old generation, the least recent last; some may have returned
        self.rotated_at = 0  # no record of the old generation was changed after this position in the order of commits

    def find(self, key: K, default: Any = None) -> Any:
        """Return a record, which becomes a recent one."""
        value = self.get(key, MISSING)
        if value is MISSING:
            value = self.old.pop(key, MISSING)
            if value is MISSING:
                return default
            self[key] = value
        return value

    def remove(self, key: K, default: Any = None) -> Any:
        """Remove a record of either generation and return it."""
        return self.pop(key, self.old.pop(key, default))

    def contains(self, key: K) -> bool:
        """Return whether a record is in memory."""
        return key in self or key in self.old

    def rotate(self, position: int) -> None:
        """Make the recent generation the old one."""
        self.old, self._order, self.rotated_at = dict(self), list(reversed(self)), position
        self.clear()

    def evict(self, limit: int) -> Iterator[V]:
        """Evict up to `limit` old records, the least recent first, and yield them."""
        for _ in range(min(limit, len(self._order))):
            value = self.old.pop(self._order.pop(), MISSING)
            if value is not MISSING:
                yield value


class Cache:
    """Records in memory: committed ones that may not be on disk yet, and ones that were loaded."""

    def __init__(self) -> None:
        self.users: Recent[str, User] = Recent()
        self.names: Recent[int, str] = Recent()  # of these users, in the same generation
        self.absent: set[str] = set()  # names that are known to be free; of one database transaction
        self.decisions: Recent[int, Decision] = Recent()
        self.event_numbers: Recent[str, int | None] = Recent()  # by the client's event ID
        self.feedback: Recent[int, RecordedFeedback | None] = Recent()
        self.user_bytes = float(USER_BYTES)  # moving average of the size of users

    def user(self, name: str) -> User | None:
        """Return the user of this name, if in memory."""
        user: User | None = self.users.find(name)
        if user is not None:
            self.names.find(user.number)
        return user

    def user_by_number(self, number: int) -> User | None:
        """Return the user of this number, if in memory."""
        name = self.names.find(number)
        user: User | None = None if name is None else self.users.find(name)
        return user

    def add_user(self, user: User) -> None:
        """Add a user who was loaded."""
        self.users[user.name], self.names[user.number] = user, user.name

    def add_decision(self, decision: Decision) -> None:
        """Add a decision that was loaded."""
        self.decisions[decision.event_number] = decision
        if decision.client_event_id is not None:
            self.event_numbers[decision.client_event_id] = decision.event_number

    def decisions_of(self, user_numbers: Collection[int]) -> list[Decision]:
        """Return all decisions of users that are in memory; this reads every decision there, in milliseconds."""
        decisions = chain(self.decisions.values(), self.decisions.old.values())
        return [decision for decision in decisions if decision.user_number in user_numbers]

    def remove_user(self, number: int) -> None:
        """Remove a user from memory."""
        name = self.names.remove(number)
        if name is not None:
            self.users.remove(name)

    def sample_size(self, users: Collection[User]) -> None:
        """Update the mean size of users by those of one transaction; one of every hundred suffices.

        Users with many requests are sampled more often and have more counts, so that the mean is rather too large.
        """
        if users:
            counts = sum([len(user.counts) for user in users]) / len(users)
            self.user_bytes += SIZE_WEIGHT * (USER_BYTES + COUNT_BYTES * counts - self.user_bytes)

    def evict(self, limit: int, position: int, done: int) -> None:
        """Evict up to `limit` old records of each kind if all their changes are on disk.

        `position` is the number of transactions so far, of which `done` are on disk.
        """
        users, names = self.users, self.names
        if users.old:
            if users.rotated_at <= done:
                for user in users.evict(limit):
                    del names.old[user.number]
        elif len(users) > min(MAX_CACHED_USERS, MAX_USER_BYTES / self.user_bytes):
            users.rotate(position)
            names.rotate(position)
        records: Recent[Any, Any]
        for records in (self.decisions, self.event_numbers, self.feedback):
            if records.old:
                if records.rotated_at <= done:
                    deque(records.evict(limit), 0)
            elif len(records) > MAX_RECORDS:
                records.rotate(position)
