"""Hash table of counts: open addressing with linear probing, the entries in the caller's arrays.

`slots` is a power of two of indices of entries, -1 where empty, at most half of them filled. An entry is a row of
counts, or a 64-bit key that stands for one. The key of counts is the sum of `counts[j] * multipliers[j]` modulo 2^64
(Zobrist hashing of a multiset), so that one more outcome adds one multiplier to it.
"""

import numpy as np
from numba import uint64

from departing.kernels.compiling import inlined, inner, kernel
from departing.kernels.random import GOLDEN, mix


@kernel
def key_multipliers(n):
    """Multipliers `[n]` of n counts: scattered over all 64 bits, the same on every machine."""
    multipliers = np.empty(n, np.uint64)
    for j in range(n):
        multipliers[j] = mix(uint64(j + 1) * uint64(GOLDEN))
    return multipliers


@inner
def row_key(row, multipliers):
    """64-bit key of the counts `row[L]`."""
    key = uint64(0)
    for j in range(len(multipliers)):
        key += uint64(row[j]) * multipliers[j]
    return key


@inner
def _equal(entries, i, entry):
    """Compare entry i with a key, or with a row of counts."""
    if entries.ndim == 1:  # decided when the kernel is compiled
        return entries[i] == entry
    same = True
    for j in range(entries.shape[1]):
        same &= entries[i, j] == entry[j]
    return same


@inlined  # as a call instead, looking up rows takes 1.25 times as long
def find_slot(slots, entries, entry, key):
    """Slot that holds `entry`, or the empty one where it belongs."""
    mask = uint64(len(slots) - 1)
    slot = mix(key) & mask
    while slots[slot] >= 0 and not _equal(entries, slots[slot], entry):
        slot = (slot + uint64(1)) & mask
    return slot


@kernel
def insert_keys(slots, keys, n):
    """Insert the first n of `keys` into empty `slots`."""
    for i in range(n):
        slots[find_slot(slots, keys, keys[i], keys[i])] = i


@kernel
def insert_rows(slots, rows, n, multipliers):
    """Insert the first n of `rows[:, L]` into empty `slots`."""
    for i in range(n):
        slots[find_slot(slots, rows, rows[i], row_key(rows[i], multipliers))] = i


@kernel
def find_rows(slots, rows, multipliers, wanted):
    """Index in `rows[:, L]` of each of `wanted[n, L]`, -1 where it is not there."""
    indices = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        indices[i] = slots[find_slot(slots, rows, wanted[i], row_key(wanted[i], multipliers))]
    return indices
