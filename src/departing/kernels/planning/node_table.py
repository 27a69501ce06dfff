"""Nodes found by their keys, in a table with open addresses."""

from numba import uint64

from departing.kernels.compiling import inner, kernel
from departing.kernels.random import mix


@inner
def find_slot(table, keys, key):
    """Where `key` stands in the table, or the empty place for it."""
    mask = uint64(len(table) - 1)
    slot = mix(key) & mask
    while table[slot] >= 0 and keys[table[slot]] != key:
        slot = (slot + uint64(1)) & mask
    return slot


@kernel
def refill(table, keys, n):
    """Enter the first n keys into an empty table."""
    for i in range(n):
        table[find_slot(table, keys, keys[i])] = i
