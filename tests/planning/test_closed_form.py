from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

import departing as dp
from departing.model.examples import blog
from departing.planning.closed_form import two_by_two
from helpers import exact
from helpers.strategies import PROBABILITIES, instances


@given(instances(PROBABILITIES))
def test_one_type_gets_its_best_fixed_category(instance):
    one = dp.Instance([1.0], instance.click[:, :1], instance.depart[:, :1], instance.depart_on_click[:, :1])
    plan = dp.plan(one)
    best = max(exact._fixed(one, a, 0) for a in range(one.n_categories))
    assert plan.method == "closed-form"
    assert Fraction(plan.lower) <= best <= Fraction(plan.upper)
    assert plan.gap <= 1e-12 * max(plan.upper, 1e-300) + 1e-300
    assert plan.verify()


def random_click(rng, i):
    """2 × 2 click probabilities: anywhere, near 0 and 1, or with ties."""
    if i % 3 == 0:
        return rng.uniform(0.02, 0.9, (2, 2))
    if i % 3 == 1:
        return rng.choice([0.0, 0.2, 0.5, 0.8], (2, 2))
    return np.clip(rng.beta(0.5, 0.5, (2, 2)), 0.001, 0.9)


@pytest.mark.slow
def test_the_closed_form_agrees_with_the_lattice_on_5000_instances():
    rng = np.random.default_rng(7)
    seen = set()
    for i in range(5000):
        share = rng.choice([0.0, 1.0, 0.5]) if i % 10 == 0 else rng.uniform()
        instance = dp.Instance([share, 1 - share], random_click(rng, i))
        closed = dp.plan(instance, method="closed-form")
        lattice = dp.plan(instance, gap=1e-10, method="lattice")
        assert abs(closed.value - lattice.value) <= 1e-9
        assert closed.lower <= lattice.upper
        assert lattice.lower <= closed.upper
        seen.add((instance.structure, type(closed.policy).__name__))
    assert {structure for structure, _ in seen} == {"row", "column", "diagonal"}
    assert ("column", "Threshold") in seen


def test_the_paper_example_is_solved():
    solution = two_by_two(blog())
    assert solution.structure == "column"
    assert (solution.first, solution.second) == (0, 1)
    assert 5 < solution.n_star < 6
    steps = [policy.steps for policy, _ in solution.candidates if isinstance(policy, dp.Threshold)]
    assert {5, 6} <= set(steps)
    assert solution.best[0] == dp.Threshold(first=1, steps=6, then=0)


@pytest.mark.parametrize(
    ("click", "structure"),
    [
        ([[0.5, 0.4], [0.3, 0.4]], "row"),  # a tie in the second column is still a dominant row
        ([[0.5, 0.5], [0.5, 0.5]], "row"),
        ([[0.5, 0.2], [0.4, 0.4]], "column"),  # the formula for N* would divide by the logarithm of 1
        ([[0.5, 0.2], [0.5, 0.4]], "row"),  # the first type is indifferent, the second prefers the second category
        ([[0.5, 0.2], [0.3, 0.4]], "diagonal"),
        ([[0.0, 0.0], [0.0, 0.0]], "row"),
    ],
)
def test_ties_have_a_structure_and_a_solution(click, structure):
    for share in (0.0, 1e-12, 0.3, 1 - 1e-12, 1.0):
        for order in ([0, 1], [1, 0]):
            instance = dp.Instance([share, 1 - share], click).relabel(order, order)
            assert instance.structure == structure
            closed, lattice = dp.plan(instance), dp.plan(instance, gap=1e-10, method="lattice")
            assert abs(closed.value - lattice.value) <= 1e-9
            assert closed.verify()


def test_the_structure_does_not_depend_on_the_order():
    rng = np.random.default_rng(3)
    for _ in range(200):
        instance = dp.Instance([0.3, 0.7], rng.uniform(0.05, 0.95, (2, 2)))
        for categories in ([0, 1], [1, 0]):
            for types in ([0, 1], [1, 0]):
                other = instance.relabel(categories, types)
                assert other.structure == instance.structure
                assert dp.plan(other).value == pytest.approx(dp.plan(instance).value, rel=1e-12)


def test_other_instances_have_no_structure():
    assert dp.random_instance("uniform", 2, 3, depart=1.0).structure is None
    assert dp.random_instance("uniform", 2, 2).structure is None
    assert dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.4, 0.3]], 1.0, depart_on_click=0.1).structure is None
    with pytest.raises(dp.InputError, match="two types, two categories"):
        two_by_two(dp.random_instance("uniform", 2, 2))


def test_long_stays_have_long_thresholds():
    instance = dp.Instance([1e-9, 1 - 1e-9], [[0.9999, 0.2], [0.999, 0.99899]])
    closed, lattice = dp.plan(instance), dp.plan(instance, gap=1e-3, seconds=5, method="lattice")
    assert isinstance(closed.policy, dp.Threshold | dp.Fixed)
    assert closed.lower <= lattice.upper
    assert lattice.lower <= closed.upper
    assert closed.verify()


def test_a_category_that_is_best_for_every_type_is_optimal_for_any_departure():
    instance = dp.Instance([0.2, 0.5, 0.3], [[0.6, 0.7, 0.8], [0.5, 0.8, 0.1]], [[0.2, 0.1, 0.3], [0.2, 0.9, 0.3]])
    plan = dp.plan(instance)
    assert (plan.method, plan.policy) == ("closed-form", dp.Fixed(0))
    assert plan.verify()
