"""An order of types that does not depend on luck, and the types of one fit found in another."""

from itertools import permutations

import numpy as np

from departing.fitting.likelihood import Parameters
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

SMALL = 6  # types up to which all orders are tried


def reordered(parameters: Parameters, order: Integers) -> Parameters:
    """The same with the types in another order."""
    rest = (parameters.click, parameters.depart, parameters.depart_on_click)
    return Parameters(parameters.prior[order], *(part[:, order] for part in rest))


def ordered(parameters: Parameters) -> Parameters:
    """The largest type first; types of the same size by their chances of a click, the largest first.

    >>> two = Parameters(np.array([0.3, 0.7]), np.array([[0.1, 0.2]]), np.ones((1, 2)), np.zeros((1, 2)))
    >>> ordered(two).click
    array([[0.2, 0.1]])
    """
    keys = [-row for row in parameters.click[::-1]]
    return reordered(parameters, np.lexsort([*keys, -parameters.prior.round(12)]))


def matched(parameters: Parameters, instance: Instance) -> Parameters:
    """The types in the order in which they are most like those of an instance."""
    mine = np.concatenate([parameters.click, parameters.depart, parameters.depart_on_click])
    theirs = np.concatenate([instance.click, instance.depart, instance.depart_on_click])
    apart = ((mine[:, :, None] - theirs[:, None, :]) ** 2).sum(axis=0)  # of mine and theirs
    apart = apart + (parameters.prior[:, None] - instance.prior) ** 2
    return reordered(parameters, _assignment(apart))


def _assignment(apart: Floats) -> Integers:
    """Which of the rows goes to each column: the best of all orders, or pair by pair where there are many."""
    m = len(apart)
    if m <= SMALL:
        orders = np.array(list(permutations(range(m))))
        return np.asarray(orders[apart[orders, np.arange(m)].sum(axis=1).argmin()])
    left, order = np.array(apart), np.empty(m, np.int64)
    for _ in range(m):
        row, column = np.unravel_index(left.argmin(), left.shape)
        order[column] = row
        left[row], left[:, column] = np.inf, np.inf
    return order
