"""LearnerBase: users, the policy assigned to each, and saving."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from inspect import signature
from itertools import islice
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from departing.learning.files import decode_state, read_learner, write_state
from departing.learning.objective import Objective, objective_options
from departing.learning.protocol import AssignedPolicy, UserIds
from departing.model.counts import Integers, clicks
from departing.model.errors import InputError
from departing.model.events import OUTCOME_NAMES, find_outcome
from departing.model.instance import DEPART, Instance
from departing.model.names import check_names, default_names, list_names
from departing.model.validation import MAX_USERS, check_int
from departing.policy.protocol import Policy, policy_in_segment, recommended

# Departed users whose IDs are kept, the latest ones; this bounds memory to about 10 MB. A request with an older
# ID is taken for a new user.
MAX_DEPARTED = 2**16
NO_REQUEST = -1  # in `_pending`: the user has no recommendation without an outcome
MAX_CATEGORIES = 2**20  # a sanity limit: counts of one user take 32 bytes per category
MIN_EPSILON = 1e-6  # of `epsilon`: keeps horizons of the order of ln(users) / epsilon finite
ONE_HOT = np.eye(4, dtype=np.int64)  # outcome code to one user per outcome
# Option of a learner in studies and on the command line: its accepted words, or a check of (field, value).
Option = tuple[str, ...] | Callable[[str, Any], object]


class LearnerBase(ABC):
    """A learner that assigns every user one policy on arrival and keeps it until the user departs.

    A subclass chooses the policies of new users (`_assign`), may learn from every step (`learn`) and from every
    departure (`_finish`). Policies are identified by an integer, their version. It declares its `kind` and its
    `options` in studies and on the command line, and is listed once, in `departing.learning.registry.LEARNERS`.
    """

    kind: ClassVar[str]
    options: ClassVar[dict[str, Option]] = {}
    required: ClassVar[tuple[str, ...]] = ()  # options without a default
    unsupported: ClassVar[dict[str, str]] = {}  # extensions of instances that the learner refuses, with the reason
    objective = Objective()  # rewards and horizon; by default clicks of users who stay as long as they like
    # Attributes of a state: values, arrays, random generators, flat lists, sets and dictionaries, and objects with
    # methods `state` and `restore`.
    saved: ClassVar[tuple[str, ...]] = (
        *("_slots", "_departed", "_departed_below", "_next_user_id", "_free"),
        *("_counts", "_version", "_pending", "_segment"),
    )
    segments: tuple[str, ...] | None = None  # names of the segments that the learner distinguishes

    def __init__(self, categories: int | Sequence[str]) -> None:
        self.n_categories, self._names = _check_categories(categories)
        self._slots: dict[int | str, int] = {}  # row of each active user in the arrays below
        # IDs of the last MAX_DEPARTED departed users, in this order, except 0 to `_departed_below` - 1: consecutive
        # IDs, as in simulations, take no memory.
        self._departed: dict[int | str, None] = {}
        self._departed_below = 0
        self._next_user_id = 0
        self._free: list[int] = []
        self._counts = np.zeros((0, self.n_categories, 4), np.int64)
        self._version = np.zeros(0, np.int64)
        self._pending = np.zeros(0, np.int64)  # category recommended and not yet observed
        self._users_of: Counter[int] = Counter()  # active users of each version
        self._segment = np.zeros(0, np.int64)  # -1 for unknown; empty if the learner distinguishes none

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create a learner from checked options, for `users` users of `instance`."""
        defaults: dict[str, Any] = {"users": users, "seed": seed, "instance": instance}
        defaults |= {"types": instance.n_types, "categories": instance.n_categories}
        defaults["epsilon"] = min_departure(instance)
        parameters = signature(cls).parameters
        defaults |= objective_options(instance)
        return cls(**({name: value for name, value in defaults.items() if name in parameters} | options))

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor arguments, each stored as the attribute of the same name."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def _set_objective(self, reward: Sequence[float] | None, unit: str, horizon: int | None) -> None:
        """Set the objective, and the attributes `reward` and `unit`."""
        self.objective = Objective.checked(reward, unit, horizon, self.n_categories)
        self.reward = None if self.objective.reward is None else list(self.objective.reward)
        self.unit = unit

    @abstractmethod
    def _assign(self, n: int) -> Integers:
        """Choose the policy versions `[n]` of the next n users."""

    @abstractmethod
    def policy(self, version: int) -> AssignedPolicy:
        """Return the policy of a version that some active user has."""

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Learn from users with `counts[n, K, 4]` shown `categories[n]`: `outcomes[n, 4]` users per outcome."""

    def _finish(self, versions: Integers, returns: Integers) -> None:
        """Learn from departed users: the policy version `[n]` and the clicks `[n]` of each."""

    def _release(self, version: int) -> None:
        """Discard a version that no active user has."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.n_categories} categories, {self.active_users} active users>"

    @property
    def categories(self) -> int | tuple[str, ...]:
        """The `categories` argument: a number, or names."""
        return self._names or self.n_categories

    @property
    def category_names(self) -> tuple[str, ...]:
        """Names `[K]` of the category indices that `recommend` returns."""
        return self._names or tuple(default_names("category", self.n_categories))

    @property
    def active_users(self) -> int:
        """The number of active users."""
        return len(self._slots)

    @property
    def next_user_id(self) -> int:
        """The smallest integer above all integer IDs seen so far, at least 0."""
        return self._next_user_id

    def _has_departed(self, user: int | str) -> bool:
        return user in self._departed or (isinstance(user, int) and 0 <= user < self._departed_below)

    def recommend(self, users: UserIds, segments: Sequence[str | None] | None = None) -> Integers:
        """Recommend a category to each user; unknown IDs are new users.

        Parameters
        ----------
        users : sequence of int or str, length n
            User IDs.
        segments : sequence of str or None, length n, optional
            Segment of each user. None and names that the learner does not have, which are compared exactly, mean an
            unknown segment: these users start from the common prior. Segments are stored for new users and ignored
            for others, and by learners that distinguish no segments.

        Returns
        -------
        ndarray of int64, shape (n,)
            Category indices; `category_names[index]` is the name.

        Raises
        ------
        InputError
            If an ID is neither an integer nor a string, or the user is one of the last 65,536 who departed.
        """
        ids = _check_ids(users)
        new = [user for user in dict.fromkeys(ids) if user not in self._slots]
        indices = None if segments is None else self._segment_indices(ids, segments)
        for user in new:
            if self._has_departed(user):
                raise InputError(f"user {user!r} has departed; expected active or new users.")
        if new:
            self._admit(new, self._assign(len(new)))
            if self.segments is not None and indices is not None:
                self._segment[self._rows(new)] = [indices[user] for user in new]
        rows = np.array([self._slots[user] for user in ids], np.int64)
        requested = np.unique(rows[self._pending[rows] == NO_REQUEST])
        versions = self._version[requested]
        for version in np.unique(versions):
            group = requested[versions == version]
            self._pending[group] = self._recommend(int(version), group)
        return self._pending[rows]

    def _segment_indices(self, ids: list[int | str], segments: Sequence[str | None]) -> dict[int | str, int]:
        """Index of the segment of each user, -1 for unknown segments."""
        if isinstance(segments, str) or len(segments) != len(ids):
            raise InputError(f"segments is {segments!r:.80}; expected one name or None for each of {len(ids)} users.")
        names = self.segments or ()
        return {user: names.index(name) if name in names else -1 for user, name in zip(ids, segments, strict=True)}

    def _recommend(self, version: int, rows: Integers) -> Integers:
        return self._in_segments(version, rows, lambda policy, group: recommended(policy, self._counts[group]))

    def _in_segments(
        self, version: int, rows: Integers, recommend: Callable[[Policy, Integers], Integers]
    ) -> Integers:
        """Recommend to users by `recommend`, called with the policy of a segment and the rows of its users."""
        policy = cast(Policy, self.policy(version))
        if self.segments is None:
            return recommend(policy, rows)
        categories = np.empty(len(rows), np.int64)
        for segment in np.unique(self._segment[rows]).tolist():
            group = self._segment[rows] == segment
            own = policy_in_segment(policy, None if segment < 0 else self.segments[segment])
            categories[group] = recommend(own, rows[group])
        return categories

    def versions(self, users: UserIds) -> Integers:
        """Return the policy version `[n]` of each of the active `users[n]`."""
        return self._version[self._rows(_check_ids(users))]

    def observe(self, users: UserIds, categories: npt.ArrayLike, outcomes: npt.ArrayLike) -> None:
        """Record the outcome of the last recommendation to each user, and learn from it.

        Parameters
        ----------
        users : sequence of int or str, length n
            User IDs, each at most once.
        categories : array_like of int or str, shape (n,)
            The recommended categories, as indices or names.
        outcomes : array_like of int or str, shape (n,)
            0 to 3, or "click", "no-click" (or "stay"), "departed" (or "depart"), "click_and_depart".

        Raises
        ------
        InputError
            If any of it is invalid; then nothing is learned.
        """
        ids = _check_ids(users)
        shown = _check_codes("categories", categories, len(ids), self.n_categories, self._names or ())
        observed = _check_codes("outcomes", _outcome_codes(outcomes), len(ids), 4, OUTCOME_NAMES)
        rows = self._rows(ids)
        self._check_pending(ids, rows, shown)
        self._learn_rows(rows, shown, ONE_HOT[observed])
        self._counts[rows, shown, observed] += 1
        self._pending[rows] = NO_REQUEST
        self._after_outcome(rows, observed)
        left = observed >= DEPART
        if left.any():
            self._depart([user for user, is_gone in zip(ids, left.tolist(), strict=True) if is_gone], rows[left])

    def finish(self, users: UserIds) -> None:
        """End users who get no further recommendation, such as those who reached a horizon, without a departure.

        Parameters
        ----------
        users : sequence of int or str
            IDs of active users without an open recommendation.

        Raises
        ------
        InputError
            If a user is not active or has an open recommendation.
        """
        ids = _check_ids(users)
        rows = self._rows(ids)
        for user, pending in zip(ids, self._pending[rows].tolist(), strict=True):
            if pending != NO_REQUEST:
                raise InputError(f"user {user!r} has an open recommendation; call observe before finish.")
        self._depart(ids, rows)

    def _learn_rows(self, rows: Integers, categories: Integers, outcomes: Integers) -> None:
        """Learn from active users, the segments one by one."""
        if self.segments is None:
            self.learn(self._counts[rows], categories, outcomes)
            return
        learn: Any = self.learn
        for segment in np.unique(self._segment[rows]).tolist():
            group = self._segment[rows] == segment
            learn(self._counts[rows[group]], categories[group], outcomes[group], segment=segment)

    def _after_outcome(self, rows: Integers, outcomes: Integers) -> None:
        """Update what a subclass stores per user besides counts."""

    def _check_pending(self, ids: list[int | str], rows: Integers, shown: Integers) -> None:
        if len(set(ids)) < len(ids):
            repeated = next(user for i, user in enumerate(ids) if user in ids[:i])
            raise InputError(f"users contains {repeated!r} more than once; expected one outcome per user.")
        for user, pending, category in zip(ids, self._pending[rows].tolist(), shown.tolist(), strict=True):
            if pending == NO_REQUEST:
                raise InputError(f"user {user!r} has no open recommendation; call recommend before the next observe.")
            if pending != category:
                raise InputError(
                    f"user {user!r} was recommended category {pending}, not {category}; pass the former."
                )

    def _rows(self, ids: list[int | str]) -> Integers:
        for user in ids:
            if user not in self._slots:
                if self._has_departed(user):
                    raise InputError(f"user {user!r} has departed; no further outcome is expected.")
                raise InputError(f"user {user!r} is unknown; call recommend for a user before observe.")
        return np.array([self._slots[user] for user in ids], np.int64)

    def _admit(self, ids: list[int | str], versions: Integers) -> None:
        if len(self._free) < len(ids):
            self._grow(len(ids))
        for user, version in zip(ids, versions.tolist(), strict=True):
            row = self._free.pop()
            self._slots[user] = row
            if isinstance(user, int):
                self._next_user_id = max(self._next_user_id, user + 1)
            self._counts[row] = 0
            self._version[row] = version
            self._pending[row] = NO_REQUEST
            if self.segments is not None:
                self._segment[row] = -1
        self._users_of.update(versions.tolist())

    def _grow(self, more: int) -> None:
        before = len(self._version)
        added = max(before, more)
        self._counts = np.concatenate([self._counts, np.zeros((added, self.n_categories, 4), np.int64)])
        self._version = np.concatenate([self._version, np.full(added, -1, np.int64)])
        self._pending = np.concatenate([self._pending, np.full(added, NO_REQUEST, np.int64)])
        if self.segments is not None:
            self._segment = np.concatenate([self._segment, np.full(added, -1, np.int64)])
        self._free.extend(range(before + added - 1, before - 1, -1))

    def _depart(self, ids: list[int | str], rows: Integers) -> None:
        versions = self._version[rows]
        self._finish(versions, clicks(self._counts[rows]))
        self._version[rows] = -1
        for user, row in zip(ids, rows.tolist(), strict=True):
            del self._slots[user]
            self._departed[user] = None
            self._free.append(row)
        while self._departed_below in self._departed:
            del self._departed[self._departed_below]
            self._departed_below += 1
        for user in list(islice(self._departed, max(len(self._departed) - MAX_DEPARTED, 0))):
            del self._departed[user]
        self._users_of.subtract(versions.tolist())
        for version in np.unique(versions).tolist():
            if not self._users_of[version]:
                del self._users_of[version]
                self._release(version)

    def add_category(self, name: str, *, reward: float | None = None) -> int:
        """Add a category and return its index; a learner with a fixed catalogue raises `InputError`."""
        raise InputError(f"A learner of kind {self.kind!r} has a fixed catalogue; to add {name!r}, use Bayes.")

    def retire_category(self, name: str | int) -> int:
        """Retire a category and return its index; a learner with a fixed catalogue raises `InputError`."""
        raise InputError(f"A learner of kind {self.kind!r} has a fixed catalogue; to retire {name!r}, use Bayes.")

    def check(self, instance: Instance) -> None:
        """Raise `InputError` unless this learner can recommend the categories of `instance`."""
        if instance.n_categories != self.n_categories:
            raise InputError(
                f"The learner has {self.n_categories} categories, but the instance has {instance.n_categories}; "
                "create a learner with as many categories as the instance."
            )
        for field, reason in self.unsupported.items():
            if field in instance.extensions and not (field == "reward" and instance.equal_rewards):
                raise InputError(f"instance.{field} is set, but {reason}; use a learner such as Bayes.")
        self.objective.check(instance)
        if self.segments is not None and instance.segments is None:
            raise InputError(
                f"The learner has the segments {list_names(list(self.segments))}, but the instance has none; create "
                "a learner without segments.",
                "segments",
            )
        known = () if instance.segments is None else instance.segments.names
        if self.segments is not None and known and not set(self.segments) & set(known):
            raise InputError(
                f"The learner has the segments {list_names(self.segments)}, but the instance has "
                f"{list_names(known)}; create the learner with the segments of the instance.",
                "segments",
            )
        named = instance.categories != tuple(default_names("category", instance.n_categories))
        own = () if self._names is None or not named else self._names
        different = [i for i, name in enumerate(own) if name not in (instance.categories[i], f"category {i}")]
        if self._names is not None and different:
            i = different[0]
            raise InputError(
                f"categories[{i}] of the learner is {self._names[i]!r}, but {instance.categories[i]!r} in the "
                "instance; create the learner with the categories of the instance, in the same order."
            )

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume: plain values, arrays and policies."""
        states = {name.lstrip("_"): _state_of(getattr(self, name)) for name in self.saved}
        return {"arguments": self._arguments()} | states

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        if isinstance(state["departed"], set):  # written before the number of departed users was limited
            known = [user + 1 for user in (*state["slots"], *state["departed"]) if isinstance(user, int)]
            state = state | {"next_user_id": max([state["departed_below"], *known])}
            state["departed"] = dict.fromkeys(sorted(state["departed"], key=str))
        state = {"segment": np.zeros(0, np.int64)} | state  # states of earlier releases have none
        for name in self.saved:
            current, value = getattr(self, name), state[name.lstrip("_")]
            if isinstance(current, np.random.Generator):
                current.bit_generator.state = value
            elif hasattr(current, "restore"):
                current.restore(value)
            else:
                setattr(self, name, copy(value))
        self._users_of = Counter(self._version[list(self._slots.values())].tolist())

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Create a learner that continues from a `state`."""
        learner = cls(**state["arguments"])
        learner.restore(state)
        return learner

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a JSON file; a loaded learner continues bit for bit."""
        write_state(path, self.kind, self.state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a learner of this kind from the file written by `save`."""
        kind, state = read_learner(path)
        if kind != cls.kind:
            raise InputError(f"{str(path)!r} contains a learner of kind {kind!r}; expected {cls.kind!r}.")
        try:
            return cls.from_state(decode_state(state))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"missing field {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{str(path)!r} is not a valid saved learner ({reason}); save it again.") from error


def _state_of(value: Any) -> Any:
    """State of one attribute; an object with a method `state` also has `restore`."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.state() if hasattr(value, "state") else copy(value)


def min_departure(instance: Instance, *, at_clicks: bool = True) -> float:
    """Return the smallest departure probability of a step over all types and categories, clipped to [1e-6, 1 - 1e-6].

    With departures at clicks it bounds the number of steps: the `epsilon` of LatticeUCB. Without them it is the
    smallest Λ (1 - P) and bounds the number of clicks, of which a user who departs at a click has one more: the
    `epsilon` of UCB-Hybrid.

    >>> often = Instance([1.0], [[0.5]], depart=0.4, depart_on_click=0.2)
    >>> round(min_departure(often), 9), round(min_departure(often, at_clicks=False), 9)
    (0.3, 0.2)
    """
    departures = instance.departure_probabilities if at_clicks else instance.outcome_probabilities[:, DEPART]
    return float(np.clip(departures.min(), MIN_EPSILON, 1 - MIN_EPSILON))


def check_users(users: int | None) -> int:
    """Return the total number of users of a learner that requires it."""
    if users is None:
        raise InputError("users is missing; expected the (approximate) total number of users.")
    return check_int("users", users, 1, MAX_USERS)


def _check_categories(categories: int | Sequence[str]) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of categories, and their names if given."""
    if isinstance(categories, str) or not isinstance(categories, Sequence):
        return check_int("categories", cast(int, categories), 1, MAX_CATEGORIES), None
    names = check_names("categories", categories)
    return len(names), names


def _check_ids(users: UserIds) -> list[int | str]:
    listed = users.tolist() if isinstance(users, np.ndarray) else users
    if isinstance(listed, str | bytes) or not hasattr(listed, "__iter__"):
        raise InputError(f"users is {users!r:.80}; expected a list of integers or strings.")
    ids = [user.item() if isinstance(user, np.generic) else user for user in listed]
    for user in ids:
        if isinstance(user, bool) or not isinstance(user, int | str):
            raise InputError(f"users contains {user!r:.80}; expected integers or strings.")
    return ids


def _check_codes(field: str, values: npt.ArrayLike, n: int, size: int, names: Sequence[str]) -> Integers:
    """Return `values[n]` as indices below `size`, from indices or `names[size]`."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{field} is {values!r:.80}; {_expected(size, names)}, one per user.") from error
    if n == 0 and array.size == 0:
        return np.zeros(0, np.int64)
    if array.shape != (n,):
        raise InputError(f"{field} has the shape {array.shape}; expected ({n},), one value per user.")
    if array.dtype.kind == "U" and names:
        array = np.array([names.index(name) if name in names else -1 for name in array.tolist()])
    wrong = ((array < 0) | (array >= size)).nonzero()[0] if array.dtype.kind in "iu" else np.arange(n)
    if len(wrong):
        value = np.asarray(values).tolist()[wrong[0]]
        raise InputError(f"{field} contains {value!r:.40}; {_expected(size, names)}.")
    return array.astype(np.int64)


def _outcome_codes(outcomes: npt.ArrayLike) -> npt.ArrayLike:
    """`outcomes` with names replaced by codes; anything else stays as it is."""
    listed = outcomes.tolist() if isinstance(outcomes, np.ndarray) and outcomes.dtype.kind == "U" else outcomes
    if isinstance(listed, list | tuple) and any(isinstance(outcome, str) for outcome in listed):
        return [find_outcome(outcome) for outcome in listed]
    return outcomes


def _expected(size: int, names: Sequence[str]) -> str:
    return f"expected integers from 0 to {size - 1}" + (f" or names ({list_names(names)})" if names else "")
