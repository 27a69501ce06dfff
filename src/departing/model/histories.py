"""Histories: the counts of many users, with a multiplicity for equal counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.formatting import format_percent
from departing.html_tables import html_repr
from departing.model.counts import Integers, as_counts, clicks, departed, merge, steps
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Floats
from departing.model.names import default_names
from departing.model.packing import (
    CHUNK,
    PackedTable,
    by_rows,
    is_large,
    is_packed,
    row_chunks,
    small_type,
    weighted_sum,
)


@dataclass(frozen=True, eq=False, repr=False)
class Histories:
    """Counts of many users.

    Parameters
    ----------
    counts : array_like of int, shape (N, K, 4)
        Counts of each row. A user without a departure is censored: observation ended before the user departed. More
        than 67 million counts are stored as the smallest signed integers that hold the steps of every user.
    multiplicity : array_like of int, shape (N,), optional
        Number of users with these counts [default: 1 each].
    ids : sequence, optional
        User IDs, if every row is one user.
    pending : array_like of int, shape (N, K, 2), optional
        Numbers of clicks and of stays after which it is unknown whether a censored user stayed; they are included in
        the counts as clicks and stays.
    categories : sequence of str, optional
        Names of the categories.

    Examples
    --------
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
        rows = _as_rows(counts)
        if rows.ndim != 3:
            raise InputError(f"counts have shape {rows.shape}; expected [users, categories, 4].")
        if (rows[..., 2:].sum(axis=(1, 2)) > 1).any():
            raise InputError("counts contain a user with more than one departure; expected at most one.")
        try:
            times = np.ones(len(rows), np.int64) if multiplicity is None else np.array(multiplicity)
        except ValueError:  # rows of different lengths
            times = np.empty(0, object)
        if times.shape != (len(rows),) or times.dtype.kind not in "iu" or (times < 1).any():
            least = f", the smallest {times.min()}" if times.size and times.dtype.kind in "iuf" else ""
            raise InputError(
                f"multiplicity is {times.dtype} of shape {times.shape}{least}; expected integers ≥ 1 of shape "
                f"({len(rows)},), one for every row of counts."
            )
        if ids is not None and (len(ids) != len(rows) or (times != 1).any()):
            raise InputError(f"ids has {len(ids)} entries; expected one for each of {len(rows)} single users.")
        if categories is not None and len(categories) != rows.shape[1]:
            raise InputError(f"categories has {len(categories)} names; counts have {rows.shape[1]} categories.")
        times = times.astype(np.int64)
        places = _as_pending(pending, rows)
        for array in (rows, times, places):
            array.setflags(write=False)
        names = None if categories is None else tuple(categories)
        fields = {"counts": rows, "multiplicity": times, "pending": places, "categories": names}
        self.__dict__.update(fields, ids=None if ids is None else tuple(ids))  # the class is frozen

    @classmethod
    def from_table(cls, table: PackedTable, n_categories: int, categories: Sequence[str] | None) -> "Histories":
        """Histories of a table of valid counts, or of counts and pending steps, which is merged and not copied."""
        rows, users = table.merge()
        counts, pending = np.split(rows, [4 * n_categories], axis=1)
        counts = counts.reshape(len(rows), n_categories, 4)
        pending = pending.reshape(len(rows), n_categories, 2) if pending.size else _no_pending(counts)
        for array in (counts, users, pending):
            array.setflags(write=False)
        names = None if categories is None else tuple(categories)
        histories = object.__new__(Histories)
        histories.__dict__.update(counts=counts, multiplicity=users, ids=None, pending=pending, categories=names)
        return histories

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.multiplicity.sum())

    @cached_property
    def censored(self) -> npt.NDArray[np.bool_]:
        """True for rows of users who had not departed when observation ended, `[N]`."""
        return np.asarray(~by_rows(departed, self.counts))

    @cached_property
    def clicks(self) -> Integers:
        """Clicks of a user of each row, `[N]`."""
        return np.asarray(by_rows(clicks, self.counts))

    @cached_property
    def steps(self) -> Integers:
        """Steps of a user of each row, `[N]`."""
        return np.asarray(by_rows(steps, self.counts))

    @cached_property
    def totals(self) -> Integers:
        """Counts of all users, `[K, 4]`."""
        return weighted_sum(self.counts, self.multiplicity)

    @cached_property
    def confirmed_totals(self) -> Integers:
        """Counts of all users without pending steps, `[K, 4]`."""
        totals = self.totals.copy()
        totals[:, :DEPART] -= weighted_sum(self.pending, self.multiplicity)
        return totals

    @cached_property
    def distinct(self) -> "Histories":
        """Distinct counts in lexicographic order with multiplicities, without IDs."""
        if is_packed(self.counts):
            table = PackedTable(len(self), 6 * self.counts.shape[1], int(self.steps.max()))
            for part in row_chunks(self.counts):
                rows = [array[part].reshape(part.stop - part.start, -1) for array in (self.counts, self.pending)]
                table.add(np.concatenate(rows, axis=1), self.multiplicity[part])
            return Histories.from_table(table, self.counts.shape[1], self.categories)
        return distinct_histories(self.counts, self.multiplicity, self.pending, self.categories)

    @cached_property
    def confirmed(self) -> "Histories":
        """Distinct counts without pending steps, and without users who have no other steps.

        A step after a pending one is observed only of users who stayed, which depends on the type; counting it would
        bias the shares of the types.
        """
        k = self.counts.shape[1]
        if not is_packed(self.counts):
            ((counts, users),) = self._confirmed_rows()
            return Histories(counts, users, categories=self.categories).distinct
        table = PackedTable(len(self), 4 * k, int(self.steps.max()))
        for counts, users in self._confirmed_rows():
            table.add(counts.reshape(len(counts), 4 * k), users)
        return Histories.from_table(table, k, self.categories)

    def confirmed_parts(self) -> Iterator[tuple[Integers, Integers]]:
        """Yield counts `[n, K, 4]` without pending steps, of users who have any, and numbers of users `[n]`.

        They are the distinct ones in one part, or those of a packed table in several parts and not merged: a second
        table of distinct ones would take as much memory again.
        """
        if is_packed(self.counts):
            yield from self._confirmed_rows()
        else:
            yield self.confirmed.counts, self.confirmed.multiplicity

    def _confirmed_rows(self) -> Iterator[tuple[Integers, Integers]]:
        for part in row_chunks(self.counts):
            counts = np.array(self.counts[part])
            counts[..., :DEPART] -= self.pending[part]
            left = counts.any(axis=(1, 2))
            yield counts[left], self.multiplicity[part][left]

    @cached_property
    def retention(self) -> Floats:
        """Kaplan-Meier estimate of the share of users active after 0, 1, … steps, `[n + 1]`."""
        known = self.confirmed
        n = int(known.steps.max(initial=0))
        ends = np.bincount(known.steps, known.multiplicity, n + 1)  # users by number of steps
        departures = np.bincount(known.steps, known.multiplicity * ~known.censored, n + 1)
        at_risk = ends[::-1].cumsum()[::-1]  # users with at least this number of steps
        return np.append(1.0, np.cumprod(1 - departures[1:] / np.maximum(at_risk[1:], 1.0)))

    def columns(self) -> dict[str, Any]:
        """Columns of `to_frame`, `[K]` each."""
        total = self.totals
        names = self.categories or default_names("category", len(total))
        return {
            "category": list(names),
            "shown": total.sum(axis=1),
            "clicks": total[:, CLICK] + total[:, CLICK_DEPART],
            "departures": total[:, DEPART] + total[:, CLICK_DEPART],
        }

    def to_frame(self) -> Any:
        """Return totals by category as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each category: category, and the numbers shown, clicks and departures.
        """
        return to_frame(self.columns())

    def _repr_html_(self) -> str:
        return self._html([])

    def _html(self, notes: Sequence[str]) -> str:
        """HTML of the totals by category, with notes."""
        columns = self.columns()
        rows = [
            [name, f"{shown:,}", format_percent(clicks / max(shown, 1)), format_percent(departures / max(shown, 1))]
            for name, shown, clicks, departures in zip(*columns.values(), strict=True)
        ]
        head = ["category", "shown", "click rate", "departure rate"]
        return html_repr(repr(self).strip("<>"), head, rows, notes)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        censored = int(self.multiplicity[self.censored].sum())
        rows = len(self.distinct)
        return f"<Histories of {self.users} users, {censored} of them censored, {rows} distinct counts>"


def distinct_histories(
    counts: Integers, multiplicity: Integers, pending: Integers, categories: Sequence[str] | None
) -> Histories:
    """Histories with distinct counts `[N, K, 4]` and pending steps `[N, K, 2]` in lexicographic order.

    They are merged as the smallest integers that hold them, in an eighth of the memory as a rule.
    """
    rows = counts.astype(np.min_scalar_type(int(counts.max(initial=0))), copy=False)
    if pending.any():  # as additional categories; they are at most the counts
        rows = np.concatenate([rows, np.pad(pending.astype(rows.dtype), ((0, 0), (0, 0), (0, 2)))], axis=1)
    rows, times = merge(rows, multiplicity)
    counts, pending = np.split(rows, [counts.shape[1]], axis=1)
    return Histories(counts, times, pending=pending[..., :DEPART], categories=categories)


def _as_rows(counts: npt.ArrayLike) -> Integers:
    """Check and copy counts; those of many rows are packed."""
    if not isinstance(counts, np.ndarray) or not is_large(counts.shape):
        return as_counts(counts, copy=True)
    size = max(CHUNK // counts[0].size, 1)
    parts = [slice(start, start + size) for start in range(0, len(counts), size)]
    most = max(int(steps(as_counts(counts[part])).max()) for part in parts)
    rows = np.empty(counts.shape, small_type(most))
    for part in parts:
        rows[part] = as_counts(counts[part])
    return rows


def _no_pending(counts: Integers) -> Integers:
    """Zero pending steps, for packed counts without memory of their own."""
    shape = len(counts), counts.shape[1], 2
    if is_packed(counts):
        return np.broadcast_to(np.zeros((), counts.dtype), shape)
    return np.zeros(shape, np.int64)


def _as_pending(pending: npt.ArrayLike | None, counts: Integers) -> Integers:
    """Check `pending`: at most the clicks and stays of censored users."""
    if pending is None or np.size(pending) == 0:
        return _no_pending(counts)
    steps = np.array(pending)
    if steps.shape != (*counts.shape[:2], 2) or steps.dtype.kind not in "iu":
        shape = [*counts.shape[:2], 2]
        raise InputError(f"pending is {steps.dtype} of shape {steps.shape}; expected integers of shape {shape}.")
    if (steps < 0).any() or (steps > counts[..., :DEPART]).any():
        raise InputError(
            "pending is negative or exceeds the clicks and stays in counts; expected integers between 0 and these."
        )
    if steps[departed(counts)].any():
        raise InputError("pending contains steps of a departed user; expected 0 there.")
    return steps.astype(counts.dtype, copy=False)
