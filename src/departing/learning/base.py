"""Users and the policies they are given: what all learners of this package share."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from departing.learning.files import read_state, write_state
from departing.learning.protocol import Users
from departing.model.counts import Integers, clicks
from departing.model.errors import InputError
from departing.model.instance import DEPART, Instance
from departing.model.validation import check_int
from departing.policy.protocol import Policy, recommended

NOT_WAITING = -1
OUTCOMES = ("CLICK", "STAY", "DEPART", "CLICK_DEPART")


class LearnerBase(ABC):
    """A learner that gives every user one policy on arrival and keeps to it until the user departs.

    A learner says which policy new users get (`_assign`), and is told every step (`_learn`) and every departure
    (`_finish`). Policies go by a number, their version.
    """

    kind: ClassVar[str]

    def __init__(self, categories: int) -> None:
        self.n_categories = check_int("categories", categories, 1, 2**20)
        self._slots: dict[int | str, int] = {}
        self._gone: set[int | str] = set()
        self._free: list[int] = []
        self._counts = np.zeros((0, self.n_categories, 4), np.int64)
        self._version = np.zeros(0, np.int64)
        self._shown = np.zeros(0, np.int64)
        self._users_of: Counter[int] = Counter()  # how many users have each version

    @abstractmethod
    def _assign(self, n: int) -> Integers:
        """The versions of the policies that the next n users get."""

    @abstractmethod
    def policy(self, version: int) -> Policy:
        """The policy of a version that some user has."""

    def _learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Be told of users who had `counts[n, K, 4]` and were shown `categories[n]`: how many ended in each outcome.

        `outcomes[n, 4]` are numbers of users.
        """

    def _finish(self, versions: Integers, returns: Integers) -> None:
        """Be told of users who departed: the version each had, and how often each clicked."""

    def _release(self, version: int) -> None:
        """No user has this version any longer."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.n_categories} categories, {self.open_users} users are here>"

    @property
    def open_users(self) -> int:
        """How many users are here, as far as is known."""
        return len(self._slots)

    @property
    def unused(self) -> int:
        """A whole number from which on no user is named."""
        named = (user for users in (self._slots, self._gone) for user in users if isinstance(user, int))
        return max(max(named, default=-1) + 1, 0)

    def recommend(self, users: Users) -> Integers:
        """A category for each of `users[n]`; those who are not known are new."""
        ids = _as_ids(users)
        for user in ids:
            if user in self._gone:
                raise InputError(f"user {user!r} has departed; recommend to users who are here, or new.")
        new = [user for user in dict.fromkeys(ids) if user not in self._slots]
        if new:
            self._admit(new, self._assign(len(new)))
        rows = np.array([self._slots[user] for user in ids], np.int64)
        asked = np.unique(rows[self._shown[rows] == NOT_WAITING])
        versions = self._version[asked]
        for version in np.unique(versions):
            group = asked[versions == version]
            self._shown[group] = self._recommend(int(version), group)
        return self._shown[rows]

    def _recommend(self, version: int, rows: Integers) -> Integers:
        return recommended(self.policy(version), self._counts[rows])

    def versions(self, users: Users) -> Integers:
        """The version of the policy of each of `users[n]`, who are here."""
        return self._version[self._rows(_as_ids(users))]

    def observe(self, users: Users, categories: npt.ArrayLike, outcomes: npt.ArrayLike) -> None:
        """Be told that each of `users[n]` was shown `categories[n]` and what came of it.

        Outcomes are 0 to 3: CLICK, STAY, DEPART, CLICK_DEPART. Nothing is learned if any of it is wrong.
        """
        ids = _as_ids(users)
        shown = _as_codes("categories", categories, len(ids), self.n_categories)
        came = _as_codes("outcomes", outcomes, len(ids), 4)
        rows = self._rows(ids)
        self._check(ids, rows, shown)
        counts = self._counts[rows]
        self._learn(counts, shown, np.eye(4, dtype=np.int64)[came])
        self._counts[rows, shown, came] += 1
        self._shown[rows] = NOT_WAITING
        self._note(rows, came)
        over = came >= DEPART
        if over.any():
            self._leave([user for user, left in zip(ids, over.tolist(), strict=True) if left], rows[over])

    def _note(self, rows: Integers, outcomes: Integers) -> None:
        """For learners who keep more of a user than counts."""

    def _check(self, ids: list[int | str], rows: Integers, shown: Integers) -> None:
        if len(set(ids)) < len(ids):
            twice = next(user for i, user in enumerate(ids) if user in ids[:i])
            raise InputError(f"user {twice!r} is told of twice at once; expected one outcome of each recommendation.")
        waiting = self._shown[rows]
        for user, was, told in zip(ids, waiting.tolist(), shown.tolist(), strict=True):
            if was == NOT_WAITING:
                raise InputError(f"user {user!r} waits for no outcome: it was told, or nothing was recommended.")
            if was != told:
                raise InputError(f"user {user!r} was recommended category {was}, not {told}.")

    def _rows(self, ids: list[int | str]) -> Integers:
        for user in ids:
            if user in self._gone:
                raise InputError(f"user {user!r} has departed; there is nothing more to observe.")
            if user not in self._slots:
                raise InputError(f"user {user!r} is unknown; recommend to a user before observing.")
        return np.array([self._slots[user] for user in ids], np.int64)

    def _admit(self, ids: list[int | str], versions: Integers) -> None:
        if len(self._free) < len(ids):
            self._make_room(len(ids))
        for user, version in zip(ids, versions.tolist(), strict=True):
            row = self._free.pop()
            self._slots[user] = row
            self._counts[row] = 0
            self._version[row] = version
            self._shown[row] = NOT_WAITING
        self._users_of.update(versions.tolist())

    def _make_room(self, more: int) -> None:
        before = len(self._version)
        after = max(2 * before, before + more)
        self._counts = np.concatenate([self._counts, np.zeros((after - before, self.n_categories, 4), np.int64)])
        self._version = np.concatenate([self._version, np.full(after - before, -1, np.int64)])
        self._shown = np.concatenate([self._shown, np.full(after - before, NOT_WAITING, np.int64)])
        self._free.extend(range(after - 1, before - 1, -1))

    def _leave(self, ids: list[int | str], rows: Integers) -> None:
        versions = self._version[rows]
        self._finish(versions, clicks(self._counts[rows]))
        self._version[rows] = -1
        for user, row in zip(ids, rows.tolist(), strict=True):
            del self._slots[user]
            self._gone.add(user)
            self._free.append(row)
        self._users_of.subtract(versions.tolist())
        for version in np.unique(versions).tolist():
            if not self._users_of[version]:
                del self._users_of[version]
                self._release(version)

    def check(self, instance: Instance) -> None:
        """Raise unless this learner can learn to recommend to users of `instance`."""
        if instance.n_categories != self.n_categories:
            raise InputError(
                f"The learner has {self.n_categories} categories, but the instance has {instance.n_categories}."
            )

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here: plain values, arrays and policies."""
        return {
            "categories": self.n_categories,
            "users": list(self._slots),
            "rows": list(self._slots.values()),
            "gone": list(self._gone),
            "free": list(self._free),
            "counts": self._counts.copy(),
            "version": self._version.copy(),
            "shown": self._shown.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self._slots = dict(zip(state["users"], state["rows"], strict=True))
        self._gone, self._free = set(state["gone"]), list(state["free"])
        self._counts, self._version, self._shown = (state[name].copy() for name in ("counts", "version", "shown"))
        self._users_of = Counter(self._version[list(self._slots.values())].tolist())

    @classmethod
    @abstractmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """A learner that goes on from a `state`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all it knows to a JSON file; `load` goes on from there, to the bit."""
        write_state(path, self.kind, self.state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The learner that was saved."""
        state = read_state(path, cls.kind)
        try:
            return cls.from_state(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{str(path)!r} is damaged: {error!r}.") from error


def _as_ids(users: Users) -> list[int | str]:
    listed = users.tolist() if isinstance(users, np.ndarray) else users
    if isinstance(listed, str | bytes) or not hasattr(listed, "__iter__"):
        raise InputError(f"users is {users!r:.80}; expected a list of whole numbers or strings.")
    ids = [user.item() if isinstance(user, np.generic) else user for user in listed]
    for user in ids:
        if isinstance(user, bool) or not isinstance(user, int | str):
            raise InputError(f"users holds {user!r:.80}; users are named by whole numbers or strings.")
    return ids


def _as_codes(field: str, values: npt.ArrayLike, n: int, most: int) -> Integers:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{field} is {values!r:.80}; expected {n} whole numbers.") from error
    if n == 0 and array.size == 0:
        return np.zeros(0, np.int64)
    known = f" ({', '.join(OUTCOMES)})" if field == "outcomes" else ""
    if array.shape != (n,):
        raise InputError(f"{field} has the shape {array.shape}; expected a whole number for each of {n} users.")
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{field} holds {array.tolist()[0]!r:.40}; allowed are whole numbers, 0 to {most - 1}{known}."
        )
    wrong = array[(array < 0) | (array >= most)]
    if len(wrong):
        raise InputError(f"{field} holds {wrong[0]}; allowed are 0 to {most - 1}{known}.")
    return array.astype(np.int64)
