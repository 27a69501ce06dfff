"""Learners compute without floating-point errors."""

import numpy as np
import pytest

import departing as dp
from departing.studies.sampler import InstanceSampler

FRESH = {
    "name": "fresh",
    "categories": 4,
    "prior_concentration": 3,
    "click": [0.1, 0.9],
    "draws": 2,  # one of each half
    "first_seed": 7000,
    "fixed_loss": 0.005,  # in half of them planning pays
    "fixed_loss_share": 0.5,
}


@pytest.mark.slow
@pytest.mark.parametrize("types", [2, 3])
def test_bayes_computes_without_floating_point_errors_on_fresh_instances(types):
    """Four categories, sure departure, 200,000 users: neither warnings nor divisions by zero, NaN or overflow.

    pytest turns warnings into errors already; `errstate` also holds where a warning is caught or shown once only.
    """
    for seed, instance in InstanceSampler.from_table(FRESH | {"types": types}, "fresh").sample():
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            run = dp.simulate(instance, dp.Bayes(types, 4, seed=seed), users=200_000, seed=seed)
        assert np.isfinite(run.regret).all()


def test_floating_point_warnings_are_errors_in_tests():
    with pytest.raises(RuntimeWarning, match="invalid value"):
        np.sqrt(np.array([-1.0]))
