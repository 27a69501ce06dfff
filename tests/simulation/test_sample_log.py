"""Logs of a site that shows categories at random, against what they must be on average."""

import duckdb
import numpy as np
import pytest

import departing as dp
from departing.model.examples import shop

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], [[0.4, 0.6], [0.5, 0.9]], 0.05, categories=["news", "film"])
SHARES = np.array([0.7, 0.3])


def test_outcomes_have_the_frequencies_of_the_instance():
    """Under a random policy the expected clicks of a type are its mean click over its mean departure probability."""
    log = dp.sample_log(SITE, users=50_000, seed=1, shares=SHARES, days=1e5)
    clicks, leave = SHARES @ SITE.click, SHARES @ SITE.departure_probabilities
    expected = float(SITE.prior @ (clicks / leave))
    per_user = np.bincount(log.user, log.clicked, 50_000)
    assert abs(per_user.mean() - expected) < 4 * per_user.std() / np.sqrt(50_000)
    steps = log.histories.multiplicity @ log.histories.steps
    assert abs((log.category == 0).mean() - 0.7) < 4 * np.sqrt(0.7 * 0.3 / steps)
    assert set(np.unique(log.propensity)) == {0.3, 0.7}
    assert (log.propensity == SHARES[log.category]).all()
    for outcome in range(4):
        probability = float(
            SITE.prior / leave / (SITE.prior / leave).sum() @ (SHARES @ SITE.outcome_probabilities[:, outcome])
        )
        assert abs((log.outcome == outcome).mean() - probability) < 0.01


def test_a_log_that_ends_leaves_users_censored():
    log = dp.sample_log(SITE, users=5000, seed=2, days=3, step_days=1.0)
    assert (np.diff(log.time) >= np.timedelta64(0, "s")).all()
    assert log.time[-1] - log.time[0] <= np.timedelta64(3, "D")
    assert log.histories.users == 5000
    censored = log.histories.multiplicity[log.histories.censored].sum()
    assert 500 < censored < 4000
    longer = dp.sample_log(SITE, users=5000, seed=2, days=300, step_days=1.0)
    assert longer.histories.multiplicity[longer.histories.censored].sum() < 100


def test_equal_seeds_give_equal_logs_that_can_be_read(tmp_path):
    for name in ("a.parquet", "b.csv"):
        dp.sample_log(SITE, users=300, seed=3).save(tmp_path / name)
    dp.sample_log(SITE, users=300, seed=3).save(tmp_path / "c.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "c.parquet").read_bytes()
    one, two = (dp.read_log(tmp_path / name, inactive_after="30 days") for name in ("a.parquet", "b.csv"))
    assert one.counts.tolist() == two.counts.tolist()
    assert one.categories == ("film", "news")
    names = [row[0] for row in duckdb.sql(f"DESCRIBE FROM '{tmp_path / 'a.parquet'}'").fetchall()]
    assert names == ["user", "time", "category", "clicked", "propensity"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"instance": 3}, "expected an Instance"),
        ({"users": 0}, "users is 0"),
        ({"days": 0}, "days is 0"),
        ({"step_days": -1}, "step_days is -1"),
        ({"shares": [0.5, 0.6]}, "2 probabilities that sum to 1"),
        ({"shares": [1.0]}, "2 probabilities that sum to 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_input_raises_clear_errors(change, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.sample_log(**({"instance": SITE, "users": 10} | change))


def test_other_file_suffixes_are_rejected(tmp_path):
    with pytest.raises(dp.InputError, match="expected one of"):
        dp.sample_log(SITE, users=10).save(tmp_path / "log.txt")
    assert list(tmp_path.iterdir()) == []


def test_the_log_of_a_shop_has_features_and_rewards(tmp_path):
    site = shop()
    log = dp.sample_log(site, users=20_000, seed=4, time_column="ts", reward_column="revenue")
    log.save(tmp_path / "shop.csv")
    names = ["user", "country", "device", "ts", "category", "clicked", "revenue", "propensity"]
    assert list(log.columns()) == names
    assert (tmp_path / "shop.csv").read_text().splitlines()[0] == ",".join(names)
    for a, mean in enumerate(site.reward):
        clicked = log.reward[log.clicked & (log.category == a)]
        assert abs(clicked.mean() - mean) < 4 * clicked.std() / np.sqrt(len(clicked))
        assert clicked.std() == pytest.approx(0.5 * mean, rel=0.1)
    assert (log.reward[~log.clicked] == 0).all()
    for s, (name, share) in enumerate(zip(site.segments.names, site.segments.share, strict=True)):
        part = log.histories.in_segment(name)
        assert abs(part.users / 20_000 - share) < 4 * np.sqrt(share * (1 - share) / 20_000)
        first = np.unique(log.user, return_index=True)[1][log.segment[np.unique(log.user, return_index=True)[1]] == s]
        click = site.click.mean(axis=0) @ site.segments.prior[s]
        assert abs(log.clicked[first].mean() - click) < 4 * np.sqrt(click * (1 - click) / len(first))
    assert (dp.sample_log(site, users=500, seed=4, reward_spread=0).reward[:99] <= 8).all()


def test_extensions_that_are_off_do_not_change_the_log():
    one = dp.Segments(["all"], [1.0], [SITE.prior])
    log = dp.sample_log(SITE, users=2000, seed=5)
    for other in (
        SITE.replace(prior=None, segments=one),
        SITE.replace(reward=[1, 2], unit="euro"),
        SITE.replace(horizon=10**6),
    ):
        same = dp.sample_log(other, users=2000, seed=5)
        for name in ("user", "time", "category", "outcome", "propensity"):
            np.testing.assert_array_equal(getattr(same, name), getattr(log, name))
    assert log.segment is log.reward is None


def test_users_at_the_horizon_are_censored():
    log = dp.sample_log(SITE.replace(horizon=2), users=2000, seed=5, days=900)
    assert log.histories.steps.max() == 2
    assert (log.histories.steps[log.histories.censored] == 2).mean() > 0.5


def test_column_names_are_distinct():
    with pytest.raises(dp.InputError, match="reward_column 'user'; expected two names"):
        dp.sample_log(SITE, users=5, reward_column="user")
