"""Logs of a site that shows categories at random, against what they must be on average."""

import duckdb
import numpy as np
import pytest

import departing as dp

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
