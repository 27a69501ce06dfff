"""Instances at the ends of the floating-point range, and certificates with one claim changed."""

from dataclasses import replace

import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine
from departing.planning.problem import Deadline, PlanningProblem
from departing.planning.search import Search

COUNTER = dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]])


def test_a_category_with_fewer_departures_is_not_dropped_where_probabilities_round_to_one():
    instance = dp.Instance([0.5, 0.5], [[0.5, 0.4], [0.5, 0.4]], [[1.000000027e-9] * 2, [1e-9] * 2])
    plan = dp.plan(instance)
    assert plan.upper >= dp.evaluate(instance, dp.Fixed(1)).lower
    assert plan.policy == dp.Fixed(1)
    assert plan.verify()


@pytest.mark.parametrize("tiny", [5e-322, 1e-161])
def test_counts_too_unlikely_for_all_digits_do_not_tighten_bounds(tiny):
    rng = np.random.default_rng(3)
    click, prior = rng.uniform(0.1, 0.8, (3, 40)), np.ones(40) / 40
    without = dp.plan(dp.Instance(prior, click, 0.5), 1e-3, 1)
    click = np.vstack([click, np.full(40, tiny)])
    depart = np.vstack([np.full((3, 40), 0.5), np.full((1, 40), 0.01)])
    plan = dp.plan(dp.Instance(prior, click, depart), 1e-3, 1)
    assert plan.upper >= without.lower
    assert plan.verify()


@pytest.mark.parametrize(
    "instance",
    [
        dp.Instance([0.5, 0.5], [[0.7, 0.2], [0.2, 0.7]], [[0.5, 1e-17], [1e-17, 0.5]]),
        dp.Instance([0.5, 0.5], [[1.0, 0.4], [0.5, 0.9]], 0.5, [[1e-17, 0.1], [0.1, 0.1]]),
        dp.Instance([0.5, 0.5], [[0.7, 0.2], [0.2, 0.7]], [[0.5, 1e-300], [0.5, 0.5]]),
        dp.Instance([0.5, 0.5], [[0.7, 0.2], [0.2, 0.7]], [[0.5, 1e-300], [1e-300, 0.5]]),
        dp.Instance([0.88, 0.12], [[0.0, 0.5], [5e-324, 0.3]]),
        dp.Instance([0.5, 0.5], [[0.9, 0.0], [0.5, 1e-310]]),
        dp.Instance([0.5, 0.5], [[0.9999, 0.01], [0.01, 0.9999]], 0.001),
    ],
)
def test_bounds_hold_for_nearly_endless_stays(instance):
    plan = dp.plan(instance, seconds=2)
    best = max(dp.evaluate(instance, dp.Fixed(a)).lower for a in range(instance.n_categories))
    assert best <= plan.upper
    assert plan.lower >= best * (1 - 1e-12)
    assert plan.verify()


def test_types_of_probability_zero_do_not_matter():
    with_one = dp.Instance([0.5, 0.5, 0], [[0.7, 0.2, 0.5], [0.2, 0.7, 0.5]], [[0.5, 0.5, 1e-14]] * 2)
    without = dp.Instance([0.5, 0.5], [[0.7, 0.2], [0.2, 0.7]], 0.5)
    plan, other = dp.plan(with_one), dp.plan(without)
    assert plan.gap <= 1e-6
    assert plan.lower <= other.upper
    assert other.lower <= plan.upper
    assert plan.verify()


def test_an_instance_without_clicks_is_planned():
    instance = dp.Instance([0.4, 0.6], [[0.0, 0.0], [0.0, 0.0]], 0.5)
    for method in ("auto", "search"):
        plan = dp.plan(instance, method=method)
        assert plan.lower == 0
        assert plan.upper < 1e-300
        assert plan.verify()
        plan.sensitivity(0.1)


def test_trials_at_a_belief_of_value_zero():
    problem = PlanningProblem(dp.Instance([0.5, 0.5], [[0.0, 0.6], [0.0, 0.3]], [[0.1, 0.3], [0.2, 0.1]]))
    search = Search(problem, Deadline(10))
    search.vectors.value[2:] = 1e3  # uninitialised memory may contain it
    search.run_trials(Deadline(10))
    assert search.lower <= problem.known_type_bound


def test_the_lower_bound_is_at_least_the_best_fixed_value():
    rng = np.random.default_rng(8)
    for seed in range(40):
        instance = dp.random_instance("uniform", 4, 4, seed=seed)
        plan = dp.plan(instance, gap=float(rng.uniform(0.05, 0.5)) * 5, method="search")
        best = max(dp.evaluate(instance, dp.Fixed(a)).lower for a in range(4))
        assert plan.lower >= best
        assert plan.verify()


def no_bounds(certificate):
    """Claim that everything is worthless: the corners by category, and a root that depends on them."""
    nodes, points = certificate.nodes, certificate.points
    points.q_upper[:3] = 0.0
    nodes.child[nodes.expanded[0]] = -1
    nodes.q_upper[nodes.expanded[0]] = 0.0
    nodes.upper[0] = 0.0


CHANGES = {
    "corners by category": no_bounds,
    "a point beyond the last": lambda c: c.nodes.cover.__setitem__((5, 0), len(c.points.value)),
    "a wrong mass": lambda c: c.nodes.mass.__setitem__(5, 1e-299),
    "a negative multiplier": lambda c: c.nodes.multiplier.__setitem__((slice(None), 0), -1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unjustified_claims_fail_verification(change):
    plan = dp.plan(magazine(), gap=1e-3)
    CHANGES[change](plan.certificate)
    assert not plan.verify()


def test_a_point_without_a_node_fails_verification():
    plan = dp.plan(magazine(), gap=1e-3)
    extra = type(plan.certificate.points)(*(np.concatenate([a, a[-1:]]) for a in plan.certificate.points))
    assert not replace(plan, certificate=replace(plan.certificate, points=extra)).verify()


def test_another_policy_fails_verification():
    for instance, other in (
        (magazine(), dp.Fixed(0)),
        (COUNTER, dp.Fixed(0)),
        (blog(), dp.Fixed(0)),
    ):
        plan = dp.plan(instance, gap=1e-4)
        value = dp.evaluate(instance, other)
        assert value.upper < plan.lower
        assert not replace(plan, policy=other).verify()
    masked = dp.plan(COUNTER, allowed=[0, 1])
    assert masked.verify()
    assert not replace(masked, policy=dp.Fixed(2)).verify()


def test_negative_clicks_fail_verification():
    plan = dp.plan(COUNTER)
    plan.certificate.reward[:] -= 1
    assert not plan.verify()
