"""Tables of counts that take most of the memory: small integers, sorted and merged in place."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers

# Counts above which a table is packed: half a GiB as 64-bit integers. Smaller tables are plain arrays of these.
LARGE_COUNTS = 2**26
CHUNK = 2**22  # counts that are converted to 64 bits at once: 32 MiB
Rows = npt.NDArray[Any]


def is_large(shape: tuple[int, ...]) -> bool:
    """Return True for counts `[N, K, 4]` of this shape if they are to be packed."""
    return len(shape) == 3 and shape[0] * shape[1] * shape[2] > LARGE_COUNTS


def small_type(most: int) -> np.dtype[Any]:
    """Smallest signed integer type that holds `most` and its negative: differences do not wrap around.

    >>> small_type(127), small_type(128)
    (dtype('int8'), dtype('int16'))
    """
    return np.min_scalar_type(-(most + 1))


def is_packed(rows: Rows) -> bool:
    """Return True for counts that are small integers."""
    return rows.dtype != np.int64


def row_chunks(rows: Rows) -> Iterator[slice]:
    """Slices of rows that are small as 64-bit integers; of plain arrays, one slice of all."""
    if not is_packed(rows):
        yield slice(0, len(rows))
        return
    size = max(CHUNK // max(rows[:1].size, 1), 1)
    for start in range(0, len(rows), size):
        yield slice(start, min(start + size, len(rows)))


def by_rows(function: Callable[[Integers], Any], rows: Rows) -> Any:
    """`function(rows)`, an array with one entry per row, of packed rows some at a time as 64-bit integers."""
    if not is_packed(rows):
        return function(rows)
    return np.concatenate([function(rows[part].astype(np.int64)) for part in row_chunks(rows)])


def weighted_sum(rows: Rows, weights: Integers) -> Integers:
    """Sum of `rows[N, ...]` times `weights[N]`."""
    total = np.zeros(rows.shape[1:], np.int64)
    for part in row_chunks(rows):
        total += np.tensordot(weights[part], rows[part].astype(np.int64, copy=False), axes=1)
    return total


class MergedTable(NamedTuple):
    """Distinct rows of a table with their numbers of users, segments and sums of weights; None if there are none."""

    rows: Rows
    users: Integers
    segment: Integers | None
    weights: npt.NDArray[np.float64] | None


class PackedTable:
    """Rows of non-negative integers with numbers of users, to be filled by `add` and then merged in place.

    Parameters
    ----------
    n : int
        Largest number of rows.
    width : int
        Number of integers per row.
    most : int
        Largest sum of the integers of a row.
    has_segments, has_weights : bool
        Keep a segment, or two sums of weights, with every row.
    """

    def __init__(
        self, n: int, width: int, most: int, *, has_segments: bool = False, has_weights: bool = False
    ) -> None:
        # Big-endian bytes of non-negative integers sort like the integers.
        self.dtype = small_type(most)
        fields: list[Any] = [("row", self.dtype.newbyteorder(">"), (width,))]
        fields += [("segment", ">u4")] if has_segments else []
        fields += [("users", ">i8")]
        fields += [("weights", np.float64, (2,))] if has_weights else []
        self.table = np.empty(n, fields)
        self.has_segments, self.has_weights = has_segments, has_weights
        self.n = 0

    def add(
        self,
        rows: Rows,
        users: Integers,
        segment: Integers | None = None,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Add `rows[m, width]` of `users[m]` users each, with `segment[m]` (from -1) and `weights[m, 2]`, if kept."""
        part = self.table[self.n : self.n + len(rows)]
        part["row"], part["users"] = rows, users
        if segment is not None:
            part["segment"] = segment + 1
        if weights is not None:
            part["weights"] = weights
        self.n += len(rows)

    def merge(self) -> MergedTable:
        """Distinct rows and segments in lexicographic order, as a view of the table, with the sums of their users."""
        table = self.table[: self.n]
        table.view(f"S{table.itemsize}").sort()
        rows, is_new = table["row"], np.ones(len(table), bool)
        size = max(CHUNK // max(rows.shape[1], 1), 1)
        for start in range(1, len(table), size):
            end = min(start + size, len(table))
            is_new[start:end] = (rows[start:end] != rows[start - 1 : end - 1]).any(axis=1)
            if self.has_segments:
                is_new[start:end] |= table["segment"][start:end] != table["segment"][start - 1 : end - 1]
        first = np.flatnonzero(is_new)
        users = np.add.reduceat(table["users"].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
        weights = None
        if self.has_weights:
            weights = np.add.reduceat(table["weights"], first) if len(first) else np.zeros((0, 2))
        segment = table["segment"][first].astype(np.int64) - 1 if self.has_segments else None
        if len(first) < len(table):
            for start in range(0, len(first), size):
                chosen = first[start : start + size]
                table[start : start + len(chosen)] = table[chosen]  # rows move towards the beginning only
        rows = rows[: len(first)]
        if rows.dtype != self.dtype:
            rows.byteswap(inplace=True)
        return MergedTable(rows.view(self.dtype), users, segment, weights)
