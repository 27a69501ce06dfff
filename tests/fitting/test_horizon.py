"""Fits to histories of sites that end visits after a number of recommendations."""

import math

import numpy as np
import pytest
from scipy import stats

import departing as dp
from departing.data.sample import CLICK_ONLY, KNOWN, PENDING, step_evidence
from departing.fitting.forecast_cells import ForecastSums
from departing.fitting.held_out import arrivals
from helpers.episodes import episodes_of

SITE = dp.Instance(
    [0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.5], [0.6, 0.3]], 0.1, categories=["film", "news"], horizon=3
)


def read(site, users, seed, days=200):
    log = dp.sample_log(site, users=users, seed=seed, days=days)
    return dp.read_log(log.to_frame(), horizon=site.horizon, inactive_after="14 days")


def pending_at_horizon(log, horizon):
    """The steps of a sample log, each of which at the horizon is pending and without a departure."""
    steps = dp.sample_log(log, users=400, seed=3, days=300)
    order = np.lexsort((steps.time, steps.user))
    last = np.append(np.diff(steps.user[order]) != 0, True)
    first = np.flatnonzero(np.append(True, last[:-1]))
    number = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    pending = np.zeros(len(order), bool)
    pending[order] = number == horizon - 1
    part = episodes_of(steps, pending)
    part.outcome = np.where(part.pending, np.array([0, 1, 1, 0])[part.outcome], part.outcome)
    return part


def test_the_likelihood_of_a_step_at_the_horizon_is_that_of_its_click():
    fit = dp.fit(read(SITE, 4000, 1), types=2)
    assert fit.histories.confirmed.pending.any()
    value, model = 0.0, fit.instance
    for counts, pending, users in zip(
        fit.histories.confirmed.counts,
        fit.histories.confirmed.pending,
        fit.histories.confirmed.multiplicity,
        strict=True,
    ):
        like = model.prior.copy()
        for a in range(2):
            for x in range(2):
                p, d, c = model.click[a, x], model.depart[a, x], model.depart_on_click[a, x]
                known = counts[a].copy()
                known[:2] -= pending[a]
                like[x] *= math.prod(
                    np.array([p * (1 - c), (1 - p) * (1 - d), (1 - p) * d, p * c]) ** known
                ) * math.prod(np.array([p, 1 - p]) ** pending[a])
        value += users * math.log(like.sum())
    assert fit.log_likelihood == pytest.approx(value, rel=1e-10)


def test_evidence_of_steps():
    user, pending = np.array([0, 0, 1, 1, 1, 2, 2, 3]), np.array([0, 1, 0, 0, 1, 1, 1, 1], bool)
    assert step_evidence(user, pending, None).tolist() == np.where(pending, PENDING, KNOWN).tolist()
    assert step_evidence(user, pending, 2).tolist() == [KNOWN, CLICK_ONLY, *[KNOWN] * 2, *[PENDING] * 4]
    assert step_evidence(user, pending, 3)[4] == CLICK_ONLY
    assert step_evidence(user, pending, 1)[7] == CLICK_ONLY
    assert not len(step_evidence(user[:0], pending[:0], 2))


def test_scores_and_halves_are_those_of_the_likelihood_of_the_fit():
    part = pending_at_horizon(SITE, 3)
    counts, pending = np.zeros((part.user.max() + 1, 2, 4), int), np.zeros((part.user.max() + 1, 2, 2), int)
    np.add.at(counts, (part.user, part.category, part.outcome), 1)
    late = part.pending
    np.add.at(pending, (part.user[late], part.category[late], part.outcome[late]), 1)
    assert late.sum() > 50
    seen = counts.any(axis=(1, 2))
    fit = dp.fit(dp.Histories(counts[seen], pending=pending[seen], horizon=3), types=2)
    sums = ForecastSums([fit.instance], 400, True, horizon=3)
    sums.add(part)
    _, gradient = fit.likelihood.gradient(fit.logits, 0.0)
    assert sums.trends.scores[fit.likelihood.parameter_numbers] == pytest.approx(gradient, abs=1e-8)
    assert sums.trends.times[:, 0].tolist() == fit.likelihood.totals[1].reshape(3, 2).sum(axis=1).tolist()
    (steps, *_) = sums.families()
    assert steps.sums[0, ..., 0].sum() == len(part.user)
    assert steps.sums[1:, ..., 0].sum() == (~late).sum()
    part.segment = None
    halves = arrivals(fit.likelihood, [part], 3)
    assert sum(half.likelihood.totals for half in halves) == pytest.approx(fit.likelihood.totals)
    value = sum(half.likelihood.log_likelihood(fit.logits) for half in halves)
    assert value == pytest.approx(fit.log_likelihood, rel=1e-12)


def test_slopes_of_forecasts_with_a_horizon_are_derivatives():
    part, step = pending_at_horizon(SITE, 3), 1e-5

    def expected(instance):
        sums = ForecastSums([instance], 400, False, horizon=3)
        sums.add(part)
        return sums.sums[..., 2]

    sums = ForecastSums([SITE], 400, True, horizon=3)
    sums.add(part)
    for number, (field, a, x) in enumerate([("click", a, x) for a in range(2) for x in range(2)]):
        ends = []
        for sign in (1, -1):
            table = np.array(getattr(SITE, field))
            odds = table[a, x] / (1 - table[a, x]) * np.exp(sign * step)
            table[a, x] = odds / (1 + odds)
            ends.append(expected(SITE.replace(**{field: table})))
        np.testing.assert_allclose(sums.slopes[..., number], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


def test_one_recommendation_to_a_user():
    log = read(SITE.replace(horizon=1), 6000, 5)
    fit = dp.fit(log)
    shown = log.totals.sum(axis=1)
    rate = log.totals[:, 0] / shown
    assert fit.instance.n_types == 1
    assert fit.instance.click[:, 0] == pytest.approx((rate * shown + 1) / (shown + 2), abs=1e-7)
    assert fit.warnings == (
        "Every visit ends after one recommendation, so departures are unknown; no value depends on them.",
    )
    truth = SITE.click @ SITE.prior
    assert (abs(rate - truth) < 4 * np.sqrt(truth * (1 - truth) / shown)).all()
    assert fit.check().fits
    decision = dp.plan(fit, bootstrap=20)
    assert decision.value.value == pytest.approx(fit.instance.click.max(), rel=0.02)
    assert "policy of the log" in [value.name for value in decision.values]
    with pytest.raises(dp.InputError, match="types is 9; expected at most 4"):
        dp.fit(log, types=9)


def test_all_steps_of_the_horizon_are_evidence_about_clicks():
    """z-scores of the click rates over 30 logs with one type, of which the last clicks are two fifths."""
    site = dp.Instance([1.0], [[0.6], [0.3]], [[0.5], [0.4]], 0.1, horizon=2)
    errors, scores = [], []
    for seed in range(30):
        fit = dp.fit(read(site, 1500, seed), types=1)
        errors.append(fit.instance.click - site.click)
        scores.append(errors[-1] / fit.stderr.click)
        assert fit.likelihood.impressions.sum() > 1.3 * fit.histories.users
    assert (np.abs(np.mean(errors, axis=0)) < 4 * np.std(errors, axis=0) / 30**0.5).all()
    assert 0.6 < np.std(scores) < 1.4


def test_bootstrap_samples_have_open_steps_at_the_horizon():
    fit = dp.fit(read(SITE, 6000, 2), types=2)
    for method in ("parametric", "nonparametric"):
        draws = np.array([draw.click for draw in fit.bootstrap(40, method, seed=1)])
        assert (np.abs(draws.mean(axis=0) - fit.instance.click) < 4 * draws.std(axis=0) / 40**0.5 + 0.02).all()
        ratio = draws.std(axis=0) / fit.stderr.click
        assert (ratio > 0.6).all(), method
        assert (ratio < 1.6).all(), method


def test_groups_of_steps_end_at_the_longest_history():
    site = SITE.replace(horizon=6, depart=0.05, depart_on_click=0.05)
    check = dp.fit(read(site, 3000, 1), types=2).check()
    groups = {cell.group for test in check.tests if test.family == "step" for cell in test.groups}
    assert "at step 6" in groups
    assert not any(group.startswith("at steps 6") for group in groups)


@pytest.mark.slow
def test_p_values_are_uniform_with_steps_at_the_horizon():
    site, p_values = dp.Instance([1.0], SITE.click[:, :1], 0.4, 0.1, horizon=2), []
    for seed in range(60):
        check = dp.fit(read(site, 1000, seed), types=1).check(held_out=False)
        test = next(test for test in check.tests if (test.family, test.response) == ("trend", "click"))
        p_values.append(test.p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


class TestPlainHistories:
    """Rewards, unit and horizon of histories that are no log."""

    site = SITE.replace(reward=[2.0, 5.0], unit="euro")

    def check(self, histories):
        fit = dp.fit(histories, types=2)
        assert fit.instance.reward.tolist() == [2.0, 5.0]
        assert (fit.instance.unit, fit.instance.horizon) == ("euro", 3)
        return fit

    def test_of_a_sample_log(self):
        fit = self.check(dp.sample_log(self.site, 3000, seed=1).histories)
        assert "euro" in dp.plan(fit, bootstrap=20).summary()
        assert all(draw.horizon == 3 for draw in fit.bootstrap(2))

    @pytest.mark.parametrize("engine", ["step", "aggregate"])
    def test_of_a_run(self, engine):
        run = dp.simulate(self.site, dp.Walk([0], then=1), 3000, seed=1, engine=engine)
        assert (run.histories.reward == self.site.reward).all()
        self.check(run.histories)
        finished = run.histories.censored
        assert (run.histories.steps[finished] == 3).all()
        assert run.truncated == 0

    def test_of_a_learner(self):
        learner = dp.Bayes(2, 2, seed=1, horizon=3, reward=[2.0, 5.0], unit="euro")
        histories = dp.simulate(self.site, learner, 300, seed=1).histories
        assert (histories.unit, histories.horizon) == ("euro", 3)
        assert histories.steps.max() <= 3

    def test_that_state_them(self):
        run = dp.simulate(self.site.replace(reward=None, unit="clicks", horizon=3), dp.Fixed(0), 500, seed=1)
        histories = run.histories
        given = dp.Histories(histories.counts, histories.multiplicity, reward=[2.0, 5.0], unit="euro", horizon=3)
        self.check(given)
        for same in (given.distinct, given.confirmed, given.without_weights, given.without_segments):
            assert (same.unit, same.horizon) == ("euro", 3)
            assert same.reward.tolist() == [2.0, 5.0]

    def test_that_are_wrong(self):
        counts = [[[2, 0, 1, 0]]]
        with pytest.raises(dp.InputError, match="horizon is 2, but users have up to 3 steps"):
            dp.Histories(counts, horizon=2)
        with pytest.raises(dp.InputError, match="unit is 'euro', but there is no reward"):
            dp.Histories(counts, unit="euro")
        with pytest.raises(dp.InputError, match=r"reward is .*; expected 1 numbers"):
            dp.Histories(counts, reward=[1.0, 2.0])
        with pytest.raises(dp.InputError, match="pass horizon to Histories instead"):
            dp.fit(dp.Histories(counts), types=1, horizon=3)
