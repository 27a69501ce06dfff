"""Canonical order of types, and the assignment of types between two fits (types carry no labels of their own)."""

from typing import cast

import numpy as np

from departing.fitting.likelihood import Parameters
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance


def permute_types(parameters: Parameters, order: Integers) -> Parameters:
    """Parameters with the types in the given order."""
    rest = (parameters.click, parameters.depart, parameters.depart_on_click)
    return Parameters(parameters.prior[order], *(part[:, order] for part in rest))


def sort_types(parameters: Parameters) -> Parameters:
    """Types by decreasing share; types of equal share by decreasing click probabilities.

    >>> two = Parameters(np.array([0.3, 0.7]), np.array([[0.1, 0.2]]), np.ones((1, 2)), np.zeros((1, 2)))
    >>> sort_types(two).click
    array([[0.2, 0.1]])
    """
    return permute_types(parameters, type_order(parameters))


def type_order(parameters: Parameters) -> Integers:
    """Types by decreasing share; types of equal share by decreasing click probabilities."""
    keys = [-row for row in parameters.click[::-1]]
    return np.lexsort([*keys, -parameters.prior.round(12)])


def match_types(parameters: Parameters, instance: Instance) -> Parameters:
    """Types permuted so that their total squared distance to the types of `instance` is minimal."""
    return permute_types(parameters, type_assignment(parameters, instance))


def type_assignment(parameters: Parameters, instance: Instance) -> Integers:
    """Type of `parameters` for each type of `instance`, so that the total squared distance is minimal."""
    mine = np.concatenate([parameters.click, parameters.depart, parameters.depart_on_click])
    theirs = np.concatenate([instance.click, instance.depart, instance.depart_on_click])
    distance = ((mine[:, :, None] - theirs[:, None, :]) ** 2).sum(axis=0)
    distance = distance + (parameters.prior[:, None] - instance.prior) ** 2
    return assign(distance)


def assign(cost: Floats) -> Integers:
    """Row assigned to each column by the one-to-one assignment of least total `cost[M, M]`."""
    from scipy.optimize import linear_sum_assignment  # 0.2 s to import

    return cast(Integers, linear_sum_assignment(cost.T)[1])
