"""Verdicts on logs by the default path: read_log, fit, check."""

import pytest
from benchmarks.checks import CONTROLS, MODELS, control_log, model_log, verdict

import departing as dp
from departing.fitting.type_evidence import sabic_gain

CAUSES = {  # the beginning of a reason that must be among those given
    "departure by step count": "Departures after a no-click depend on the step",
    "departure by lifetime": "Departures after a no-click depend on the step",
    "clicks fall after step 3": "Clicks depend on the step",
    "clicks fall with clicks": "Clicks depend on ",
    "cohort drift of 20 points": ("Clicks differ between users who arrived early", "Clicks change over the time"),
    "cohort drift of 10 points": ("Clicks differ between users who arrived early", "Clicks change over the time"),
    "share drift of 25 points": ("Shares of types change over the time", "Clicks differ between users who arrived"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_users_who_do_not_follow_the_model_are_detected_with_the_right_reason(name):
    _, check = verdict(control_log(CONTROLS[name], 5000 if "drift" in name else 2000, seed=0))
    assert not check.fits
    assert check.held_out
    assert check.describe().startswith("The model does not fit (p ")
    assert any(reason.startswith(CAUSES[name]) for reason in check.reasons)
    assert check.reasons[0].endswith("%.")


@pytest.mark.parametrize("name", ["shuffled clicks", "coin flips"])
def test_on_logs_without_types_planning_has_nothing_to_gain(name):
    fit, check = verdict(control_log(CONTROLS[name], 2000, seed=0))
    assert fit.one_type
    assert fit.hidden_types is None
    assert check.fits
    assert fit.describe_evidence().startswith("One type of users suffices: the same category is best for everybody")
    forced = dp.fit(fit.histories, types=2)
    assert forced.one_type
    assert "because 2 types do not lower the adjusted BIC" in forced.describe_evidence()


def test_types_with_too_few_users_are_stated():
    site = dp.Instance([0.6, 0.4], [[0.55, 0.4], [0.4, 0.55], [0.45, 0.45], [0.4, 0.5]], 0.3)
    fit = dp.fit(dp.sample_log(site, 6000, seed=0).histories, types=[1, 2])
    assert fit.one_type
    assert fit.hidden_types == 2
    assert fit.describe_evidence().startswith("A likelihood-ratio test prefers 2 types to 1, but")
    decision = dp.plan(fit, bootstrap=20)
    assert fit.describe_evidence() in decision.warnings
    assert "nothing to gain" not in decision.summary()


@pytest.mark.parametrize("name", MODELS)
def test_users_of_the_model_cause_no_alarm(name):
    fit, check = verdict(model_log(MODELS[name], 2000, seed=0))
    assert check.fits
    assert check.reasons == ()
    assert not fit.one_type
    assert "types describe the users better than one: their adjusted BIC is lower by" in fit.describe_evidence()
    one = next(row.sabic for row in fit.criteria if row.types == 1)
    own = next(row.sabic for row in fit.criteria if row.types == fit.instance.n_types)
    assert sabic_gain(fit.likelihood, fit.log_likelihood) == pytest.approx(
        one - own, abs=0.5
    )  # the pseudocount moves the one type a little


def test_a_number_of_types_that_is_too_small_is_no_misfit_of_the_model():
    """BIC selects one type, because a log of this size has too few users for two of nine parameters each."""
    fit = dp.fit(model_log(MODELS["shop"], 2000, seed=3), criterion="bic")
    check = fit.check()
    assert fit.instance.n_types == 1
    assert check.misfits
    assert check.more_types == 2
    assert check.fits
    assert check.reasons == ()
    assert check.describe().startswith("The model fits with 2 types, but the log has too few users")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_false_alarms_are_rare(name):
    alarms = sum(not verdict(model_log(MODELS[name], 2000, seed))[1].fits for seed in range(1000, 1012))
    assert alarms <= 3  # of 12: 4 or more have a probability of 0.2 % at a rate of 5 %; benchmarks/checks.py has more
