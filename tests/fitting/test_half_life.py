"""Fits with a half-life, and with rewards."""

import numpy as np
import pytest

import departing as dp
from departing.fitting.fit_rows import FitRows

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.5], [0.6, 0.3]], categories=["film", "news"])


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("half_life") / "log.parquet"
    dp.sample_log(SITE, users=3000, seed=1, days=90).save(path)
    return dp.read_log(path, inactive_after="14 days")


def test_an_infinite_half_life_equals_none_to_the_bit(log):
    none, infinite = dp.fit(log, types=[1, 2]), dp.fit(log, types=[1, 2], half_life=np.inf)
    np.testing.assert_array_equal(none.logits, infinite.logits)
    np.testing.assert_array_equal(none.robust_covariance, infinite.robust_covariance)
    assert [row.held_out for row in none.criteria] == [row.held_out for row in infinite.criteria]
    assert infinite.half_life is None


def test_a_half_life_lowers_the_effective_users_and_widens_the_errors(log):
    none, fit = dp.fit(log, types=2), dp.fit(log, types=2, half_life="15 days")
    assert fit.effective_users == pytest.approx(log.weighted("15 days").effective_users)
    assert fit.effective_users < 0.7 * none.effective_users
    ratio = fit.stderr.click / none.stderr.click
    assert np.median(ratio) == pytest.approx(np.sqrt(3000 / fit.effective_users), rel=0.25)
    assert any("Older users count less: 3,000 users are worth" in warning for warning in fit.warnings)
    assert "are worth" in fit.summary()
    assert fit.check().fits


def test_weights_are_scaled_to_the_effective_users(log):
    weighted = log.weighted("20 days")
    rows = FitRows.of(weighted, (np.arange(2), np.zeros(0, np.int64)))
    confirmed = weighted.confirmed.effective_users
    assert rows.likelihood.users.sum() == pytest.approx(confirmed)
    assert rows.likelihood.squares.sum() == pytest.approx(confirmed)


def test_estimates_of_weighted_users_agree_with_copies_of_them():
    """Integer weights are as good as that many copies, but for the scale of the pseudocounts."""
    data = dp.sample_log(SITE, users=2000, seed=2, days=60).histories.confirmed
    times = np.random.default_rng(1).integers(1, 4, len(data))
    weighted = dp.Histories(data.counts, data.multiplicity, weight=times * data.multiplicity)
    copies = dp.Histories(data.counts, data.multiplicity * times)
    ours = dp.fit(weighted, types=2, pseudocount=1e-6).instance
    theirs = dp.fit(copies, types=2, pseudocount=1e-6).instance
    np.testing.assert_allclose(ours.click, theirs.click, atol=1e-4)


def test_a_half_life_needs_times(log):
    with pytest.raises(dp.InputError, match="half_life needs the times of a log"):
        dp.fit(dp.sample_log(SITE, users=100, seed=1).histories, types=1, half_life="3 days")
    with pytest.raises(dp.InputError, match="half_life"):
        dp.fit(log, types=1, half_life="soon")


def test_recent_users_determine_the_estimate(tmp_path):
    """The click probabilities of the later half of the users are found, not the mean of both."""
    later = SITE.replace(click=[[0.5, 0.3], [0.6, 0.7]])
    import pandas as pd

    frames = []
    for i, site in enumerate((SITE, later)):
        frame = dp.sample_log(site, users=4000, seed=i, days=60).to_frame()
        arrival = frame.groupby("user").time.transform("min")
        shift = pd.Timedelta(days=60 * i)
        frames.append(frame.assign(user=frame.user + 10_000 * i, time=frame.time + shift)[arrival.notna()])
    data = dp.read_log(pd.concat(frames), inactive_after="10 days")
    total = {}
    for half_life in (np.inf, "15 days"):
        instance = dp.fit(data, types=2, half_life=half_life).instance
        total[half_life] = float(instance.click[0] @ instance.prior)
    truth = float(later.click[0] @ later.prior)
    assert abs(total["15 days"] - truth) < 0.5 * abs(total[np.inf] - truth)


@pytest.mark.parametrize("method", ["parametric", "nonparametric"])
def test_the_bootstrap_of_weighted_users_has_their_errors(log, method):
    fit = dp.fit(log, types=2, half_life="8 days")
    clicks = np.array([each.click for each in fit.bootstrap(60, method)])
    assert np.median(clicks.std(axis=0, ddof=1) / fit.stderr.click) == pytest.approx(1, abs=0.25)


def test_a_half_life_that_leaves_no_user_is_refused(log):
    with pytest.raises(dp.InputError, match="half_life is '1 second'; no user has any weight left; use a longer one"):
        dp.fit(log, types=1, half_life="1 second")


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "log.csv"
    dp.sample_log(SITE.replace(reward=[2.0, 5.0], unit="euro"), users=1500, seed=3, days=60).save(path)
    return dp.fit(dp.read_log(path, inactive_after="14 days", reward="reward", unit="euro"), types=2)


def test_rewards_are_the_means_of_the_log(rewarded):
    assert rewarded.instance.unit == "euro"
    np.testing.assert_array_equal(rewarded.instance.reward, rewarded.rewards.mean)
    z = (rewarded.rewards.mean - [2.0, 5.0]) / rewarded.rewards.stderr
    assert np.abs(z).max() < 4


def test_draws_of_rewards_have_their_mean_and_error(rewarded):
    draws = rewarded.draw_rewards(4000, seed=1)
    assert (draws >= 0).all()
    np.testing.assert_allclose(draws.mean(axis=0), rewarded.rewards.mean, rtol=0.01)
    np.testing.assert_allclose(draws.std(axis=0), rewarded.rewards.stderr, rtol=0.1)


def test_rewards_do_not_change_the_fit_of_behaviour(rewarded):
    plain = dp.fit(rewarded.log, types=2)
    np.testing.assert_array_equal(plain.instance.click, rewarded.instance.click)
    assert {each.unit for each in rewarded.bootstrap(2)} == {"euro"}


def test_without_rewards_draws_are_constant(log):
    assert (dp.fit(log, types=1).draw_rewards(3) == 1).all()


def test_rewards_of_recent_users_count_more(tmp_path):
    """The weighted mean of every category, against the log row by row."""
    import pandas as pd

    site = SITE.replace(reward=[2.0, 5.0], unit="euro")
    events = dp.sample_log(site, users=800, seed=4, days=60).to_frame()
    age = (events.time.max() - events.groupby("user").time.transform("min")) / pd.Timedelta(days=10)
    events = events.assign(reward=events.reward * (1 + age))  # rewards fell
    log = dp.read_log(events, inactive_after="14 days", reward="reward", unit="euro")
    fit = dp.fit(log, types=1, half_life="10 days")
    clicks = events[events.clicked].assign(weight=0.5**age)
    for name, own in clicks.groupby("category"):
        i = log.categories.index(name)
        mean = np.average(own.reward, weights=own.weight)
        assert fit.instance.reward[i] == pytest.approx(mean, rel=1e-9)
        variance = np.average((own.reward - mean) ** 2, weights=own.weight)
        error = (variance / (own.weight.sum() ** 2 / (own.weight**2).sum() - 1)) ** 0.5
        assert fit.rewards.stderr[i] == pytest.approx(error, rel=1e-6)
    assert (fit.instance.reward < 0.8 * log.rewards.mean).all()
    infinite = dp.fit(log, types=1, half_life=np.inf)
    np.testing.assert_array_equal(infinite.instance.reward, log.rewards.mean)
