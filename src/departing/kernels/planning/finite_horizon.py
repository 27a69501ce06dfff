"""Search of the count graph for a limited number of steps, with an upper and a lower bound at every node.

A node stands for counts; their sum is the number of steps made, so the steps left are known. Upper bounds come from
known types and from pairs of types (`pair_bounds`), lower bounds from fixed policies. As in `search.py`, expanding a
node creates the children of the category with the largest upper bound only, until that category has children, and
each round expands the leaves with the largest excess uncertainty.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from departing.kernels.compiling import inner, kernel, search_kernel
from departing.kernels.hash_table import find_slot
from departing.kernels.planning.heap import heap_pop, heap_push

# Positions in `counters`.
NODES, ROOTS, EXPANDED, SWEPT, STAMP, DEPTH, FULL = range(7)
N_COUNTERS = 7
# Leaves per round, and growth after which all nodes are swept: as in `search.py`.
ROUND_FRACTION, MIN_ROUND, SWEEP_GROWTH, MIN_SWEEP = 0.03, 4, 1.2, 16
CHUNKS = 8  # parts in which the heaviest type is divided among pairs: more change the bound by less than a percent


class HorizonModel(NamedTuple):
    """Instance, and bounds by steps left: at most N of them, beyond which `tail` is added."""

    reward: np.ndarray  # [K, M] expected reward of a step
    click_stay: np.ndarray  # [K, M]
    stay: np.ndarray  # [K, M]
    fixed: np.ndarray  # [D, K, M] values of the fixed policies by depth
    known: np.ndarray  # [N + 1, M] values of known types
    tail: np.ndarray  # [M] bound on the value of all steps after N
    pairs: np.ndarray  # [N + 1, pairs, grid] bounds for users of two types; no pairs if they are not used
    pair: np.ndarray  # [M, M] row of each pair
    grid: np.ndarray  # beliefs in the first type of a pair


class HorizonNodes(NamedTuple):
    """Nodes of the count graph, the roots first. Bounds are for the mass of the node."""

    weights: Annotated[np.ndarray, np.float64, "NM"]
    upper: Annotated[np.ndarray, np.float64, "N"]
    lower: Annotated[np.ndarray, np.float64, "N"]
    depth: Annotated[np.ndarray, np.int32, "N"]
    key: Annotated[np.ndarray, np.uint64, "N"]
    expanded: Annotated[np.ndarray, np.int8, "N"]
    q_upper: Annotated[np.ndarray, np.float64, "NK"]  # upper bound for each first category
    child: Annotated[np.ndarray, np.int32, "NK2"]  # nodes after a click and after a stay, or -1
    stamp: Annotated[np.ndarray, np.int64, "NK"]  # of the last backup; 0 for bounds by known types


class HorizonSpace(NamedTuple):
    """Hash table of the nodes, and arrays for the work of a round."""

    table: Annotated[np.ndarray, np.int32, "T"]
    step_key: Annotated[np.ndarray, np.uint64, "K2"]
    paths: Annotated[np.ndarray, np.float64, "N"]
    reached: Annotated[np.ndarray, np.int32, "N"]
    starts: Annotated[np.ndarray, np.int64, "S"]
    heap_key: Annotated[np.ndarray, np.float64, "N"]
    heap_node: Annotated[np.ndarray, np.int32, "N"]
    moved: Annotated[np.ndarray, np.float64, "M"]
    part: Annotated[np.ndarray, np.float64, "M"]  # share of the heaviest type that joins each other type
    value: Annotated[np.ndarray, np.float64, "M"]  # bound of each pair
    more: Annotated[np.ndarray, np.float64, "M"]  # the same with one more part


@inner
def _pair_value(values, grid, first, second):
    """Interpolated bound for weights `first` and `second` of the two types."""
    mass = first + second
    if mass <= 0:
        return 0.0
    n, t = len(grid) - 1, first / mass
    j = min(int(math.acos(min(max(1 - 2 * t, -1.0), 1.0)) / math.pi * n), n - 1)
    while j > 0 and grid[j] > t:
        j -= 1
    while j < n - 1 and grid[j + 1] < t:
        j += 1
    share = min(max((t - grid[j]) / (grid[j + 1] - grid[j]), 0.0), 1.0)
    return mass * (values[j] * (1 - share) + values[j + 1] * share)


@inner
def _joined(model, space, weights, m, x, y, part):
    """Bound for type y with a `part` of the heaviest type x."""
    values = model.pairs[m, model.pair[x, y]]
    if x < y:
        return _pair_value(values, model.grid, part * weights[x], weights[y])
    return _pair_value(values, model.grid, weights[y], part * weights[x])


@inner
def _upper_bound(model, space, weights, left):
    """Upper bound of the value at `weights` with `left` steps left.

    The heaviest type is divided among pairs with each of the others, in `CHUNKS` parts, each where it gains most. The
    value is sublinear, so the sum of the bounds of the pairs bounds it, however the type is divided.
    """
    n_types, m = len(weights), min(left, len(model.known) - 1)
    total, bound, heaviest = 0.0, 0.0, 0
    for x in range(n_types):
        bound += weights[x] * model.known[m, x]
        if left > m:
            total += weights[x] * model.tail[x]
        if weights[x] > weights[heaviest]:
            heaviest = x
    if model.pairs.shape[1] == 0 or weights[heaviest] <= 0 or m == 0:
        return total + bound
    parts = CHUNKS if n_types > 2 else 1
    paired = 0.0
    for y in range(n_types):
        space.part[y] = 0.0
        if y != heaviest and weights[y] > 0:
            space.value[y] = weights[y] * model.known[m, y]
            space.more[y] = _joined(model, space, weights, m, heaviest, y, 1.0 / parts)
            paired += space.value[y]
    for _ in range(parts):
        best, least = -1, model.known[m, heaviest] * weights[heaviest] / parts
        for y in range(n_types):
            if y != heaviest and weights[y] > 0 and space.more[y] - space.value[y] < least:
                best, least = y, space.more[y] - space.value[y]
        paired += least
        if best >= 0:
            space.part[best] += 1.0 / parts
            space.value[best] = space.more[best]
            part = space.part[best] + 1.0 / parts
            space.more[best] = _joined(model, space, weights, m, heaviest, best, part)
    return total + min(bound, paired)


@inner
def _bound_category(model, nodes, space, n, a, left):
    """Upper bound at node n for first category a, without children."""
    value = 0.0
    for x in range(len(space.moved)):
        value += nodes.weights[n, x] * model.reward[a, x]
    for o in range(2):
        for x in range(len(space.moved)):
            space.moved[x] = nodes.weights[n, x] * (model.stay[a, x] if o else model.click_stay[a, x])
        value += _upper_bound(model, space, space.moved, left - 1)
    return value


@inner
def set_bounds(model, nodes, space, n, left):
    """Bounds of a new node: by known types, improved by pairs until the category on top has been improved."""
    n_categories, n_types = model.reward.shape
    m, lower = min(left - 1, len(model.known) - 1), 0.0
    for a in range(n_categories):
        most, least = 0.0, 0.0
        for x in range(n_types):
            later = model.known[m, x] + (model.tail[x] if left - 1 > m else 0.0)
            most += nodes.weights[n, x] * (model.reward[a, x] + (model.click_stay[a, x] + model.stay[a, x]) * later)
            least += nodes.weights[n, x] * model.fixed[nodes.depth[n], a, x]
        nodes.q_upper[n, a], nodes.child[n, a, 0], nodes.child[n, a, 1], nodes.stamp[n, a] = most, -1, -1, 0
        lower = max(lower, least)
    top = _top(nodes, n)
    while left > 1 and nodes.stamp[n, top] == 0:
        nodes.q_upper[n, top] = min(nodes.q_upper[n, top], _bound_category(model, nodes, space, n, top, left))
        nodes.stamp[n, top] = 1
        top = _top(nodes, n)
    nodes.expanded[n], nodes.lower[n], nodes.upper[n] = 0, lower, max(nodes.q_upper[n, top], lower)
    space.paths[n] = 0.0


@inner
def _top(nodes, n):
    """The category of largest upper bound; of equal ones the first."""
    top = 0
    for a in range(1, nodes.q_upper.shape[1]):
        if nodes.q_upper[n, a] > nodes.q_upper[n, top]:
            top = a
    return top


@inner
def _find_child(model, nodes, space, counters, parent, a, o, horizon):
    """Index of the child after outcome o of category a, created if new; -1 if the arrays are full."""
    key = nodes.key[parent] + space.step_key[a, o]
    slot = find_slot(space.table, nodes.key, key, key)
    if space.table[slot] >= 0:
        return space.table[slot]
    n, depth = counters[NODES], nodes.depth[parent] + 1
    if n == len(nodes.upper) or depth >= len(model.fixed):
        counters[FULL] = 1
        return -1
    space.table[slot] = n
    counters[NODES] = n + 1
    counters[DEPTH] = max(counters[DEPTH], depth)
    for x in range(nodes.weights.shape[1]):
        nodes.weights[n, x] = nodes.weights[parent, x] * (model.stay[a, x] if o else model.click_stay[a, x])
    nodes.key[n], nodes.depth[n] = key, depth
    set_bounds(model, nodes, space, n, horizon - depth)
    return n


@inner
def _update(model, nodes, space, counters, n, horizon):
    """Bellman backup of both bounds of an expanded node; the category on top gets children."""
    counters[STAMP] += 1
    stamp, left = counters[STAMP], horizon - nodes.depth[n]
    while True:
        top = _top(nodes, n)
        if nodes.stamp[n, top] == stamp:
            break
        if nodes.stamp[n, top] == 0:
            nodes.q_upper[n, top] = min(nodes.q_upper[n, top], _bound_category(model, nodes, space, n, top, left))
            nodes.stamp[n, top] = 1
            continue
        for o in range(2):
            if nodes.child[n, top, o] < 0:
                c = _find_child(model, nodes, space, counters, n, top, o, horizon)
                if c < 0:
                    return
                nodes.child[n, top, o] = c
        value = _step_reward(model, nodes, n, top)
        value += nodes.upper[nodes.child[n, top, 0]] + nodes.upper[nodes.child[n, top, 1]]
        nodes.q_upper[n, top] = min(nodes.q_upper[n, top], value)
        nodes.stamp[n, top] = stamp
    for a in range(len(model.reward)):
        if nodes.child[n, a, 1] >= 0:
            value = _step_reward(model, nodes, n, a)
            value += nodes.lower[nodes.child[n, a, 0]] + nodes.lower[nodes.child[n, a, 1]]
            nodes.lower[n] = max(nodes.lower[n], value)
    nodes.upper[n] = max(min(nodes.upper[n], nodes.q_upper[n, top]), nodes.lower[n])


@inner
def _step_reward(model, nodes, n, a):
    """Expected reward of the next step."""
    value = 0.0
    for x in range(nodes.weights.shape[1]):
        value += nodes.weights[n, x] * model.reward[a, x]
    return value


@inner
def _count_paths(nodes, space, counters, gap):
    """Count the optimistic paths from the roots whose gap is open; return the number of nodes reached."""
    n_reached, at = 0, 0
    for root in range(counters[ROOTS]):
        if nodes.upper[root] - nodes.lower[root] > gap:
            space.reached[n_reached], space.paths[root] = root, 1.0
            n_reached += 1
    while at < n_reached:
        n = space.reached[at]
        at += 1
        if not nodes.expanded[n]:
            continue
        top = _top(nodes, n)
        if nodes.child[n, top, 1] < 0:
            continue
        for o in range(2):
            c = nodes.child[n, top, o]
            if nodes.upper[c] > nodes.lower[c]:
                if space.paths[c] == 0:
                    space.reached[n_reached] = c
                    n_reached += 1
                space.paths[c] += space.paths[n]
    return n_reached


@inner
def _order_by_depth(nodes, counters, starts, order):
    """All nodes by depth, in `order`; return their number."""
    for d in range(counters[DEPTH] + 2):
        starts[d] = 0
    for n in range(counters[NODES]):
        starts[nodes.depth[n] + 1] += 1
    for d in range(1, counters[DEPTH] + 2):
        starts[d] += starts[d - 1]
    for n in range(counters[NODES]):
        d = nodes.depth[n]
        order[starts[d]] = n
        starts[d] += 1
    return counters[NODES]


@inner
def _round(model, nodes, space, counters, gap, horizon):
    """Expand the leaves with the largest excess uncertainty, and back up to the roots; return the leaves expanded."""
    n_reached, heap = _count_paths(nodes, space, counters, gap), 0
    for i in range(n_reached):
        n = space.reached[i]
        width = nodes.upper[n] - nodes.lower[n]
        # A gap of a few roundings of the value cannot be closed by children.
        open_leaf = not nodes.expanded[n] and nodes.depth[n] < horizon - 1
        if open_leaf and width > 1e-14 * nodes.upper[n]:
            heap = heap_push(space.heap_key, space.heap_node, heap, space.paths[n] * width, n)
        space.paths[n] = 0.0
    n_leaves = min(heap, max(MIN_ROUND, int(ROUND_FRACTION * counters[EXPANDED])))
    for _ in range(n_leaves):
        heap = heap_pop(space.heap_key, space.heap_node, heap)
        nodes.expanded[space.heap_node[heap]] = 1
    counters[EXPANDED] += n_leaves
    if counters[EXPANDED] > SWEEP_GROWTH * counters[SWEPT]:
        counters[SWEPT] = max(counters[EXPANDED], MIN_SWEEP)
        n_reached = _order_by_depth(nodes, counters, space.starts, space.reached)
    for i in range(n_reached - 1, -1, -1):
        n = space.reached[i]
        if nodes.expanded[n]:
            _update(model, nodes, space, counters, n, horizon)
    return n_leaves


@search_kernel
def add_roots(model, nodes, space, counters, horizon):
    """Set the bounds of the roots, whose weights, keys and depth are given."""
    for n in range(counters[ROOTS]):
        set_bounds(model, nodes, space, n, horizon)
        space.table[find_slot(space.table, nodes.key, nodes.key[n], nodes.key[n])] = n
    counters[NODES] = counters[ROOTS]


@search_kernel
def expand_horizon(model, nodes, space, counters, gap, horizon, max_expanded):
    """Run rounds until the gap of every root is reached, nodes have been expanded, or an array is full.

    Returns False if nothing is left to expand.
    """
    until = counters[EXPANDED] + max_expanded
    while True:
        widest, n_nodes = _widest(nodes, counters), counters[NODES]
        if widest <= gap or counters[FULL] or counters[EXPANDED] >= until:
            return True
        n_leaves = _round(model, nodes, space, counters, gap, horizon)
        idle = n_leaves == 0 and counters[NODES] == n_nodes and _widest(nodes, counters) >= widest
        if idle and not counters[FULL]:
            return False


@inner
def _widest(nodes, counters):
    """Largest gap of a root."""
    widest = 0.0
    for n in range(counters[ROOTS]):
        widest = max(widest, nodes.upper[n] - nodes.lower[n])
    return widest


@kernel
def pair_bounds(reward, click_stay, stay, x, y, grid, known, values):
    """Upper bounds for users of types x and y only, by steps left, in `values[N + 1, grid]`.

    Bellman backups on the grid, one for each step, with linear interpolation: the value is convex, so that
    interpolation overestimates it.
    """
    n, n_categories = len(grid) - 1, len(reward)
    where = np.empty((n + 1, n_categories, 2), np.int64)
    share, mass = np.empty((n + 1, n_categories, 2)), np.empty((n + 1, n_categories, 2))
    for i in range(n + 1):
        values[0, i] = 0.0
        for a in range(n_categories):
            for o in range(2):
                transition = stay if o else click_stay
                first, second = grid[i] * transition[a, x], (1 - grid[i]) * transition[a, y]
                total = first + second
                t = first / total if total > 0 else 0.0
                j = min(int(math.acos(1 - 2 * t) / math.pi * n), n - 1)
                while j > 0 and grid[j] > t:
                    j -= 1
                while j < n - 1 and grid[j + 1] < t:
                    j += 1
                where[i, a, o], mass[i, a, o] = j, total
                share[i, a, o] = min(max((t - grid[j]) / (grid[j + 1] - grid[j]), 0.0), 1.0)
    for step in range(1, len(values)):
        for i in range(n + 1):
            best = 0.0
            for a in range(n_categories):
                v = grid[i] * reward[a, x] + (1 - grid[i]) * reward[a, y]
                for o in range(2):
                    j, f = where[i, a, o], share[i, a, o]
                    v += mass[i, a, o] * (values[step - 1, j] * (1 - f) + values[step - 1, j + 1] * f)
                best = max(best, v)
            values[step, i] = best
        values[step, 0], values[step, n] = known[step, y], known[step, x]
