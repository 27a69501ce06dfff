"""The direct method for policies whose users stay long."""

import numpy as np
import pytest

import departing as dp
from departing.offpolicy.direct_method import BootstrapEnsemble
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
    value = dp.off_policy_value(fit.histories, plan.policy, fit=fit, bootstrap=8)
    assert value.dm.value == ensemble.values[0]
    assert len(value.warnings) == 1  # on plain histories


def test_the_interval_contains_loose_bounds_and_a_warning_names_their_width(fit):
    """Nothing is known about the switches of an opaque policy, so that long stays cannot be evaluated exactly."""
    policy = Opaque(dp.Greedy(fit.instance))
    value = dp.off_policy_value(fit.histories, policy, fit=fit, bootstrap=3)
    exact = dp.evaluate(fit.instance, dp.Greedy(fit.instance))
    assert value.dm.lower < exact.lower < exact.upper < value.dm.upper
    assert value.warnings[0].startswith("Users stay too long to evaluate the policy exactly")
