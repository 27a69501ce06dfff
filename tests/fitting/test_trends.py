"""Scores of trends: against derivatives of the log-likelihood and of forecasts, and p-values of right models."""

import numpy as np
import pytest
from benchmarks.checks import SITE as SITE_OF_LOGS
from benchmarks.checks import model_log
from scipy import stats

import departing as dp
from departing.fitting.forecast_cells import ForecastSums
from helpers.episodes import SITE, episodes_of


def log_likelihood(instance, part, response, slope, level):
    """Of all users, a step at a time, if the logits of a response change by `level + slope * time`."""
    total = 0.0
    for user in np.unique(part.user):
        weight = np.log(instance.prior)
        for i in np.flatnonzero(part.user == user):
            a, outcome = part.category[i], part.outcome[i]
            clicked, departed = outcome in (0, 3), outcome >= 2
            pairs = [(0, instance.click[a], clicked)]
            pairs += [(2, instance.depart_on_click[a], departed)] if clicked else [(1, instance.depart[a], departed)]
            for number, prob, success in pairs:
                shift = level + slope * part.time[i] if number == response else 0.0
                odds = prob / (1 - prob) * np.exp(shift)
                weight = weight + np.log(odds / (1 + odds) if success else 1 / (1 + odds))
        total += np.log(np.exp(weight).sum())
    return total


@pytest.mark.parametrize("response", range(3))
def test_scores_are_the_derivatives_of_the_log_likelihood(response):
    site = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.6], [0.7, 0.4]], 0.1)
    part, h = episodes_of(dp.sample_log(site, users=40, seed=3, days=30)), 1e-5
    sums = ForecastSums([site], 40, True)
    sums.add(part)
    for place, (slope, level) in enumerate(((0.0, h), (h, 0.0))):
        ends = [log_likelihood(site, part, response, sign * slope, sign * level) for sign in (1, -1)]
        assert sums.trends.totals[response, place] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-5)


def test_scores_of_parameters_are_the_gradient():
    log = dp.sample_log(SITE, users=300, seed=2, days=30)
    fit = dp.fit(log.histories, types=2)
    sums = ForecastSums([fit.instance], 300, True)
    sums.add(episodes_of(log))
    _, gradient = fit.likelihood.gradient(fit.logits, 0.0)
    assert sums.trends.scores[fit.likelihood.parameter_numbers] == pytest.approx(gradient, abs=1e-8)


def test_clicks_at_pending_steps_are_forecast_with_their_derivatives():
    log = dp.sample_log(SITE, users=300, seed=1, days=30)
    fit, step = dp.fit(log.histories, types=2), 1e-5
    part = episodes_of(log, log.outcome >= 0)
    part.outcome = np.array([0, 1, 1, 0])[part.outcome]  # everybody stays

    def trends(logits):
        sums = ForecastSums([dp.Instance(**vars(fit.likelihood.from_logits(logits)))], 300, True)
        sums.add(part)
        return sums.trends

    own = trends(fit.logits)
    assert (own.totals[1:] == 0).all()
    assert own.scores == pytest.approx(0.0, abs=1e-9)
    for i, number in enumerate(fit.likelihood.parameter_numbers):
        shift = step * (np.arange(len(fit.logits)) == i)
        change = trends(fit.logits + shift).totals[0] - trends(fit.logits - shift).totals[0]
        assert own.slopes[:, number] == pytest.approx(-change / (2 * step), abs=1e-5)


@pytest.mark.slow
def test_p_values_of_the_trend_of_clicks_are_uniform_with_pending_steps():
    p_values = []
    for seed in range(60):
        log = model_log(SITE_OF_LOGS, 1500, seed)
        assert log.pending.any()
        tests = dp.fit(log, types=2, n_init=2).check().tests
        p_values += [test.p_value for test in tests if (test.family, test.response) == ("trend", "click")]
    assert len(p_values) == 60
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
