"""Counts looked up in a table: a hash of each row, and a comparison."""

import numpy as np
from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import mix


@kernel
def _slot(row, factors, mask):
    key = uint64(0)
    for j in range(len(row)):
        key += uint64(row[j]) * factors[j]
    return mix(key) & mask


@kernel
def _same(one, two):
    same = True
    for j in range(len(one)):
        same &= one[j] == two[j]
    return same


@kernel
def enter(entries, factors, slots):
    """Enter distinct rows `entries[m, L]` into empty `slots`, a power of two of them."""
    mask = uint64(len(slots) - 1)
    for i in range(len(entries)):
        slot = _slot(entries[i], factors, mask)
        while slots[slot] >= 0:
            slot = (slot + uint64(1)) & mask
        slots[slot] = i


@kernel
def look_up(rows, entries, factors, slots):
    """Which entry each of `rows[n, L]` is, or -1."""
    mask = uint64(len(slots) - 1)
    found = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        slot = _slot(rows[i], factors, mask)
        while slots[slot] >= 0 and not _same(rows[i], entries[slots[slot]]):
            slot = (slot + uint64(1)) & mask
        found[i] = slots[slot]
    return found
