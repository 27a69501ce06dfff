"""The search through the graph of counts for the best policy, with a ceiling and a floor at every node.

A node is the unnormalised weights `w` of the types after some counts. Its ceiling comes from a cover by points
(`ceiling.py`) whose multipliers are kept, so that it falls as the points' ceilings fall; its floor from the best of
the alpha vectors (`floors.py`), each of which is what a fixed way of going on brings each type. A node is expanded by
asking only for the category that looks best, until the best one has been asked for.
"""

from typing import NamedTuple

import numpy as np

from departing.kernels.compiling import inlined, inner, search_kernel
from departing.kernels.hash_table import find_slot
from departing.kernels.planning.alpha_vectors import back_up, best_floor, brings, show_vector
from departing.kernels.planning.heap import heap_pop, heap_push
from departing.kernels.planning.sizes import (
    COLUMNS,
    DEEPEST,
    EXPANDED,
    FLOORS,
    FULL,
    NODES,
    POINTS,
    POOL_STAMP,
    STAMP,
    SWEPT,
)
from departing.kernels.planning.upper_bound import ROUNDS, cover

GROWTH = 0.03  # of the expanded nodes are expanded in a round
LIGHTEST = 1e-200  # nodes of less mass are not expanded: their children's weights may have lost digits
QUICK = 3  # passes of pricing for a new node, or just one while the tolerance is
COARSE = 1e-4
NEWS = 0.1  # of the gap at a node: a vector that improves on the last by less is not made
WORTH = 0.02  # of the root's gap: a point that improves its cover by less is not looked at by scans


class Model(NamedTuple):
    """All that planning needs of an instance, each `[K, M]`: the reward, and the chances of going on and leaving."""

    reward: np.ndarray
    click: np.ndarray
    stay: np.ndarray
    leave: np.ndarray


class Nodes(NamedTuple):
    """The nodes of the graph, and what is known of the expanded ones."""

    weights: np.ndarray  # [N, M]
    mass: np.ndarray  # [N]
    upper: np.ndarray  # [N]
    lower: np.ndarray  # [N]
    depth: np.ndarray  # [N]
    key: np.ndarray  # [N]
    opened: np.ndarray  # [N] its row among the expanded, or -1
    floor: np.ndarray  # [N] its best alpha vector
    slot: np.ndarray  # [N] the column of the vector made here, or -1
    n_cover: np.ndarray  # [N]
    cover: np.ndarray  # [N, M] the points of its cover
    multiplier: np.ndarray  # [N, M]
    slack: np.ndarray  # [N]
    paths: np.ndarray  # [N] number of best ways that lead here
    child: np.ndarray  # [E, K, 2]
    gain: np.ndarray  # [E, K]
    bound: np.ndarray  # [E, K] ceilings if the first category is given
    fresh: np.ndarray  # [E, K] stamps
    point: np.ndarray  # [E] the point made of it


class Room(NamedTuple):
    """Where nodes are found by key, and lists for a round."""

    table: np.ndarray  # a power of two of node indices, or -1
    step_key: np.ndarray  # [K, 2] what a step adds to the key
    reached: np.ndarray  # [N]
    starts: np.ndarray  # [N + 2]
    heap_key: np.ndarray  # [N]
    heap_node: np.ndarray  # [N]
    one: np.ndarray  # [M]
    two: np.ndarray  # [M]


@inner
def add_point(points, size, belief, value, node):
    """A new point, which no scan looks at yet and whose ceilings by category are still to come; its index."""
    p = size[POINTS]
    for x in range(len(belief)):
        points.at[p, x] = belief[x]
    points.value[p], points.node[p], points.slot[p] = value, node, -1
    size[POINTS] = p + 1
    return p


@inner
def show_point(points, size, p):
    """Let scans look at point p."""
    s = size[COLUMNS]
    for x in range(len(points.columns)):
        points.columns[x, s] = points.at[p, x]
    points.values[s], points.owner[s], points.slot[p] = points.value[p], p, s
    size[COLUMNS] = s + 1


@inner
def _pool_from(nodes, n, n_types, bench, stamp, n_pool):
    """Add the points of a node's cover, but for corners, to the pool."""
    for j in range(nodes.n_cover[n]):
        p = nodes.cover[n, j]
        if p >= n_types and bench.seen[p] != stamp and n_pool < len(bench.pool):
            bench.seen[p] = stamp
            bench.pool[n_pool] = p
            n_pool += 1
    return n_pool


@inner
def _pool(nodes, points, size, bench, n, a, o):
    """Points likely to cover the child of node n after outcome o of category a: of n, its siblings and cousins."""
    n_types, n_categories = points.at.shape[1], nodes.child.shape[1]
    size[POOL_STAMP] += 1
    stamp = size[POOL_STAMP]
    n_pool = _pool_from(nodes, n, n_types, bench, stamp, 0)
    for j in range(nodes.n_cover[n]):
        other = points.node[nodes.cover[n, j]]
        if other >= 0:
            c = nodes.child[nodes.opened[other], a, o]
            if c >= 0:
                n_pool = _pool_from(nodes, c, n_types, bench, stamp, n_pool)
    for b in range(n_categories):
        c = nodes.child[nodes.opened[n], b, o]
        if c >= 0:
            n_pool = _pool_from(nodes, c, n_types, bench, stamp, n_pool)
    return n_pool


@inner
def _keep_cover(nodes, n, bench, count, slack):
    nodes.n_cover[n], nodes.slack[n] = count, slack
    for j in range(count):
        nodes.cover[n, j], nodes.multiplier[n, j] = bench.chosen[j], bench.multiplier[j]


@inner
def covered(nodes, points, n):
    """The ceiling of node n from its kept cover."""
    total = nodes.slack[n]
    for j in range(nodes.n_cover[n]):
        total += nodes.multiplier[n, j] * points.value[nodes.cover[n, j]]
    return total * nodes.mass[n]


@inner
def find_node(nodes, points, floors, room, bench, size, weights, key, depth, known, n_pool, tolerance):
    """The node with this key, made with its bounds if it is new; -1 where there is no room."""
    slot = find_slot(room.table, nodes.key, key, key)
    if room.table[slot] >= 0:
        return room.table[slot]
    n = size[NODES]
    if n == len(nodes.mass):
        size[FULL] = 1
        return -1
    room.table[slot] = n
    size[NODES] = n + 1
    size[DEEPEST] = max(size[DEEPEST], depth)
    mass = 0.0
    for x in range(len(weights)):
        nodes.weights[n, x] = weights[x]
        mass += weights[x]
    nodes.mass[n], nodes.key[n], nodes.depth[n], nodes.opened[n], nodes.slot[n] = mass, key, depth, -1, -1
    nodes.n_cover[n], nodes.floor[n], nodes.upper[n], nodes.lower[n], nodes.slack[n] = 0, 0, 0.0, 0.0, 0.0
    if mass > 0:
        nodes.floor[n], nodes.lower[n] = best_floor(nodes.weights[n], floors, size[FLOORS], known, bench)
        for x in range(len(weights)):
            room.two[x] = weights[x] / mass
        passes = QUICK if tolerance < COARSE else 1
        value, slack, count = cover(room.two, points, size[COLUMNS], bench, n_pool, tolerance, passes)
        _keep_cover(nodes, n, bench, count, slack)
        nodes.upper[n] = max(value * mass, nodes.lower[n])
    return n


@inner
def _ask(model, nodes, points, floors, room, bench, size, n, a, tolerance):
    """Find the children of node n under category a; whether there was room."""
    e = nodes.opened[n]
    gain = 0.0
    for o in range(2):
        if nodes.child[e, a, o] < 0:
            n_pool = _pool(nodes, points, size, bench, n, a, o)
            for x in range(len(room.one)):
                room.one[x] = nodes.weights[n, x] * (model.stay[a, x] if o else model.click[a, x])
            c = find_node(
                nodes,
                points,
                floors,
                room,
                bench,
                size,
                room.one,
                nodes.key[n] + room.step_key[a, o],
                nodes.depth[n] + 1,
                nodes.floor[n],
                n_pool,
                tolerance,
            )
            if c < 0:
                return False
            nodes.child[e, a, o] = c
    for x in range(len(room.one)):
        gain += nodes.weights[n, x] * model.reward[a, x]
    nodes.gain[e, a] = gain
    return True


@inner
def _top(nodes, e):
    top = 0
    for a in range(1, nodes.bound.shape[1]):
        if nodes.bound[e, a] > nodes.bound[e, top]:
            top = a
    return top


@inlined
def backup(model, nodes, points, floors, room, bench, size, n, tolerance, root_gap):
    """Better bounds of an expanded node from its children's."""
    e = nodes.opened[n]
    size[STAMP] += 1
    stamp = size[STAMP]
    while True:
        top = _top(nodes, e)
        if nodes.fresh[e, top] == stamp:
            break
        if nodes.child[e, top, 1] < 0 and not _ask(
            model, nodes, points, floors, room, bench, size, n, top, tolerance
        ):
            return
        value = nodes.gain[e, top] + nodes.upper[nodes.child[e, top, 0]] + nodes.upper[nodes.child[e, top, 1]]
        nodes.bound[e, top] = min(nodes.bound[e, top], value)
        nodes.fresh[e, top] = stamp
    nodes.upper[n] = min(nodes.upper[n], nodes.bound[e, top])
    _raise_floor(model, nodes, floors, room, size, n)
    p, mass = nodes.point[e], nodes.mass[n]
    value = nodes.upper[n] / mass
    if points.slot[p] < 0:
        gained = covered(nodes, points, n) / mass - value
        if gained > WORTH * root_gap or gained > WORTH * value:
            show_point(points, size, p)
    if value < points.value[p]:
        points.value[p] = value
        if points.slot[p] >= 0:
            points.values[points.slot[p]] = value
    for a in range(nodes.bound.shape[1]):
        points.by_category[p, a] = nodes.bound[e, a] / mass


@inlined
def _raise_floor(model, nodes, floors, room, size, n):
    """A better floor at node n from its children's, and a vector for it if it is much better than the last."""
    e = nodes.opened[n]
    best = _best_floor_category(nodes, e)
    if best < 0:
        return
    lower = nodes.gain[e, best] + nodes.lower[nodes.child[e, best, 0]] + nodes.lower[nodes.child[e, best, 1]]
    nodes.lower[n] = max(nodes.lower[n], lower)
    known = brings(floors, nodes.floor[n], nodes.weights[n])
    if nodes.lower[n] - known > NEWS * (nodes.upper[n] - known):
        make_vector(model, nodes, floors, room, size, n, e, best)


@inner
def make_vector(model, nodes, floors, room, size, n, e, a):
    """Make a vector for node n from category a and its children's vectors, if it brings more than the last."""
    one, two = nodes.floor[nodes.child[e, a, 0]], nodes.floor[nodes.child[e, a, 1]]
    least = brings(floors, nodes.floor[n], nodes.weights[n])
    v = back_up(model, floors, size, room.one, nodes.weights[n], a, one, two, least)
    if v >= 0:
        floors.node[v] = n
        nodes.floor[n], nodes.slot[n] = v, show_vector(floors, size, v, nodes.slot[n])
        nodes.lower[n] = max(nodes.lower[n], brings(floors, v, nodes.weights[n]))


@inner
def resolve(nodes, points, floors, room, bench, size, n, tolerance):
    """Fresh bounds for a node that is not expanded."""
    mass = nodes.mass[n]
    vector, value = best_floor(nodes.weights[n], floors, size[FLOORS], nodes.floor[n], bench)
    if value > brings(floors, nodes.floor[n], nodes.weights[n]):
        nodes.floor[n], nodes.lower[n] = vector, max(value, nodes.lower[n])
    size[POOL_STAMP] += 1
    n_pool = _pool_from(nodes, n, points.at.shape[1], bench, size[POOL_STAMP], 0)
    for x in range(len(room.two)):
        room.two[x] = nodes.weights[n, x] / mass
    ceiling, slack, count = cover(room.two, points, size[COLUMNS], bench, n_pool, tolerance, ROUNDS)
    if ceiling * mass <= covered(nodes, points, n):
        _keep_cover(nodes, n, bench, count, slack)
    nodes.upper[n] = max(min(nodes.upper[n], ceiling * mass), nodes.lower[n])


@inner
def open_node(nodes, points, room, size, n):
    """Expand a node: ceilings by category from its cover, and a new point."""
    e = size[EXPANDED]
    if e == len(nodes.point) or size[POINTS] == len(points.value):
        size[FULL] = 1
        return
    size[EXPANDED] = e + 1
    mass = nodes.mass[n]
    for x in range(len(room.two)):
        room.two[x] = nodes.weights[n, x] / mass
    p = add_point(points, size, room.two, nodes.upper[n] / mass, n)
    for a in range(nodes.bound.shape[1]):
        total = nodes.slack[n]
        for j in range(nodes.n_cover[n]):
            total += nodes.multiplier[n, j] * points.by_category[nodes.cover[n, j], a]
        points.by_category[p, a] = total
        nodes.bound[e, a] = mass * total
        nodes.child[e, a, 0] = nodes.child[e, a, 1] = -1
        nodes.fresh[e, a] = 0
    nodes.opened[n], nodes.point[e] = e, p


@inlined
def _visit(model, nodes, points, floors, room, bench, size, n, look, tolerance, root_gap):
    """Better bounds of node n. If `look`, it is one to be looked at anew, and expanded if that does not help."""
    if look:
        gap = nodes.upper[n] - nodes.lower[n]
        resolve(nodes, points, floors, room, bench, size, n, tolerance)
        left = nodes.upper[n] - nodes.lower[n]
        if left > 0.3 * gap and left > 1e-13 * nodes.lower[n] and nodes.mass[n] > LIGHTEST:
            open_node(nodes, points, room, size, n)
    if nodes.opened[n] >= 0:
        backup(model, nodes, points, floors, room, bench, size, n, tolerance, root_gap)
    else:
        nodes.upper[n] = max(min(nodes.upper[n], covered(nodes, points, n)), nodes.lower[n])


@inner
def _follow_best(nodes, room):
    """Push the number of paths down the best categories from the root; how many nodes were reached, by depth."""
    room.reached[0] = 0
    nodes.paths[0] = 1.0
    n_reached, at = 1, 0
    while at < n_reached:
        n = room.reached[at]
        at += 1
        e = nodes.opened[n]
        if e < 0:
            continue
        top = _top(nodes, e)
        if nodes.child[e, top, 1] < 0:
            continue
        for o in range(2):
            c = nodes.child[e, top, o]
            if nodes.mass[c] > 0:
                if nodes.paths[c] == 0:
                    room.reached[n_reached] = c
                    n_reached += 1
                nodes.paths[c] += nodes.paths[n]
    return n_reached


@inlined
def one_round(model, nodes, points, floors, room, bench, size, root_gap):
    """Expand the leaves that matter most and bring the news to the root."""
    tolerance = max(1e-10, min(1e-3, 0.01 * root_gap))
    n_reached = _follow_best(nodes, room)
    heap = 0
    for i in range(n_reached):
        n = room.reached[i]
        worth = nodes.paths[n] * (nodes.upper[n] - nodes.lower[n])
        nodes.paths[n] = 0.0
        if nodes.opened[n] < 0 and worth > 0:
            heap = heap_push(room.heap_key, room.heap_node, heap, worth, n)
    n_looks = min(heap, max(4, int(GROWTH * size[EXPANDED])))
    for _ in range(n_looks):
        heap = heap_pop(room.heap_key, room.heap_node, heap)
    for sweep in range(3):  # first the leaves, then twice the way up
        upper, lower = nodes.upper[0], nodes.lower[0]
        if sweep == 1 and size[EXPANDED] > 1.2 * size[SWEPT]:
            size[SWEPT] = max(size[EXPANDED], 16)
            n_reached = _by_depth(nodes, size, room.starts, room.reached)
        count = n_reached if sweep else n_looks
        for i in range(count):
            n = room.reached[count - 1 - i] if sweep else room.heap_node[heap + count - 1 - i]
            _visit(model, nodes, points, floors, room, bench, size, n, sweep == 0, tolerance, root_gap)
        if sweep and upper - nodes.upper[0] + nodes.lower[0] - lower < 0.02 * root_gap:
            break


@inner
def _by_depth(nodes, size, starts, order):
    """All nodes in the order of their depth; how many there are."""
    for d in range(size[DEEPEST] + 2):
        starts[d] = 0
    for n in range(size[NODES]):
        starts[nodes.depth[n] + 1] += 1
    for d in range(1, size[DEEPEST] + 2):
        starts[d] += starts[d - 1]
    for n in range(size[NODES]):
        d = nodes.depth[n]
        order[starts[d]] = n
        starts[d] += 1
    return size[NODES]


@search_kernel
def rounds(model, nodes, points, floors, room, bench, size, gap, most):
    """Rounds until the gap is reached, `most` nodes have been expanded, or there is no more room."""
    until = size[EXPANDED] + most
    while True:
        root_gap = nodes.upper[0] - nodes.lower[0]
        if root_gap <= gap or size[FULL] or size[EXPANDED] >= until:
            return
        before = size[EXPANDED]
        one_round(model, nodes, points, floors, room, bench, size, root_gap)
        if size[EXPANDED] == before and nodes.upper[0] - nodes.lower[0] >= root_gap:
            return


@search_kernel
def settle(model, nodes, floors, room, size):
    """Make vectors, from the leaves up, that bring at the root what its floor claims; the root's vector.

    There must be room for a vector at every node.
    """
    room.reached[0] = 0
    nodes.paths[0] = 1.0
    n_reached, at = 1, 0
    while at < n_reached:
        n = room.reached[at]
        e = nodes.opened[n]
        best = _best_floor_category(nodes, e) if e >= 0 else -1
        room.heap_node[at] = best
        at += 1
        if best >= 0:
            for o in range(2):
                c = nodes.child[e, best, o]
                if nodes.paths[c] == 0 and nodes.mass[c] > 0:
                    nodes.paths[c] = 1.0
                    room.reached[n_reached] = c
                    n_reached += 1
    for i in range(n_reached - 1, -1, -1):
        n, best = room.reached[i], room.heap_node[i]
        nodes.paths[n] = 0.0
        if best >= 0:
            make_vector(model, nodes, floors, room, size, n, nodes.opened[n], best)
    return nodes.floor[0]


@inner
def _best_floor_category(nodes, e):
    """The category whose children have the best floors, or -1 if none was asked for."""
    best, most = -1, 0.0
    for a in range(nodes.bound.shape[1]):
        if nodes.child[e, a, 1] >= 0:
            value = nodes.gain[e, a] + nodes.lower[nodes.child[e, a, 0]] + nodes.lower[nodes.child[e, a, 1]]
            if best < 0 or value > most:
                best, most = a, value
    return best
