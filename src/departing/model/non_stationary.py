"""NonStationaryInstance: users whose behaviour, or whose categories, change with the number of arrived users."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import cos, pi
from typing import Any, Self

import numpy as np

from departing.formatting import format_count
from departing.model.counts import Integers
from departing.model.errors import InputError, errors_in
from departing.model.files import check_fields, read_any, read_document, write_document
from departing.model.instance import Instance
from departing.model.names import find_category

KIND = "site"  # of files
MAX_PIECES = 10_000  # a sanity limit: every piece is planned for by itself
# Pieces of a drift, and of a period of a seasonal site. Between two of 32 pieces a probability changes by 3 % of its
# whole change, which costs the optimal policy of a piece next to nothing.
DRIFT_PIECES, SEASON_PIECES = 32, 16


@dataclass(frozen=True)
class Piece:
    """Consecutive users with the same behaviour: `users` of them after `start` others.

    `allowed` are the indices of the available categories, None for all.
    """

    instance: Instance
    start: int
    users: int
    allowed: tuple[int, ...] | None


@dataclass(frozen=True, eq=False, repr=False)
class NonStationaryInstance:
    """Site whose users change: piecewise stationary by the number of arrived users.

    A user who arrives in a piece keeps its behaviour until the departure.

    Parameters
    ----------
    instances : sequence of Instance, length P
        Users of each piece. New categories come after all earlier ones, and a piece has all categories of the one
        before it; use `available` to retire them.
    starts : sequence or array of int, length P
        Number of users who arrived before each piece; the first is 0.
    available : sequence of (sequence of str or int) or None, length P, optional
        Categories that may be recommended in each piece [default: all of its instance].

    Raises
    ------
    InputError
        If a field is invalid, or the pieces differ in unit, reward or horizon.

    Examples
    --------
    >>> before = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    >>> site = NonStationaryInstance.jump(before, before.replace(click=[[0.2, 0.2], [0.4, 0.39]]), at=5000)
    >>> site.starts, site.at(4999) == before
    ((0, 5000), True)
    """

    instances: tuple[Instance, ...]
    starts: tuple[int, ...]
    available: tuple[tuple[int, ...] | None, ...]

    def __init__(
        self,
        instances: Sequence[Instance],
        starts: Sequence[int] | Integers,
        available: Sequence[Sequence[str | int] | None] | None = None,
    ) -> None:
        pieces = tuple(instances) if isinstance(instances, Sequence) else ()
        if not pieces or not all(isinstance(each, Instance) for each in pieces):
            raise InputError(f"instances is {instances!r:.80}; expected a list of instances.", "instances")
        if len(pieces) > MAX_PIECES:
            raise InputError(f"instances has {len(pieces):,} pieces; expected at most {MAX_PIECES:,}.", "instances")
        _check_equal(pieces)
        allowed = _check_available(pieces, available)
        self.__dict__.update(instances=pieces, starts=_check_starts(starts, len(pieces)), available=allowed)

    @classmethod
    def jump(cls, before: Instance, after: Instance, at: int) -> Self:
        """Return a site that changes once, when `at` users have arrived.

        Parameters
        ----------
        before, after : Instance
            Users before and after the change.
        at : int
            Number of users before the change.
        """
        return cls([before, after], [0, at])

    @classmethod
    def drift(cls, first: Instance, last: Instance, users: int, pieces: int = DRIFT_PIECES) -> Self:
        """Return a site that moves from one instance to another, linearly in the number of users.

        Parameters
        ----------
        first, last : Instance
            First and last users, who differ in probabilities only.
        users : int
            Number of users between the two; later users are like the last.
        pieces : int, default 32
            Number of stationary pieces.
        """
        n = _check_number("pieces", pieces, 2, MAX_PIECES)
        total = _check_number("users", users, n)
        return cls([mixed(first, last, i / (n - 1)) for i in range(n)], [i * total // n for i in range(n)])

    @classmethod
    def seasonal(cls, first: Instance, other: Instance, period: int, users: int, pieces: int = SEASON_PIECES) -> Self:
        """Return a site that moves from one instance to another and back, like a cosine.

        Parameters
        ----------
        first, other : Instance
            Users at the beginning and half a period later, who differ in probabilities only.
        period : int
            Number of users of a period.
        users : int
            Number of users in all; later users are like the last.
        pieces : int, default 16
            Number of stationary pieces of a period.
        """
        n = _check_number("pieces", pieces, 2, MAX_PIECES)
        length = _check_number("period", period, n)
        total = _check_number("users", users, 1)
        number = -(-total * n // length)
        if number > MAX_PIECES:
            raise InputError(
                f"users is {total:,}, which takes {number:,} pieces, {n} in each period of {length:,} users; "
                f"expected at most {MAX_PIECES:,} pieces. Use fewer users, a longer period or fewer pieces.",
                "users",
            )
        shares = [0.5 - 0.5 * cos(2 * pi * (i + 0.5) / n) for i in range(n)]
        instances = [mixed(first, other, share) for share in shares]
        return cls([instances[i % n] for i in range(number)], [i * length // n for i in range(number)])

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of all categories, in the order in which they are added."""
        return self.instances[-1].categories

    @property
    def n_categories(self) -> int:
        """Number of all categories, K."""
        return self.instances[-1].n_categories

    @property
    def n_types(self) -> int:
        """Largest number of types of a piece."""
        return max(each.n_types for each in self.instances)

    @property
    def unit(self) -> str:
        """Unit of values."""
        return self.instances[0].unit

    @cached_property
    def constant_catalogue(self) -> bool:
        """True if all categories are available to all users."""
        return self.instances[0].n_categories == self.n_categories and not any(self.available)

    def at(self, user: int) -> Instance:
        """Return the instance of the user who arrives after `user` others."""
        return self.instances[bisect_right(self.starts, user) - 1]

    def pieces(self, users: int) -> Iterator[Piece]:
        """Yield the pieces of the first `users` users."""
        ends = [*self.starts[1:], users]
        for instance, start, end, allowed in zip(self.instances, self.starts, ends, self.available, strict=True):
            if start < users:
                yield Piece(instance, start, min(end, users) - start, allowed)

    def describe(self) -> str:
        """Size of the site in one phrase."""
        size = f"{format_count(self.n_categories, 'category', 'categories')} and {format_count(self.n_types, 'type')}"
        n = len(self.starts) - 1
        return f"Site with {size} of users; its probabilities change {'once' if n == 1 else f'{n:,} times'}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NonStationaryInstance):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.instances, self.starts, self.available

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as in a file."""
        fields: dict[str, Any] = {"starts": list(self.starts)}
        if any(self.available):
            fields["available"] = [
                [instance.categories[a] for a in (range(instance.n_categories) if allowed is None else allowed)]
                for instance, allowed in zip(self.instances, self.available, strict=True)
            ]
        return fields | {"instances": [each.to_dict() for each in self.instances]}

    @classmethod
    def from_dict(cls, document: dict[str, Any], where: str = "The site") -> Self:
        """Return a site from the fields of `document`; error messages start with `where`."""
        check_fields(document, {"instances", "starts"}, {"available"}, where)
        listed = document["instances"]
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise InputError(f"{where}: instances is {listed!r:.80}; expected a list of instances.")
        with errors_in(where):
            instances = [Instance.from_dict(each, f"instances[{i}]") for i, each in enumerate(listed)]
            return cls(instances, document["starts"], document.get("available"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a site from a TOML or JSON file."""
        return cls.from_dict(read_document(path, KIND), where=repr(str(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the site to a TOML or JSON file, by the suffix of `path`."""
        write_document(path, KIND, self.to_dict())


def load_instance_or_site(path: str | os.PathLike[str]) -> Instance | NonStationaryInstance:
    """Read an instance, or a site if the file has the field `starts`."""
    document = read_any(path)
    return NonStationaryInstance.load(path) if "starts" in document else Instance.load(path)


def mixed(first: Instance, other: Instance, share: float) -> Instance:
    """Return an instance whose probabilities are between those of two others, `share` of the way to `other`.

    The two have the same names of categories and types, in the same order, unit, reward and horizon, and no segments.

    >>> mixed(Instance([1.0], [[0.2]]), Instance([1.0], [[0.4]]), 0.5).click
    array([[0.3]])
    """
    for each in (first, other):
        if not isinstance(each, Instance):
            raise InputError(f"instance is {each!r:.80}; expected an Instance.")
    if first.segments is not None or other.segments is not None:
        raise InputError("An instance has segments; only instances without segments can be mixed.", "segments")
    for field in ("categories", "types", "unit", "reward", "horizon"):
        before, after = (np.asarray(getattr(each, field)).tolist() for each in (first, other))
        if before != after:
            raise InputError(
                f"{field} is {before!s:.80} in the first instance and {after!s:.80} in the other; expected the same "
                "in both, because only probabilities are mixed.",
                field,
            )
    names = ("prior", "click", "depart", "depart_on_click")
    fields = {name: (1 - share) * getattr(first, name) + share * getattr(other, name) for name in names}
    fields["prior"] = fields["prior"] / fields["prior"].sum()
    return first.replace(**fields)


def _check_number(field: str, value: float, least: int, most: float = np.inf) -> int:
    integer = isinstance(value, int | float | np.number) and not isinstance(value, bool) and float(value).is_integer()
    if not integer or not least <= value <= most:
        limit = f" and ≤ {most:,}" if most < np.inf else ""
        raise InputError(f"{field} is {value!r:.40}; expected an integer ≥ {least}{limit}.", field)
    return int(value)


def _check_starts(starts: Sequence[int] | Integers, n: int) -> tuple[int, ...]:
    values: object = starts.tolist() if isinstance(starts, np.ndarray) else starts
    listed = [_check_number("starts", start, 0) for start in values] if isinstance(values, Sequence) else []
    if len(listed) != n or listed[0] != 0 or any(a >= b for a, b in pairwise(listed)):
        raise InputError(f"starts is {starts!r:.80}; expected {n} increasing integers, one per instance, from 0 on.")
    return tuple(listed)


def _check_equal(instances: Sequence[Instance]) -> None:
    """Raise unless every instance has the categories of the one before it, and the same unit, reward and horizon."""
    for i, (before, after) in enumerate(pairwise(instances), 1):
        k = before.n_categories
        if after.categories[:k] != before.categories:
            raise InputError(
                f"instances[{i}].categories is {list(after.categories)!s:.80}; expected those of the piece before, "
                f"{list(before.categories)!s:.80}, and new ones after them; retire categories by `available`."
            )
        if after.unit != before.unit or after.horizon != before.horizon:
            raise InputError(
                f"instances[{i}] has another unit or horizon than the piece before; they must not change."
            )
        if (after.reward[:k] != before.reward).any():
            raise InputError(f"instances[{i}].reward differs from the piece before; rewards must not change.")


def _check_available(
    instances: Sequence[Instance], available: Sequence[Sequence[str | int] | None] | None
) -> tuple[tuple[int, ...] | None, ...]:
    """Indices of the available categories of every piece, None where all are available."""
    if available is None:
        return (None,) * len(instances)
    if not isinstance(available, Sequence) or len(available) != len(instances):
        raise InputError(f"available is {available!r:.80}; expected {len(instances)} lists of categories or None.")
    checked: list[tuple[int, ...] | None] = []
    for i, (instance, names) in enumerate(zip(instances, available, strict=True)):
        if names is None:
            checked.append(None)
            continue
        with errors_in(f"available[{i}]"):
            listed = sorted({find_category(name, instance.categories) for name in names})
        if not listed:
            raise InputError(f"available[{i}] is empty; expected at least one category.")
        checked.append(None if len(listed) == instance.n_categories else tuple(listed))
    return tuple(checked)
