"""A* search of the lattice of click counts, for users who depart at the first no-click.

Then a policy is a sequence of categories. A node stands for the clicks so far by category: the weights of the types
and the expected reward on the way. Sequences with equal counts meet in one node. Children are created one at a time
in the order of their upper bounds, which assume that the type becomes known after the next step.
"""

from typing import Annotated, NamedTuple

import numpy as np

from departing.kernels.compiling import inner, search_kernel
from departing.kernels.hash_table import find_slot
from departing.kernels.planning.heap import heap_pop, heap_push

# Positions in `counters`.
NODES, OPEN, BEST, BEST_THEN, FULL, DEPTH = range(6)
N_COUNTERS = 6


class LatticeNodes(NamedTuple):
    """Nodes of the lattice, each with the step from its parent."""

    weights: Annotated[np.ndarray, np.float64, "NM"]
    reward: Annotated[np.ndarray, np.float64, "N"]  # expected reward before the node
    parent: Annotated[np.ndarray, np.int32, "N"]
    category: Annotated[np.ndarray, np.int32, "N"]
    depth: Annotated[np.ndarray, np.int32, "N"]
    key: Annotated[np.ndarray, np.uint64, "N"]
    child_upper: Annotated[np.ndarray, np.float64, "NK"]  # upper bounds of the children; -inf where created


class Queue(NamedTuple):
    """Heap of nodes by the upper bound of their best child, and the hash table of nodes."""

    upper: Annotated[np.ndarray, np.float64, "N"]
    node: Annotated[np.ndarray, np.int32, "N"]
    table: Annotated[np.ndarray, np.int32, "T"]
    step_key: Annotated[np.ndarray, np.uint64, "K"]
    merge_loss: Annotated[np.ndarray, np.float64, "1"]  # largest difference by which a later path was better


@inner
def _add_node(nodes, queue, counters, fixed, optimistic, lower):
    """Set the bounds of the newest node and put it into the queue; return the best lower bound so far."""
    n = counters[NODES]
    counters[NODES] = n + 1
    counters[DEPTH] = max(counters[DEPTH], nodes.depth[n])
    n_categories, n_types = fixed.shape
    top = -np.inf
    for a in range(n_categories):
        least, most = 0.0, 0.0
        for x in range(n_types):
            least += fixed[a, x] * nodes.weights[n, x]
            most += optimistic[a, x] * nodes.weights[n, x]
        if nodes.reward[n] + least > lower * (1 + 1e-13):  # a longer walk must gain more than rounding
            lower = nodes.reward[n] + least
            counters[BEST], counters[BEST_THEN] = n, a
        nodes.child_upper[n, a] = nodes.reward[n] + most
        top = max(top, nodes.child_upper[n, a])
    counters[OPEN] = heap_push(queue.upper, queue.node, counters[OPEN], top, n)
    return lower


@search_kernel
def expand_lattice(step_reward, click_stay, fixed, optimistic, nodes, queue, counters, lower, gap, max_nodes):
    """Create up to `max_nodes` nodes, or until the upper bound is within `gap` of the lower bound.

    `optimistic[K, M]` is the value of one step of a category followed by the best category of the known type. Returns
    the lower bound; the upper bound is on top of the queue.
    """
    n_categories, n_types = step_reward.shape
    if counters[NODES] == 0:
        lower = _add_node(nodes, queue, counters, fixed, optimistic, lower)
    for _ in range(max_nodes):
        if counters[OPEN] == 0 or queue.upper[0] <= lower + gap:
            break
        if counters[NODES] == len(nodes.reward):
            counters[FULL] = 1
            break
        counters[OPEN] = heap_pop(queue.upper, queue.node, counters[OPEN])
        parent = queue.node[counters[OPEN]]
        best, second = 0, -np.inf
        for a in range(1, n_categories):
            if nodes.child_upper[parent, a] > nodes.child_upper[parent, best]:
                best = a
        for a in range(n_categories):
            if a != best:
                second = max(second, nodes.child_upper[parent, a])
        nodes.child_upper[parent, best] = -np.inf
        if second > -np.inf:
            counters[OPEN] = heap_push(queue.upper, queue.node, counters[OPEN], second, parent)
        n = counters[NODES]
        reward = nodes.reward[parent]
        for x in range(n_types):
            reward += nodes.weights[parent, x] * step_reward[best, x]
            nodes.weights[n, x] = nodes.weights[parent, x] * click_stay[best, x]
        key = nodes.key[parent] + queue.step_key[best]
        slot = find_slot(queue.table, nodes.key, key, key)
        if queue.table[slot] >= 0:
            # The same counts by another path. The bound is a consistent heuristic, so the first path was the best:
            # rounding apart, no later one has more reward.
            queue.merge_loss[0] = max(queue.merge_loss[0], reward - nodes.reward[queue.table[slot]])
            continue
        queue.table[slot] = n
        nodes.key[n], nodes.reward[n], nodes.parent[n], nodes.category[n] = key, reward, parent, best
        nodes.depth[n] = nodes.depth[parent] + 1
        lower = _add_node(nodes, queue, counters, fixed, optimistic, lower)
    return lower
