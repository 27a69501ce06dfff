"""The direct method for policies whose users stay long."""

from unittest.mock import patch

import numpy as np
import pytest

import departing as dp
from departing.offpolicy import direct_method
from departing.offpolicy.direct_method import BootstrapEnsemble
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem
from helpers.strategies import Opaque

LOYAL = dp.Instance([0.6, 0.4], [[0.99, 0.3], [0.5, 0.6], [0.3, 0.97]], 0.03)


@pytest.fixture(scope="module")
def fit():
    return dp.fit(dp.sample_log(LOYAL, users=2000, seed=1, days=200).histories, types=2)


def test_the_value_for_long_stays_is_that_of_an_evaluation_alone(fit):
    """Users click 2,000 times: the fitted instance has the value of its plan, every replicate its own."""
    plan = dp.plan(fit.instance)
    assert plan.upper > 1000
    replicates = fit.bootstrap(8, "nonparametric")
    ensemble = BootstrapEnsemble.from_instances([fit.instance, *replicates], plan.policy)
    assert ensemble.values[0] == pytest.approx(plan.lower, rel=1e-5)
    assert ensemble.bounds.lower <= plan.upper
    assert ensemble.bounds.upper >= plan.lower
    assert ensemble.gap < 1e-4
    alone = [dp.evaluate(each, plan.policy, 1e-3).value for each in replicates]
    np.testing.assert_allclose(ensemble.values[1:], alone, rtol=1e-4)
    value = dp.off_policy_value(fit.histories, plan.policy, fit=fit, bootstrap=20)
    assert value.dm.value == ensemble.values[0]
    share = value.extrapolation.share
    assert share > 0.8  # the longest history has about 200 steps
    assert value.extrapolation.steps == fit.histories.steps.max()
    assert value.extrapolation.clicks == pytest.approx((1 - share) * value.dm.value)
    assert value.warnings[0].startswith(f"{share:.0%} of the value is extrapolated by the model beyond the longest")
    assert value.warnings[1:-1] == fit.warnings
    assert value.describe().endswith(f", {share:.0%} of them extrapolated beyond the longest history.")


def test_many_types_that_stay_long_have_the_value_of_the_plan():
    """Midpoints of the bounds of the count graph err by 17 % here."""
    instance = dp.random_instance("sticky", 5, 10, seed=0)
    plan = plan_within(PlanningProblem(instance), 1e-6, 500)
    replicates = [instance.replace(click=np.clip(instance.click * factor, 0, 1)) for factor in (0.999, 1.001)]
    with patch.object(direct_method, "MAX_NODES", 3000):
        ensemble = BootstrapEnsemble.from_instances([instance, *replicates], plan.policy)
    assert plan.lower - 1e-6 <= ensemble.values[0] <= plan.upper
    exact = [plan.value_under(each) for each in replicates]
    np.testing.assert_allclose(ensemble.values[1:], exact, rtol=1e-3)


def test_the_interval_contains_loose_bounds_and_a_warning_names_their_width(fit):
    """Nothing is known about the switches of an opaque policy, so that long stays cannot be evaluated exactly."""
    policy = Opaque(dp.Greedy(fit.instance))
    value = dp.off_policy_value(fit.histories, policy, fit=fit, bootstrap=20)
    exact = dp.evaluate(fit.instance, dp.Greedy(fit.instance))
    assert value.dm.lower < exact.lower < exact.upper < value.dm.upper
    assert value.warnings[0].startswith("Users stay too long to evaluate the policy exactly")


def test_without_departures_there_is_no_value():
    """Users who are not known to depart have a value that rests on the pseudocount alone."""
    counts = np.zeros((500, 2, 4), np.int64)
    counts[:, :, 0], counts[:, :, 1] = 6, 3
    with pytest.raises(dp.InputError, match=r"0 users of 500 departed, so the value of a policy.* is unknown"):
        dp.off_policy_value(dp.Histories(counts), dp.Fixed(0), bootstrap=20)
    counts[:9, 0, 2] = 1
    with pytest.raises(dp.InputError, match="9 users of 500 departed"):
        dp.off_policy_value(dp.Histories(counts), dp.Fixed(0), bootstrap=20)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_policy_that_recommends_a_category_without_data_says_so(adaptive):
    site = dp.Instance([1.0], [[0.4], [0.3]], 0.5)
    shown = dp.sample_log(site, users=1000, seed=1).histories
    counts = np.zeros((len(shown), 3, 4), np.int64)
    counts[:, :2] = shown.counts
    histories = dp.Histories(counts, shown.multiplicity, categories=["news", "sport", "film"])
    policy = dp.Walk([0, 0], then=2)
    value = dp.off_policy_value(histories, Opaque(policy) if adaptive else policy, types=1, bootstrap=20)
    assert value.warnings[0].startswith("The policy recommends 'film', which the log never shows")
    assert not any("film" in text for text in dp.off_policy_value(histories, dp.Fixed(1), types=1).warnings)
