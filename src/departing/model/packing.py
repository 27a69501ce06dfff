"""Tables of counts that take most of the memory: small integers, sorted and merged in place."""

from collections.abc import Callable, Iterator
from typing import Any

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
    """

    def __init__(self, n: int, width: int, most: int) -> None:
        # Big-endian bytes of non-negative integers sort like the integers.
        self.dtype = small_type(most)
        fields = [("row", self.dtype.newbyteorder(">"), (width,)), ("users", ">i8")]
        self.table = np.empty(n, fields)
        self.n = 0

    def add(self, rows: Rows, users: Integers) -> None:
        """Add `rows[m, width]` of `users[m]` users each."""
        part = self.table[self.n : self.n + len(rows)]
        part["row"], part["users"] = rows, users
        self.n += len(rows)

    def merge(self) -> tuple[Rows, Integers]:
        """Distinct rows in lexicographic order, as a view of the table, and the numbers of their users."""
        table = self.table[: self.n]
        table.view(f"S{table.itemsize}").sort()
        rows, is_new = table["row"], np.ones(len(table), bool)
        size = max(CHUNK // max(rows.shape[1], 1), 1)
        for start in range(1, len(table), size):
            end = min(start + size, len(table))
            is_new[start:end] = (rows[start:end] != rows[start - 1 : end - 1]).any(axis=1)
        first = np.flatnonzero(is_new)
        users = np.add.reduceat(table["users"].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
        if len(first) < len(table):
            for start in range(0, len(first), size):
                chosen = first[start : start + size]
                table[start : start + len(chosen)] = table[chosen]  # rows move towards the beginning only
        rows = rows[: len(first)]
        if rows.dtype != self.dtype:
            rows.byteswap(inplace=True)
        return rows.view(self.dtype), users
