"""Off-policy evaluation of logs of sites that end visits after a number of recommendations."""

import numpy as np
import pytest

import departing as dp

READING = {"inactive_after": "14 days"}
SITE = dp.Instance(
    [0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.5], [0.6, 0.3]], 0.1, categories=["film", "news"], horizon=1
)


def log_of(horizon, users, seed):
    events = dp.sample_log(SITE.replace(horizon=horizon), users=users, seed=seed, days=200).to_frame()
    return events, dp.read_log(events, horizon=horizon, **READING)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_all_steps_of_the_horizon_are_those_of_the_log(horizon):
    _, log = log_of(horizon, 8000, 3)
    fit = dp.fit(log, types=1 if horizon == 1 else 2)
    for policy in (dp.Fixed("film"), dp.Walk(["film"], then="news")):
        value = dp.off_policy_value(log, policy, fit=fit, bootstrap=20)
        truth = dp.evaluate(SITE.replace(horizon=horizon), policy).value
        for estimate in value.estimates.values():
            assert abs(estimate.value - truth) < 4 * estimate.stderr
        assert len(value.estimates) == 3
        assert (value.extrapolation.steps, value.horizon) == (horizon, horizon)
        assert value.extrapolation.share == pytest.approx(0, abs=1e-9)
        assert value.tail_share == pytest.approx(0, abs=1e-9)
        assert not any("extrapolated" in warning for warning in value.warnings)


def test_importance_sampling_of_one_recommendation_is_the_weighted_mean():
    events, log = log_of(1, 3000, 1)
    value = dp.off_policy_value(log, "fixed:film", types=1, bootstrap=20)
    weighted = events["clicked"] * (events["category"] == "film") / events["propensity"]
    assert value.pdis.value == pytest.approx(weighted.sum() / events["user"].nunique(), rel=1e-12)


def test_importance_sampling_has_no_value_after_the_horizon():
    """PDIS of users observed up to the horizon, a user at a time, against `off_policy_value`."""
    events, _ = log_of(2, 4000, 2)
    log = dp.read_log(events, horizon=2, inactive_after="1 second")  # nobody is censored before the horizon
    value = dp.off_policy_value(log, "fixed:film", types=2, bootstrap=20)
    total = 0.0
    for _, user in events.sort_values("time").groupby("user"):
        weight = np.cumprod((user["category"] == "film") / user["propensity"])
        total += float(weight @ user["clicked"])
    users = log.confirmed.users  # without the user of the latest event, who did not click film
    assert value.pdis.value == pytest.approx(total / users, rel=1e-9)


def test_the_horizon_is_at_most_that_of_the_log():
    _, log = log_of(2, 2000, 1)
    fit = dp.fit(log, types=1)
    longer = dp.fit(log.distinct, types=1)
    assert dp.off_policy_value(log, "fixed:film", fit=longer, bootstrap=20).fit.instance.horizon == 2
    one = dp.off_policy_value(log, "fixed:film", fit=fit, bootstrap=20, horizon=1)
    assert abs(one.dr.value - dp.evaluate(SITE, dp.Fixed("film")).value) < 4 * one.dr.stderr
    with pytest.raises(dp.InputError, match="horizon is 3, but the log was read with `horizon`=2"):
        dp.off_policy_value(log, "fixed:film", fit=fit, bootstrap=20, horizon=3)
