"""Goodness of fit: cells against a plain loop, p-values of right and wrong models, survival."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import departing as dp
from departing.fitting.goodness_of_fit import COUNT_LABELS, STEP_GROUPS, Cell, _chi_squared_test, check_forecasts

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.6], [0.7, 0.4]], 0.02, categories=["news", "film"])


def episodes_of(log, pending=None):
    order = np.lexsort((log.time, log.user))
    user = log.user[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(user)) + 1])
    step = np.arange(len(user)) - np.repeat(first, np.diff(np.append(first, len(user))))
    late = np.zeros(len(user), bool) if pending is None else pending[order]
    return SimpleNamespace(
        user=user, step=step, category=log.category[order], outcome=log.outcome[order], pending=late
    )


def by_hand(instance, part):
    """The same sums, a step at a time, with the forecasts of `predict`."""
    cells = {}
    counts = {}
    for user, step, category, outcome, pending in zip(
        part.user, part.step, part.category, part.outcome, part.pending, strict=True
    ):
        mine = counts.setdefault(user, np.zeros((instance.n_categories, 4), int))
        click, stay, depart, last = dp.predict(instance, mine)[category]
        clicked, departed = outcome in (0, 3), outcome >= 2
        group = int(np.searchsorted(STEP_GROUPS, step + 1, side="right") - 1)
        clicks, no_clicks = mine[:, [0, 3]].sum(), mine[:, [1, 2]].sum()
        before = min(clicks, len(COUNT_LABELS) - 1), min(no_clicks, len(COUNT_LABELS) - 1)
        responses = [("click", clicked, click + last)]
        if not pending:
            responses += [("depart_on_click", departed, last / (click + last))] if clicked else []
            responses += [] if clicked else [("depart", departed, depart / (stay + depart))]
        for name, observed, prob in responses:
            for where in (("step", group, category), ("counts", before, category)):
                cell = cells.setdefault((name, where), [0, 0, 0.0])
                cell[0] += 1
                cell[1] += int(observed)
                cell[2] += prob
        mine[category, outcome] += 1
    return cells


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_cells_agree_with_a_plain_loop(seed, late):
    log = dp.sample_log(SITE, users=60, seed=seed, days=30)
    part = episodes_of(log, np.random.default_rng(seed).random(len(log.user)) < 0.2 if late else None)
    result, expected = check_forecasts(SITE, [part]), by_hand(SITE, part)
    for kind, cells in (("step", result.by_step), ("counts", result.by_counts)):
        mine = sorted((cell.response, cell.n, cell.observed, round(cell.expected, 9)) for cell in cells)
        theirs = sorted(
            (name, n, yes, round(prob, 9)) for (name, where), (n, yes, prob) in expected.items() if where[0] == kind
        )
        assert mine == theirs


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
        p_values.append(check_forecasts(dp.fit(log.histories, types=2).instance, [episodes_of(log)]).p_value)
    assert sum(p < 0.1 for p in p_values) <= 8  # at most 3 expected
    assert sum(p < 0.9 for p in p_values) >= 5
    assert min(p_values) > 1e-3


def test_a_wrong_number_of_types_is_detected():
    for seed in range(3):
        log = dp.sample_log(SITE, users=20_000, seed=seed, days=40)
        part = episodes_of(log)
        assert check_forecasts(dp.fit(log.histories, types=2).instance, [part]).p_value > 1e-3
        result = check_forecasts(dp.fit(log.histories, types=1).instance, [part])
        assert result.p_value < 1e-3
        assert "does not fit everywhere" in str(result)
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
    assert "Goodness of fit" in str(result)


def test_an_empty_log_gives_no_evidence_of_misfit():
    empty = SimpleNamespace(**{name: np.zeros(0, np.int64) for name in ("user", "step", "category", "outcome")})
    empty.pending = np.zeros(0, bool)
    assert check_forecasts(SITE, [empty]).p_value == 1.0
    assert check_forecasts(SITE, []).clicks_per_user == 0.0


def test_a_log_that_ends_before_its_users_depart_is_truncated():
    loyal = dp.Instance([1.0], [[0.8]], 0.05)
    short, long = (
        check_forecasts(loyal, [episodes_of(dp.sample_log(loyal, users=500, seed=1, days=n))]) for n in (8, 2000)
    )
    assert short.truncated
    assert f"still active after {len(short.survival) - 1} steps" in str(short)
    assert not long.truncated
    assert "still active" not in str(long)


@pytest.mark.parametrize("z", [0.5, 1.0, 2.0, 3.5])
def test_the_p_value_is_the_upper_tail_of_the_chi_squared_distribution(z):
    cells = [Cell("click", "step 1", 400, 100 + round(10 * z), 100.0, 100.0)] * 7 + [
        Cell("click", "", 4, 3, 1.0, 1.0)
    ]
    assert _chi_squared_test(cells) == pytest.approx(stats.chi2.sf(7 * z**2, 7), rel=1e-9)
