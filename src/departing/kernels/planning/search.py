"""Heuristic search of the count graph with an upper and a lower bound at every node.

A node stands for counts and holds the unnormalised belief after them, `weights[M]`. Its upper bound comes from a
cover by belief points (`upper_bound.py`), whose multipliers are kept so that it falls as the bounds of the points
fall; its lower bound comes from the best alpha vector (`alpha_vectors.py`). Expanding a node creates the children of
the category with the largest upper bound only, until the category with the largest bound has children.

The constants of this file trade work per round against the number of rounds. They change how fast the gap closes,
never the validity of a bound; `benchmarks/planning.py` measures the effect.
"""

from typing import Annotated, NamedTuple

import numpy as np

from departing.kernels.compiling import inlined, inner, search_kernel
from departing.kernels.hash_table import find_slot
from departing.kernels.planning import counters as at
from departing.kernels.planning.alpha_vectors import activate_vector, backup_vector, best_vector, vector_value
from departing.kernels.planning.heap import heap_pop, heap_push
from departing.kernels.planning.upper_bound import MAX_PRICING_PASSES, cover

# Leaves per round: this fraction of the expanded nodes, so that the cost of sweeping them is spread over the leaves.
ROUND_FRACTION = 0.03
MIN_ROUND = 4  # leaves per round while there are few nodes
# Lighter nodes are not expanded: products with probabilities near the smallest double would lose digits.
MIN_EXPANDED_MASS = 1e-200
# Pricing passes for the cover of a new node. Most new nodes are never expanded, so a rough cover is enough; it is
# recomputed with MAX_PRICING_PASSES before the node is expanded.
NEW_NODE_PASSES = 3
COARSE_TOLERANCE = 1e-4  # above it a single pass is made: the search is still far from the gap
# Pricing tolerance: this fraction of the root's gap, within limits above rounding and below what a cover can gain.
PRICING_FRACTION, MIN_PRICING_TOLERANCE, MAX_PRICING_TOLERANCE = 0.01, 1e-10, 1e-3
# A new vector must close this fraction of the gap at its node; more vectors make every scan slower.
MIN_VECTOR_GAIN = 0.1
# A point becomes active if it improves on its cover by this fraction of the root's gap or of its value.
MIN_POINT_GAIN = 0.02
# A leaf is expanded unless recomputing its bounds reduced its gap to this fraction.
RECOMPUTED_ENOUGH = 0.3
# All nodes, not only the reached ones, are swept after this growth of the number of expanded nodes.
SWEEP_GROWTH, MIN_SWEEP = 1.2, 16
# The second sweep of a round is skipped unless the first reduced the root's gap by this fraction.
MIN_SWEEP_GAIN = 0.02
SEARCH, EXTRACT_VECTORS, COVER_POINTS = range(3)  # tasks of the kernel `search`


class SearchModel(NamedTuple):
    """Expected rewards and probabilities of an instance, each `[K, M]`."""

    reward: np.ndarray  # expected reward of a step
    click_stay: np.ndarray  # of a click after which the user stays
    stay: np.ndarray  # of a no-click after which the user stays
    depart: np.ndarray  # of a departure, after a click or a no-click


class Nodes(NamedTuple):
    """Nodes of the count graph, N of them, and the E expanded ones. Bounds are for the mass of the node."""

    weights: Annotated[np.ndarray, np.float64, "NM"]
    mass: Annotated[np.ndarray, np.float64, "N"]  # sum of the weights
    upper: Annotated[np.ndarray, np.float64, "N"]
    lower: Annotated[np.ndarray, np.float64, "N"]
    depth: Annotated[np.ndarray, np.int32, "N"]
    key: Annotated[np.ndarray, np.uint64, "N"]
    expanded: Annotated[np.ndarray, np.int32, "N"]  # row among the expanded nodes, or -1
    vector: Annotated[np.ndarray, np.int32, "N"]  # best alpha vector
    vector_column: Annotated[np.ndarray, np.int32, "N"]  # column of the vector backed up at this node, or -1
    n_cover: Annotated[np.ndarray, np.int32, "N"]  # number of points in the cover
    cover: Annotated[np.ndarray, np.int32, "NM"]  # points of the cover
    multiplier: Annotated[np.ndarray, np.float64, "NM"]  # multipliers of these points
    uncovered_value: Annotated[np.ndarray, np.float64, "N"]  # of what the cover leaves uncovered, per unit of mass
    paths: Annotated[np.ndarray, np.float64, "N"]  # number of optimistic paths from the root in this round
    child: Annotated[np.ndarray, np.int32, "EK2"]  # nodes after a click and after a stay, or -1
    reward: Annotated[np.ndarray, np.float64, "EK"]  # expected reward of this step
    q_upper: Annotated[np.ndarray, np.float64, "EK"]  # upper bound for each first category
    backed_up: Annotated[np.ndarray, np.int64, "EK"]  # stamp of the last backup
    point: Annotated[np.ndarray, np.int32, "E"]  # belief point of the node


class SearchWorkspace(NamedTuple):
    """Hash table of the nodes, and arrays for the work of a round."""

    table: Annotated[np.ndarray, np.int32, "T"]  # node indices, or -1; a power of two of them
    step_key: Annotated[np.ndarray, np.uint64, "K2"]  # summand of the key for one more outcome
    reached: Annotated[np.ndarray, np.int32, "N"]
    starts: Annotated[np.ndarray, np.int64, "S"]
    heap_key: Annotated[np.ndarray, np.float64, "N"]
    heap_node: Annotated[np.ndarray, np.int32, "N"]
    weights: Annotated[np.ndarray, np.float64, "M"]
    belief: Annotated[np.ndarray, np.float64, "M"]


@inner
def _add_point(points, counters, belief, value, node):
    """Index of a new belief point, not active yet and without bounds by category."""
    p = counters[at.POINTS]
    for x in range(len(belief)):
        points.belief[p, x] = belief[x]
    points.value[p], points.node[p], points.column[p] = value, node, -1
    counters[at.POINTS] = p + 1
    return p


@inner
def _activate_point(points, counters, p):
    """Let scans read point p."""
    column = counters[at.POINT_COLUMNS]
    for x in range(len(points.columns)):
        points.columns[x, column] = points.belief[p, x]
    points.column_value[column], points.column_point[column], points.column[p] = points.value[p], p, column
    counters[at.POINT_COLUMNS] = column + 1


@inner
def _add_cover_to_pool(nodes, n, n_types, lp, stamp, n_pool):
    """Add the points of a node's cover, except corners, to the pool; return the size of the pool."""
    for j in range(nodes.n_cover[n]):
        p = nodes.cover[n, j]
        if p >= n_types and lp.pool_stamp[p] != stamp and n_pool < len(lp.pool):
            lp.pool_stamp[p] = stamp
            lp.pool[n_pool] = p
            n_pool += 1
    return n_pool


@inner
def _candidate_pool(nodes, points, counters, lp, n, a, o):
    """Pool of points likely to cover a child of node n: covers of n, of its children and of similar children."""
    n_types, n_categories = points.belief.shape[1], nodes.child.shape[1]
    counters[at.POOL_STAMP] += 1
    stamp = counters[at.POOL_STAMP]
    n_pool = _add_cover_to_pool(nodes, n, n_types, lp, stamp, 0)
    for j in range(nodes.n_cover[n]):
        other = points.node[nodes.cover[n, j]]
        if other >= 0:
            c = nodes.child[nodes.expanded[other], a, o]
            if c >= 0:
                n_pool = _add_cover_to_pool(nodes, c, n_types, lp, stamp, n_pool)
    for b in range(n_categories):
        c = nodes.child[nodes.expanded[n], b, o]
        if c >= 0:
            n_pool = _add_cover_to_pool(nodes, c, n_types, lp, stamp, n_pool)
    return n_pool


@inner
def _store_cover(nodes, n, lp, count, uncovered):
    """Store the `count` chosen points and the value of what they leave uncovered as the cover of node n."""
    nodes.n_cover[n], nodes.uncovered_value[n] = count, uncovered
    for j in range(count):
        nodes.cover[n, j], nodes.multiplier[n, j] = lp.chosen[j], lp.multiplier[j]


@inner
def _cover_value(nodes, points, n):
    """The upper bound of node n from its stored cover and the present bounds of the points."""
    total = nodes.uncovered_value[n]
    for j in range(nodes.n_cover[n]):
        total += nodes.multiplier[n, j] * points.value[nodes.cover[n, j]]
    return total * nodes.mass[n]


@inlined
def _find_child(model, nodes, points, vectors, space, lp, counters, parent, a, o, tolerance):
    """Index of the child after outcome o of category a, created with its bounds if new; -1 if the arrays are full."""
    key = nodes.key[parent] + space.step_key[a, o]
    slot = find_slot(space.table, nodes.key, key, key)
    if space.table[slot] >= 0:
        return space.table[slot]
    n = counters[at.NODES]
    if n == len(nodes.mass):
        counters[at.FULL] = 1
        return -1
    space.table[slot] = n
    counters[at.NODES] = n + 1
    depth = nodes.depth[parent] + 1
    counters[at.DEPTH] = max(counters[at.DEPTH], depth)
    n_types, mass = nodes.weights.shape[1], 0.0
    for x in range(n_types):
        nodes.weights[n, x] = nodes.weights[parent, x] * (model.stay[a, x] if o else model.click_stay[a, x])
        mass += nodes.weights[n, x]
    nodes.mass[n], nodes.key[n], nodes.depth[n], nodes.expanded[n], nodes.vector_column[n] = mass, key, depth, -1, -1
    nodes.n_cover[n], nodes.vector[n], nodes.upper[n], nodes.lower[n], nodes.uncovered_value[n] = 0, 0, 0.0, 0.0, 0.0
    if mass > 0:
        nodes.vector[n], nodes.lower[n] = best_vector(
            nodes.weights[n], vectors, counters[at.VECTOR_COLUMNS], nodes.vector[parent], lp
        )
        n_pool = _candidate_pool(nodes, points, counters, lp, parent, a, o)
        for x in range(n_types):
            space.belief[x] = nodes.weights[n, x] / mass
        passes = NEW_NODE_PASSES if tolerance < COARSE_TOLERANCE else 1
        value, uncovered, count = cover(
            space.belief, points, counters[at.POINT_COLUMNS], lp, n_pool, tolerance, passes
        )
        _store_cover(nodes, n, lp, count, uncovered)
        nodes.upper[n] = max(value * mass, nodes.lower[n])
    return n


@inner
def _expand_category(model, nodes, points, vectors, space, lp, counters, n, a, tolerance):
    """Find or create the children of node n under category a; return False if the arrays are full."""
    e = nodes.expanded[n]
    for o in range(2):
        if nodes.child[e, a, o] < 0:
            c = _find_child(model, nodes, points, vectors, space, lp, counters, n, a, o, tolerance)
            if c < 0:
                return False
            nodes.child[e, a, o] = c
    reward = 0.0
    for x in range(nodes.weights.shape[1]):
        reward += nodes.weights[n, x] * model.reward[a, x]
    nodes.reward[e, a] = reward
    return True


@inner
def _best_upper_category(nodes, e):
    """The category of largest upper bound at expanded node e; of equal ones the first."""
    top = 0
    for a in range(1, nodes.q_upper.shape[1]):
        if nodes.q_upper[e, a] > nodes.q_upper[e, top]:
            top = a
    return top


@inner
def _backup(model, nodes, points, vectors, space, lp, counters, n, tolerance, root_gap):
    """Bellman backup of both bounds of an expanded node, and of the upper bound of its point."""
    e = nodes.expanded[n]
    counters[at.STAMP] += 1
    stamp = counters[at.STAMP]
    while True:
        top = _best_upper_category(nodes, e)
        if nodes.backed_up[e, top] == stamp:
            break
        if nodes.child[e, top, 1] < 0 and not _expand_category(
            model, nodes, points, vectors, space, lp, counters, n, top, tolerance
        ):
            return
        value = nodes.reward[e, top] + nodes.upper[nodes.child[e, top, 0]] + nodes.upper[nodes.child[e, top, 1]]
        nodes.q_upper[e, top] = min(nodes.q_upper[e, top], value)
        nodes.backed_up[e, top] = stamp
    nodes.upper[n] = min(nodes.upper[n], nodes.q_upper[e, top])
    _backup_lower(model, nodes, vectors, space, counters, n)
    p, mass = nodes.point[e], nodes.mass[n]
    value = nodes.upper[n] / mass
    if points.column[p] < 0:
        gained = _cover_value(nodes, points, n) / mass - value
        if gained > MIN_POINT_GAIN * root_gap or gained > MIN_POINT_GAIN * value:
            _activate_point(points, counters, p)
    if value < points.value[p]:
        points.value[p] = value
        if points.column[p] >= 0:
            points.column_value[points.column[p]] = value
    for a in range(nodes.q_upper.shape[1]):
        points.q_upper[p, a] = nodes.q_upper[e, a] / mass


@inlined
def _backup_lower(model, nodes, vectors, space, counters, n):
    """Backup of the lower bound of node n, with a new vector if the last one is too far below."""
    e = nodes.expanded[n]
    best = _best_lower_category(nodes, e)
    if best < 0:
        return
    lower = nodes.reward[e, best] + nodes.lower[nodes.child[e, best, 0]] + nodes.lower[nodes.child[e, best, 1]]
    nodes.lower[n] = max(nodes.lower[n], lower)
    value = vector_value(vectors, nodes.vector[n], nodes.weights[n])
    if nodes.lower[n] - value > MIN_VECTOR_GAIN * (nodes.upper[n] - value):
        _make_vector(model, nodes, vectors, space, counters, n, e, best)


@inner
def _make_vector(model, nodes, vectors, space, counters, n, e, a):
    """Back up a vector at node n from category a and its children's vectors, if it improves on the last one."""
    after_click, after_stay = nodes.vector[nodes.child[e, a, 0]], nodes.vector[nodes.child[e, a, 1]]
    min_value = vector_value(vectors, nodes.vector[n], nodes.weights[n])
    v = backup_vector(
        model, vectors, counters, space.weights, nodes.weights[n], a, after_click, after_stay, min_value
    )
    if v >= 0:
        vectors.node[v] = n
        nodes.vector[n], nodes.vector_column[n] = v, activate_vector(vectors, counters, v, nodes.vector_column[n])
        nodes.lower[n] = max(nodes.lower[n], vector_value(vectors, v, nodes.weights[n]))


@inner
def _recompute_bounds(nodes, points, vectors, space, lp, counters, n, tolerance):
    """Recompute the bounds of a leaf from all active vectors and points."""
    mass = nodes.mass[n]
    vector, value = best_vector(nodes.weights[n], vectors, counters[at.VECTOR_COLUMNS], nodes.vector[n], lp)
    if value > vector_value(vectors, nodes.vector[n], nodes.weights[n]):
        nodes.vector[n], nodes.lower[n] = vector, max(value, nodes.lower[n])
    counters[at.POOL_STAMP] += 1
    n_pool = _add_cover_to_pool(nodes, n, points.belief.shape[1], lp, counters[at.POOL_STAMP], 0)
    for x in range(len(space.belief)):
        space.belief[x] = nodes.weights[n, x] / mass
    upper, uncovered, count = cover(
        space.belief, points, counters[at.POINT_COLUMNS], lp, n_pool, tolerance, MAX_PRICING_PASSES
    )
    if upper * mass <= _cover_value(nodes, points, n):
        _store_cover(nodes, n, lp, count, uncovered)
    nodes.upper[n] = max(min(nodes.upper[n], upper * mass), nodes.lower[n])


@inner
def _expand_node(nodes, points, space, counters, n):
    """Make leaf n an expanded node, with bounds by category from its cover, and a new belief point."""
    e = counters[at.EXPANDED]
    if e == len(nodes.point) or counters[at.POINTS] == len(points.value):
        counters[at.FULL] = 1
        return
    counters[at.EXPANDED] = e + 1
    mass = nodes.mass[n]
    for x in range(len(space.belief)):
        space.belief[x] = nodes.weights[n, x] / mass
    p = _add_point(points, counters, space.belief, nodes.upper[n] / mass, n)
    for a in range(nodes.q_upper.shape[1]):
        total = nodes.uncovered_value[n]
        for j in range(nodes.n_cover[n]):
            total += nodes.multiplier[n, j] * points.q_upper[nodes.cover[n, j], a]
        points.q_upper[p, a] = total
        nodes.q_upper[e, a] = mass * total
        nodes.child[e, a, 0] = nodes.child[e, a, 1] = -1
        nodes.backed_up[e, a] = 0
    nodes.expanded[n], nodes.point[e] = e, p


@inner
def _update_node(model, nodes, points, vectors, space, lp, counters, n, is_leaf, tolerance, root_gap):
    """Improve the bounds of node n; a leaf is expanded if recomputing its bounds does not help."""
    if is_leaf:
        gap = nodes.upper[n] - nodes.lower[n]
        _recompute_bounds(nodes, points, vectors, space, lp, counters, n, tolerance)
        left = nodes.upper[n] - nodes.lower[n]
        # A gap of a few roundings of the value cannot be closed by children.
        if left <= RECOMPUTED_ENOUGH * gap:
            counters[at.RECOMPUTED] += 1
        elif left > 1e-13 * nodes.lower[n] and nodes.mass[n] > MIN_EXPANDED_MASS:
            _expand_node(nodes, points, space, counters, n)
    if nodes.expanded[n] >= 0:
        _backup(model, nodes, points, vectors, space, lp, counters, n, tolerance, root_gap)
    else:
        if counters[at.RESTARTED]:  # with a good policy to begin with; otherwise it slows a search down
            _follow_replacements(nodes, vectors, n)
        nodes.upper[n] = max(min(nodes.upper[n], _cover_value(nodes, points, n)), nodes.lower[n])


@inner
def _follow_replacements(nodes, vectors, n):
    """Let leaf n use the latest replacement of its vector, if that is better."""
    latest = vectors.replaced_by[nodes.vector[n]]
    if latest >= 0:
        while vectors.replaced_by[latest] >= 0:
            latest = vectors.replaced_by[latest]
        value = vector_value(vectors, latest, nodes.weights[n])
        if value > nodes.lower[n]:
            nodes.vector[n], nodes.lower[n] = latest, value


@inner
def _count_optimistic_paths(nodes, space):
    """Count the paths from the root along the categories of largest upper bound; return the number of nodes reached.

    The nodes reached are in `space.reached`, by depth.
    """
    space.reached[0] = 0
    nodes.paths[0] = 1.0
    n_reached, at = 1, 0
    while at < n_reached:
        n = space.reached[at]
        at += 1
        e = nodes.expanded[n]
        if e < 0:
            continue
        top = _best_upper_category(nodes, e)
        if nodes.child[e, top, 1] < 0:
            continue
        for o in range(2):
            c = nodes.child[e, top, o]
            if nodes.mass[c] > 0:
                if nodes.paths[c] == 0:
                    space.reached[n_reached] = c
                    n_reached += 1
                nodes.paths[c] += nodes.paths[n]
    return n_reached


@inlined
def _search_round(model, nodes, points, vectors, space, lp, counters, root_gap):
    """Expand the leaves with the largest excess uncertainty (paths times gap), and back up to the root."""
    tolerance = max(MIN_PRICING_TOLERANCE, min(MAX_PRICING_TOLERANCE, PRICING_FRACTION * root_gap))
    n_reached = _count_optimistic_paths(nodes, space)
    heap = 0
    for i in range(n_reached):
        n = space.reached[i]
        excess = nodes.paths[n] * (nodes.upper[n] - nodes.lower[n])
        nodes.paths[n] = 0.0
        if nodes.expanded[n] < 0 and excess > 0:
            heap = heap_push(space.heap_key, space.heap_node, heap, excess, n)
    n_leaves = min(heap, max(MIN_ROUND, int(ROUND_FRACTION * counters[at.EXPANDED])))
    for _ in range(n_leaves):
        heap = heap_pop(space.heap_key, space.heap_node, heap)
    for sweep in range(3):  # the leaves, then up to two sweeps towards the root
        upper, lower = nodes.upper[0], nodes.lower[0]
        if sweep == 1 and counters[at.EXPANDED] > SWEEP_GROWTH * counters[at.SWEPT]:
            counters[at.SWEPT] = max(counters[at.EXPANDED], MIN_SWEEP)
            n_reached = _order_by_depth(nodes, counters, space.starts, space.reached)
        count = n_reached if sweep else n_leaves
        for i in range(count):
            n = space.reached[count - 1 - i] if sweep else space.heap_node[heap + count - 1 - i]
            _update_node(model, nodes, points, vectors, space, lp, counters, n, sweep == 0, tolerance, root_gap)
        if sweep and upper - nodes.upper[0] + nodes.lower[0] - lower < MIN_SWEEP_GAIN * root_gap:
            break


@inner
def _order_by_depth(nodes, counters, starts, order):
    """All nodes by depth, in `order`; return their number."""
    for d in range(counters[at.DEPTH] + 2):
        starts[d] = 0
    for n in range(counters[at.NODES]):
        starts[nodes.depth[n] + 1] += 1
    for d in range(1, counters[at.DEPTH] + 2):
        starts[d] += starts[d - 1]
    for n in range(counters[at.NODES]):
        d = nodes.depth[n]
        order[starts[d]] = n
        starts[d] += 1
    return counters[at.NODES]


@search_kernel
def search(task, model, nodes, points, vectors, space, lp, counters, gap, max_expanded, cover_tolerance, rows, gains):
    """Do one of the tasks below: a kernel for all three compiles what they have in common once.

    SEARCH narrows the bounds of the root, as far as `gap` and `max_expanded` say. EXTRACT_VECTORS returns the vector
    that attains the lower bound of the root. COVER_POINTS compares the points `rows` with others; `gap` is then the
    least gain.
    """
    if task == SEARCH:
        _search_rounds(model, nodes, points, vectors, space, lp, counters, gap, max_expanded)
    elif task == EXTRACT_VECTORS:
        return _extract_vectors(model, nodes, vectors, space, counters)
    else:
        _cover_points(points, lp, counters, rows, cover_tolerance, gap, gains)
    return nodes.vector[0]


@inlined
def _search_rounds(model, nodes, points, vectors, space, lp, counters, gap, max_expanded):
    """Run rounds until the gap is reached, `max_expanded` nodes have been expanded, or an array is full."""
    until = counters[at.EXPANDED] + max_expanded
    while True:
        root_gap = nodes.upper[0] - nodes.lower[0]
        if root_gap <= gap or counters[at.FULL] or counters[at.EXPANDED] >= until:
            return
        before = counters[at.EXPANDED] + counters[at.RECOMPUTED]
        _search_round(model, nodes, points, vectors, space, lp, counters, root_gap)
        if counters[at.EXPANDED] + counters[at.RECOMPUTED] == before and nodes.upper[0] - nodes.lower[0] >= root_gap:
            return


@inlined
def _extract_vectors(model, nodes, vectors, space, counters):
    """Back up vectors from the leaves to the root until one attains the root's lower bound; return it.

    The arrays must have room for a vector at every node.
    """
    space.reached[0] = 0
    nodes.paths[0] = 1.0
    n_reached, at = 1, 0
    while at < n_reached:
        n = space.reached[at]
        e = nodes.expanded[n]
        best = _best_lower_category(nodes, e) if e >= 0 else -1
        space.heap_node[at] = best
        at += 1
        if best >= 0:
            for o in range(2):
                c = nodes.child[e, best, o]
                if nodes.paths[c] == 0 and nodes.mass[c] > 0:
                    nodes.paths[c] = 1.0
                    space.reached[n_reached] = c
                    n_reached += 1
    for i in range(n_reached - 1, -1, -1):
        n, best = space.reached[i], space.heap_node[i]
        nodes.paths[n] = 0.0
        if best >= 0:
            _make_vector(model, nodes, vectors, space, counters, n, nodes.expanded[n], best)
    return nodes.vector[0]


@inlined
def _cover_points(points, lp, counters, rows, tolerance, min_gain, gains):
    """Covers of points by the active ones, minus the values of the points; those that gain enough become active."""
    for i in range(len(rows)):
        p = rows[i]
        columns = counters[at.POINT_COLUMNS]
        value, _, _ = cover(points.belief[p], points, columns, lp, 0, tolerance, MAX_PRICING_PASSES)
        gains[i] = value - points.value[p]
        if gains[i] > min_gain:
            _activate_point(points, counters, p)


@inner
def _best_lower_category(nodes, e):
    """The category of largest lower bound among those with children, or -1."""
    best, most = -1, 0.0
    for a in range(nodes.q_upper.shape[1]):
        if nodes.child[e, a, 1] >= 0:
            value = nodes.reward[e, a] + nodes.lower[nodes.child[e, a, 0]] + nodes.lower[nodes.child[e, a, 1]]
            if best < 0 or value > most:
                best, most = a, value
    return best
