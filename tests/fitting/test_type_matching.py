"""Order and assignment of types, against exhaustive search and the optimality condition of assignments."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.likelihood import Parameters
from departing.fitting.type_matching import assign, match_types, permute_types, sort_types


def total(cost, rows):
    return cost[rows, np.arange(len(cost))].sum()


@given(st.integers(1, 7), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_assignment_is_the_best_of_all_permutations(types, seed):
    cost = np.random.default_rng(seed).random((types, types))
    orders = np.array(list(permutations(range(types))))
    assert total(cost, assign(cost)) == pytest.approx(cost[orders, np.arange(types)].sum(axis=1).min(), abs=1e-12)


def can_be_improved(cost, rows):
    """An assignment is optimal if and only if no cyclic exchange of rows lowers its cost."""
    exchange = cost[rows] - cost[rows, np.arange(len(cost))][:, None]  # [i, j]: the row of column i moves to j
    for k in range(len(cost)):  # Floyd and Warshall
        exchange = np.minimum(exchange, exchange[:, [k]] + exchange[[k]])
    return np.diag(exchange).min() < -1e-12


def greedy_assignment(cost):
    left, rows = np.array(cost), np.empty(len(cost), np.int64)
    for _ in range(len(cost)):
        row, column = np.unravel_index(left.argmin(), left.shape)
        rows[column] = row
        left[row], left[:, column] = np.inf, np.inf
    return rows


@pytest.mark.parametrize("types", [8, 9, 10, 64])
def test_no_exchange_of_types_improves_the_assignment(types):
    """Pairing the closest types one after the other, in contrast, can mostly be improved."""
    rng = np.random.default_rng(types)
    costs = [rng.random((types, types)) for _ in range(10)]
    assert not any(can_be_improved(cost, assign(cost)) for cost in costs)
    assert sum(can_be_improved(cost, greedy_assignment(cost)) for cost in costs) >= 5


def test_the_check_of_exchanges_agrees_with_exhaustive_search():
    rng = np.random.default_rng(5)
    cost = rng.random((5, 5))
    orders = list(permutations(range(5)))
    best = min(total(cost, np.array(order)) for order in orders)
    for order in orders:
        assert can_be_improved(cost, np.array(order)) == (total(cost, np.array(order)) > best + 1e-12)


def test_permuted_types_are_matched_to_their_origin():
    rng = np.random.default_rng(0)
    instance = dp.Instance(rng.dirichlet(np.ones(9)), rng.uniform(0.1, 0.9, (6, 9)), 0.5)
    own = Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)
    assert match_types(permute_types(own, rng.permutation(9)), instance).click.tolist() == instance.click.tolist()


def test_the_order_of_types_does_not_depend_on_their_labels():
    parameters = Parameters(*np.random.default_rng(1).random((1, 3)), *np.random.default_rng(2).random((3, 2, 3)))
    expected = sort_types(parameters).click.tolist()
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert sort_types(permute_types(parameters, np.array(order))).click.tolist() == expected
