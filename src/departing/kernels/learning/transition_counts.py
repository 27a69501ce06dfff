"""Observed transitions of the count graph: nodes in a hash table of counts."""

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
def add_transitions(
    counts, categories, users, limit, nodes, depth, outcomes, unresolved_users, child, slots, multipliers, size, row
):
    """Add users with `counts[n, K, 4]`, shown `categories[n]`: `users[n, 4]` of them had each outcome.

    A node is counts of clicks and stays, `nodes[i, 2K]`, after `depth[i]` steps. `outcomes[i, K, 4]` are the users by
    category and outcome, `unresolved_users[i]` those without a later outcome, `child[i, K, 2]` the nodes after
    a click and after a stay. Steps after the first `limit` are ignored. The arrays must have space for three more
    nodes for every row; `row` is scratch. Returns the number of nodes.
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
            outcomes[node, a, o] += users[r, o]
            total += users[r, o]
        unresolved_users[node] -= min(unresolved_users[node], total)
        for o in range(2):
            if users[r, o] > 0:
                if child[node, a, o] < 0:
                    row[2 * a + o] += 1
                    child[node, a, o], size = _find_or_add(row, nodes, depth, slots, multipliers, size, steps + 1)
                    row[2 * a + o] -= 1
                unresolved_users[child[node, a, o]] += users[r, o]
    return size
