"""Record of what users did at every counts: nodes in a hash table of counts."""

from departing.kernels.compiling import kernel
from departing.kernels.hash_table import find_slot, row_key


@kernel
def _find_or_add(row, nodes, depth, slots, multipliers, size, steps):
    """Node of `row[2K]`, added if it is new, and the number of nodes after that."""
    slot = find_slot(slots, nodes, row, row_key(row, multipliers))
    if slots[slot] < 0:
        for i in range(row.shape[0]):
            nodes[size, i] = row[i]
        depth[size] = steps
        slots[slot] = size
        size += 1
    return slots[slot], size


@kernel
def record(counts, categories, outcomes, limit, nodes, depth, seen, here, child, slots, multipliers, size, row):
    """Record users with `counts[n, K, 4]`, shown `categories[n]`: `outcomes[n, 4]` of them had each outcome.

    A node is counts of clicks and stays, `nodes[i, 2K]`, after `depth[i]` steps. `seen[i, K, 4]` are the outcomes at
    it, `here[i]` the users who arrived there and have no later step recorded, `child[i, K, 2]` the nodes after it.
    Steps after the first `limit` are ignored. The arrays must have space for three more nodes for every row; `row` is
    scratch. Returns the number of nodes.
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
        node, size = _find_or_add(row, nodes, depth, slots, multipliers, size, steps)
        a, total = categories[r], 0
        for o in range(4):
            seen[node, a, o] += outcomes[r, o]
            total += outcomes[r, o]
        here[node] -= min(here[node], total)
        for o in range(2):
            if outcomes[r, o] > 0:
                if child[node, a, o] < 0:
                    row[2 * a + o] += 1
                    child[node, a, o], size = _find_or_add(row, nodes, depth, slots, multipliers, size, steps + 1)
                    row[2 * a + o] -= 1
                here[child[node, a, o]] += outcomes[r, o]
    return size
