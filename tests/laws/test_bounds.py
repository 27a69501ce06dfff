"""Bounds contain the exact value, rounding included."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.policy.belief_policy import switch_exponents
from helpers.exact import schedule_value, total, tree_value
from helpers.strategies import ORDINARY, Opaque, instances, schedules


def contains(bounds, value):
    return value in dp.Bounds(Fraction(bounds.lower), Fraction(bounds.upper))


@given(st.data())
def test_the_closed_form_bounds_the_exact_fraction(data):
    instance = data.draw(instances())
    policy = data.draw(schedules(instance.n_categories))
    found = dp.evaluate(instance, policy)
    exact = [schedule_value(instance, policy, x) for x in range(instance.n_types)]
    assert all(contains(bounds, value) for bounds, value in zip(found.by_type, exact, strict=True))
    assert contains(found, total(instance, exact))
    assert found.gap <= 1e-11 * max(found.upper, 1e-300)


@settings(max_examples=25)
@given(st.data())
def test_the_forward_pass_bounds_the_exact_fraction_of_a_schedule(data):
    instance = data.draw(instances(ORDINARY, most=3))
    policy = data.draw(schedules(instance.n_categories))
    found = dp.evaluate(instance, Opaque(policy), gap=1e-7)
    exact = [schedule_value(instance, policy, x) for x in range(instance.n_types)]
    assert contains(found, total(instance, exact))
    assert all(contains(bounds, value) for bounds, value in zip(found.by_type, exact, strict=True))
    assert found.gap <= 1e-7 * 1.001 + 1e-11 * found.upper  # rounding grows with the value


@settings(max_examples=25)
@given(st.data())
def test_greedy_agrees_with_the_tree_of_histories(data):
    instance = data.draw(instances(ORDINARY, most=3))
    policy = dp.Greedy(instance)
    found = dp.evaluate(instance, policy, gap=1e-6)
    lower, upper = tree_value(instance, policy, depth=6)
    assert Fraction(found.lower) <= upper
    assert Fraction(found.upper) >= lower


@pytest.mark.parametrize("seed", range(8))
def test_switch_bounds_do_not_change_the_value_of_greedy(seed):
    instance = dp.random_instance("uniform", types=3, categories=3, seed=seed)
    told = dp.evaluate(instance, dp.Greedy(instance), gap=1e-7)
    untold = dp.evaluate(instance, Opaque(dp.Greedy(instance)), gap=1e-4, max_nodes=10**6)
    assert untold.lower <= told.upper
    assert told.lower <= untold.upper
    assert told.gap <= 1.001e-7


def perturbed(instance, seed):
    """An instance of other users: every probability and share is moved by up to 0.05, or to 0 or 1."""
    rng = np.random.default_rng(seed)
    click, depart = (np.clip(p + rng.uniform(-0.05, 0.05, p.shape), 0, 1) for p in (instance.click, instance.depart))
    prior = instance.prior + rng.uniform(0, 0.05, instance.n_types)
    return dp.Instance(prior / prior.sum(), click, np.maximum(depart, 0.05))


def policies(instance):
    return dp.Greedy(instance), dp.Alpha(instance, instance.fixed_values, range(instance.n_categories))


@pytest.mark.parametrize("seed", range(8))
def test_switch_bounds_do_not_change_the_value_under_another_instance(seed):
    instance = dp.random_instance("uniform", types=3, categories=3, seed=seed, depart=0.4)
    other = perturbed(instance, seed)
    for policy in policies(instance):
        bounded = dp.evaluate(other, policy, gap=1e-6)
        unbounded = dp.evaluate(other, Opaque(policy), gap=1e-4, max_nodes=10**6)
        assert unbounded.lower <= bounded.upper
        assert bounded.lower <= unbounded.upper
        assert bounded.gap <= 1.001e-6


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_switch_bounds_hold(seed, same):
    instance = dp.random_instance("specialists", types=3, categories=3, seed=seed, depart=0.3)
    users = instance if same else perturbed(instance, seed)
    rng, tested = np.random.default_rng(seed), 0
    start = np.zeros((1, 3, 4), np.int64)
    for policy in policies(instance):
        start[:] = 0
        start[0, int(policy.recommend(start[0])), 0] = 6
        bound = policy.switch_probability_bounds(start, users)[0]
        for x in np.flatnonzero(bound < 0.8):
            assert switching_rate(users, policy, start, x, rng) <= bound[x] + 4 * np.sqrt(0.25 / 3000)
            tested += 1
    assert tested


def switching_rate(instance, policy, start, x, rng, n=3000):
    """Share of simulated users of type x with the counts `start` who are ever shown another category."""
    first, changed = int(policy.recommend(start[0])), 0
    counts, here = np.repeat(start, n, axis=0), np.ones(n, bool)
    while here.any():
        rows = np.flatnonzero(here)
        shown = policy.recommend(counts[rows])
        changed += int((shown != first).sum())
        here[rows[shown != first]] = False
        rows, shown = rows[shown == first], shown[shown == first]
        outcome = (rng.random(len(rows))[:, None] >= instance.outcome_probabilities[first, :3, x].cumsum()).sum(
            axis=1
        )
        counts[rows, shown, outcome] += 1
        here[rows[outcome >= 2]] = False
    return changed / n


def test_switch_exponents_are_one_for_the_same_instance_and_zero_for_impossible_outcomes():
    instance = dp.random_instance("uniform", types=3, categories=2, seed=1)
    own = switch_exponents(instance, instance)
    assert (own[:, range(3), :, range(3)] == 1).all()
    assert ((own >= 0) & (own <= 1)).all()
    sure = dp.Instance([0.5, 0.5], [[0.0, 0.2], [0.3, 0.4]], 0.5)
    other = switch_exponents(sure, dp.Instance([1.0], [[0.9], [0.5]], 0.5))
    assert (other[0, 0] == 0).all()
    p, q, s = sure.outcome_probabilities[1], [0.5, 0.25], other[1, 0, 1, 0]
    mean = [sum(weight * (p[o, 1] / p[o, 0]) ** t for o, weight in enumerate(q)) for t in (s, s + 2**-11)]
    assert mean[0] <= 1
    assert s == 1 or mean[1] > 1


@pytest.mark.slow
def test_few_nodes_give_wide_but_valid_bounds():
    instance = dp.random_instance("sticky", types=3, categories=3, seed=1)
    policy = Opaque(dp.Greedy(instance))
    wide = dp.evaluate(instance, policy, max_nodes=100)
    narrow = dp.evaluate(instance, dp.Greedy(instance), gap=1e-3)
    assert wide.gap > 1e-3
    assert wide.lower <= narrow.upper
    assert narrow.lower <= wide.upper


@settings(max_examples=20)
@given(st.data())
def test_the_distribution_has_the_value_as_its_mean(data):
    instance = data.draw(instances(ORDINARY, most=3))
    policy = data.draw(st.sampled_from([dp.Fixed(0), dp.Greedy(instance), Opaque(dp.Walk([0], then=0))]))
    found = dp.evaluate(instance, policy, gap=1e-7)
    seen = found.distribution
    assert seen.remaining <= 1e-7
    for probabilities in (seen.returns, seen.steps):
        assert 1 - seen.remaining - 1e-9 <= probabilities.sum() <= 1 + 1e-9
    assert seen.returns @ np.arange(len(seen.returns)) == pytest.approx(found.value, rel=1e-3)
    assert (np.diff(seen.survival) <= 1e-12).all()
    assert seen.survival[0] == pytest.approx(1)
    assert seen.steps @ np.arange(len(seen.steps)) == pytest.approx(seen.survival[:-1].sum(), rel=1e-3)
    np.testing.assert_allclose(seen.returns_by_type.sum(axis=0), instance.prior, atol=1e-6)


@pytest.mark.parametrize(
    ("click", "depart", "last", "steps"),
    [
        ([[0.0], [0.5]], [[0.5], [1.0]], 0.0, 1080),
        ([[0.0], [1.0]], [[0.3], [1.0]], [[0.0], [1e-300]], 2060),
        ([[0.0], [0.52]], [[1 - 1e-16], [3.7e-69]], 0.0, 21),
    ],
)
def test_bounds_contain_values_too_small_for_a_double(click, depart, last, steps):
    instance = dp.Instance([1.0], click, depart, last)
    policy = dp.Threshold(first=0, steps=steps, then=1)
    assert contains(dp.evaluate(instance, policy), schedule_value(instance, policy, 0))


def test_a_prior_that_sums_to_almost_one_is_normalised():
    instance = dp.Instance([0.5, 0.5 + 9e-10], [[0.999999, 0.999999]])
    found = dp.evaluate(instance, dp.Fixed(0))
    exact = Fraction(0.999999) / (1 - Fraction(0.999999))
    assert contains(found, exact)


def test_a_gap_of_zero_uses_all_nodes():
    found = dp.evaluate(dp.random_instance("uniform", 2, 2, seed=1), Opaque(dp.Fixed(0)), gap=0, max_nodes=5000)
    assert 0 < found.gap < 1e-3


def test_bounds_hold_for_the_smallest_numbers():
    smallest = 5e-324
    instance = dp.Instance([0.5, 0.5], [[3 * smallest, 3 * smallest]], depart=1.0)
    for policy in (dp.Fixed(0), dp.Greedy(instance)):
        assert contains(dp.evaluate(instance, policy), schedule_value(instance, dp.Fixed(0), 0))
