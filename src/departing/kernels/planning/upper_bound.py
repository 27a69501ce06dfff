"""Upper bounds of the value from belief points with known bounds: a small linear programme, and edges of the simplex.

The value is sublinear and monotone in the weights. If `Σ λ_j b_j ≥ w` with `λ ≥ 0` and `v_j` bounds the value at the
belief `b_j`, then `Σ λ_j v_j` bounds the value at w; the λ are a cover of w. The best cover generalises the sawtooth
bound, which uses one point beside the corners: docs/theory/model-and-planning.md, Upper bound.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from departing.kernels.compiling import fast_math, inlined, inner, search_kernel

# A scan returns the best column of each of RANGES ranges: several entering candidates for the price of one pass.
# Ranges have at least MIN_RANGE columns, so that each is long enough for vector instructions.
RANGES, MIN_RANGE = 16, 64
# Partial pricing: pivots are chosen from a short list of columns, whose reduced costs are at least this fraction of
# the best one, before the whole pool is priced again. A longer list means more pivots per pricing, but worse ones.
SHORTLIST, NEAR_BEST = 12, 0.3
MIN_PIVOT = 1e-9  # smaller pivots would amplify rounding of the basis by more than the tolerance of a cover
MAX_PRICING_PASSES = 200  # no limit in practice; ends cycling
PIVOTS_PER_TYPE = 8  # pivots between two scans, by type; ends cycling
NEGLIGIBLE = 0.1  # of the tolerance: types that matter less in all stay with their corner
MAX_EDGE_SWEEPS = 400  # no limit in practice: a sweep contracts the error by the probability to stay
EDGE_CONVERGED = 1e-3  # of the tolerance: largest change of the last sweep
WELL_CONDITIONED = 1e-13  # relative residual of a cover that needs no refinement, a few hundred roundings


class BeliefPoints(NamedTuple):
    """Beliefs with upper bounds, the corners first. Scans read the active points, which have columns."""

    belief: Annotated[np.ndarray, np.float64, "PM"]
    value: Annotated[np.ndarray, np.float64, "P"]  # upper bound
    q_upper: Annotated[np.ndarray, np.float64, "PK"]  # upper bound for each first category
    node: Annotated[np.ndarray, np.int32, "P"]  # node of the point, or -1
    column: Annotated[np.ndarray, np.int32, "P"]  # its column, or -1
    columns: Annotated[np.ndarray, np.float64, "MP"]  # beliefs of the active points
    column_value: Annotated[np.ndarray, np.float64, "P"]
    column_point: Annotated[np.ndarray, np.int32, "P"]  # point of each column


class LPWorkspace(NamedTuple):
    """Arrays of the revised simplex method, and of scans."""

    inverse: Annotated[np.ndarray, np.float64, "MM"]  # of the basis
    price: Annotated[np.ndarray, np.float64, "M"]  # dual variables
    level: Annotated[np.ndarray, np.float64, "M"]  # values of the basic variables
    direction: Annotated[np.ndarray, np.float64, "M"]  # entering column in terms of the basis
    cost: Annotated[np.ndarray, np.float64, "M"]  # of the basic variables
    basis: Annotated[np.ndarray, np.int64, "M"]  # points
    support: Annotated[np.ndarray, np.int64, "M"]  # types of the linear programme
    buffer: Annotated[np.ndarray, np.float64, "F"]
    found_column: Annotated[np.ndarray, np.int64, "R"]
    found_cost: Annotated[np.ndarray, np.float64, "R"]  # reduced costs
    shortlist: Annotated[np.ndarray, np.int64, "L"]  # places in the pool
    pool: Annotated[np.ndarray, np.int64, "B"]  # points priced first
    pool_columns: Annotated[np.ndarray, np.float64, "MB"]  # their beliefs
    pool_values: Annotated[np.ndarray, np.float64, "B"]
    pool_stamp: Annotated[np.ndarray, np.int64, "P"]  # stamp of the last pool with this point
    chosen: Annotated[np.ndarray, np.int64, "M"]  # points of the cover
    multiplier: Annotated[np.ndarray, np.float64, "M"]  # multipliers of the chosen points
    row: Annotated[np.ndarray, np.float64, "M"]


class EdgeWorkspace(NamedTuple):
    """Arrays for the value iteration on an edge, with G grid points."""

    where: Annotated[np.ndarray, np.int64, "GK2"]  # grid point below the belief after an outcome
    share: Annotated[np.ndarray, np.float64, "GK2"]  # its distance from that, as a fraction of the interval
    mass: Annotated[np.ndarray, np.float64, "GK2"]  # probability of the outcome
    reward: Annotated[np.ndarray, np.float64, "GK"]  # expected clicks at the step
    backed_up: Annotated[np.ndarray, np.int64, "GK"]  # sweep of the last backup
    left: Annotated[np.ndarray, np.int64, "S"]  # stack of intervals
    right: Annotated[np.ndarray, np.int64, "S"]


# The functions below are called millions of times. They get the arrays they need rather than a whole workspace,
# because a named tuple is passed by value, field by field.


@inlined
def _reduced_costs(columns, values, start, stop, price, support, n_support, limit, buffer):
    """`value - price · column - limit` of a range of columns, four types at a time for vector instructions."""
    size, range_values = stop - start, values[start:stop]
    for i in range(size):
        buffer[i] = range_values[i] - limit
    k = 0
    while k + 3 < n_support:
        x, y, z, t = support[k], support[k + 1], support[k + 2], support[k + 3]
        row_x, row_y = columns[x, start:stop], columns[y, start:stop]
        row_z, row_t = columns[z, start:stop], columns[t, start:stop]
        at_x, at_y, at_z, at_t = price[x], price[y], price[z], price[t]
        for i in range(size):
            buffer[i] = buffer[i] - at_x * row_x[i] - at_y * row_y[i] - at_z * row_z[i] - at_t * row_t[i]
        k += 4
    while k < n_support:
        row, at = columns[support[k], start:stop], price[support[k]]
        for i in range(size):
            buffer[i] -= at * row[i]
        k += 1


@fast_math
def scan(columns, values, n, price, support, n_support, limit, buffer, found_column, found_cost):
    """Find the column with the least `value - price · column` in each range, if that is below `limit`.

    A sum of the parts below the limit, which vector instructions compute, shows which ranges have such a column.
    """
    width = max((n + RANGES - 1) // RANGES, MIN_RANGE)
    for r in range(RANGES):
        start, stop = min(n, r * width), min(n, (r + 1) * width)
        size = stop - start
        _reduced_costs(columns, values, start, stop, price, support, n_support, limit, buffer)
        below = 0.0
        for i in range(size):
            below += min(buffer[i], 0.0)
        found_column[r], found_cost[r] = -1, np.inf
        if below < 0:
            least, where = buffer[0], 0
            for i in range(1, size):
                if buffer[i] < least:
                    least, where = buffer[i], i
            found_column[r], found_cost[r] = start + where, least + limit


@fast_math
def _make_shortlist(columns, values, n, price, support, n_support, tolerance, buffer, shortlist):
    """Short-list columns of the pool with reduced costs below `-tolerance` and near the least; count them."""
    _reduced_costs(columns, values, 0, n, price, support, n_support, 0.0, buffer)
    least = 0.0
    for i in range(n):
        least = min(least, buffer[i])
    limit = min(-tolerance, NEAR_BEST * least)
    count = 0
    for i in range(n):
        if buffer[i] < limit and count < len(shortlist):
            shortlist[count] = i
            count += 1
    return count


@inner
def _cheapest(columns, values, shortlist, count, price, support, n_support, tolerance):
    """Place in the pool of the short-listed column of least reduced cost, and that cost; -1 if above `-tolerance`."""
    best, least = -1, -tolerance
    for i in range(count):
        j = shortlist[i]
        cost = values[j]
        for k in range(n_support):
            cost -= price[support[k]] * columns[support[k], j]
        if cost < least:
            best, least = j, cost
    return best, least


@inner
def _leaving_row(inverse, point, support, n_support, level, direction):
    """Row that leaves the basis when `point` enters, by the ratio test, or -1; `direction` is set."""
    step, leaving = np.inf, -1
    for i in range(n_support):
        s = 0.0
        for k in range(n_support):
            s += inverse[i, k] * point[support[k]]
        direction[i] = s
        if s > MIN_PIVOT:
            t = level[i] / s
            if t < step or (t == step and s > direction[leaving]):
                step, leaving = t, i
    return leaving


@inner
def _pivot(inverse, leaving, n_support, level, direction):
    """Update the inverse of the basis and the levels for the row `leaving`."""
    scale = 1.0 / direction[leaving]
    step = level[leaving] * scale
    for k in range(n_support):
        inverse[leaving, k] *= scale
    for i in range(n_support):
        if i != leaving:
            f = direction[i]
            level[i] = max(level[i] - step * f, 0.0)
            for k in range(n_support):
                inverse[i, k] -= f * inverse[leaving, k]
    level[leaving] = step


@inlined
def _pivot_from_pool(points, lp, n_support, n_pool, tolerance, max_pivots):
    """Let points of the pool enter the basis until none has a reduced cost below `-tolerance`."""
    columns, values, shortlist, price, support = lp.pool_columns, lp.pool_values, lp.shortlist, lp.price, lp.support
    count = 0
    for _ in range(max_pivots):
        j, reduced = _cheapest(columns, values, shortlist, count, price, support, n_support, tolerance)
        if j < 0:
            count = _make_shortlist(
                columns, values, n_pool, price, support, n_support, tolerance, lp.buffer, shortlist
            )
            j, reduced = _cheapest(columns, values, shortlist, count, price, support, n_support, tolerance)
        if j < 0:
            break
        p = lp.pool[j]
        leaving = _leaving_row(lp.inverse, points.belief[p], support, n_support, lp.level, lp.direction)
        if leaving < 0:
            break
        _pivot(lp.inverse, leaving, n_support, lp.level, lp.direction)
        lp.basis[leaving] = p
        lp.cost[leaving] = points.value[p]
        for k in range(n_support):
            price[support[k]] += reduced * lp.inverse[leaving, k]


@inlined
def _scan_points(points, n_columns, lp, n_support, n_pool, tolerance):
    """Add the columns found by a scan of all active points to the pool; return its size."""
    for k in range(n_support):
        s = 0.0
        for i in range(n_support):
            s += lp.cost[i] * lp.inverse[i, k]
        lp.price[lp.support[k]] = s
    found = (lp.buffer, lp.found_column, lp.found_cost)
    scan(points.columns, points.column_value, n_columns, lp.price, lp.support, n_support, -tolerance, *found)
    for r in range(RANGES):
        if lp.found_column[r] >= 0 and n_pool < len(lp.pool):
            lp.pool[n_pool] = points.column_point[lp.found_column[r]]
            n_pool += 1
    return n_pool


@inner
def _copy_pool(points, lp, start, stop):
    """Copy points of the pool into its columns."""
    for i in range(start, stop):
        p = lp.pool[i]
        lp.pool_values[i] = points.value[p]
        for x in range(len(lp.pool_columns)):
            lp.pool_columns[x, i] = points.belief[p, x]


@inner
def cover(belief, points, n_columns, lp, n_pool, tolerance, passes):
    """Cover of `belief` of small value, by the revised simplex method from the corners.

    Returns the upper bound, the part of it for what the chosen points leave uncovered (at the values of the corners),
    and the number of points chosen; they are in `lp.chosen`, with `lp.multiplier`.
    """
    n_types = len(belief)
    n_support, negligible = 0, NEGLIGIBLE * tolerance / n_types
    for x in range(n_types):
        if belief[x] * points.value[x] > negligible:
            lp.support[n_support] = x
            n_support += 1
    for i in range(n_support):
        x = lp.support[i]
        for k in range(n_support):
            lp.inverse[i, k] = 0.0
        lp.inverse[i, i] = 1.0 / belief[x]
        lp.level[i] = 1.0
        lp.basis[i] = x
        lp.cost[i] = belief[x] * points.value[x]
        lp.price[x] = points.value[x]
    start = 0
    while n_support > 1:
        _copy_pool(points, lp, start, n_pool)
        start = n_pool
        _pivot_from_pool(points, lp, n_support, n_pool, tolerance, PIVOTS_PER_TYPE * n_types)
        if passes == 0:
            break
        passes -= 1
        n_pool = _scan_points(points, n_columns, lp, n_support, n_pool, tolerance)
        if n_pool == start:
            break
    return _extract_cover(belief, points, lp, n_support)


@inner
def _extract_cover(belief, points, lp, n_support):
    """The multipliers of the basis, refined once if their residual is more than rounding."""
    rest = lp.row
    for repeat in range(2):
        count, value = 0, 0.0
        for x in range(len(belief)):
            rest[x] = belief[x]
        for i in range(n_support):
            if lp.level[i] <= 0:
                continue
            p = lp.basis[i]
            share = lp.level[i] * belief[p] if p < len(belief) else lp.level[i]
            lp.chosen[count], lp.multiplier[count] = p, share
            count += 1
            value += share * points.value[p]
            for x in range(len(belief)):
                rest[x] -= share * points.belief[p, x]
        if repeat == 1:
            break
        worst = 0.0
        for k in range(n_support):
            x = lp.support[k]
            worst = max(worst, abs(rest[x]) / belief[x])
        if worst < WELL_CONDITIONED:
            break
        for i in range(n_support):
            correction = 0.0
            for k in range(n_support):
                correction += lp.inverse[i, k] * rest[lp.support[k]]
            lp.level[i] = max(lp.level[i] + correction, 0.0)
    uncovered = 0.0
    for x in range(len(belief)):
        if rest[x] > 0:
            uncovered += rest[x] * points.value[x]
    return value + uncovered, uncovered, count


@search_kernel
def solve_edge(click, click_stay, stay, best, x, y, grid, tolerance, space, value, q_upper, keep):
    """Upper bounds for beliefs in types x and y only: `value[i]` where x has probability `grid[i]`.

    Gauss-Seidel value iteration with linear interpolation, downwards from the corners. `q_upper[i, K]` are the bounds
    for each first category; `keep[i]` marks the points that interpolation needs.
    """
    n, n_categories = len(grid) - 1, len(click)
    where, share, mass, step_reward, backed_up = space.where, space.share, space.mass, space.reward, space.backed_up
    for i in range(n + 1):
        b = grid[i]
        value[i] = b * best[x] + (1 - b) * best[y]
        for a in range(n_categories):
            step_reward[i, a] = b * click[a, x] + (1 - b) * click[a, y]
            q_upper[i, a], backed_up[i, a] = np.inf, 0
            for o in range(2):
                transition = stay if o else click_stay
                mass_x, mass_y = b * transition[a, x], (1 - b) * transition[a, y]
                total = mass_x + mass_y
                t = mass_x / total if total > 0 else 0.0
                j = min(int(math.acos(1 - 2 * t) / math.pi * n), n - 1)
                while j > 0 and grid[j] > t:
                    j -= 1
                while j < n - 1 and grid[j + 1] < t:
                    j += 1
                where[i, a, o], mass[i, a, o] = j, total
                share[i, a, o] = min(max((t - grid[j]) / (grid[j + 1] - grid[j]), 0.0), 1.0)
    for sweep in range(1, MAX_EDGE_SWEEPS + 1):
        change = 0.0
        for k in range(1, n):
            i = k if sweep & 1 else n - k
            while True:
                top = 0
                for a in range(1, n_categories):
                    if q_upper[i, a] > q_upper[i, top]:
                        top = a
                if backed_up[i, top] == sweep:
                    break
                _backup_edge(i, top, step_reward, where, share, mass, value, q_upper)
                backed_up[i, top] = sweep
            if q_upper[i, top] < value[i]:
                change = max(change, value[i] - q_upper[i, top])
                value[i] = q_upper[i, top]
        if change < EDGE_CONVERGED * tolerance:
            break
    for i in range(1, n):
        for a in range(n_categories):
            _backup_edge(i, a, step_reward, where, share, mass, value, q_upper)
    _select_points(grid, value, tolerance, space.left, space.right, keep)


@inlined
def _backup_edge(i, a, step_reward, where, share, mass, value, q_upper):
    """Bellman backup of category a at grid point i."""
    v = step_reward[i, a]
    for o in range(2):
        j, f = where[i, a, o], share[i, a, o]
        v += mass[i, a, o] * (value[j] * (1 - f) + value[j + 1] * f)
    q_upper[i, a] = min(q_upper[i, a], v)


@inlined
def _select_points(grid, value, tolerance, low, high, keep):
    """Mark the points without which interpolation errs by more than `tolerance` (Douglas-Peucker)."""
    n = len(grid) - 1
    low[0], high[0] = 0, n
    size = 1
    for i in range(n + 1):
        keep[i] = False
    while size:
        size -= 1
        left, right = low[size], high[size]
        most, middle = tolerance, -1
        for i in range(left + 1, right):
            line = value[left] + (value[right] - value[left]) * (grid[i] - grid[left]) / (grid[right] - grid[left])
            if abs(line - value[i]) > most:
                most, middle = abs(line - value[i]), i
        if middle >= 0:
            keep[middle] = True
            low[size], high[size] = left, middle
            low[size + 1], high[size + 1] = middle, right
            size += 2
