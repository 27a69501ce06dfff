"""The traversal of the count graph against a dictionary of histories."""

import numpy as np
import pytest

import departing as dp
from departing.evaluation.traversal import first_level, traverse
from departing.learning.last_outcome import LastOutcomePolicy
from departing.model.counts import steps
from departing.model.examples import blog, magazine
from departing.policy.protocol import recommended
from departing.simulation.last_outcome import first_last_outcome_level

SURE = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.6]], depart=1.0)
CASES = [
    (blog(), dp.Greedy(blog())),
    (magazine(), dp.Greedy(magazine())),
    (magazine(), dp.Walk([0, 2, 1], then=0)),
    (SURE, dp.Greedy(SURE)),
    (dp.random_instance("uniform", 3, 2, seed=1, depart=0.4), dp.Threshold(0, 3, 1)),
]


def slow_levels(instance, policy, n_steps):
    """Weights by counts after every step: one history after the other, merged in a dictionary."""
    level = {np.zeros((instance.n_categories, 4), np.int64).tobytes(): instance.prior.copy()}
    for _ in range(n_steps):
        yield level
        following = {}
        for key, weights in level.items():
            counts = np.frombuffer(key, np.int64).reshape(instance.n_categories, 4)
            category = int(policy.recommend(counts))
            for outcome in range(2):
                probabilities = instance.outcome_probabilities[category, outcome]
                if probabilities.any():
                    after = counts.copy()
                    after[category, outcome] += 1
                    total = following.get(after.tobytes(), np.zeros(instance.n_types))
                    following[after.tobytes()] = total + weights * probabilities
        level = following


@pytest.mark.parametrize(("instance", "policy"), CASES)
def test_levels_have_the_counts_and_weights_of_all_histories(instance, policy):
    levels = traverse(first_level(instance, policy, instance.prior))
    for step, (expected, level) in enumerate(zip(slow_levels(instance, policy, 7), levels, strict=False)):
        assert level.step == step
        assert (steps(level.counts) == step).all()
        assert len(level) == len(expected)
        for counts, weights in zip(level.counts, level.weights, strict=True):
            assert weights == pytest.approx(expected[counts.tobytes()], rel=1e-12)
        assert (level.categories == recommended(policy, level.counts)).all()


@pytest.mark.parametrize(("instance", "policy"), CASES)
def test_children_are_the_counts_after_a_click_and_after_a_stay(instance, policy):
    for level in traverse(first_level(instance, policy, instance.prior)):
        if level.step == 6:
            break
        for row, category in enumerate(level.categories):
            for outcome in range(2):
                child = level.child[row, outcome]
                reachable = instance.outcome_probabilities[category, outcome].any()
                assert (child >= 0) == reachable
                if reachable:
                    after = level.counts[row].copy()
                    after[category, outcome] += 1
                    assert (level.next.counts[child] == after).all()


def test_dropped_rows_are_not_followed():
    instance = magazine()
    level = first_level(instance, dp.Greedy(instance), instance.prior).next.next
    assert len(level) > 2
    first = np.arange(len(level)) == 0
    bounds, categories, counts = level.switch_bounds[first], level.categories[first], level.counts[first]
    level.keep(first)
    assert (level.switch_bounds == bounds).all()
    assert (level.categories == categories).all()
    assert (level.counts == counts).all()
    assert level.child.shape == (1, 2)
    assert len(level.next) == 2
    level.next.keep(np.zeros(2, bool))
    assert [len(seen) for seen in traverse(level)] == [1]


def test_flows_replace_the_probabilities_of_outcomes():
    instance = magazine()
    level = first_level(instance, dp.Fixed(0), np.array([10, 20, 30])[: instance.n_types])
    level.flows = np.stack([level.weights // 2, level.weights // 5], axis=1)
    assert level.next.weights.tolist() == [(level.weights[0] // 2).tolist(), (level.weights[0] // 5).tolist()]
    assert level.next.weights.dtype == np.int64


def test_a_traversal_ends_where_nobody_goes_on():
    certain = dp.Instance([1.0], [[0.0]], depart=1.0)
    assert [level.step for level in traverse(first_level(certain, dp.Fixed(0), certain.prior))] == [0]


def test_users_after_a_click_and_after_a_stay_are_apart_if_the_rule_depends_on_it():
    instance = magazine()
    level = first_last_outcome_level(instance, LastOutcomePolicy(0, 1), np.full(instance.n_types, 8))
    for _ in range(3):
        level.flows = np.stack([level.weights // 2, level.weights // 4], axis=1)
        following = level.next
        assert int(following.weights.sum()) == int(level.flows.sum())
        clicked = following.categories == 0
        assert (np.diff(clicked.astype(int)) <= 0).all()  # those who clicked come first
        level = following
