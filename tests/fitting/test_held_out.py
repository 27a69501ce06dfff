"""Cross-fitting and the trend of shares: counts by half and arrival, forecasts by the other half, p-values."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import departing as dp
from departing.fitting import held_out
from departing.fitting.forecast_cells import TIME_BINS, ForecastSums, half_of
from departing.fitting.held_out import arrivals, compact, cross_fit
from departing.fitting.share_trend import share_trend
from helpers.episodes import SITE, episodes_of


def part_of(log, chosen=None):
    part = episodes_of(log)
    chosen = np.ones(len(part.user), bool) if chosen is None else chosen(part.user)
    return select(part, chosen)


def select(part, chosen):
    """Steps of an episode without segments."""
    arrays = {name: values[chosen] for name, values in vars(part).items() if name not in ("segment", "reward")}
    return SimpleNamespace(**arrays, segment=None)


def test_halves_are_balanced_whatever_the_pattern_of_numbers():
    for step in (1, 2, 3, 4, 10, 1000):
        share = half_of(np.arange(0, 10_000 * step, step)).mean()
        assert 0.45 < share < 0.55


@pytest.mark.parametrize("batch", [2**24, 50])
def test_counts_by_half_and_arrival_agree_with_a_plain_loop(batch, monkeypatch):
    monkeypatch.setattr(held_out, "BATCH_COUNTS", batch)
    log = dp.sample_log(SITE, users=300, seed=1, days=30)
    fit, part = dp.fit(log.histories, types=2), episodes_of(log)
    part.pending = np.random.default_rng(1).random(len(part.user)) < 0.2
    expected = [{}, {}]
    for user in np.unique(part.user):
        own = part.user == user
        counts = np.zeros((2, 4), int)
        for category, outcome, pending in zip(part.category[own], part.outcome[own], part.pending[own], strict=True):
            counts[category, outcome] += not pending
        if counts.any():
            bins = expected[int(half_of(np.array([user]))[0])].setdefault(counts.tobytes(), np.zeros(TIME_BINS, int))
            bins[min(int(part.time[own][0] * TIME_BINS), TIME_BINS - 1)] += 1
    two = [select(part, chosen) for chosen in (part.user < 100, part.user >= 100)]
    for half, theirs in zip(arrivals(fit.likelihood, two), expected, strict=True):
        likelihood, users = half.likelihood, half.arrivals
        assert likelihood.users.tolist() == users.sum(axis=1).tolist()
        assert sorted(users.tolist()) == sorted(bins.tolist() for bins in theirs.values())
        assert likelihood.n_parameters == fit.likelihood.n_parameters


def test_long_histories_are_counted_without_overflow():
    """One user has 200 clicks and 100 stays: each count fits in a byte, their sum does not."""
    outcome = np.array([0] * 200 + [1] * 100 + [2])
    part = SimpleNamespace(
        user=np.zeros(301, int),
        category=np.zeros(301, int),
        outcome=outcome,
        pending=np.zeros(301, bool),
        time=np.linspace(0, 1, 301),
        segment=None,
    )
    nobody = select(part, slice(0))
    fit = dp.fit(dp.sample_log(SITE, users=300, seed=1, days=30).histories, types=1)
    halves = arrivals(fit.likelihood, [nobody, part])
    (own,) = (half.likelihood for half in halves if len(half.arrivals))
    assert own.trials[0, 0] == 301
    assert own.successes[0, 0] == 200


def test_compact_steps_are_the_same_steps():
    log = dp.read_log(dp.sample_log(SITE, users=200, seed=1, days=30).to_frame(), inactive_after="5 days")
    (part,) = log.episodes()
    small = compact(part)
    for name in ("user", "category", "outcome", "pending"):
        assert (getattr(small, name) == getattr(part, name)).all()
    assert small.time == pytest.approx(part.time, abs=1e-6)


def test_each_half_is_forecast_by_the_fit_to_the_other():
    log = dp.sample_log(SITE, users=4000, seed=1, days=30)
    fit, part = dp.fit(log.histories, types=2), part_of(log)
    logits, _ = cross_fit(arrivals(fit.likelihood, [part]), fit.logits, fit.pseudocount, None)
    instances = [dp.Instance(**vars(fit.likelihood.from_logits(own))) for own in logits]
    both, single = ForecastSums(instances, 4000, True), []
    both.add(part)
    for half, instance in enumerate(instances):
        mine = part_of(log, lambda user, half=half: half_of(user) == half)
        (other,) = (own.likelihood for h, own in enumerate(arrivals(fit.likelihood, [part])) if h != half)
        assert (
            abs(other.derivatives(logits[half][None], fit.pseudocount)[1]).max() < 0.1
        )  # a maximum of the other half
        single.append(ForecastSums([instance], 4000, True))
        single[-1].add(mine)
    np.testing.assert_allclose(both.sums, single[0].sums + single[1].sums, rtol=1e-9)
    np.testing.assert_allclose(both.slopes, single[0].slopes + single[1].slopes, rtol=1e-9, atol=1e-9)


def held_out_p_value(fit, part):
    halves = arrivals(fit.likelihood, [part])
    logits, _ = cross_fit(halves, fit.logits, fit.pseudocount, None)
    groups = [(half.likelihood, half.arrivals, own, None) for half, own in zip(halves, logits, strict=True)]
    return share_trend(fit.instance, groups, fit.covariance).p_value


def test_p_values_of_the_trend_of_shares_are_uniform_for_the_right_model():
    p_values = []
    for seed in range(60):
        log = dp.sample_log(SITE, users=2000, seed=seed, days=40)
        p_values.append(held_out_p_value(dp.fit(log.histories, types=2, n_init=1), part_of(log)))
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_one_type_or_one_time_has_no_trend_of_shares():
    log = dp.sample_log(SITE, users=500, seed=1, days=30)
    part = part_of(log)
    one = dp.fit(log.histories, types=1)
    halves = [(half.likelihood, half.arrivals, one.logits, None) for half in arrivals(one.likelihood, [part])]
    assert share_trend(one.instance, halves, one.covariance) is None
    two, part.time = dp.fit(log.histories, types=2), np.zeros(len(part.user))
    halves = [(half.likelihood, half.arrivals, two.logits, None) for half in arrivals(two.likelihood, [part])]
    assert share_trend(two.instance, halves, two.covariance) is None


def test_the_check_of_a_small_log_is_in_sample():
    frame = dp.sample_log(SITE, users=300, seed=1, days=60).to_frame()
    fit = dp.fit(dp.read_log(frame, inactive_after="10 days"), types=2)
    assert not fit.check().held_out
    assert fit.check(held_out=True).held_out
    assert fit.check(held_out=True).cells("step") != fit.check().cells("step")
