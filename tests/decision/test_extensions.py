"""Decisions from fits with rewards and segments."""

import numpy as np
import pytest

import departing as dp
from departing.decision.stack import Stack
from departing.policy.schedule import Threshold

CLICK = [[0.8, 0.3], [0.3, 0.7]]
SITE = dp.Instance([0.6, 0.4], CLICK, 0.6, 0.05, categories=["arts", "film"], reward=[1.0, 3.0], unit="euro")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "events.parquet"
    dp.sample_log(SITE, users=3000, seed=1).save(path)
    return dp.read_log(path, inactive_after="14 days", reward="reward", unit="euro")


def test_a_stack_has_the_rewards_of_its_members():
    others = [SITE, SITE.replace(reward=[2.0, 0.5]), SITE.replace(click=[[0.5, 0.4], [0.2, 0.6]])]
    policy = Threshold(0, 2, 1)
    values = Stack.of(others).values(policy)
    assert values == pytest.approx([dp.evaluate(each, policy).value for each in others], rel=1e-9)
    assert Stack.of(others).fixed_values == pytest.approx(
        np.array([each.fixed_values @ each.prior for each in others]).T
    )


def test_values_of_a_decision_are_rewards(log):
    model = dp.fit(log, types=2)
    assert model.instance.reward == pytest.approx(SITE.reward, rel=0.1)
    decision = dp.plan(model, bootstrap=20)
    true = dp.evaluate(SITE, decision.policy).value
    assert decision.value.lower * 0.95 < true < decision.value.upper * 1.05
    assert decision.unit == "euro"
    assert "euro per user (95% interval" in decision.describe()
    assert "clicks per user" not in decision.summary()
    own = model.instance.reward
    plain = dp.Histories(log.counts, log.multiplicity, pending=log.pending, categories=log.categories)
    clicks = dp.plan(dp.fit(plain, types=2), bootstrap=20)
    assert clicks.unit == "clicks"
    today = {each.name: each.value for each in decision.values}["policy of the log"]
    as_clicks = {each.name: each.value for each in clicks.values}["policy of the log"]
    assert own.min() * as_clicks < today < own.max() * as_clicks


def test_a_decision_from_a_log_with_segments_has_bounds_for_each_and_for_unknown_ones(tmp_path):
    segments = dp.Segments(["de", "fr"], [0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]], columns=["country"])
    site = dp.Instance(None, CLICK, 0.6, 0.05, categories=["arts", "film"], segments=segments)
    dp.sample_log(site, users=3000, seed=2).save(tmp_path / "events.parquet")
    log = dp.read_log(tmp_path / "events.parquet", inactive_after="14 days", segment="country")
    model = dp.fit(log, types=2)
    decision = dp.plan(model, bootstrap=20)
    plain = model.instance.in_segment(None)
    assert decision.plan.common.value == pytest.approx(dp.plan(plain, 1e-4 * plain.best_fixed[1]).value, rel=1e-3)
    assert decision.value.lower < dp.evaluate(model.instance, decision.policy).value < decision.value.upper
