"""Decisions from fits with segments: for each segment and for all users."""

import numpy as np
import pytest

import departing as dp


@pytest.fixture(scope="module")
def site():
    segments = dp.Segments(["a", "b"], [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], columns=["country"])
    return dp.Instance(None, [[0.8, 0.3], [0.3, 0.7]], 0.7, segments=segments, categories=["news", "film"])


@pytest.fixture(scope="module")
def decision(site):
    return dp.plan(dp.fit(dp.sample_log(site, users=4000, seed=1).histories, types=2), bootstrap=20)


def test_each_segment_gets_its_policy(site, decision):
    first = [int(decision.policy.in_segment(name).recommend(np.zeros((2, 4), int))) for name in ("a", "b")]
    assert first == [0, 1]
    assert list(decision.by_segment) == ["a", "b"]
    for name, each in decision.by_segment.items():
        assert decision.policy.in_segment(name) == each.policy
    assert dp.evaluate(site, decision.policy).value == pytest.approx(dp.plan(site, gap=1e-3).value, rel=0.02)


def test_values_of_all_users_are_the_means_by_share(site, decision):
    shares = decision.fit.instance.segments.share
    parts = [each.candidates[0].value for each in decision.by_segment.values()]
    assert decision.candidates[0].value == pytest.approx(shares @ parts, rel=1e-12)
    loss = shares @ [each.expected_loss for each in decision.by_segment.values()]
    assert decision.expected_loss == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert decision.value.lower <= decision.value.value <= decision.value.upper
    assert sum(each.probability for each in decision.first) == pytest.approx(1.0)


def test_the_plan_has_bounds_by_segment_and_texts_name_the_segments(decision, tmp_path):
    assert decision.plan.verify()
    assert set(decision.plan.by_segment) == {"a", "b"}
    assert "By segment:" in decision.summary()
    decision.save(tmp_path / "policy.json")
    assert dp.load_policy(tmp_path / "policy.json").in_segment("b") == decision.policy.in_segment("b")
