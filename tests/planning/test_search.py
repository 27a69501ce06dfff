import numpy as np
import pytest
from hypothesis import given, settings

import departing as dp
from departing.kernels.planning.sizes import VECTORS
from departing.model.examples import magazine
from departing.planning.problem import Clock, Problem
from departing.planning.search import Search
from helpers import exact
from helpers.strategies import CHANCES, ORDINARY, instances


def small_instance(rng):
    types, categories = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    click = rng.uniform(0.05, 0.75, (categories, types))
    last = rng.uniform(0, 0.3, (categories, types)) * rng.integers(0, 2)
    return dp.Instance(rng.dirichlet(np.ones(types)), click, rng.uniform(0.5, 1, (categories, types)), last)


def test_brackets_contain_the_brute_force_value_on_500_instances():
    rng = np.random.default_rng(11)
    brute = {1: exact.BruteForce(1, 60), 2: exact.BruteForce(2, 24), 3: exact.BruteForce(3, 13)}
    for _ in range(500):
        instance = small_instance(rng)
        plan = dp.plan(instance, gap=1e-6, method="search")
        lower, upper = brute[instance.n_categories].bracket(instance)
        assert plan.gap <= 1e-6
        assert plan.lower <= upper + 1e-12
        assert lower <= plan.upper + 1e-12
        assert plan.verify(), plan.verify()
        value = dp.evaluate(instance, plan.policy, tolerance=1e-7)
        assert value.upper >= plan.lower
        assert value.lower <= plan.upper


@settings(max_examples=150)
@given(instances(CHANCES))
def test_any_chances_give_a_bracket_that_holds(instance):
    plan = dp.plan(instance, gap=1e-6, seconds=0.5, method="search")
    lower, upper = exact.BruteForce(instance.n_categories, 3).bracket(instance)
    assert plan.lower <= upper * (1 + 1e-9)
    assert lower * (1 - 1e-9) <= plan.upper
    assert 0 <= plan.lower <= plan.upper
    assert plan.verify(), plan.verify()
    assert dp.evaluate(instance, plan.policy, nodes=2000).upper >= plan.lower * (1 - 1e-12)


@given(instances(ORDINARY, most=5))
def test_the_gap_is_reached(instance):
    assert dp.plan(instance, gap=1e-5).gap <= 1e-5


def test_more_time_makes_the_bracket_narrower_and_none_is_bare():
    instance = dp.random_instance("uniform", 10, 20, seed=6000)
    brackets = [dp.plan(instance, gap=1e-6, seconds=seconds) for seconds in (1e-6, 0.2, 1.0)]
    for plan in brackets:
        assert 0 < plan.lower <= plan.upper < np.inf
        assert plan.verify(), plan.verify()
    assert brackets[0].gap > brackets[1].gap > brackets[2].gap
    assert max(plan.lower for plan in brackets) <= min(plan.upper for plan in brackets)
    assert brackets[0].seconds < 1


def test_a_search_can_go_on_where_it_stopped():
    problem = Problem.of(dp.random_instance("uniform", 5, 5, seed=4001))
    search = Search(problem, Clock(60))
    search.run(1e-2, Clock(10))
    first = (search.lower, search.upper)
    controller = search.controller(1e-2)
    search.run(1e-5, Clock(10))
    assert first[0] <= search.lower <= search.upper <= first[1]
    assert search.upper - search.lower <= 1e-5
    assert search.controller(1e-5).promise(problem) >= controller.promise(problem)


TAMPER = {
    "covers": lambda s, c: s.nodes.multiplier.__imul__(0.999),
    "leaves": lambda s, c: s.nodes.upper.__imul__(1 - 1e-6),
    "beliefs on edges": lambda s, c: s.edges[0][2].__imul__(1 - 1e-6),
    "points taken from edges": lambda s, c: s.points.value[3:8].__imul__(1 - 1e-6),
    "types that are known": lambda s, c: s.points.value[:1].__imul__(1 - 1e-6),
    "categories of expanded nodes": lambda s, c: s.nodes.bound.__imul__(1 - 1e-6),
    "points made of nodes": lambda s, c: s.points.value[-1:].__imul__(1) or s.points.value.__imul__(1 - 1e-6),
    "weights of children": lambda s, c: s.nodes.weights[3:].__imul__(1 + 1e-6),
    "alpha vectors": lambda s, c: c.vectors.__imul__(1 + 1e-6),
    "bracket of the root": lambda s, c: s.nodes.upper.__setitem__(0, s.nodes.upper[0] + 1e-6),
}


@pytest.mark.parametrize("what", TAMPER)
def test_a_wrong_proof_is_found_out(what):
    plan = dp.plan(magazine(), gap=1e-4)
    assert plan.verify()
    TAMPER[what](plan.proof.search, plan.proof.controller)
    checks = {check.what: check.holds for check in plan.verify().checks}
    assert not checks[what]


def test_claims_beyond_the_proof_are_found_out():
    plan = dp.plan(magazine(), gap=1e-4)
    assert not plan.proof.verify(plan.policy, plan.lower + 1e-6, plan.upper)
    assert not plan.proof.verify(plan.policy, plan.lower, plan.upper - 1e-6)


def test_a_cover_that_leans_on_itself_is_found_out():
    plan = dp.plan(magazine(), gap=1e-4)
    nodes = plan.proof.search.nodes
    n = int(np.flatnonzero(nodes.opened[: plan.proof.search.size[0]] >= 0)[5])
    nodes.n_cover[n], nodes.cover[n, 0], nodes.multiplier[n, 0] = 1, nodes.point[nodes.opened[n]], 1.0
    assert not plan.verify()


def test_vectors_are_what_their_controller_brings():
    """Simulate the controller's states by solving the linear equations of each type."""
    plan = dp.plan(magazine(), gap=1e-4)
    controller, instance = plan.proof.controller, plan.instance
    n = len(controller.vectors)
    for x in range(3):
        matrix = np.eye(n)
        for state, (a, after) in enumerate(zip(controller.categories, controller.after, strict=True)):
            for outcome in (0, 1):
                matrix[state, after[outcome]] -= instance.outcome_probabilities[a, outcome, x]
        solved = np.linalg.solve(matrix, instance.click[controller.categories, x])
        np.testing.assert_allclose(controller.vectors[:, x], solved, rtol=1e-12)
    assert plan.proof.search.size[VECTORS] >= n


def test_many_types_are_planned_without_edges():
    instance = dp.random_instance("uniform", 40, 5, seed=3)
    plan = dp.plan(instance, gap=0.3, seconds=10, method="search")
    assert plan.proof.search.edges == []
    assert plan.gap <= 0.3
    assert plan.verify()
