"""Histories: the counts of many users, each row with how many users share it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, clicks, departed, merge, steps
from departing.model.errors import InputError
from departing.model.instance import DEPART


@dataclass(frozen=True, eq=False, repr=False)
class Histories:
    """The counts of users: `counts[N, K, 4]`, `multiplicity[N]` users a row, and `ids` where rows are users.

    A user who has departed has just one departure in the counts; one who has none is *censored*: we stopped
    looking before the end. A log often does not tell whether censored users stayed after their latest steps. These
    are counted as clicks and stays, and `pending[N, K, 2]` tells how many of the clicks and of the stays are such.
    `categories` are the names of categories, if they have any.

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
        try:
            times = np.ones(len(rows), np.int64) if multiplicity is None else np.array(multiplicity)
        except ValueError:  # rows of different lengths
            times = np.empty(0)
        if times.shape != (len(rows),) or times.dtype.kind not in "iu" or (times < 1).any():
            raise InputError(f"multiplicity must be {len(rows)} integers ≥ 1, one for every row of counts.")
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
        return ~departed(self.counts)

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
        rows, times = merge(self._with_pending(), self.multiplicity)
        counts, pending = np.split(rows, [self.counts.shape[1]], axis=1)
        return Histories(counts, times, pending=pending[..., :DEPART], categories=self.categories)

    @cached_property
    def confirmed(self) -> "Histories":
        """The distinct counts of what is known for sure: without pending steps, and users of whom nothing is left.

        A step after a pending one is seen only of users who stayed, and so of some types more than of others; to
        count its click would say that there are more of them.
        """
        counts = np.array(self.counts)
        counts[..., :DEPART] -= self.pending
        left = counts.any(axis=(1, 2))
        return Histories(counts[left], self.multiplicity[left], categories=self.categories).distinct

    def _with_pending(self) -> Integers:
        """The counts with what is pending as more categories, `[N, 2 K, 4]`; as they are if nothing is pending."""
        if not self.pending.any():
            return self.counts
        return np.concatenate([self.counts, np.pad(self.pending, ((0, 0), (0, 0), (0, 2)))], axis=1)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        censored = int(self.multiplicity[self.censored].sum())
        rows = len(self.distinct)
        return f"<Histories of {self.users} users, {censored} of them censored, {rows} distinct counts>"


def _as_pending(pending: npt.ArrayLike | None, counts: Integers) -> Integers:
    """`pending` as numbers of clicks and stays, no more than censored users have."""
    if pending is None or np.size(pending) == 0:
        return np.zeros((len(counts), counts.shape[1], 2), np.int64)
    steps = np.array(pending)
    if steps.shape != (*counts.shape[:2], 2) or steps.dtype.kind not in "iu":
        shape = [*counts.shape[:2], 2]
        raise InputError(f"pending is {steps.dtype} of shape {steps.shape}; expected integers of shape {shape}.")
    steps = steps.astype(np.int64)
    if (steps < 0).any() or (steps > counts[..., :DEPART]).any():
        raise InputError("pending must be at least 0 and at most the clicks and stays in counts.")
    if steps[departed(counts)].any():
        raise InputError("pending names steps of a user who departed; nothing is pending then.")
    return steps
