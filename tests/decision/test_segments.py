"""Decisions from fits with segments: for each segment and for all users."""

import numpy as np
import pytest

import departing as dp
from departing.cli.tables.fit import decision_values
from departing.decision.decision import IGNORING
from departing.policy.starts import describe_starts, group_starts


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


def test_the_mix_over_segments_is_not_shown_as_uncertainty(decision):
    """Each segment is certain of its first category, so no text says that it is certain for 60% only."""
    assert [(each.category, each.segments) for each in decision.starts] == [("news", ("a",)), ("film", ("b",))]
    assert decision.first_probability > 0.95
    assert "start with news in a (59% of users), film in b (41%)" in decision.describe()
    assert "optimal: news in a 100%, film in b 100%." in decision.summary()
    assert "first film (100%)" in decision.summary()
    assert "unknown segment" in decision.summary()
    values = decision_values(decision)["by_segment"]
    assert values["b"]["first"][0]["category"] == "film"
    labels = [text.get_text() for text in decision.plot().axes[0].get_yticklabels()]
    assert labels == ["a: news", "b: film"]


def test_the_policy_that_ignores_segments_is_compared(site, decision):
    ignoring = next(each for each in decision.values if each.name == IGNORING)
    common = dp.plan(site.replace(segments=None), gap=1e-3).policy
    assert ignoring.value == pytest.approx(dp.evaluate(site, common).value, rel=0.05)
    gain = next(each for each in decision.gains if each.name == IGNORING)
    assert gain.lower > 0
    assert gain.value == pytest.approx(decision.value.value - ignoring.value)


def test_segments_with_a_common_value_share_a_label():
    first = {
        "de/mobile": "art",
        "de/tv": "news",
        "fr/mobile": "news",
        "fr/tv": "news",
        "it/tv": "film",
        "it/pc": "toys",
    }
    starts = group_starts(first, [0.3, 0.2, 0.1, 0.1, 0.297, 0.003])
    assert [each.labels for each in starts] == [("fr/*", "de/tv"), ("de/mobile",), ("it/tv",), ("it/pc",)]
    text = "news in fr/*, de/tv (40% of users), art in de/mobile (30%), film in it/tv (30%), "
    assert describe_starts(starts) == text + "other categories in 1 other segment"
    assert describe_starts(group_starts({"de": "art", "fr": "art"}, [0.5, 0.5])) == "art"


def test_segments_with_equal_policies_are_described_as_one(site):
    equal = site.replace(prior=None, segments=dp.Segments(["a", "b"], [0.6, 0.4], [[0.6, 0.4]] * 2))
    decision = dp.plan(dp.fit(dp.sample_log(equal, users=2000, seed=1).histories, types=1), bootstrap=20)
    assert decision.describe_policy() == "always news"
