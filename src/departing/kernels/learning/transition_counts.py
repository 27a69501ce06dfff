"""A ledger of what users did at every counts: a growing hash table of nodes."""

from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import GOLDEN, mix


@kernel
def _slot(row, nodes, slots):
    """The place in `slots` of `row[2K]`, or the free one where it would stand."""
    key = uint64(0)
    for i in range(row.shape[0]):
        key = mix(key ^ uint64(row[i])) + uint64(GOLDEN)
    mask = uint64(slots.shape[0] - 1)
    place = key & mask
    while slots[place] >= 0:
        same = True
        for i in range(row.shape[0]):
            if nodes[slots[place], i] != row[i]:
                same = False
                break
        if same:
            break
        place = (place + uint64(1)) & mask
    return place


@kernel
def rehash(nodes, size, slots):
    """Enter all nodes into empty `slots`."""
    for i in range(size):
        slots[_slot(nodes[i], nodes, slots)] = i


@kernel
def _find(row, nodes, depth, slots, size, steps):
    """The node of `row[2K]`, made if it is new, and the size after."""
    place = _slot(row, nodes, slots)
    if slots[place] < 0:
        for i in range(row.shape[0]):
            nodes[size, i] = row[i]
        depth[size] = steps
        slots[place] = size
        size += 1
    return slots[place], size


@kernel
def enter(counts, categories, outcomes, limit, nodes, depth, seen, here, child, slots, size, row):
    """Book users with `counts[n, K, 4]`, shown `categories[n]`: `outcomes[n, 4]` of them ended in each outcome.

    A node is counts of clicks and stays, `nodes[i, 2K]`, made after `depth[i]` steps. `seen[i, K, 4]` are the
    outcomes at it, `here[i]` the users who came there and of whom nothing more is known, `child[i, K, 2]` the nodes
    after. Steps after the first `limit` are not booked. There must be room for three more nodes for every row.
    """
    n_categories = counts.shape[1]
    for r in range(counts.shape[0]):
        steps = 0
        for a in range(n_categories):
            for o in range(2):
                row[2 * a + o] = counts[r, a, o]
                steps += counts[r, a, o]
        if steps >= limit:
            continue
        node, size = _find(row, nodes, depth, slots, size, steps)
        a, total = categories[r], 0
        for o in range(4):
            seen[node, a, o] += outcomes[r, o]
            total += outcomes[r, o]
        here[node] -= min(here[node], total)
        for o in range(2):
            if outcomes[r, o] > 0:
                if child[node, a, o] < 0:
                    row[2 * a + o] += 1
                    child[node, a, o], size = _find(row, nodes, depth, slots, size, steps + 1)
                    row[2 * a + o] -= 1
                here[child[node, a, o]] += outcomes[r, o]
    return size
