"""Logs of sites that end visits after a number of recommendations."""

import numpy as np
import pandas as pd
import pytest

import departing as dp

HORIZON, READING = 4, {"inactive_after": "14 days"}
SITE = dp.Instance(
    [0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.5], [0.6, 0.3]], 0.1, categories=["film", "news"], horizon=HORIZON
)


@pytest.fixture(scope="module")
def events():
    return pd.DataFrame(dp.sample_log(SITE, users=12_000, seed=2, days=200).columns())


@pytest.fixture(scope="module")
def log(events):
    return dp.read_log(events, horizon=HORIZON, **READING)


def test_the_last_step_of_users_at_the_horizon_is_pending(log, events):
    assert log.horizon == HORIZON
    finished = log.steps == HORIZON
    assert log.multiplicity[finished].sum() == (events.groupby("user").size() == HORIZON).sum()
    assert log.censored[finished].all()
    assert (log.pending[finished].sum(axis=(1, 2)) >= 1).all()
    known = log.confirmed
    only = finished & (log.pending.sum(axis=(1, 2)) == 1)
    assert known.multiplicity[known.steps == HORIZON].sum() == log.multiplicity[only].sum()
    assert (known.pending.sum(axis=(1, 2)) == (known.steps == HORIZON)).all()
    assert len(log.retention) == HORIZON


def test_steps_agree_with_the_histories(log):
    pending = sum(int(part.pending.sum()) for part in log.episodes())
    assert pending == (log.pending.sum(axis=(1, 2)) * log.multiplicity).sum()


def test_the_site_is_recovered_and_planned(log):
    fit = dp.fit(log, types=2)
    assert fit.instance.horizon == HORIZON
    for field in ("click", "depart", "depart_on_click"):
        error = np.abs(getattr(fit.instance, field) - getattr(SITE, field))
        assert (error < 4.5 * getattr(fit.stderr, field)).all(), field
    check = fit.check()
    assert check.fits
    assert not check.truncated
    assert "still active" not in check.summary()
    decision = dp.plan(fit, bootstrap=20)
    assert decision.value.value == pytest.approx(dp.evaluate(SITE, decision.policy).value, rel=0.03)
    assert not any("extrapolated" in warning for warning in decision.warnings)
    value = dp.off_policy_value(log, "fixed:film", fit=fit, bootstrap=20)
    assert dp.evaluate(SITE, dp.Fixed("film")).value in value.dr


def test_logged_departures_at_the_horizon_are_no_evidence_either(events):
    """A half of the departures are logged; those at the horizon alone would bias departures upwards."""
    marked = events.sort_values(["user", "time"])
    last = marked.user != marked.user.shift(-1)
    n_events = marked.groupby("user").user.transform("size")
    stayed = np.random.default_rng(1).random(len(marked)) < 0.5  # of those at the horizon
    log = dp.read_log(marked.assign(departed=last & ~((n_events == HORIZON) & stayed)), horizon=HORIZON, **READING)
    finished = log.steps == HORIZON
    assert (log.pending[finished].sum(axis=(1, 2)) >= 1).all()
    assert log.confirmed.censored[log.confirmed.steps == HORIZON].all()
    over_time = log.over_time(1)
    at_risk = (log.confirmed_totals.sum(axis=1)).tolist()
    assert over_time.at_risk[0].tolist() == at_risk


def test_flags_at_the_horizon_are_no_evidence_without_an_inactivity_period(events):
    """The site cannot know who would have stayed: of those at the horizon only some departures are reported."""
    marked = events.sort_values(["user", "time"])
    last = marked.user != marked.user.shift(-1)
    at_horizon = marked.groupby("user").user.transform("size") == HORIZON
    reported = np.random.default_rng(1).random(len(marked)) < 0.3
    log = dp.read_log(marked.assign(departed=last & (~at_horizon | reported)), horizon=HORIZON)
    finished = log.steps == HORIZON
    assert (log.pending.sum(axis=(1, 2)) == finished).all()
    assert log.censored[finished].all()
    assert log.report.departed == (last & (~at_horizon | reported)).sum()
    fit = dp.fit(log, types=2)
    for field in ("click", "depart", "depart_on_click"):
        error = np.abs(getattr(fit.instance, field) - getattr(SITE, field))
        assert (error < 4.5 * getattr(fit.stderr, field)).all(), field


def test_a_horizon_that_nobody_reaches_changes_nothing(events):
    one, two = (dp.read_log(events, horizon=horizon, **READING) for horizon in (None, 10**6))
    for field in ("counts", "multiplicity", "pending"):
        assert np.array_equal(getattr(one, field), getattr(two, field))


def test_assignments_need_the_horizon_of_the_fit(log, events):
    users = dp.assign(log, SITE, "greedy").to_frame()
    finished = users[users.events == HORIZON]
    assert (finished.active_probability > 0.2).all()
    assert finished.recommendation.isna().all()
    with pytest.raises(dp.InputError, match="read the log with `horizon`=4"):
        dp.assign(dp.read_log(events, **READING), SITE, "greedy")


def test_a_horizon_below_the_longest_visit_is_refused(events):
    with pytest.raises(dp.InputError, match=r"horizon is 3, but users of the log have up to 4 .*omit `horizon`"):
        dp.read_log(events, horizon=3, **READING)
    with pytest.raises(dp.InputError, match="horizon is 0; expected an integer"):
        dp.read_log(events, horizon=0, **READING)


def test_off_policy_evaluation_warns_of_a_horizon_that_was_not_read(events):
    log = dp.read_log(events, **READING)
    value = dp.off_policy_value(log, "fixed:film", types=1, bootstrap=20, horizon=HORIZON)
    assert any("read the log with `horizon`=4" in warning for warning in value.warnings)


def test_walks_are_the_steps_of_confirmed_histories(events):
    """The steps that off-policy evaluation follows are those that a fit uses, the click at the horizon included."""
    for reading in (READING, {"inactive_after": "60 days"}):
        log = dp.read_log(events, horizon=HORIZON, **reading)
        totals = log.confirmed.totals
        with log.walks(None) as reduce:
            parts = reduce(count_outcomes, {"categories": np.array([2])})
        assert sum(part["counts"] for part in parts).reshape(2, 4).tolist() == totals.tolist()
        assert sum(part["users"][0] for part in parts) == log.confirmed.users


def count_outcomes(steps, given):
    import numpy as np

    cell = steps["category"].astype(np.int64) * 4 + steps["outcome"]
    counts = np.bincount(cell, minlength=4 * int(given["categories"][0]))
    return {"counts": counts, "users": np.array([(steps["step"] == 0).sum()])}
