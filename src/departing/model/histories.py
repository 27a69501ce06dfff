"""Histories: the counts of many users, each row with how many users share it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, clicks, flat_rows, gone, merge, steps
from departing.model.errors import InputError
from departing.model.instance import DEPART


@dataclass(frozen=True, eq=False, repr=False)
class Histories:
    """The counts of users: `counts[N, K, 4]`, `multiplicity[N]` users a row, and `ids` where rows are users.

    A user who has departed has just one departure in the counts; one who has none is *censored*: we stopped
    looking before the end. A log often does not tell whether a censored user stayed after the last step. That step
    is counted as a click or a stay, and `pending[N]` is its place in the flattened counts, 4 × category + outcome,
    or -1 where everything is known. `categories` are their names, if they have any.

    >>> seen = Histories([[[2, 0, 1, 0]], [[0, 0, 1, 0]], [[2, 0, 1, 0]], [[3, 1, 0, 0]]])
    >>> seen
    <Histories of 4 users, 1 of them censored, 3 distinct counts>
    >>> seen.distinct.multiplicity
    array([1, 2, 1])
    """

    counts: Integers
    multiplicity: Integers
    ids: tuple[Any, ...] | None
    pending: Integers
    categories: tuple[str, ...] | None

    def __init__(
        self,
        counts: npt.ArrayLike,
        multiplicity: npt.ArrayLike | None = None,
        ids: Sequence[Any] | None = None,
        *,
        pending: npt.ArrayLike | None = None,
        categories: Sequence[str] | None = None,
    ) -> None:
        rows = np.array(as_counts(counts))
        if rows.ndim != 3:
            raise InputError(f"counts have shape {rows.shape}; expected [users, categories, 4].")
        if (rows[..., 2:].sum(axis=(1, 2)) > 1).any():
            raise InputError("counts hold a user who departs more than once; a user departs at most once.")
        times = np.ones(len(rows), np.int64) if multiplicity is None else np.array(multiplicity)
        if times.shape != (len(rows),) or times.dtype.kind not in "iu" or (times < 1).any():
            raise InputError(f"multiplicity must be {len(rows)} whole numbers from 1, one for every row of counts.")
        if ids is not None and (len(ids) != len(rows) or (times != 1).any()):
            raise InputError(f"ids has {len(ids)} entries; expected one for each of {len(rows)} single users.")
        if categories is not None and len(categories) != rows.shape[1]:
            raise InputError(f"categories has {len(categories)} names; counts have {rows.shape[1]} categories.")
        times = times.astype(np.int64)
        places = _as_pending(pending, rows)
        for array in (rows, times, places):
            array.setflags(write=False)
        object.__setattr__(self, "counts", rows)
        object.__setattr__(self, "multiplicity", times)
        object.__setattr__(self, "ids", None if ids is None else tuple(ids))
        object.__setattr__(self, "pending", places)
        object.__setattr__(self, "categories", None if categories is None else tuple(categories))

    @property
    def users(self) -> int:
        """The number of users."""
        return int(self.multiplicity.sum())

    @cached_property
    def censored(self) -> npt.NDArray[np.bool_]:
        """Whether the users of every row had not departed when we stopped looking, `[N]`."""
        return ~gone(self.counts)

    @cached_property
    def clicks(self) -> Integers:
        """Clicks of a user of every row, `[N]`."""
        return clicks(self.counts)

    @cached_property
    def steps(self) -> Integers:
        """Steps of a user of every row, `[N]`."""
        return steps(self.counts)

    @cached_property
    def distinct(self) -> "Histories":
        """The compressed form: every distinct counts once, in lexicographic order, without ids."""
        extra = np.zeros((len(self.counts), 1, 4), np.int64)
        extra[:, 0, 0] = self.pending + 1
        rows, times = merge(np.concatenate([self.counts, extra], axis=1), self.multiplicity)
        return Histories(rows[:, :-1], times, pending=rows[:, -1, 0] - 1, categories=self.categories)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        censored = int(self.multiplicity[self.censored].sum())
        rows = len(self.distinct)
        return f"<Histories of {self.users} users, {censored} of them censored, {rows} distinct counts>"


def _as_pending(pending: npt.ArrayLike | None, counts: Integers) -> Integers:
    """`pending` as places in the flattened counts, each of a click or a stay that a censored user has."""
    n, k = len(counts), counts.shape[1]
    if pending is None:
        return np.full(n, -1)
    places = np.array(pending)
    if places.shape != (n,) or (n and places.dtype.kind not in "iu"):
        raise InputError(f"pending must be {n} whole numbers, one for every row of counts.")
    places = places.astype(np.int64)
    rows = np.flatnonzero(places != -1)
    at = places[rows]
    if ((at < 0) | (at >= 4 * k) | (at % 4 >= DEPART)).any():
        raise InputError("pending must be 4 × category + 0 (click) or 1 (stay), or -1 where nothing is pending.")
    if gone(counts[rows]).any() or (flat_rows(counts)[rows, at] < 1).any():
        raise InputError("pending names a step that the user has not, or a user who departed.")
    return places
