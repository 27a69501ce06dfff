"""Goodness of fit: cells against a plain loop, p-values of right and wrong models, survival."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import departing as dp
from departing.fitting.forecast_cells import COUNT_LABELS, STEP_GROUPS, ForecastSums
from departing.fitting.forecast_tests import check_forecasts, weighted_chi_squared_test
from departing.fitting.goodness_of_fit import Cell
from helpers.episodes import SITE, episodes_of


def by_hand(instance, part):
    """Observed and expected responses by family and cell, a step at a time, with the forecasts of `predict`."""
    cells, counts, previous = {}, {}, {}
    for user, category, outcome, pending in zip(part.user, part.category, part.outcome, part.pending, strict=True):
        mine = counts.setdefault(user, np.zeros((instance.n_categories, 4), int))
        click, stay, depart, last = dp.predict(instance, mine)[category]
        clicked, departed = outcome in (0, 3), outcome >= 2
        most = len(COUNT_LABELS) - 1
        clicks, no_clicks = mine[:, [0, 3]].sum(), mine[:, [1, 2]].sum()
        own = mine[category]
        groups = {
            "step": int(np.searchsorted(STEP_GROUPS, mine.sum() + 1, side="right") - 1),
            "counts": (min(clicks, most), min(no_clicks, most)),
            "repetition": (min(own[0] + own[3], most), min(own[1] + own[2], most)),
            "previous": previous.get(user),
        }
        responses = [("click", clicked, click + last)]
        responses += [("depart_on_click", departed, last / (click + last))] if clicked else []
        responses += [] if clicked else [("depart", departed, depart / (stay + depart))]
        for name, observed, prob in responses if not pending else []:
            for family, group in groups.items():
                cell = cells.setdefault(family, {}).setdefault((name, group, category), [0, 0, 0.0])
                cell[0] += 1
                cell[1] += int(observed)
                cell[2] += prob
        mine[category, outcome] += 1
        previous[user] = clicked
    return cells


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_cells_agree_with_a_plain_loop(seed, late):
    log = dp.sample_log(SITE, users=60, seed=seed, days=30)
    part = episodes_of(log, np.random.default_rng(seed).random(len(log.user)) < 0.2 if late else None)
    sums, expected = ForecastSums([SITE], 60, True), by_hand(SITE, part)
    sums.add(part)
    *families, cohorts, periods = sums.families()
    for family in families:
        rows = family.sums.reshape(-1, 4)
        mine = sorted((int(n), int(yes), round(prob, 9)) for n, yes, prob, _ in rows[rows[:, 0] > 0].tolist())
        theirs = sorted((n, yes, round(prob, 9)) for n, yes, prob in expected[family.name].values())
        assert mine == theirs
    for family in (cohorts, periods):
        np.testing.assert_allclose(family.sums.sum(axis=1), families[0].sums.sum(axis=1), rtol=1e-12)
        np.testing.assert_allclose(family.slopes.sum(axis=1), families[0].slopes.sum(axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.bins[..., :3].sum(axis=1), rows_of(families[0]), rtol=1e-12)


def rows_of(family):
    return family.sums[..., :3].sum(axis=(1, 2))


def test_slopes_are_the_derivatives_of_the_expected_responses():
    log = dp.sample_log(SITE, users=200, seed=1, days=30)
    fit, part, step = dp.fit(log.histories, types=2), episodes_of(log), 1e-5

    def expected(logits):
        sums = ForecastSums([dp.Instance(**vars(fit.likelihood.from_logits(logits)))], 200, False)
        sums.add(part)
        return sums.sums[..., 2]

    sums = ForecastSums([fit.instance], 200, True)
    sums.add(part)
    for i, number in enumerate(fit.likelihood.parameter_numbers):
        shift = step * (np.arange(len(fit.logits)) == i)
        slope = (expected(fit.logits + shift) - expected(fit.logits - shift)) / (2 * step)
        np.testing.assert_allclose(sums.slopes[..., number], slope, atol=1e-6)


def test_rare_categories_are_joined():
    many = dp.Instance([1.0], np.full((40, 1), 0.4), 0.5)
    log = dp.sample_log(many, users=3000, seed=1, days=100, shares=[0.5, *[0.5 / 39] * 39])
    result = check_forecasts(many, [episodes_of(log)])
    first = [cell for cell in result.tests[0].cells if cell.group.startswith("at step 1 ")]
    assert first[0].group == "at step 1 for 'category 0'"
    assert first[-1].group == "at step 1 for other categories"
    assert len(first) == 12
    assert sum(cell.n for cell in first) == 3000


def test_the_result_does_not_depend_on_the_chunks():
    part = episodes_of(dp.sample_log(SITE, users=300, seed=1))
    halves = [
        SimpleNamespace(**{name: values[chosen] for name, values in vars(part).items()})
        for chosen in (part.user < 150, part.user >= 150)
    ]
    one, two = check_forecasts(SITE, [part]), check_forecasts(SITE, halves)
    assert one.p_value == pytest.approx(two.p_value)
    assert one.survival == pytest.approx(two.survival)


def test_p_values_are_not_small_for_the_right_model():
    p_values = []
    for seed in range(30):
        log = dp.sample_log(SITE, users=3000, seed=seed, days=40)
        p_values.append(check_fit(dp.fit(log.histories, types=2), [episodes_of(log)]).p_value)
    assert sum(p < 0.1 for p in p_values) <= 8  # at most 3 expected
    assert sum(p < 0.9 for p in p_values) >= 5
    assert min(p_values) > 1e-3


def check_fit(fit, parts):
    """The check of a fit to these steps."""
    numbers = fit.likelihood.parameter_numbers
    return check_forecasts(
        fit.instance, parts, covariance=fit.covariance, parameters=numbers, users=fit.histories.users
    )


def test_z_scores_of_fitted_cells_have_the_variance_that_the_test_assumes():
    """The p-values of one test over many logs are uniform; without the correction they are too large."""
    corrected, plain = [], []
    for seed in range(60):
        log = dp.sample_log(SITE, users=1500, seed=seed, days=40)
        fit, part = dp.fit(log.histories, types=2, n_init=1), episodes_of(log)
        for p_values, result in ((corrected, check_fit(fit, [part])), (plain, check_forecasts(fit.instance, [part]))):
            p_values += [
                test.p_value for test in result.tests if (test.family, test.response) == ("previous", "click")
            ]
    assert len(corrected) == 60
    assert stats.kstest(corrected, "uniform").pvalue > 1e-3
    assert stats.kstest(plain, "uniform").pvalue < 1e-6


def test_a_wrong_number_of_types_is_detected():
    for seed in range(3):
        log = dp.sample_log(SITE, users=20_000, seed=seed, days=40)
        part = episodes_of(log)
        assert check_fit(dp.fit(log.histories, types=2), [part]).fits
        result = check_fit(dp.fit(log.histories, types=1), [part])
        assert not result.fits
        assert result.p_value < 1e-3
        assert "The model does not fit (p < 1e-15)" in str(result)
        assert "more than the types explain" in result.reasons[0] or "depend on the previous" in result.reasons[0]
        assert abs(result.worst()[0].z) > 3


def test_survival_is_the_kaplan_meier_estimate():
    log = dp.sample_log(SITE, users=2000, seed=4, days=15)
    result = check_forecasts(SITE, [episodes_of(log)])
    histories, survival = log.histories, 1.0
    for n in range(1, 6):
        at_risk = histories.multiplicity[histories.steps >= n].sum()
        left = histories.multiplicity[(histories.steps == n) & ~histories.censored].sum()
        survival *= 1 - left / at_risk
        assert result.survival[n] == pytest.approx(survival)
    assert result.expected_survival[5] == pytest.approx(result.survival[5], abs=0.05)
    assert "No evidence of misfit" in str(result)


def test_an_empty_log_gives_no_evidence_of_misfit():
    empty = SimpleNamespace(**{name: np.zeros(0, np.int64) for name in ("user", "category", "outcome", "time")})
    empty.pending = np.zeros(0, bool)
    result = check_forecasts(SITE, [empty])
    assert result.p_value == 1.0
    assert result.describe() == "No evidence of misfit (p > 0.99)."
    assert result.fits
    assert len(result.plot().axes) == 1
    assert check_forecasts(SITE, []).clicks_per_user == 0.0


def test_a_misfit_that_is_significant_but_small_is_named_and_does_not_matter():
    """Clicks fall by two points in the second half of a large log."""
    log = dp.sample_log(SITE, users=150_000, seed=1, days=400)
    part = episodes_of(log)
    late = (part.time > 0.5) & (part.outcome == 0) & (np.random.default_rng(1).random(len(part.user)) < 0.03)
    part.outcome = np.where(late, 1, part.outcome)
    result = check_forecasts(SITE, [part])
    assert result.fits
    assert result.reasons == ()
    assert result.p_value < 1e-6
    assert result.describe().startswith("The model fits: forecasts are off by at most ")
    assert 0.005 < result.error < 0.025


def test_users_who_arrive_together_are_one_cohort():
    part = episodes_of(dp.sample_log(SITE, users=500, seed=1))
    part.time = np.zeros(len(part.user))
    result = check_forecasts(SITE, [part])
    assert {test.family for test in result.tests} == {"step", "counts", "repetition", "previous"}
    assert result.cells("cohort") == ()
    assert result.cells("step") == result.tests[0].cells
    with pytest.raises(dp.InputError, match="family is 'steps'; expected"):
        result.cells("steps")


def test_the_calibration_plot_has_a_panel_for_each_response(tmp_path):
    result = check_forecasts(SITE, [episodes_of(dp.sample_log(SITE, users=5000, seed=1))])
    axes = result.plot(tmp_path / "calibration.svg").axes
    assert [each.get_title(loc="left") for each in axes] == [
        "clicks",
        "departures after a no-click",
        "departures after a click",
    ]
    assert (tmp_path / "calibration.svg").read_text().startswith("<?xml")
    cells = [cell for cell in result.calibration if cell.response == "click"]
    assert sum(cell.n for cell in cells) == result.tests[0].cells[0].n + sum(c.n for c in result.tests[0].cells[1:])


def test_a_log_that_ends_before_its_users_depart_is_truncated():
    loyal = dp.Instance([1.0], [[0.8]], 0.05)
    short, long = (
        check_forecasts(loyal, [episodes_of(dp.sample_log(loyal, users=500, seed=1, days=n))]) for n in (8, 2000)
    )
    assert short.truncated
    assert f"still active after {len(short.survival) - 1} steps" in str(short)
    assert not long.truncated
    assert "still active" not in str(long)


@pytest.mark.parametrize("n", [1, 5, 40])
def test_the_p_value_is_that_of_a_weighted_sum_of_chi_squared_variables(n):
    for statistic in (0.5 * n, n, 3 * n):
        assert weighted_chi_squared_test(statistic, np.eye(n)) == pytest.approx(stats.chi2.sf(statistic, n), rel=1e-9)
    vector = np.full(n, n**-0.5)
    less = np.eye(n) - np.outer(vector, vector)  # one direction is determined by the fit
    p_value = weighted_chi_squared_test(float(n), less)
    assert p_value is None if n == 1 else p_value == pytest.approx(stats.chi2.sf(n, n - 1), rel=1e-9)


def test_cells_with_few_expected_responses_are_not_tested():
    assert Cell("click", "at step 1", 100, 7, 5.0, 4.75).testable
    assert not Cell("click", "at step 1", 100, 7, 4.9, 4.7).testable
    assert not Cell("click", "at step 1", 100, 7, 95.1, 4.7).testable
