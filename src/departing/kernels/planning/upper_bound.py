"""Ceilings on the value from points whose ceilings are known: a small linear programme, and edges of the simplex.

The value is sublinear and monotone in the weights. If `Σ λ_j p_j ≥ w` with `λ ≥ 0` and `v_j` bounds the value at
the point `p_j`, then `Σ λ_j v_j` bounds the value at w: docs/theory/model-and-planning.md, The best policy.
"""

import math
from typing import NamedTuple

import numpy as np

from departing.kernels.compiling import fast_math, inlined, inner, kernel

RANGES = 16  # a scan brings the best of each of so many ranges
NARROWEST = 64  # columns of a range at least
SHORT = 12  # points of the pool that are tried before all are priced again
NEAR = 0.3  # of the least reduced cost: worth a place on the short list
SMALLEST = 1e-9  # pivots below this are not made
ROUNDS = 200  # of pricing at most


class Points(NamedTuple):
    """Beliefs with known ceilings; the corners come first. `columns` holds those that a scan looks at."""

    at: np.ndarray  # [P, M]
    value: np.ndarray  # [P]
    by_category: np.ndarray  # [P, K] ceilings if the first category is given
    node: np.ndarray  # [P] the node it came from, or -1
    slot: np.ndarray  # [P] its column, or -1
    columns: np.ndarray  # [M, P]
    values: np.ndarray  # [P] of the columns
    owner: np.ndarray  # [P] the point of a column


class Bench(NamedTuple):
    """Room to work in."""

    inverse: np.ndarray  # [M, M]
    price: np.ndarray  # [M]
    level: np.ndarray  # [M]
    column: np.ndarray  # [M]
    cost: np.ndarray  # [M]
    basis: np.ndarray  # [M]
    kept: np.ndarray  # [M]
    buffer: np.ndarray  # [P or A]
    found: np.ndarray  # [RANGES] columns
    reduced: np.ndarray  # [RANGES] their reduced costs
    short: np.ndarray  # [SHORT] places in the pool
    pool: np.ndarray  # [B] points to try first
    columns: np.ndarray  # [M, B] the pool's points
    values: np.ndarray  # [B] of the pool's points
    seen: np.ndarray  # [P] stamps: when a point was put into the pool
    chosen: np.ndarray  # [M] points of the solution
    multiplier: np.ndarray  # [M] of the chosen points
    row: np.ndarray  # [M]


@inlined
def _reduced_costs(columns, values, start, stop, price, kept, n_kept, limit, buffer):
    """`value - price · column - limit` of some columns, four types at a time: compiled to vector instructions."""
    size, here = stop - start, values[start:stop]
    for i in range(size):
        buffer[i] = here[i] - limit
    k = 0
    while k + 3 < n_kept:
        x, y, z, t = kept[k], kept[k + 1], kept[k + 2], kept[k + 3]
        row_x, row_y = columns[x, start:stop], columns[y, start:stop]
        row_z, row_t = columns[z, start:stop], columns[t, start:stop]
        at_x, at_y, at_z, at_t = price[x], price[y], price[z], price[t]
        for i in range(size):
            buffer[i] = buffer[i] - at_x * row_x[i] - at_y * row_y[i] - at_z * row_z[i] - at_t * row_t[i]
        k += 4
    while k < n_kept:
        row, at = columns[kept[k], start:stop], price[kept[k]]
        for i in range(size):
            buffer[i] -= at * row[i]
        k += 1


@fast_math
def scan(columns, values, n, price, kept, n_kept, limit, buffer, found, reduced):
    """For each of RANGES ranges of columns the one with the least `value - price · column`, if below `limit`.

    Sums of what is below the limit, which are vector instructions, tell which ranges have something to find.
    """
    width = max((n + RANGES - 1) // RANGES, NARROWEST)
    for r in range(RANGES):
        start, stop = min(n, r * width), min(n, (r + 1) * width)
        size = stop - start
        _reduced_costs(columns, values, start, stop, price, kept, n_kept, limit, buffer)
        below = 0.0
        for i in range(size):
            below += min(buffer[i], 0.0)
        found[r], reduced[r] = -1, np.inf
        if below < 0:
            least, where = buffer[0], 0
            for i in range(1, size):
                if buffer[i] < least:
                    least, where = buffer[i], i
            found[r], reduced[r] = start + where, least + limit


@fast_math
def _shortlist(columns, values, n, price, kept, n_kept, tolerance, buffer, short):
    """Some columns with `value - price · column` below `-tolerance` and near the least; how many."""
    _reduced_costs(columns, values, 0, n, price, kept, n_kept, 0.0, buffer)
    least = 0.0
    for i in range(n):
        least = min(least, buffer[i])
    limit = min(-tolerance, NEAR * least)
    count = 0
    for i in range(n):
        if buffer[i] < limit and count < len(short):
            short[count] = i
            count += 1
    return count


@inner
def _cheapest(columns, values, short, count, price, kept, n_kept, tolerance):
    """The column of a short list with the least `value - price · column`, and that; -1 if above `-tolerance`."""
    best, least = -1, -tolerance
    for i in range(count):
        j = short[i]
        cost = values[j]
        for k in range(n_kept):
            cost -= price[kept[k]] * columns[kept[k], j]
        if cost < least:
            best, least = j, cost
    return best, least


@inner
def _leaving(inverse, point, kept, n_kept, level, column):
    """The row that leaves when `point` comes into the basis, or -1; `column` is the point in terms of the basis."""
    step, leaving = np.inf, -1
    for i in range(n_kept):
        s = 0.0
        for k in range(n_kept):
            s += inverse[i, k] * point[kept[k]]
        column[i] = s
        if s > SMALLEST:
            t = level[i] / s
            if t < step or (t == step and s > column[leaving]):
                step, leaving = t, i
    return leaving


@inner
def _turn(inverse, leaving, n_kept, level, column):
    """Change the basis at row `leaving`."""
    scale = 1.0 / column[leaving]
    step = level[leaving] * scale
    for k in range(n_kept):
        inverse[leaving, k] *= scale
    for i in range(n_kept):
        if i != leaving:
            f = column[i]
            level[i] = max(level[i] - step * f, 0.0)
            for k in range(n_kept):
                inverse[i, k] -= f * inverse[leaving, k]
    level[leaving] = step


@inlined
def _try_pool(points, bench, n_kept, n_pool, tolerance, most):
    """Bring points of the pool into the basis until none is worth it, those of a short list first."""
    count = 0
    for _ in range(most):
        j, reduced = _cheapest(
            bench.columns, bench.values, bench.short, count, bench.price, bench.kept, n_kept, tolerance
        )
        if j < 0:
            count = _shortlist(
                bench.columns,
                bench.values,
                n_pool,
                bench.price,
                bench.kept,
                n_kept,
                tolerance,
                bench.buffer,
                bench.short,
            )
            j, reduced = _cheapest(
                bench.columns, bench.values, bench.short, count, bench.price, bench.kept, n_kept, tolerance
            )
        if j < 0:
            break
        p = bench.pool[j]
        leaving = _leaving(bench.inverse, points.at[p], bench.kept, n_kept, bench.level, bench.column)
        if leaving < 0:
            break
        _turn(bench.inverse, leaving, n_kept, bench.level, bench.column)
        bench.basis[leaving] = p
        bench.cost[leaving] = points.value[p]
        for k in range(n_kept):
            bench.price[bench.kept[k]] += reduced * bench.inverse[leaving, k]


@inlined
def _scan_points(points, n_columns, bench, n_kept, n_pool, tolerance):
    """Add to the pool what a scan of all columns finds; its new size."""
    for k in range(n_kept):
        s = 0.0
        for i in range(n_kept):
            s += bench.cost[i] * bench.inverse[i, k]
        bench.price[bench.kept[k]] = s
    scan(
        points.columns,
        points.values,
        n_columns,
        bench.price,
        bench.kept,
        n_kept,
        -tolerance,
        bench.buffer,
        bench.found,
        bench.reduced,
    )
    for r in range(RANGES):
        if bench.found[r] >= 0 and n_pool < len(bench.pool):
            bench.pool[n_pool] = points.owner[bench.found[r]]
            n_pool += 1
    return n_pool


@inner
def _gather(points, bench, start, stop):
    """Copy points of the pool into columns."""
    for i in range(start, stop):
        p = bench.pool[i]
        bench.values[i] = points.value[p]
        for x in range(len(bench.columns)):
            bench.columns[x, i] = points.at[p, x]


@inner
def cover(belief, points, n_columns, bench, n_pool, tolerance, passes):
    """A cheap cover of `belief` by points, started from the corners.

    Returns the ceiling, the part of it that is slack (what the chosen points leave uncovered, at the corners'
    values), and how many points were chosen; they are in `bench.chosen` with their `bench.multiplier`.
    """
    n_types = len(belief)
    n_kept, negligible = 0, 0.1 * tolerance / n_types
    for x in range(n_types):
        if belief[x] * points.value[x] > negligible:
            bench.kept[n_kept] = x
            n_kept += 1
    for i in range(n_kept):
        x = bench.kept[i]
        for k in range(n_kept):
            bench.inverse[i, k] = 0.0
        bench.inverse[i, i] = 1.0 / belief[x]
        bench.level[i] = 1.0
        bench.basis[i] = x
        bench.cost[i] = belief[x] * points.value[x]
        bench.price[x] = points.value[x]
    start = 0
    while n_kept > 1:
        _gather(points, bench, start, n_pool)
        start = n_pool
        _try_pool(points, bench, n_kept, n_pool, tolerance, 8 * n_types)
        if passes == 0:
            break
        passes -= 1
        n_pool = _scan_points(points, n_columns, bench, n_kept, n_pool, tolerance)
        if n_pool == start:
            break
    return _read_off(belief, points, bench, n_kept)


@inner
def _read_off(belief, points, bench, n_kept):
    """The multipliers of the basis, refined once if rounding has left its mark."""
    rest = bench.row
    for repeat in range(2):
        count, value = 0, 0.0
        for x in range(len(belief)):
            rest[x] = belief[x]
        for i in range(n_kept):
            if bench.level[i] <= 0:
                continue
            p = bench.basis[i]
            share = bench.level[i] * belief[p] if p < len(belief) else bench.level[i]
            bench.chosen[count], bench.multiplier[count] = p, share
            count += 1
            value += share * points.value[p]
            for x in range(len(belief)):
                rest[x] -= share * points.at[p, x]
        if repeat == 1:
            break
        worst = 0.0
        for k in range(n_kept):
            x = bench.kept[k]
            worst = max(worst, abs(rest[x]) / belief[x])
        if worst < 1e-13:
            break
        for i in range(n_kept):
            correction = 0.0
            for k in range(n_kept):
                correction += bench.inverse[i, k] * rest[bench.kept[k]]
            bench.level[i] = max(bench.level[i] + correction, 0.0)
    slack = 0.0
    for x in range(len(belief)):
        if rest[x] > 0:
            slack += rest[x] * points.value[x]
    return value + slack, slack, count


@kernel
def edge(reward, click, stay, best, x, y, grid, tolerance, value, by_category, keep):
    """Ceilings for beliefs that hold types x and y alone: `value[i]` where x has the share `grid[i]`.

    Gauss-Seidel sweeps with convex interpolation from the corners' ceilings down; `by_category[i, K]` are the
    ceilings for every first category, `keep[i]` marks the points that tell most.
    """
    n, n_categories = len(grid) - 1, len(reward)
    where = np.empty((n + 1, n_categories, 2), np.int64)
    share = np.empty((n + 1, n_categories, 2))
    mass = np.empty((n + 1, n_categories, 2))
    gain = np.empty((n + 1, n_categories))
    for i in range(n + 1):
        b = grid[i]
        value[i] = b * best[x] + (1 - b) * best[y]
        for a in range(n_categories):
            gain[i, a] = b * reward[a, x] + (1 - b) * reward[a, y]
            by_category[i, a] = np.inf
            for o in range(2):
                go = stay if o else click
                one, two = b * go[a, x], (1 - b) * go[a, y]
                total = one + two
                t = one / total if total > 0 else 0.0
                j = min(int(math.acos(1 - 2 * t) / math.pi * n), n - 1)
                while j > 0 and grid[j] > t:
                    j -= 1
                while j < n - 1 and grid[j + 1] < t:
                    j += 1
                where[i, a, o], mass[i, a, o] = j, total
                share[i, a, o] = min(max((t - grid[j]) / (grid[j + 1] - grid[j]), 0.0), 1.0)
    fresh = np.zeros((n + 1, n_categories), np.int64)
    for sweep in range(1, 401):
        change = 0.0
        for k in range(1, n):
            i = k if sweep & 1 else n - k
            while True:
                top = 0
                for a in range(1, n_categories):
                    if by_category[i, a] > by_category[i, top]:
                        top = a
                if fresh[i, top] == sweep:
                    break
                _renew(i, top, gain, where, share, mass, value, by_category)
                fresh[i, top] = sweep
            if by_category[i, top] < value[i]:
                change = max(change, value[i] - by_category[i, top])
                value[i] = by_category[i, top]
        if change < 1e-3 * tolerance:
            break
    for i in range(1, n):
        for a in range(n_categories):
            _renew(i, a, gain, where, share, mass, value, by_category)
    _thin(grid, value, tolerance, keep)


@inlined
def _renew(i, a, gain, where, share, mass, value, by_category):
    v = gain[i, a]
    for o in range(2):
        j, f = where[i, a, o], share[i, a, o]
        v += mass[i, a, o] * (value[j] * (1 - f) + value[j + 1] * f)
    by_category[i, a] = min(by_category[i, a], v)


@inlined
def _thin(grid, value, tolerance, keep):
    """Mark the points without which interpolation would be off by more than `tolerance`."""
    n = len(grid) - 1
    low, high = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
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
