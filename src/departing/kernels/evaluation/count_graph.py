"""One step of a crowd through the graph of counts: find the children, merge equal ones, add up what flows."""

import numpy as np
from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import GOLDEN, mix


@kernel
def _hash(counts, row, category, outcome):
    """A hash of `counts[row]` with one more `outcome` of `category`."""
    key = uint64(0)
    for a in range(counts.shape[1]):
        for o in range(2):
            n = counts[row, a, o]
            if a == category and o == outcome:
                n += 1
            key = mix(key ^ uint64(n)) + uint64(GOLDEN)
    return key


@kernel
def _same(counts, row, category, outcome, child):
    """Whether `counts[row]` with one more `outcome` of `category` are the counts `child`."""
    for a in range(counts.shape[1]):
        for o in range(2):
            extra = 1 if a == category and o == outcome else 0
            if counts[row, a, o] + extra != child[a, o]:
                return False
    return True


@kernel
def expand(counts, categories, opens):
    """The children of users with `counts[n, K, 4]` who are shown `categories[n]`.

    Returns `child[n, 2]`, the row of the child after a click and after a stay (-1 where `opens[K, 2]` says
    that nobody goes on that way), and the children's counts, each once.
    """
    n, n_categories = counts.shape[0], counts.shape[1]
    child = np.full((n, 2), -1, np.int64)
    children = np.zeros((2 * n, n_categories, 4), np.int64)
    size = 4
    while size < 4 * n:
        size *= 2
    slots = np.full(size, -1, np.int64)
    mask = uint64(size - 1)
    found = 0
    for i in range(n):
        a = categories[i]
        for o in range(2):
            if not opens[a, o]:
                continue
            slot = _hash(counts, i, a, o) & mask
            while slots[slot] >= 0 and not _same(counts, i, a, o, children[slots[slot]]):
                slot = (slot + uint64(1)) & mask
            if slots[slot] < 0:
                slots[slot] = found
                children[found] = counts[i]
                children[found, a, o] += 1
                found += 1
            child[i, o] = slots[slot]
    return child, children[:found].copy()


@kernel
def gather(child, flows, n_children):
    """What arrives at every child: the sum of `flows[n, 2, M]` over the parents, as `[n_children, M]`."""
    arrived = np.zeros((n_children, flows.shape[2]), flows.dtype)
    for i in range(child.shape[0]):
        for o in range(2):
            if child[i, o] >= 0:
                for x in range(flows.shape[2]):
                    arrived[child[i, o], x] += flows[i, o, x]
    return arrived
