"""Robust standard errors: against the bootstrap and a plain loop, for users of the model and others."""

import numpy as np
import pytest
from benchmarks.checks import CONTROLS, SITE, control_log
from scipy import stats

import departing as dp
from departing.fitting import likelihood as likelihood_module
from departing.fitting.standard_errors import robust_covariance, transform_estimates
from departing.model.histories import Histories
from departing.model.instance import CLICK, DEPART, STAY


def spread(fit, resamples=60):
    """Standard deviations of bootstrap estimates of shares and click probabilities."""
    instances = fit.bootstrap(resamples, "nonparametric", seed=1)
    return [np.std([getattr(each, name) for each in instances], axis=0, ddof=1) for name in ("prior", "click")]


def from_information(fit):
    """Standard errors from the inverse of the observed information."""
    return transform_estimates(
        fit.likelihood, fit.logits, fit.covariance, lambda prob, stderr: stderr * prob * (1 - prob), 0.0, 0.0
    )


@pytest.mark.parametrize("batch", [2**22, 100])
def test_the_sandwich_agrees_with_a_plain_loop(batch, monkeypatch):
    monkeypatch.setattr(likelihood_module, "BATCH_CELLS", batch)
    fit = dp.fit(dp.sample_log(SITE, users=500, seed=1, days=30).histories, types=2)
    likelihood, logits, step = fit.likelihood, fit.logits, 1e-5
    rows = [likelihood.rows(slice(n, n + 1)) for n in range(len(likelihood.users))]
    scores = np.array(
        [
            [
                (row.log_likelihood(logits + shift) - row.log_likelihood(logits - shift)) / (2 * step * row.users[0])
                for shift in step * np.eye(len(logits))
            ]
            for row in rows
        ]
    )
    np.testing.assert_allclose(likelihood.scores(logits), scores, atol=1e-5)
    centred = scores - likelihood.users @ scores / likelihood.users.sum()
    squares = (centred * likelihood.users[:, None]).T @ centred
    information = likelihood.derivatives(logits[None], 1.0)[2][0]
    squares += information - likelihood.derivatives(logits[None], 1e-12)[2][0]  # of the pseudocounts
    sandwich = fit.covariance @ squares @ fit.covariance
    scale = np.sqrt(np.maximum(np.diag(fit.covariance) / np.diag(sandwich), 1.0))
    expected = sandwich * np.outer(scale, scale)  # no variance below that of the information
    np.testing.assert_allclose(fit.robust_covariance, expected, atol=1e-5 * abs(expected).max())


def test_a_category_that_one_user_saw_has_the_error_of_the_information():
    counts = np.zeros((4, 2, 4), np.int64)
    counts[:, 0, CLICK], counts[:, 0, DEPART] = [3, 0, 1, 2], 1
    counts[0, 1, [CLICK, STAY]] = 34, 26
    fit = dp.fit(Histories(counts, [1, 200, 150, 120]), types=1)
    share, n = fit.instance.click[1, 0], 60
    assert fit.stderr.click[1, 0] > 0.9 * np.sqrt(share * (1 - share) / n)


def test_standard_errors_are_the_spread_of_the_bootstrap_if_users_differ_within_types():
    """Every user has click probabilities of their own; errors from the information are a third of the spread."""
    fit = dp.fit(control_log(CONTROLS["continuous heterogeneity"], 5000, seed=0), types=3)
    ratios = [drawn / getattr(fit.stderr, name) for drawn, name in zip(spread(fit), ("prior", "click"), strict=True)]
    naive = [
        drawn / getattr(from_information(fit), name)
        for drawn, name in zip(spread(fit), ("prior", "click"), strict=True)
    ]
    assert max(each.max() for each in ratios) < 1.4  # the standard deviation of 60 values has an error of 9 %
    assert min(each.min() for each in ratios) > 0.7
    assert max(each.max() for each in naive) > 2


def test_intervals_of_users_of_the_model_cover_the_truth():
    inside = []
    for seed in range(60):
        fit = dp.fit(dp.sample_log(SITE, users=1000, seed=seed, days=30).histories, types=2, n_init=2)
        low, high = fit.intervals(0.9)
        inside.append((low.click < SITE.click) & (SITE.click < high.click))
    covered = int(np.sum(inside))
    assert stats.binomtest(covered, 4 * 60, 0.9).pvalue > 1e-3


def test_a_parameter_without_data_keeps_its_variance():
    """No user sees the second category; its logits have the variance of the pseudocount."""
    counts = np.zeros((40, 2, 4), int)
    counts[:, 0, 0], counts[:, 0, 2] = np.arange(40) % 4, 1
    fit = dp.fit(dp.Histories(counts), types=1)
    number = fit.likelihood.parameter_numbers.tolist().index(1)
    assert robust_covariance(fit.likelihood, fit.logits, fit.covariance, 1.0)[number, number] == pytest.approx(2.0)
