"""Logged departures together with an inactivity period."""

import numpy as np
import pandas as pd
import pytest

import departing as dp

DEPART, LOGGED, USERS, DAYS, INACTIVE = 0.3, 0.5, 20_000, 40, 10


@pytest.fixture(scope="module")
def events():
    """Daily visits of users who depart after each with probability DEPART; half of the departures are logged."""
    rng = np.random.default_rng(7)
    first, steps = rng.integers(0, DAYS, USERS), rng.geometric(DEPART, USERS)
    user = np.repeat(np.arange(USERS), steps)
    step = np.arange(len(user)) - np.repeat(np.cumsum(steps) - steps, steps)
    is_last = step == steps[user] - 1
    is_logged = is_last & (rng.random(USERS) < LOGGED)[user]
    frame = pd.DataFrame(
        {
            "user": user,
            "time": first[user] + step,
            "category": "news",
            "clicked": rng.random(len(user)) < 0.4,
            "departed": is_logged,
        }
    )
    return frame[frame.time < DAYS]


def test_late_logged_departures_do_not_bias_departure_probabilities(events):
    log = dp.read_log(events, inactive_after=INACTIVE)
    counts = log.counts.sum(axis=1) * log.multiplicity[:, None]
    known = counts.sum() - (log.pending.sum(axis=(1, 2)) * log.multiplicity).sum()
    rate, error = counts[:, 2:].sum() / known, np.sqrt(DEPART * (1 - DEPART) / known)
    assert abs(rate - DEPART) < 4 * error
    fit = dp.fit(log, types=1)
    assert np.allclose(fit.instance.departure_probabilities, DEPART, atol=4 * error)


def test_the_report_counts_all_logged_departures(events):
    report = dp.read_log(events, inactive_after=INACTIVE).report
    assert report.departed - report.inactive == events.departed.sum()
    assert report.departed + report.censored == report.users


def test_users_whose_departure_is_logged_late_have_departed(events):
    """`assign` says so, although their steps are no evidence about departures."""
    log = dp.read_log(events, inactive_after=INACTIVE)
    assigned = pd.DataFrame(dp.assign(log, dp.fit(log, types=1)).to_frame()).set_index("user")
    late = events[events.departed & (events.time > DAYS - 1 - INACTIVE)].user
    assert len(late)
    assert assigned.loc[late, "departed"].all()
