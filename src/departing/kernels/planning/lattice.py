"""Best-first search through counts of clicks, for users who depart at the first no-click.

Then a policy is one sequence of categories. A node is what is left after a sequence: the weights of the types, and
the clicks gained so far. Sequences with the same counts meet in one node. Children are made one at a time, the most
promising first; what a child can bring at most is what it would if every type were known.
"""

from typing import NamedTuple

import numpy as np

from departing.kernels.compiling import inner, search_kernel
from departing.kernels.hash_table import find_slot
from departing.kernels.planning.heap import heap_pop, heap_push

# Positions in `size`.
NODES, OPEN, BEST, BEST_THEN, FULL, DEEPEST = range(6)
SIZES = 6


class Steps(NamedTuple):
    """The nodes, each with the step that led to it."""

    weights: np.ndarray  # [N, M]
    gained: np.ndarray  # [N]
    parent: np.ndarray  # [N]
    category: np.ndarray  # [N]
    depth: np.ndarray  # [N]
    key: np.ndarray  # [N]
    ceiling: np.ndarray  # [N, K] of the children not made yet, -inf of the others


class Queue(NamedTuple):
    """Nodes by the ceiling of their best child, and where nodes are found."""

    bound: np.ndarray
    node: np.ndarray
    table: np.ndarray
    step_key: np.ndarray  # [K]


@inner
def _enter(steps, queue, size, fixed, hope, floor):
    """Bounds of the node that was made last, and its place in the queue; the best floor so far."""
    n = size[NODES]
    size[NODES] = n + 1
    size[DEEPEST] = max(size[DEEPEST], steps.depth[n])
    n_categories, n_types = fixed.shape
    top = -np.inf
    for a in range(n_categories):
        least, most = 0.0, 0.0
        for x in range(n_types):
            least += fixed[a, x] * steps.weights[n, x]
            most += hope[a, x] * steps.weights[n, x]
        if steps.gained[n] + least > floor * (1 + 1e-13):  # a longer walk must be worth more than rounding
            floor = steps.gained[n] + least
            size[BEST], size[BEST_THEN] = n, a
        steps.ceiling[n, a] = steps.gained[n] + most
        top = max(top, steps.ceiling[n, a])
    size[OPEN] = heap_push(queue.bound, queue.node, size[OPEN], top, n)
    return floor


@search_kernel
def walk(reward, go, fixed, hope, steps, queue, size, floor, gap, most):
    """Make up to `most` nodes, or until the best that is still possible is within `gap` of the best found.

    `hope[K, M]` is what a category brings now and at most later. Returns the floor; the ceiling is on top of the
    queue.
    """
    n_categories, n_types = reward.shape
    if size[NODES] == 0:
        floor = _enter(steps, queue, size, fixed, hope, floor)
    for _ in range(most):
        if size[OPEN] == 0 or queue.bound[0] <= floor + gap:
            break
        if size[NODES] == len(steps.gained):
            size[FULL] = 1
            break
        size[OPEN] = heap_pop(queue.bound, queue.node, size[OPEN])
        parent = queue.node[size[OPEN]]
        best, second = 0, -np.inf
        for a in range(1, n_categories):
            if steps.ceiling[parent, a] > steps.ceiling[parent, best]:
                best = a
        for a in range(n_categories):
            if a != best:
                second = max(second, steps.ceiling[parent, a])
        steps.ceiling[parent, best] = -np.inf
        if second > -np.inf:
            size[OPEN] = heap_push(queue.bound, queue.node, size[OPEN], second, parent)
        n = size[NODES]
        gained = steps.gained[parent]
        for x in range(n_types):
            gained += steps.weights[parent, x] * reward[best, x]
            steps.weights[n, x] = steps.weights[parent, x] * go[best, x]
        key = steps.key[parent] + queue.step_key[best]
        slot = find_slot(queue.table, steps.key, key, key)
        if queue.table[slot] >= 0:
            # The same counts by another way. Ceilings are consistent, so the first way was the best: rounding apart,
            # no later one gains more.
            continue
        queue.table[slot] = n
        steps.key[n], steps.gained[n], steps.parent[n], steps.category[n] = key, gained, parent, best
        steps.depth[n] = steps.depth[parent] + 1
        floor = _enter(steps, queue, size, fixed, hope, floor)
    return floor
