"""Planning kernels against simple reference implementations."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import departing as dp
from departing.kernels.planning.controller import add_visits, evaluate_controller
from departing.kernels.planning.counters import NODES, POINT_COLUMNS
from departing.kernels.planning.heap import heap_pop, heap_push
from departing.kernels.policy.alpha import best_vectors
from departing.planning.certificate import edge_grid
from departing.planning.problem import Deadline, PlanningProblem
from departing.planning.search import Search


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_the_heap_is_a_heap(values):
    keys, items, size = np.empty(len(values)), np.empty(len(values), np.int64), 0
    twin = []
    for i, value in enumerate(values):
        size = heap_push(keys, items, size, value, i)
        heapq.heappush(twin, -value)
        assert keys[0] == -twin[0]
    while size:
        size = heap_pop(keys, items, size)
        assert keys[size] == -heapq.heappop(twin)
        assert values[items[size]] == keys[size]


@pytest.mark.parametrize(
    ("types", "vectors", "beliefs"), [(1, 1, 1), (2, 7, 63), (3, 100, 64), (5, 300, 65), (9, 20, 1000)]
)
def test_best_vectors_are_the_best(types, vectors, beliefs):
    rng = np.random.default_rng(types)
    rows, at = rng.integers(0, 5, (vectors, types)).astype(float), rng.dirichlet(np.ones(types), beliefs)
    chosen = best_vectors(at, rows)
    values = at @ rows.T
    np.testing.assert_allclose(values[np.arange(beliefs), chosen], values.max(axis=1), rtol=1e-14)


def test_covers_are_solutions_of_the_linear_programme():
    """Stored covers are feasible, and upper bounds are at least the optimum of scipy."""
    problem = PlanningProblem(dp.random_instance("uniform", 5, 5, seed=4000))
    search = Search(problem, Deadline(60))
    search.run(1e-3, Deadline(10))
    points, nodes = search.points, search.nodes
    shown = points.column_point[: int(search.counters[POINT_COLUMNS])]
    known = np.concatenate([np.arange(5), shown])
    for n in range(0, int(search.counters[NODES]), 7):
        belief = nodes.weights[n] / nodes.mass[n]
        twin = linprog(points.value[known], A_ub=-points.belief[known].T, b_ub=-belief, method="highs")
        assert nodes.upper[n] / nodes.mass[n] >= twin.fun - 1e-7 or nodes.expanded[n] >= 0
        j = nodes.cover[n, : nodes.n_cover[n]]
        covered = nodes.multiplier[n, : nodes.n_cover[n]] @ points.belief[j]
        assert (np.maximum(belief - covered, 0) @ problem.type_values) <= nodes.uncovered_value[n] + 1e-12
        assert nodes.multiplier[n, : nodes.n_cover[n]].min() >= 0


def test_edges_are_the_fixed_point_of_value_iteration_on_the_grid():
    instance = dp.random_instance("specialists", 2, 3, seed=2)
    problem = PlanningProblem(instance)
    _, _, value, q_upper, _ = Search(problem, Deadline(60)).edges[0]
    grid = edge_grid()
    beliefs = np.stack([grid, 1 - grid], axis=1)
    twin = beliefs @ problem.type_values
    for _ in range(400):
        steps = beliefs @ problem.reward.T
        for transition in (problem.click_stay, problem.stay):
            moved = beliefs[:, None] * transition
            steps += moved.sum(axis=2) * np.interp(moved[..., 0] / moved.sum(axis=2), grid, twin)
        twin[1:-1] = steps.max(axis=1)[1:-1]
    np.testing.assert_allclose(value, twin, atol=1e-5)
    assert (value >= twin - 1e-12).all()
    assert (q_upper[1:-1].max(axis=1) <= value[1:-1] + 1e-12).all()


@pytest.mark.parametrize("seed", range(5))
def test_controllers_solve_linear_equations(seed):
    rng = np.random.default_rng(seed)
    n, types = 30, 3
    successor = rng.integers(0, n, (n, 2))
    successor[rng.integers(0, n, 8), 0] = np.arange(8)
    successor[:5] = np.arange(5)[:, None]  # states with loops
    reward, click, stay = rng.uniform(0.1, 0.4, (3, n, types))
    depart = 1 - click - stay
    vectors = np.zeros((n, types))
    evaluate_controller(reward, click, stay, depart, successor, vectors, 1e-15, 10_000)
    weights = rng.dirichlet(np.ones(types))
    seen, now, later = np.zeros((3, n, types))
    now[7] = weights
    while add_visits(click, stay, depart, successor, seen, now, later, 1e-15, 2) == 2:
        pass
    for x in range(types):
        moves = np.zeros((n, n))
        for v in range(n):
            moves[v, successor[v, 0]] += click[v, x]
            moves[v, successor[v, 1]] += stay[v, x]
        np.testing.assert_allclose(vectors[:, x], np.linalg.solve(np.eye(n) - moves, reward[:, x]), rtol=1e-10)
        start = weights[x] * (np.arange(n) == 7)
        np.testing.assert_allclose(seen[:, x], np.linalg.solve(np.eye(n) - moves.T, start), rtol=1e-9, atol=1e-12)
