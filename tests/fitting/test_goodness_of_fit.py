"""Forecasts step by step, against a plain loop and against what they must be if the model is right."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.goodness_of_fit import MOST, STEPS, check

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.6], [0.7, 0.4]], 0.02, categories=["news", "film"])


def episodes_of(visits, pending=None):
    order = np.lexsort((visits.time, visits.user))
    user = visits.user[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(user)) + 1])
    step = np.arange(len(user)) - np.repeat(first, np.diff(np.append(first, len(user))))
    late = np.zeros(len(user), bool) if pending is None else pending[order]
    return SimpleNamespace(
        user=user, step=step, category=visits.category[order], outcome=visits.outcome[order], pending=late
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
        clicked, gone = outcome in (0, 3), outcome >= 2
        group = int(np.searchsorted(STEPS, step + 1, side="right") - 1)
        hits, misses = mine[:, [0, 3]].sum(), mine[:, [1, 2]].sum()
        before = min(hits, MOST - 1), min(misses, MOST - 1)
        questions = [("click", clicked, click + last)]
        if not pending:
            questions += [("depart_on_click", gone, last / (click + last))] if clicked else []
            questions += [] if clicked else [("depart", gone, depart / (stay + depart))]
        for name, yes, chance in questions:
            for where in (("step", group, category), ("counts", before, category)):
                cell = cells.setdefault((name, where), [0, 0, 0.0])
                cell[0] += 1
                cell[1] += int(yes)
                cell[2] += chance
        mine[category, outcome] += 1
    return cells


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_cells_are_those_of_a_plain_loop(seed, late):
    visits = dp.sample_log(SITE, users=60, seed=seed, days=30)
    part = episodes_of(visits, np.random.default_rng(seed).random(len(visits.user)) < 0.2 if late else None)
    found, expected = check(SITE, [part]), by_hand(SITE, part)
    for kind, cells in (("step", found.by_step), ("counts", found.by_counts)):
        mine = sorted((cell.question, cell.n, cell.observed, round(cell.expected, 9)) for cell in cells)
        theirs = sorted(
            (name, n, yes, round(chance, 9))
            for (name, where), (n, yes, chance) in expected.items()
            if where[0] == kind
        )
        assert mine == theirs


def test_it_does_not_matter_how_users_are_dealt_into_parts():
    part = episodes_of(dp.sample_log(SITE, users=300, seed=1))
    halves = [
        SimpleNamespace(**{name: values[chosen] for name, values in vars(part).items()})
        for chosen in (part.user < 150, part.user >= 150)
    ]
    one, two = check(SITE, [part]), check(SITE, halves)
    assert one.p_value == pytest.approx(two.p_value)
    assert one.here == pytest.approx(two.here)


def test_p_values_are_fair_if_the_model_is_right():
    fair = []
    for seed in range(30):
        visits = dp.sample_log(SITE, users=3000, seed=seed, days=40)
        fair.append(check(dp.fit(visits.histories, types=2).instance, [episodes_of(visits)]).p_value)
    assert sum(p < 0.1 for p in fair) <= 8  # at most 3 expected
    assert sum(p < 0.9 for p in fair) >= 5
    assert min(fair) > 1e-3


def test_a_wrong_model_is_found_out():
    for seed in range(3):
        visits = dp.sample_log(SITE, users=20_000, seed=seed, days=40)
        part = episodes_of(visits)
        assert check(dp.fit(visits.histories, types=2).instance, [part]).p_value > 1e-3
        found = check(dp.fit(visits.histories, types=1).instance, [part])
        assert found.p_value < 1e-3
        assert "does not fit everywhere" in str(found)
        assert abs(found.worst()[0].z) > 3


def test_the_share_still_here_is_kaplan_and_meiers():
    visits = dp.sample_log(SITE, users=2000, seed=4, days=15)
    found = check(SITE, [episodes_of(visits)])
    histories, here = visits.histories, 1.0
    for n in range(1, 6):
        at_risk = histories.multiplicity[histories.steps >= n].sum()
        left = histories.multiplicity[(histories.steps == n) & ~histories.censored].sum()
        here *= 1 - left / at_risk
        assert found.here[n] == pytest.approx(here)
    assert found.forecast[5] == pytest.approx(found.here[5], abs=0.05)
    assert "Forecasts against what happened" in str(found)


def test_nothing_at_all_is_checked_too():
    empty = SimpleNamespace(**{name: np.zeros(0, np.int64) for name in ("user", "step", "category", "outcome")})
    empty.pending = np.zeros(0, bool)
    assert check(SITE, [empty]).p_value == 1.0
    assert check(SITE, []).clicks == 0.0


def test_a_log_that_ends_before_its_users_leave_is_cut_short():
    loyal = dp.Instance([1.0], [[0.8]], 0.05)
    short, long = (check(loyal, [episodes_of(dp.sample_log(loyal, users=500, seed=1, days=n))]) for n in (8, 2000))
    assert short.cut_short
    assert f"still here after {len(short.here) - 1} steps" in str(short)
    assert not long.cut_short
    assert "still here" not in str(long)
