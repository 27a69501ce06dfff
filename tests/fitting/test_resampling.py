"""Bootstrap samples: simulated with the design of the data, or drawn from the users."""

import numpy as np
import pytest

import departing as dp
from departing.fitting.resampling import SamplingDesign, resample_users

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7], [0.5, 0.4]], [[0.3, 0.6], [0.7, 0.4], [0.5, 0.5]])


def test_simulated_histories_have_the_categories_lengths_and_censoring_of_the_data():
    histories = dp.sample_log(SITE, users=40_000, seed=1, days=10, shares=[0.5, 0.3, 0.2]).histories
    sample = SamplingDesign.from_histories(histories).sample(SITE, np.random.default_rng(1))
    assert sample.users == histories.users
    for each in (histories, sample):
        shown = each.multiplicity @ each.counts.sum(axis=2)
        assert shown / shown.sum() == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    for n in range(1, 6):
        shares = [each.multiplicity[each.steps >= n].sum() / each.users for each in (histories, sample)]
        assert abs(shares[0] - shares[1]) < 5 * np.sqrt(2 * 0.25 / histories.users)
    censored = [each.multiplicity[each.censored].sum() for each in (histories, sample)]
    assert censored[0] == pytest.approx(censored[1], rel=0.05)


def test_resampled_users_are_users_of_the_data():
    histories = dp.sample_log(SITE, users=500, seed=1).histories
    sample = resample_users(histories, np.random.default_rng(1))
    assert sample.users == 500
    known = {row.tobytes() for row in histories.counts}
    assert all(row.tobytes() in known for row in sample.counts)
