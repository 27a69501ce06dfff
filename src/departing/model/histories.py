"""Histories: the counts of many users, with a multiplicity for equal counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.formatting import format_percent
from departing.html_tables import html_repr
from departing.model.counts import Integers, clicks, departed, merge, steps
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.history_fields import (
    UNKNOWN,
    HistoryRows,
    check_multiplicity,
    check_pending,
    check_rows,
    check_segments,
    check_site,
    check_weights,
    no_pending,
    take,
)
from departing.model.instance import CLICK, CLICK_DEPART, CLICKS, DEPART, Floats, Instance
from departing.model.names import default_names, suggest
from departing.model.packing import PackedTable, by_rows, is_packed, row_chunks, weighted_sum


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
    segment : array_like of int, shape (N,), optional
        Index of the segment of the users of each row, -1 if it is unknown.
    segments : sequence of str, optional
        Names of the segments; needed with `segment`.
    segment_columns : sequence of str, optional
        Names of the features that make up a segment, such as "country" and "device".
    weight : array_like of float, shape (N,), optional
        Sum of the weights of the users of each row, such as those of a half-life [default: their number].
    weight_squares : array_like of float, shape (N,), optional
        Sum of the squares of these weights [default: that of equal weights within a row].
    reward : array_like of float, shape (K,), optional
        Reward of a click in each category, which a fit puts into its instance [default: every click counts alike].
    unit : str, optional
        Unit of rewards, such as "euro".
    horizon : int, optional
        Largest number of recommendations to a user, which a fit puts into its instance. The pending step of a user
        who reached it is evidence about clicks.

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
    segment: Integers | None = None
    segments: tuple[str, ...] | None = None
    segment_columns: tuple[str, ...] = ()
    weights: Floats | None = None
    reward: Floats | None = None
    unit: str = CLICKS
    horizon: int | None = None

    def __init__(
        self,
        counts: npt.ArrayLike,
        multiplicity: npt.ArrayLike | None = None,
        ids: Sequence[Any] | None = None,
        *,
        pending: npt.ArrayLike | None = None,
        categories: Sequence[str] | None = None,
        segment: npt.ArrayLike | None = None,
        segments: Sequence[str] | None = None,
        segment_columns: Sequence[str] = (),
        weight: npt.ArrayLike | None = None,
        weight_squares: npt.ArrayLike | None = None,
        reward: npt.ArrayLike | None = None,
        unit: str | None = None,
        horizon: int | None = None,
    ) -> None:
        rows = check_rows(counts)
        times = check_multiplicity(multiplicity, len(rows))
        if ids is not None and (len(ids) != len(rows) or (times != 1).any()):
            raise InputError(f"ids has {len(ids)} entries; expected one for each of {len(rows)} single users.")
        if categories is not None and len(categories) != rows.shape[1]:
            raise InputError(f"categories has {len(categories)} names; counts have {rows.shape[1]} categories.")
        index, names, columns = check_segments(segment, segments, segment_columns, len(rows))
        reward, unit, horizon = check_site(reward, unit, horizon, rows)
        self._set(
            rows,
            times,
            check_pending(pending, rows),
            None if categories is None else tuple(categories),
            ids=None if ids is None else tuple(ids),
            segment=index,
            segments=names,
            segment_columns=columns,
            weights=check_weights(weight, weight_squares, times),
            reward=reward,
            unit=unit,
            horizon=horizon,
        )

    def _set(
        self,
        counts: Integers,
        multiplicity: Integers,
        pending: Integers,
        categories: tuple[str, ...] | None,
        **others: Any,
    ) -> None:
        """Set valid fields, without copies; `others` that are left out are None."""
        columns = {"ids": None, **others, "counts": counts, "multiplicity": multiplicity, "pending": pending}
        for array in columns.values():
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        self.__dict__.update(columns, categories=categories)  # the class is frozen

    def _like(self, counts: Integers, multiplicity: Integers, pending: Integers, **others: Any) -> "Histories":
        """Histories of these categories with valid fields; `others` that are left out are None."""
        histories = object.__new__(Histories)
        histories._set(counts, multiplicity, pending, self.categories, **others)
        return self._same_site(histories)

    def _same_site(self, histories: "Histories") -> "Histories":
        """New histories with the rewards, unit and horizon of these."""
        histories.__dict__.update(reward=self.reward, unit=self.unit, horizon=self.horizon)
        return histories

    def of_site(self, instance: Instance) -> "Histories":
        """Return the same histories with the rewards, unit and horizon of an instance, which a fit takes over.

        Parameters
        ----------
        instance : Instance
            Instance with as many categories.
        """
        reward, unit = (instance.reward, instance.unit) if "reward" in instance.extensions else (None, None)
        site = check_site(reward, unit, instance.horizon, self.counts)
        histories = object.__new__(Histories)
        histories.__dict__.update({each.name: getattr(self, each.name) for each in fields(Histories)})
        histories.__dict__.update(zip(("reward", "unit", "horizon"), site, strict=True))
        return histories

    @classmethod
    def from_table(
        cls,
        table: PackedTable,
        n_categories: int,
        categories: Sequence[str] | None,
        segments: tuple[str, ...] | None = None,
        segment_columns: tuple[str, ...] = (),
    ) -> "Histories":
        """Histories of a table of valid counts, or of counts and pending steps, which is merged and not copied."""
        rows, users, segment, weights = table.merge()
        counts, pending = np.split(rows, [4 * n_categories], axis=1)
        counts = counts.reshape(len(rows), n_categories, 4)
        pending = pending.reshape(len(rows), n_categories, 2) if pending.size else no_pending(counts)
        histories = object.__new__(Histories)
        names = None if categories is None else tuple(categories)
        of_segments = {"segment": segment, "segments": segments, "segment_columns": segment_columns}
        histories._set(counts, users, pending, names, weights=weights, **of_segments)
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

    @property
    def is_weighted(self) -> bool:
        """True if the users have weights."""
        return self.weights is not None

    @cached_property
    def weight(self) -> Floats:
        """Sum of the weights of the users of each row, `[N]`: their number if they have no weights."""
        return self.multiplicity.astype(np.float64) if self.weights is None else self.weights[:, 0]

    @cached_property
    def weight_squares(self) -> Floats:
        """Sum of the squared weights of the users of each row, `[N]`."""
        return self.multiplicity.astype(np.float64) if self.weights is None else self.weights[:, 1]

    @property
    def effective_users(self) -> float:
        """Effective sample size: the number of users of equal weight that determine a mean as well."""
        if self.weights is None:
            return float(self.users)
        total, squares = self.weights.sum(axis=0)
        return float(total**2 / squares) if squares > 0 else 0.0

    @cached_property
    def segment_users(self) -> Integers:
        """Number of users of each segment, `[S]`, without those whose segment is unknown."""
        if self.segment is None or self.segments is None:
            return np.zeros(0, np.int64)
        users = np.zeros(len(self.segments) + 1, np.int64)
        np.add.at(users, self.segment, self.multiplicity)  # unknown ones are last
        return users[:-1]

    def in_segment(self, name: str | None) -> "Histories":
        """Return the histories of the users of a segment, without segments.

        Parameters
        ----------
        name : str or None
            Name of a segment; None for users whose segment is unknown.
        """
        if self.segment is None or self.segments is None:
            raise InputError(f"There is no segment {name!r}: the histories have no segments.")
        if name is not None and name not in self.segments:
            raise InputError(f"There is no segment {name!r}; {suggest(name, self.segments)}")
        rows = np.flatnonzero(self.segment == (UNKNOWN if name is None else self.segments.index(name)))
        return self._like(
            self.counts[rows],
            self.multiplicity[rows],
            self.pending[rows],
            ids=None if self.ids is None else tuple(self.ids[row] for row in rows),
            weights=take(self.weights, rows),
        )

    def keep_segments(self, names: Sequence[str]) -> "Histories":
        """Return the same rows with these segments only; the segments of users in others are unknown.

        Parameters
        ----------
        names : sequence of str
            Names of segments, in the order of `segments`.
        """
        if self.segment is None or self.segments is None:
            raise InputError(f"There is no segment {names[0]!r}: the histories have no segments.")
        index = {name: i for i, name in enumerate(names)}
        kept = np.array([index.get(name, UNKNOWN) for name in self.segments] + [UNKNOWN])
        columns = self._of_segments | {"segment": kept[self.segment], "segments": tuple(names)}
        return self._like(self.counts, self.multiplicity, self.pending, ids=self.ids, weights=self.weights, **columns)

    @property
    def without_segments(self) -> "Histories":
        """The same rows without their segments; equal counts are not merged."""
        return self._like(self.counts, self.multiplicity, self.pending, ids=self.ids, weights=self.weights)

    @property
    def without_weights(self) -> "Histories":
        """The same rows without the weights of their users."""
        return self._like(self.counts, self.multiplicity, self.pending, ids=self.ids, **self._of_segments)

    @property
    def _of_segments(self) -> dict[str, Any]:
        return {"segment": self.segment, "segments": self.segments, "segment_columns": self.segment_columns}

    @cached_property
    def distinct(self) -> "Histories":
        """Distinct counts and segments in lexicographic order with multiplicities, without IDs.

        Equal counts of different segments follow each other.
        """
        if is_packed(self.counts):
            table = self._table(6)
            for part in row_chunks(self.counts):
                rows = [array[part].reshape(part.stop - part.start, -1) for array in (self.counts, self.pending)]
                columns = take(self.segment, part), take(self.weights, part)
                table.add(np.concatenate(rows, axis=1), self.multiplicity[part], *columns)
            return self._from_table(table)
        return self._same_site(
            distinct_histories(
                self.counts,
                self.multiplicity,
                self.pending,
                self.categories,
                weights=self.weights,
                **self._of_segments,
            )
        )

    @cached_property
    def confirmed(self) -> "Histories":
        """Distinct counts and segments without pending steps, and without users who have no other steps.

        A step after a pending one is observed only of users who stayed, which depends on the type; counting it would
        bias the shares of the types. The step at the horizon is kept, still pending, if it is the only pending one:
        its click is observed of all who reach it, and nothing follows.
        """
        if not is_packed(self.counts):
            ((counts, users, segment, weights, final),) = self._confirmed_rows()
            columns = self._of_segments | {"segment": segment}
            return self._same_site(
                distinct_histories(counts, users, final, self.categories, weights=weights, **columns)
            )
        table = self._table(4 if self.horizon is None else 6)
        for counts, users, segment, weights, final in self._confirmed_rows():
            parts = [counts] if self.horizon is None else [counts, final]
            flat = np.concatenate([part.reshape(len(counts), -1) for part in parts], axis=1)
            table.add(flat, users, segment, weights)
        return self._from_table(table)

    def confirmed_rows(self) -> Iterator[HistoryRows]:
        """Yield the rows of `confirmed`, with their segments and weights.

        They are the distinct ones in one part, or those of a packed table in several parts and not merged: a second
        table of distinct ones would take as much memory again.
        """
        if is_packed(self.counts):
            yield from self._confirmed_rows()
        else:
            known = self.confirmed
            yield HistoryRows(known.counts, known.multiplicity, known.segment, known.weights, known.pending)

    def _confirmed_rows(self) -> Iterator[HistoryRows]:
        for part in row_chunks(self.counts):
            counts, pending = np.array(self.counts[part]), self.pending[part]
            is_final = (self.steps[part] == (self.horizon or -1)) & (pending.sum(axis=(1, 2)) == 1)
            counts[..., :DEPART] -= pending * ~is_final[:, None, None]
            left = np.flatnonzero(counts.any(axis=(1, 2)))
            segment, weights = (take(take(each, part), left) for each in (self.segment, self.weights))
            final = np.broadcast_to(np.zeros((), pending.dtype), (len(left), *pending.shape[1:]))
            if self.horizon is not None:
                final = pending[left] * is_final[left, None, None]
            yield HistoryRows(counts[left], self.multiplicity[part][left], segment, weights, final)

    def _table(self, width: int) -> PackedTable:
        """Empty table for the rows, with `width` integers per category."""
        k, most = self.counts.shape[1], int(self.steps.max())
        has_segments, has_weights = self.segment is not None, self.weights is not None
        return PackedTable(len(self), width * k, most, has_segments=has_segments, has_weights=has_weights)

    def _from_table(self, table: PackedTable) -> "Histories":
        k = self.counts.shape[1]
        return self._same_site(Histories.from_table(table, k, self.categories, self.segments, self.segment_columns))

    @cached_property
    def retention(self) -> Floats:
        """Kaplan-Meier estimate of the share of users active after 0, 1, … steps, `[n + 1]`."""
        known = self.confirmed
        steps = known.steps - by_rows(lambda pending: pending.sum(axis=(1, 2)), known.pending)
        n = int(steps.max(initial=0))
        ends = np.bincount(steps, known.multiplicity, n + 1)  # users by number of steps with a known outcome
        departures = np.bincount(steps, known.multiplicity * ~known.censored, n + 1)
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
    counts: Integers,
    multiplicity: Integers,
    pending: Integers,
    categories: Sequence[str] | None,
    *,
    segment: Integers | None = None,
    segments: tuple[str, ...] | None = None,
    segment_columns: tuple[str, ...] = (),
    weights: Floats | None = None,
) -> Histories:
    """Histories with distinct counts `[N, K, 4]`, pending steps `[N, K, 2]` and segments in lexicographic order.

    They are merged as the smallest integers that hold them, in an eighth of the memory as a rule.
    """
    k = counts.shape[1]
    most = max(int(counts.max(initial=0)), 0 if segment is None else len(segments or ()))
    rows = counts.astype(np.min_scalar_type(most), copy=False)
    if pending.any():  # as additional categories; they are at most the counts
        rows = np.concatenate([rows, np.pad(pending.astype(rows.dtype), ((0, 0), (0, 0), (0, 2)))], axis=1)
    if segment is not None:  # as one more category
        last = np.zeros((len(rows), 1, 4), rows.dtype)
        last[:, 0, 0] = segment + 1
        rows = np.concatenate([rows, last], axis=1)
    if weights is None:
        rows, times = merge(rows, multiplicity)
    else:
        rows, sums = merge(rows, np.column_stack([multiplicity, weights]))
        times, weights = sums[:, 0].astype(np.int64), sums[:, 1:]
    index = None if segment is None else rows[:, -1, 0].astype(np.int64) - 1
    rows = rows if segment is None else rows[:, :-1]
    counts, pending = np.split(rows, [k], axis=1)
    return Histories(
        counts,
        times,
        pending=pending[..., :DEPART],
        categories=categories,
        segment=index,
        segments=segments,
        segment_columns=segment_columns,
        weight=None if weights is None else weights[:, 0],
        weight_squares=None if weights is None else weights[:, 1],
    )
