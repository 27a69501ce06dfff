"""Differences pooled over strata, and the sequential test of the sample ratio."""

import numpy as np
import pytest

from departing.abtest.sequence import confidence_sequence
from departing.abtest.stratified import add_outcome, new_sums, sample_ratio_p_value, stratified_difference

SHARES = {"treatment": 0.2, "control": 0.7, "holdout": 0.1}


def sums_of(treated, outcomes):
    sums = new_sums()
    for is_treated, outcome in zip(treated, outcomes, strict=True):
        add_outcome(sums, bool(is_treated), float(outcome))
    return sums


def test_one_stratum_is_the_confidence_sequence_of_an_ab_test():
    rng = np.random.default_rng(1)
    treated, clicks = rng.random(4000) < 0.2, rng.geometric(0.4, 4000) - 1.0
    found = stratified_difference([sums_of(treated, clicks)])
    assert found.users == 4000
    assert found.means == pytest.approx((clicks[~treated].mean(), clicks[treated].mean()))
    sequence = confidence_sequence(clicks, treated, np.array([4000]), 10_000, 0.05)
    assert found.interval(10_000, 0.05) == pytest.approx(sequence.final, rel=1e-9)


def test_a_ramp_while_users_change_does_not_look_like_an_effect():
    """Users click more and more while the share grows: the arms differ overall, and in no stage (Simpson)."""
    rng = np.random.default_rng(2)
    strata, parts = [], []
    for share, rate in ((0.1, 0.2), (0.5, 0.5), (0.9, 0.8)):
        treated, clicks = rng.random(3000) < share, rng.poisson(5 * rate, 3000)
        strata.append(sums_of(treated, clicks))
        parts.append((treated, clicks))
    treated, clicks = (np.concatenate(each) for each in zip(*parts, strict=True))
    lower, upper = stratified_difference([sums_of(treated, clicks)]).interval(10_000, 0.01)
    assert lower > 0.5
    found = stratified_difference(strata)
    lower, upper = found.interval(10_000, 0.05)
    assert lower < 0 < upper
    assert upper - lower < 0.5
    assert abs(found.difference / found.error) < 4


def test_strata_with_fewer_than_100_users_in_an_arm_do_not_count():
    rng = np.random.default_rng(3)
    large = sums_of(np.arange(400) < 200, rng.poisson(2, 400))
    small = sums_of(np.arange(400) < 99, rng.poisson(9, 400))
    assert stratified_difference([small]) is None
    assert stratified_difference([]) is None
    assert stratified_difference([large, small]) == stratified_difference([large])


def test_equal_outcomes_do_not_give_an_interval_of_length_0():
    lower, upper = stratified_difference([sums_of(np.arange(300) < 150, np.zeros(300))]).interval(10_000, 0.05)
    assert lower == -upper
    assert upper > 0.01


def test_the_sample_ratio_test_is_valid_at_all_looks_and_finds_mismatches():
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(300):
        arms = rng.choice(3, 3000, p=[0.2, 0.7, 0.1])
        counts = np.stack([np.cumsum(arms == i) for i in range(3)], 1)[49::50]
        rows = [dict(zip(SHARES, row, strict=True)) for row in counts.tolist()]
        alarms += any(sample_ratio_p_value([row], [SHARES]) < 0.05 for row in rows)
    assert alarms <= 0.05 * 300
    lost = {"treatment": 1500, "control": 7000, "holdout": 1000}  # a quarter of the treatment is missing
    assert sample_ratio_p_value([lost], [SHARES]) < 1e-6
    half = {"treatment": 5000, "control": 5000}
    periods = [{"treatment": 0.1, "control": 0.9}, {"treatment": 0.9, "control": 0.1}]
    counts = [{"treatment": 500, "control": 4500}, {"treatment": 4500, "control": 500}]
    assert sample_ratio_p_value(counts, periods) == 1.0
    assert sample_ratio_p_value([half], periods[:1]) == 0.0 or sample_ratio_p_value([half], periods[:1]) < 1e-100
    assert sample_ratio_p_value([{"holdout": 1}], [{"treatment": 0.5, "control": 0.5, "holdout": 0.0}]) == 0.0
