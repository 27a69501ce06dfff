"""Alpha vectors: ways of going on, what each brings each type, and the best of them at given weights."""

from typing import NamedTuple

import numpy as np

from departing.kernels.compiling import inner
from departing.kernels.planning.sizes import FLOORS, FULL, VECTORS
from departing.kernels.planning.upper_bound import RANGES, scan

# Ways of going on after category a: another vector after each outcome, or a again and again.
BOTH, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, ALWAYS = range(4)


class Floors(NamedTuple):
    """Alpha vectors: what a way of going on brings each type."""

    vector: np.ndarray  # [A, M]
    category: np.ndarray  # [A]
    after: np.ndarray  # [A, 2] the vectors after a click and after a stay
    form: np.ndarray  # [A]
    newer: np.ndarray  # [A] the vector that took its place, or -1
    node: np.ndarray  # [A] the node it was made for, or -1
    columns: np.ndarray  # [M, A] those that a scan looks at
    owner: np.ndarray  # [A] the vector of a column
    zeros: np.ndarray  # [A]


@inner
def best_floor(weights, floors, n, known, bench):
    """The vector that brings most at `weights`, and what it brings; `known` if no other is better."""
    for x in range(len(weights)):
        bench.kept[x] = x
    least = brings(floors, known, weights)
    scan(
        floors.columns,
        floors.zeros,
        n,
        weights,
        bench.kept,
        len(weights),
        -least * (1 + 1e-12),
        bench.buffer,
        bench.found,
        bench.reduced,
    )
    best = -1
    for r in range(RANGES):
        if bench.found[r] >= 0 and (best < 0 or bench.reduced[r] < bench.reduced[best]):
            best = r
    vector = known if best < 0 else floors.owner[bench.found[best]]
    return vector, brings(floors, vector, weights)


@inner
def brings(floors, vector, weights):
    """What a vector brings at `weights`."""
    total = 0.0
    for x in range(len(weights)):
        total += floors.vector[vector, x] * weights[x]
    return total


@inner
def add_vector(floors, size, vector, category, after_click, after_stay, form):
    """A new alpha vector, which no scan looks at yet; its index, or -1 where there is no room."""
    n = size[VECTORS]
    if n == len(floors.category) or size[FLOORS] == len(floors.owner):
        size[FULL] = 1
        return -1
    for x in range(len(vector)):
        floors.vector[n, x] = vector[x]
    floors.category[n], floors.form[n], floors.newer[n], floors.node[n] = category, form, -1, -1
    floors.after[n, 0], floors.after[n, 1] = after_click, after_stay
    size[VECTORS] = n + 1
    return n


@inner
def show_vector(floors, size, vector, slot):
    """Let scans look at a vector, in a column of its own or in the place of another; its column."""
    if slot < 0:
        slot = size[FLOORS]
        size[FLOORS] = slot + 1
    else:
        floors.newer[floors.owner[slot]] = vector
    for x in range(len(floors.columns)):
        floors.columns[x, slot] = floors.vector[vector, x]
    floors.owner[slot] = vector
    return slot


@inner
def back_up(model, floors, size, row, weights, a, one, two, least):
    """A new vector: category a, then `one` after a click and `two` after a stay, or a again after either.

    The form that brings most at `weights`; -1 if that is not more than `least`, or there is no room.
    """
    form = -1
    for f in range(3):
        value = 0.0
        for x in range(len(weights)):
            value += weights[x] * backed_up(model, floors, a, one, two, f, x)
        if value > least:
            form, least = f, value
    if form < 0:
        return -1
    for x in range(len(weights)):
        row[x] = backed_up(model, floors, a, one, two, form, x)
    return add_vector(floors, size, row, a, one, two, form)


@inner
def backed_up(model, floors, a, one, two, form, x):
    """What type x brings under category a and then the vectors `one` after a click, `two` after a stay."""
    r, c, s = model.reward[a, x], model.click[a, x], model.stay[a, x]
    if form == BOTH:
        return r + c * floors.vector[one, x] + s * floors.vector[two, x]
    if form == REPEAT_AFTER_CLICK:
        return (r + s * floors.vector[two, x]) / (model.leave[a, x] + s)
    return (r + c * floors.vector[one, x]) / (model.leave[a, x] + c)
