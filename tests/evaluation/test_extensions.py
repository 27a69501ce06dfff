"""Evaluation with rewards, a horizon and segments: against fractions, brute force and the laws."""

from fractions import Fraction

import numpy as np
import pytest

import departing as dp
from departing.evaluation.bounds import Bounds
from departing.evaluation.continuation import continuation_values, value_within
from departing.evaluation.horizon import RemainingValues
from departing.evaluation.remaining import remaining_clicks
from helpers import exact
from helpers.users import Continued

DEVICES = dp.Segments(["mobile", "desktop"], share=[0.75, 0.25], prior=[[0.8, 0.2], [0.4, 0.6]])
SCHEDULES = [dp.Fixed(1), dp.Threshold(0, 3, 1), dp.Walk([0, 1, 1, 0, 0, 1], then=0), dp.Threshold(0, 0, 1)]


class Opaque:
    """A policy about which nothing is known but its recommendations."""

    def __init__(self, policy):
        self.policy = policy

    def recommend(self, counts):
        return self.policy.recommend(counts)


def site(**fields):
    fields = {"depart_on_click": 0.125, "reward": [1.0, 2.5], "unit": "euro"} | fields
    return dp.Instance([0.5, 0.5], [[0.75, 0.25], [0.25, 0.5]], 0.5, **fields)


@pytest.mark.parametrize("horizon", [None, 1, 2, 3, 6, 7, 40])
@pytest.mark.parametrize("policy", SCHEDULES)
@pytest.mark.parametrize("depart", [0.5, 1.0, [[0.5, 1.0], [0.25, 1.0]]])
def test_schedules_contain_the_exact_fraction(horizon, policy, depart):
    instance = site(horizon=horizon).replace(depart=depart)
    value = dp.evaluate(instance, policy)
    by_type = [exact.schedule_value(instance, policy, x) for x in range(2)]
    for bounds, fraction in zip(value.by_type, by_type, strict=True):
        assert Fraction(bounds.lower) <= fraction <= Fraction(bounds.upper)
    assert Fraction(value.lower) <= exact.total(instance, by_type) <= Fraction(value.upper)
    assert value.gap <= 1e-12 * value.upper
    graph = dp.evaluate(instance, Opaque(policy), gap=1e-8)
    assert graph.lower <= value.upper
    assert value.lower <= graph.upper


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_the_tree_of_all_histories_has_the_value_of_greedy(horizon):
    instance = site(horizon=horizon)
    policy = dp.Greedy(instance)
    lower, upper = exact.tree_value(instance, policy, horizon)
    assert lower == upper
    value = dp.evaluate(instance, policy)
    assert Fraction(value.lower) <= lower <= Fraction(value.upper)
    assert value.gap <= 1e-9
    opaque = dp.evaluate(instance, Opaque(policy))
    assert Fraction(opaque.lower) <= lower <= Fraction(opaque.upper)


def test_the_tree_of_all_histories_bounds_the_value_with_rewards():
    instance = site(depart_on_click=0.0)
    policy = dp.Greedy(instance)
    lower, upper = exact.tree_value(instance, policy, 7)
    value = dp.evaluate(instance, policy)
    assert lower <= Fraction(value.upper)
    assert Fraction(value.lower) <= upper


@pytest.mark.parametrize("max_nodes", [1, 2, 10, 100])
@pytest.mark.parametrize("horizon", [3, 12, 60])
def test_few_nodes_give_wider_bounds_that_contain_the_value(max_nodes, horizon):
    instance = dp.random_instance("uniform", 3, 3, seed=4, depart=0.3).replace(
        reward=[1.0, 5.0, 0.2], horizon=horizon
    )
    for policy in (dp.Greedy(instance), Opaque(dp.Greedy(instance)), dp.Greedy(instance.replace(horizon=None))):
        value = dp.evaluate(instance, policy, gap=1e-3, max_nodes=10**5)
        few = dp.evaluate(instance, policy, max_nodes=max_nodes)
        assert few.lower <= value.upper
        assert value.lower <= few.upper


def test_limits_within_a_horizon_are_those_of_the_best_and_worst_sequences():
    instance = site(horizon=5)
    remaining = RemainingValues(instance)
    for step in range(6):
        left = 5 - step
        values = [
            [exact.schedule_value(instance.replace(horizon=left), dp.Walk(walk, then=0), x) for x in range(2)]
            for walk in np.ndindex(*[2] * left)
            if left
        ] or [[Fraction(0)] * 2]
        worst, best = remaining.limits(step)
        for x in range(2):
            assert worst[x] == pytest.approx(float(min(row[x] for row in values)))
            assert best[x] == pytest.approx(float(max(row[x] for row in values)))
            assert Fraction(worst[x]) <= min(row[x] for row in values)
            assert Fraction(best[x]) >= max(row[x] for row in values)


@pytest.mark.parametrize("policy", [*SCHEDULES, dp.Greedy(site()), Opaque(dp.Greedy(site()))])
def test_a_large_horizon_converges_to_none(policy):
    instance = site()
    without = dp.evaluate(instance, policy, gap=1e-8)
    for horizon, error in ((10, 0.5), (40, 1e-2), (10**6, 1e-7)):
        value = dp.evaluate(instance.replace(horizon=horizon), policy, gap=1e-8)
        assert value.lower <= without.upper
        assert without.value - value.value <= error


def test_unit_rewards_and_one_segment_change_nothing():
    instance = dp.random_instance("uniform", 3, 2, seed=1, depart=0.4)
    same = instance.replace(reward=[1.0, 1.0], unit="clicks")
    one = instance.replace(prior=None, segments=dp.Segments(["all"], [1.0], [instance.prior]))
    for policy in (*SCHEDULES, dp.Greedy(instance)):
        value = dp.evaluate(instance, policy)
        assert dp.evaluate(same, policy).lower == value.lower
        segmented = dp.evaluate(one, policy)
        assert segmented.by_segment["all"].lower == value.lower
        assert segmented.value == pytest.approx(value.value, rel=1e-14)
        assert [each.value for each in segmented.by_type] == pytest.approx([each.value for each in value.by_type])


def test_equal_rewards_scale_the_value():
    instance = dp.random_instance("uniform", 3, 2, seed=2, depart=0.4)
    tripled = instance.replace(reward=[3.0, 3.0], unit="euro")
    for policy in (*SCHEDULES, dp.Greedy(instance)):
        assert dp.evaluate(tripled, policy).value == pytest.approx(3 * dp.evaluate(instance, policy).value, rel=1e-8)


def test_relabelling_changes_nothing():
    instance = site(horizon=9).replace(prior=None, segments=DEVICES)
    policy = dp.BySegment({"mobile": dp.Walk([0, 1], then=0), "desktop": dp.Greedy(instance)}, dp.Fixed(0))
    value = dp.evaluate(instance, policy)
    other = dp.evaluate(instance.relabel([1, 0], [1, 0]), policy.reorder([1, 0]))
    assert other.value == pytest.approx(value.value, rel=1e-9)
    assert [each.value for each in other.by_type[::-1]] == pytest.approx([each.value for each in value.by_type])


@pytest.mark.parametrize("horizon", [None, 4])
def test_segments_have_their_own_policy_and_prior(horizon):
    instance = site(horizon=horizon).replace(prior=None, segments=DEVICES)
    policy = dp.BySegment({"mobile": dp.Threshold(0, 3, 1)}, default=dp.Fixed(1))
    value = dp.evaluate(instance, policy)
    fractions = {
        "mobile": [exact.schedule_value(instance, dp.Threshold(0, 3, 1), x) for x in range(2)],
        "desktop": [exact.schedule_value(instance, dp.Fixed(1), x) for x in range(2)],
    }
    total = Fraction(0)
    for name, share in zip(DEVICES.names, DEVICES.share, strict=True):
        each = exact.total(instance.in_segment(name), fractions[name])
        part = value.by_segment[name]
        assert Fraction(part.lower) <= each <= Fraction(part.upper)
        total += Fraction(float(share)) * each
    assert Fraction(value.lower) <= total <= Fraction(value.upper)
    for x in range(2):
        joint = [Fraction(float(w)) for w in (DEVICES.share[:, None] * DEVICES.prior)[:, x]]
        mixed = sum(w * fractions[name][x] for w, name in zip(joint, DEVICES.names, strict=True)) / sum(joint)
        assert Fraction(value.by_type[x].lower) <= mixed <= Fraction(value.by_type[x].upper)
    parts = value.distribution, *(part.distribution for part in value.by_segment.values())
    for n in range(3):
        assert parts[0].returns[n] == pytest.approx(0.75 * parts[1].returns[n] + 0.25 * parts[2].returns[n])


@pytest.mark.parametrize("policy", [dp.Threshold(0, 3, 1), dp.Fixed(0), dp.Greedy(site()), Opaque(dp.Greedy(site()))])
@pytest.mark.parametrize("horizon", [1, 3, 8, 300])
def test_the_distribution_within_a_horizon_is_that_of_all_final_counts(policy, horizon):
    instance = site(horizon=horizon)
    value = dp.evaluate(instance, policy, gap=1e-9)
    distribution = value.distribution
    assert distribution.remaining <= 1e-9
    assert distribution.returns.sum() == pytest.approx(1, abs=1e-8)
    assert distribution.steps.sum() == pytest.approx(1, abs=1e-8)
    assert len(distribution.steps) <= horizon + 1
    assert distribution.survival[0] == pytest.approx(1)
    mean_steps = np.arange(len(distribution.steps)) @ distribution.steps
    assert distribution.survival.sum() == pytest.approx(mean_steps, abs=1e-6)
    if horizon > 8:
        return
    final = exact.final_counts(instance, policy, smallest=0.0, max_steps=horizon)
    returns, steps = np.zeros(horizon + 1), np.zeros(horizon + 1)
    for key, probability in final.items():
        counts = np.array(key).reshape(2, 4)
        returns[counts[:, 0].sum() + counts[:, 3].sum()] += probability
        steps[counts.sum()] += probability
    assert distribution.returns == pytest.approx(returns[: len(distribution.returns)], abs=1e-8)
    assert distribution.steps == pytest.approx(steps[: len(distribution.steps)], abs=1e-8)


@pytest.mark.parametrize("policy", [dp.Threshold(0, 3, 1), dp.Greedy(site()), Opaque(dp.Greedy(site()))])
def test_remaining_values_are_those_of_the_continued_policy_with_fewer_steps(policy):
    instance = site(horizon=8)
    counts = np.zeros((5, 2, 4), np.int64)
    counts[1, 0, 0], counts[2, 1, 1], counts[3, 0, :2], counts[4, 0, 0] = 2, 3, (3, 4), 8
    result = remaining_clicks(instance, policy, counts, gap=1e-9)
    for row, low, high in zip(counts, result.lower, result.upper, strict=True):
        left = 8 - int(row.sum())
        if not left:
            assert low == high == 0
            continue
        now = instance.replace(prior=dp.belief(instance, row), horizon=left)
        value = dp.evaluate(now, Continued(policy, row), gap=1e-9)
        assert low - 1e-9 <= value.upper
        assert value.lower <= high + 1e-9


@pytest.mark.parametrize("policy", [dp.Threshold(0, 3, 1), dp.Greedy(site())])
@pytest.mark.parametrize("horizon", [None, 6])
def test_continuation_values_start_with_the_value_of_the_policy(policy, horizon):
    instance = site(horizon=horizon)
    value = dp.evaluate(instance, policy)
    continuation = continuation_values(instance, policy, 10, 1e-9, 10**6)
    assert float(instance.prior @ continuation.levels[0].values[0]) == pytest.approx(value.value, abs=1e-7)
    assert continuation.gained.sum() == pytest.approx(value.value, abs=1e-7)
    for steps in (1, 4, 9):
        within = float(instance.prior @ value_within(instance, policy, steps, 1e-9, 10**6))
        shorter = instance.replace(horizon=steps if horizon is None else min(steps, horizon))
        assert within == pytest.approx(dp.evaluate(shorter, policy).value, abs=1e-7)
        assert continuation.gained[:steps].sum() == pytest.approx(within, abs=1e-7)


def test_the_data_frame_has_a_row_for_each_type_of_each_segment():
    value = dp.evaluate(site().replace(segments=DEVICES), "greedy")
    frame = value.to_frame()
    assert frame["segment"].tolist() == ["mobile", "mobile", "desktop", "desktop"]
    assert frame["share"].sum() == pytest.approx(1)
    assert (frame["share"] * frame["value"]).sum() == pytest.approx(value.value)
    assert frame["value"].tolist()[:2] == [each.value for each in value.by_segment["mobile"].by_type]
    assert "segment" not in dp.evaluate(site(), "greedy").to_frame()


def test_texts_name_the_unit_and_the_segments():
    value = dp.evaluate(site().replace(prior=None, segments=DEVICES), dp.Fixed(0))
    assert value.describe() == f"Expected reward of {value.value:.6g} euro per user."
    assert value.unit == "euro"
    assert "Expected euro per user" in value.summary()
    assert "segment mobile (0.75 of users)" in value.summary()
    assert "euro per user" in value._repr_html_()
    assert isinstance(value.by_segment["mobile"], Bounds)
