"""Return times of users, and fits under the inactivity period that they suggest."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import departing as dp
from helpers.commands import call, json_output

GAPS = {
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "log-normal": lambda rng, n: np.exp(rng.normal(0, 1.2, n)),
    "sessions": lambda rng, n: np.where(rng.random(n) < 0.8, rng.exponential(0.002, n), rng.exponential(2.0, n)),
    "weekly": lambda rng, n: np.abs(rng.normal(7, 1.5, n)),
}


def returning(kind, seed=1, users=6000, days=90.0, depart=0.3):
    """A log of users who depart after 30 % of their events and otherwise return after a gap of this kind."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(depart, users)
    gaps = GAPS[kind](rng, lengths.sum())
    user = np.repeat(np.arange(users), lengths)
    first = np.r_[0, np.cumsum(lengths)[:-1]]
    gaps[first] = 0
    total = np.cumsum(gaps)
    time = total - np.repeat(total[first], lengths) + np.repeat(rng.uniform(0, days, users), lengths)
    keep = time < days
    stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(time[keep], unit="D")
    return pd.DataFrame({"user": user[keep], "time": stamps, "category": "a", "clicked": False})


@pytest.mark.parametrize("kind", GAPS)
def test_departures_under_the_suggested_period_are_close_to_the_truth(kind):
    log = dp.read_log(returning(kind), inactive_after="auto")
    departed, stayed = log.multiplicity @ log.counts[:, 0, 2], log.multiplicity @ log.counts[:, 0, 1]
    stayed -= log.multiplicity @ log.pending[:, 0, 1]
    share = departed / (departed + stayed)
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / (departed + stayed)) + 0.003
    assert log.report.guessed[0].startswith("The inactivity period is ")


def test_return_times_agree_with_a_slow_estimate():
    events = returning("log-normal", users=1500)
    times = dp.suggest_inactivity(events)
    end = events.time.max()
    silences = []
    for _, own in events.sort_values("time").groupby("user"):
        moments = [*own.time]
        silences += [(b - a, True) for a, b in pairwise(moments)]
        silences.append((end - moments[-1], False))
    silences.sort()
    none, at_risk, curve = 1.0, len(silences), []
    for length, returned in silences:
        none *= 1 - returned / at_risk
        at_risk -= 1
        curve.append((length.total_seconds(), none))
    seconds, values = np.array(curve).T
    for day in (1, 3, 7, 14, 30):
        exact = values[np.searchsorted(seconds, day * 86400) - 1]
        estimate = times.no_return[np.searchsorted(times.times, day * 86400) - 1]
        assert abs(estimate - exact) < 0.01
    assert times.returning_later <= 0.05
    assert times.is_reliable


def test_a_period_is_proposed_and_refused_where_the_log_is_too_short():
    events = returning("exponential")
    with pytest.raises(
        dp.InputError, match=r"`inactive_after`='auto', or state one, such as `inactive_after`='\d days'. Of "
    ):
        dp.read_log(events)
    short = returning("weekly", days=10.0)
    assert not dp.suggest_inactivity(short).is_reliable
    with pytest.raises(dp.InputError, match="the log is too short to suggest a period: its users still return after"):
        dp.read_log(short, inactive_after="auto")
    one = events[events["user"] == events["user"].iloc[0]]
    for reading in ({}, {"inactive_after": "auto"}):
        with pytest.raises(
            dp.InputError, match=r"^There is only one user in the pandas DataFrame, in column 'user';"
        ):
            dp.read_log(one, **reading)
    assert dp.read_log(one, inactive_after="5 days").users == 1
    with pytest.raises(dp.InputError, match=r"Departures are unknown.*, or give an inactivity period, such as"):
        dp.read_log(short)
    with pytest.raises(dp.InputError, match="too few to suggest an inactivity period"):
        dp.suggest_inactivity(events.drop_duplicates("user"))
    with pytest.raises(dp.InputError, match=r"such as `inactive_after`='30 days'\.$"):
        dp.read_log(events.drop_duplicates("user"))
    with pytest.raises(dp.InputError, match="There is no argument 'usr'; did you mean 'user'"):
        dp.suggest_inactivity(events, usr="x")


def test_return_times_of_a_log_are_described_and_plotted(tmp_path):
    log = dp.read_log(returning("exponential"), inactive_after="5 days")
    times = dp.suggest_inactivity(log)
    assert times.period in times.describe()
    assert times.summary().count("%") == len(times.to_dict()["periods"]) + 1
    times.plot(tmp_path / "a.svg")
    assert times.period in (tmp_path / "a.svg").read_text()
    numeric = returning("exponential")
    numeric["time"] = (numeric.time - numeric.time.min()).dt.total_seconds() / 86400
    assert 3 <= dp.suggest_inactivity(numeric).value <= 10
    dp.suggest_inactivity(numeric).plot(tmp_path / "b.png")


def test_return_times_prints_and_plots(tmp_path):
    returning("exponential", users=500).to_parquet(tmp_path / "log.parquet")
    result = json_output("return-times", tmp_path / "log.parquet", "--plot", tmp_path / "a.svg")
    assert result["period"].endswith("days")
    assert (tmp_path / "a.svg").exists()
    assert "Suggested inactivity period" in call("return-times", tmp_path / "log.parquet").stdout
