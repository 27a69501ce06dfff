"""One step of users through the count graph: find the children, merge equal ones, add up the flows."""

import numpy as np

from departing.kernels.compiling import kernel
from departing.kernels.hash_table import find_slot, key_multipliers, row_key


@kernel
def expand(counts, categories, reachable):
    """Children of users with `counts[n, K, 4]` who are recommended `categories[n]`.

    Returns `child[n, 2]`, the row of the child after a click and after a stay (-1 where `reachable[K, 2]` is false:
    that outcome has probability 0), and the children's counts, each once.
    """
    n, width = counts.shape[0], counts.shape[1] * 4
    rows = counts.reshape(n, width)
    child = np.full((n, 2), -1, np.int64)
    children = np.empty((2 * n + 1, width), np.int64)
    size = 4
    while size < 4 * n:
        size *= 2
    slots = np.full(size, -1, np.int64)
    multipliers = key_multipliers(width)
    n_children = 0
    for i in range(n):
        key = row_key(rows[i], multipliers)
        for outcome in range(2):
            if not reachable[categories[i], outcome]:
                continue
            added = 4 * categories[i] + outcome
            candidate = children[n_children]  # stays there if no earlier child equals it
            for j in range(width):
                candidate[j] = rows[i, j]
            candidate[added] += 1
            slot = find_slot(slots, children, candidate, key + multipliers[added])
            if slots[slot] < 0:
                slots[slot] = n_children
                n_children += 1
            child[i, outcome] = slots[slot]
    return child, children[:n_children].copy().reshape(n_children, counts.shape[1], 4)


@kernel
def gather(child, flows, n_children):
    """Sum of `flows[n, 2, M]` over the parents of every child, `[n_children, M]`."""
    arrived = np.zeros((n_children, flows.shape[2]), flows.dtype)
    for i in range(child.shape[0]):
        for outcome in range(2):
            if child[i, outcome] >= 0:
                for x in range(flows.shape[2]):
                    arrived[child[i, outcome], x] += flows[i, outcome, x]
    return arrived
