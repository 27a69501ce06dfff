"""Drift: the change that is found, since when, and where; no alarm without one."""

import numpy as np
import pandas as pd
import pytest

import departing as dp
from departing.fitting.drift import Series, find_drift
from departing.model.segments import Segments

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7], [0.5, 0.4]], 0.35, categories=["film", "news", "shop"])


def changing_log(before, after, share, seed=1, users=5000, **options):
    """Log of users of one site until a share of the time is over, then of another."""
    frames = []
    for i, site in enumerate((before, after)):
        frame = dp.sample_log(site, users=users, seed=100 * seed + i, days=100).to_frame()
        first = frame.groupby("user").time.transform("min")
        arrival = (first - frame.time.min()) / (frame.time.max() - frame.time.min())
        frames.append(frame[(arrival < share) if i == 0 else (arrival >= share)].assign(user=frame.user + i * 10**6))
    return dp.read_log(pd.concat(frames), inactive_after="10 days", **options)


def site_with(**changes):
    click = SITE.click.copy()
    for name, value in changes.items():
        click[SITE.categories.index(name)] = value
    return SITE.replace(click=click)


@pytest.fixture(scope="module")
def jump():
    fit = dp.fit(changing_log(SITE, site_with(news=[0.15, 0.45]), 0.6), types=2)
    return fit, fit.check()


def test_a_jump_of_one_category_is_dated_and_named(jump):
    _, check = jump
    assert not check.fits
    assert check.drift is not None
    assert check.drift.categories[0] == "news"
    assert check.drift.main.response == "click"
    assert check.drift.main.before > check.drift.main.after
    low, high = check.drift.interval
    assert low < 0.7
    assert high > 0.55
    assert abs(check.drift.start - 0.6) < 0.15
    assert check.drift.since.startswith("2026-0")
    assert "users change over time since about 2026-0" in check.describe()
    assert any("click rate of category 'news'" in reason for reason in check.reasons)
    assert "share of type" not in check.drift.describe()
    assert "which may follow from this" in check.drift.describe()


def test_the_plot_marks_the_change(jump, tmp_path):
    fit, check = jump
    figure = fit.plot_over_time(tmp_path / "rates.png", check=check, buckets=10)
    assert (tmp_path / "rates.png").stat().st_size > 5000
    plain = fit.plot_over_time(buckets=10)
    assert len(figure.axes[0].lines) == len(plain.axes[0].lines) + 1


def test_no_drift_without_change():
    found = [dp.fit(changing_log(SITE, SITE, 0.5, seed, 2000), types=2).check().drift for seed in range(8)]
    assert sum(each is not None for each in found) <= 1


def test_the_segment_that_changes_is_named():
    def shop(q):
        segments = Segments(["de", "fr", "it"], [0.4, 0.3, 0.3], [[0.8, 0.2], [q, 1 - q], [0.5, 0.5]], ["country"])
        return SITE.replace(prior=None, segments=segments)

    log = changing_log(shop(0.85), shop(0.15), 0.5, users=8000, segment="country")
    check = dp.fit(log, types=2).check()
    assert check.drift is not None
    assert set(check.drift.segments) == {"fr"}
    assert "share of type " in check.drift.describe()
    assert "in segment 'fr'" in check.drift.describe()


def test_a_change_of_the_shares_of_segments_is_named():
    def shop(share):
        priors = [[0.8, 0.2], [0.3, 0.7]]
        return SITE.replace(prior=None, segments=Segments(["de", "fr"], [share, 1 - share], priors, ["country"]))

    check = dp.fit(changing_log(shop(0.7), shop(0.4), 0.5, segment="country"), types=2).check()
    assert check.drift is not None
    assert {change.response for change in check.drift.changes} == {"share"}


def test_checks_of_stationary_logs_with_segments_fit():
    segments = Segments(["de", "fr"], [0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], ["country"])
    site = SITE.replace(prior=None, segments=segments)
    logs = [changing_log(site, site, 0.5, seed, 3000, segment="country") for seed in range(5)]
    assert sum(dp.fit(log, types=2).check().fits for log in logs) >= 4


def test_p_values_of_series_without_change_are_not_too_small():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(300):
        n = rng.integers(50, 100, 32).astype(float)
        observed = rng.binomial(n.astype(int), 0.3).astype(float)
        expected = n * observed.sum() / n.sum()
        series = Series("click", "category", "a", n, observed, expected, n * 0.21)
        found += find_drift([series], str) is not None
    assert found <= 8


def test_a_steady_change_is_told_from_a_jump():
    n, period = np.full(32, 500.0), np.arange(32)
    for rates, shape in ((0.5 - 0.01 * period, "trend"), (np.where(period < 20, 0.5, 0.3), "jump")):
        observed, expected = n * rates, n * rates.mean()
        drift = find_drift([Series("click", "category", "a", n, observed, expected, n * 0.24)], str)
        assert drift.shape == shape
        assert drift.main.before == pytest.approx(0.5, abs=0.03)
        assert drift.main.after == pytest.approx(rates[-1], abs=0.03)


def test_histories_have_no_plot_over_time():
    fit = dp.fit(dp.sample_log(SITE, users=200, seed=1).histories, types=1)
    with pytest.raises(dp.InputError, match="no times"):
        fit.plot_over_time()
