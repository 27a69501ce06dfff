"""Alpha vectors: the value of a conditional plan by type, and the best of them at given weights."""

from typing import Annotated, NamedTuple

import numpy as np

from departing.kernels.compiling import inner
from departing.kernels.planning.counters import FULL, VECTOR_COLUMNS, VECTORS
from departing.kernels.planning.upper_bound import RANGES, scan

# Continuations after category a: other vectors after both outcomes, or this vector again after one or both.
BOTH, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, ALWAYS = range(4)


class AlphaVectors(NamedTuple):
    """Alpha vectors of conditional plans: expected reward by type, first category and continuation."""

    value: Annotated[np.ndarray, np.float64, "AM"]
    category: Annotated[np.ndarray, np.int32, "A"]
    successor: Annotated[np.ndarray, np.int32, "A2"]  # vectors after a click and after a stay
    form: Annotated[np.ndarray, np.int8, "A"]  # kind of continuation
    replaced_by: Annotated[np.ndarray, np.int32, "A"]  # vector that took over its column, or -1
    node: Annotated[np.ndarray, np.int32, "A"]  # node of its backup, or -1
    columns: Annotated[np.ndarray, np.float64, "MA"]  # values of the active vectors, which scans read
    column_vector: Annotated[np.ndarray, np.int32, "A"]  # vector of each column
    zeros: Annotated[np.ndarray, np.float64, "A"]


@inner
def best_vector(weights, vectors, n, start, lp):
    """The vector of largest value at `weights`, and that value; `start` if no active vector is better."""
    for x in range(len(weights)):
        lp.support[x] = x
    value = vector_value(vectors, start, weights)
    limit = -value * (1 + 1e-12)  # a scan rounds differently; ties stay with `start`
    found = (lp.buffer, lp.found_column, lp.found_cost)
    scan(vectors.columns, vectors.zeros, n, weights, lp.support, len(weights), limit, *found)
    best = -1
    for r in range(RANGES):
        if lp.found_column[r] >= 0 and (best < 0 or lp.found_cost[r] < lp.found_cost[best]):
            best = r
    vector = start if best < 0 else vectors.column_vector[lp.found_column[best]]
    return vector, vector_value(vectors, vector, weights)


@inner
def vector_value(vectors, vector, weights):
    """The value of a vector at `weights`."""
    total = 0.0
    for x in range(len(weights)):
        total += vectors.value[vector, x] * weights[x]
    return total


@inner
def add_vector(vectors, counters, value, category, after_click, after_stay, form):
    """Index of a new alpha vector, not active yet; -1 if the arrays are full."""
    n = counters[VECTORS]
    if n == len(vectors.category) or counters[VECTOR_COLUMNS] == len(vectors.column_vector):
        counters[FULL] = 1
        return -1
    for x in range(len(value)):
        vectors.value[n, x] = value[x]
    vectors.category[n], vectors.form[n], vectors.replaced_by[n], vectors.node[n] = category, form, -1, -1
    vectors.successor[n, 0], vectors.successor[n, 1] = after_click, after_stay
    counters[VECTORS] = n + 1
    return n


@inner
def activate_vector(vectors, counters, vector, column):
    """Let scans read a vector, in the given column or, if that is -1, in a new one; return its column."""
    if column < 0:
        column = counters[VECTOR_COLUMNS]
        counters[VECTOR_COLUMNS] = column + 1
    else:
        vectors.replaced_by[vectors.column_vector[column]] = vector
    for x in range(len(vectors.columns)):
        vectors.columns[x, column] = vectors.value[vector, x]
    vectors.column_vector[column] = vector
    return column


@inner
def backup_vector(model, vectors, counters, row, weights, a, after_click, after_stay, min_value):
    """New vector from a Bellman backup of category a, with the vectors `after_click` and `after_stay` as successors.

    Repeating category a after one of the outcomes is tried as well; the best at `weights` is kept. Returns -1 if its
    value is at most `min_value`, or the arrays are full.
    """
    form = -1
    for f in range(3):
        value = 0.0
        for x in range(len(weights)):
            value += weights[x] * backed_up_value(model, vectors, a, after_click, after_stay, f, x)
        if value > min_value:
            form, min_value = f, value
    if form < 0:
        return -1
    for x in range(len(weights)):
        row[x] = backed_up_value(model, vectors, a, after_click, after_stay, form, x)
    return add_vector(vectors, counters, row, a, after_click, after_stay, form)


@inner
def backed_up_value(model, vectors, a, after_click, after_stay, form, x):
    """The value for type x of category a followed by the vectors `after_click` and `after_stay`, or a again."""
    reward, click_stay, stay = model.reward[a, x], model.click_stay[a, x], model.stay[a, x]
    if form == BOTH:
        return reward + click_stay * vectors.value[after_click, x] + stay * vectors.value[after_stay, x]
    if form == REPEAT_AFTER_CLICK:
        return (reward + stay * vectors.value[after_stay, x]) / (model.depart[a, x] + stay)
    return (reward + click_stay * vectors.value[after_click, x]) / (model.depart[a, x] + click_stay)
