"""Fitting instances: against closed forms, a plain EM, the truth, and what cannot be told."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.fit import Fit
from departing.fitting.likelihood import Evidence, Parameters
from departing.fitting.resampling import Design, redrawn
from departing.fitting.type_matching import matched, ordered, reordered

SITE = dp.Instance(
    [0.6, 0.4],
    [[0.8, 0.3], [0.3, 0.7], [0.5, 0.4]],
    [[0.3, 0.6], [0.7, 0.4], [0.5, 0.5]],
    categories=["news", "sport", "film"],
)


def truth_for(instance, fit):
    """The parameters of the instance, types in the order of the fit."""
    own = Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)
    return matched(own, fit.instance)


def z_scores(instance, fit):
    """Of everything that was estimated and is called identified."""
    true, found = truth_for(instance, fit), []
    for name in ("prior", "click", "depart", "depart_on_click"):
        error, sure = getattr(fit.errors, name), np.asarray(getattr(fit.identified, name), bool)
        chosen = sure & (error > 0)
        found.append(((getattr(fit.instance, name) - getattr(true, name)) / np.where(chosen, error, 1))[chosen])
    return np.concatenate(found)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_one_type_is_counted(seed, categories, pseudo):
    """With one type every chance is a share of answers, the added ones included."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, (30, categories, 4))
    counts[..., 2:] = 0
    gone = rng.random(30) < 0.7
    counts[gone, rng.integers(0, categories, gone.sum()), rng.integers(2, 4, gone.sum())] = 1
    pending = np.where(gone[:, None, None], 0, rng.integers(0, 3, (30, categories, 2)))
    pending = np.minimum(pending, counts[..., :2])
    fit = dp.fit(dp.Histories(counts, pending=pending), types=1, pseudo=pseudo)
    counts[..., :2] -= pending
    click, stay, depart, last = counts.sum(axis=0).T.tolist()
    for a in range(categories):
        answers = {
            "click": (click[a] + last[a], click[a] + stay[a] + depart[a] + last[a]),
            "depart": (depart[a], depart[a] + stay[a]),
            "depart_on_click": (last[a], click[a] + last[a]),
        }
        for name, (yes, asked) in answers.items():
            if name == "depart_on_click" and not sum(last):
                expected = Fraction(0)
            elif name == "depart" and not sum(stay):
                expected = Fraction(1)
            else:
                expected = Fraction(yes + pseudo, asked + 2 * pseudo)
            assert getattr(fit.instance, name)[a, 0] == pytest.approx(float(expected), abs=1e-6)


def plain_em(histories, start, rounds):
    """EM as in a textbook, on the chances themselves."""
    prior, click, depart = start
    counts, users = histories.counts, histories.multiplicity[:, None]
    hits, misses = counts[..., 0] + counts[..., 3], counts[..., 1] + counts[..., 2]
    stays, leaves = counts[..., 1], counts[..., 2]
    for _ in range(rounds):
        logs = np.log(prior) + hits @ np.log(click) + misses @ np.log1p(-click)
        logs = logs + leaves @ np.log(depart) + stays @ np.log1p(-depart)
        top = logs.max(axis=1, keepdims=True)
        share = np.exp(logs - top)
        value = float((users[:, 0] * (top[:, 0] + np.log(share.sum(axis=1)))).sum())
        share = users * share / share.sum(axis=1, keepdims=True)
        prior = (share.sum(axis=0) + 1) / (share.sum() + len(prior))
        yes, no = hits.T @ share + 1, misses.T @ share + 1
        click, depart = yes / (yes + no), (leaves.T @ share + 1) / (leaves.T @ share + stays.T @ share + 2)
    return value


@pytest.mark.parametrize("seed", range(3))
def test_no_plain_em_comes_higher(seed):
    histories = dp.sample_log(SITE, users=3000, seed=seed).histories
    fit = dp.fit(histories, types=2)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        start = rng.dirichlet([3, 3]), *rng.uniform(0.2, 0.8, (2, 3, 2))
        assert plain_em(histories, start, 1500) <= fit.log_likelihood + 0.05


@pytest.mark.parametrize("family", ["uniform", "specialists", "sticky", "row", "column", "diagonal"])
def test_every_family_is_found_again(family):
    """The instance comes back within its errors: it is as likely as it should be, and no z-score is beyond 4.5."""
    size = {"types": 2, "categories": 2 if family in ("row", "column", "diagonal") else 3}
    for seed in range(3):
        instance = dp.random_instance(family, **size, seed=seed)
        fit = dp.fit(dp.sample_log(instance, users=30_000, seed=seed, days=60).histories, types=2)
        assert np.abs(z_scores(instance, fit)).max(initial=0) < 4.5
        evidence, d = fit.evidence, fit.evidence.n_parameters
        less = fit.log_likelihood - evidence.value(evidence.pack(truth_for(instance, fit))[None], 0.0)[0]
        assert -0.5 < 2 * less < d + 4 * np.sqrt(2 * d)


def test_the_number_of_types_is_found():
    for instance in (dp.Instance([1.0], [[0.6], [0.4]], 0.5), SITE, dp.random_instance("specialists", 3, 3, seed=1)):
        fit = dp.fit(dp.sample_log(instance, users=20_000, seed=5).histories, types=range(1, 5))
        assert fit.instance.n_types == instance.n_types
        values = [row.log_likelihood for row in fit.criteria]
        assert values == sorted(values)
        for row in fit.criteria:
            assert row.bic == pytest.approx(row.parameters * np.log(fit.histories.users) - 2 * row.log_likelihood)


def test_held_out_likelihood_is_that_of_users_set_aside():
    histories = dp.sample_log(SITE, users=20_000, seed=5).histories
    fit = dp.fit(histories, types=[1, 2], criterion="held-out")
    assert fit.instance.n_types == 2
    one, two = (row.held_out for row in fit.criteria)
    assert two > one
    assert two == pytest.approx(fit.log_likelihood / histories.users, rel=0.02)


def test_a_boundary_between_departed_and_censored_matters():
    """Who takes censored users for departed finds departures too likely."""
    histories = dp.sample_log(SITE, users=30_000, seed=2, days=6).histories
    wrong = np.array(histories.counts)
    rows = np.flatnonzero(histories.censored & (wrong[..., 1].sum(axis=1) > 0))
    for row in rows:
        category = int(wrong[row, :, 1].argmax())
        wrong[row, category, 1] -= 1
        wrong[row, category, 2] += 1
    right = dp.fit(histories, types=2)
    biased = dp.fit(dp.Histories(wrong, histories.multiplicity), types=2)
    assert np.abs(z_scores(SITE, right)).max() < 4.5
    assert (biased.instance.depart - right.instance.depart).mean() > 0.05


@pytest.mark.parametrize("kind", ["parametric", "resample"])
def test_bootstrap_and_information_agree_about_errors(kind):
    fit = dp.fit(dp.sample_log(SITE, users=20_000, seed=3, days=60).histories, types=2)
    again = fit.bootstrap(60, kind, seed=1)
    for name in ("prior", "click", "depart"):
        spread = np.std([getattr(one, name) for one in again], axis=0)
        ratio = spread / getattr(fit.errors, name)
        assert ratio.min() > 0.6
        assert ratio.max() < 1.6
        assert np.exp(np.log(ratio).mean()) == pytest.approx(1, abs=0.25)
    assert [one.prior.tolist() for one in fit.bootstrap(2, kind, seed=1)] == [one.prior.tolist() for one in again[:2]]


def test_intervals_hold_the_estimate_and_stay_between_0_and_1():
    fit = dp.fit(dp.sample_log(SITE, users=300, seed=3).histories, types=2)
    for level in (0.5, 0.95, 0.999):
        low, high = fit.intervals(level)
        for name in ("prior", "click", "depart", "depart_on_click"):
            ends = getattr(low, name), getattr(fit.instance, name), getattr(high, name)
            assert (np.diff(np.stack(ends), axis=0) >= -1e-12).all()
            assert (ends[0] >= 0).all()
            assert (ends[2] <= 1).all()


def test_types_are_ordered_and_a_seed_fixes_everything():
    histories = dp.sample_log(SITE, users=5000, seed=3).histories
    one, two = dp.fit(histories, types=2, seed=4), dp.fit(histories, types=2, seed=4)
    other = dp.fit(histories, types=2, seed=5)
    assert one.instance.click.tolist() == two.instance.click.tolist()
    assert one.instance.click == pytest.approx(other.instance.click, abs=1e-3)
    assert (np.diff(one.instance.prior) <= 0).all()
    assert one.instance.categories == ("news", "sport", "film")
    parameters = Parameters(*np.random.default_rng(1).random((1, 3)), *np.random.default_rng(2).random((3, 2, 3)))
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert ordered(reordered(parameters, np.array(order))).click.tolist() == ordered(parameters).click.tolist()


def test_many_types_are_matched_one_to_one():
    rng = np.random.default_rng(0)
    instance = dp.Instance(rng.dirichlet(np.ones(9)), rng.uniform(0.1, 0.9, (6, 9)), 0.5)
    own = Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)
    assert matched(reordered(own, rng.permutation(9)), instance).click.tolist() == instance.click.tolist()


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_beliefs_are_those_of_the_model(seed):
    histories = dp.sample_log(SITE, users=50, seed=seed, days=20).histories
    evidence = Evidence.of(histories.counts, histories.multiplicity, 2, np.arange(3))
    eta = evidence.pack(Parameters(SITE.prior, SITE.click, SITE.depart, SITE.depart_on_click))
    assert evidence.beliefs(eta) == pytest.approx(dp.belief(SITE, histories.counts), abs=1e-9)


def test_a_design_is_drawn_as_it_was():
    histories = dp.sample_log(SITE, users=40_000, seed=1, days=10, shares=[0.5, 0.3, 0.2]).histories
    again = Design.of(histories).draw(SITE, np.random.default_rng(1))
    assert again.users == histories.users
    for one in (histories, again):
        shown = one.multiplicity @ one.counts.sum(axis=2)
        assert shown / shown.sum() == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    for n in range(1, 6):
        shares = [one.multiplicity[one.steps >= n].sum() / one.users for one in (histories, again)]
        assert abs(shares[0] - shares[1]) < 5 * np.sqrt(2 * 0.25 / histories.users)
    censored = [one.multiplicity[one.censored].sum() for one in (histories, again)]
    assert censored[0] == pytest.approx(censored[1], rel=0.05)


def test_users_are_redrawn_from_the_users():
    histories = dp.sample_log(SITE, users=500, seed=1).histories
    again = redrawn(histories, np.random.default_rng(1))
    assert again.users == 500
    known = {row.tobytes() for row in histories.counts}
    assert all(row.tobytes() in known for row in again.counts)


def test_what_cannot_be_told_is_said():
    twins = dp.Instance([0.5, 0.5], [[0.5, 0.5], [0.4, 0.4]], 0.5)
    fit = dp.fit(dp.sample_log(twins, users=3000, seed=1).histories, types=2)
    assert any("cannot be told apart" in sentence for sentence in fit.warnings) or not fit.identified.click.all()
    short = dp.fit(dp.Histories([[[0, 0, 1, 0]], [[0, 0, 0, 1]]], [500, 500]), types=2)
    assert any("Histories are short" in sentence for sentence in short.warnings)
    assert any("departures follow a click" in sentence for sentence in short.warnings)
    rare = np.zeros((2, 2, 4), int)
    rare[0, 0], rare[1, 1] = [5, 5, 1, 0], [1, 0, 1, 0]
    named = dp.fit(dp.Histories(rare, [1000, 3], categories=["news", "film"]), types=1)
    assert any("little data on 'film' (6 times)" in sentence for sentence in named.warnings)


@pytest.mark.parametrize(
    ("counts", "users"),
    [
        ([[[3, 1, 1, 0]]], [1]),  # one user, one category
        ([[[3, 1, 0, 0]]], [50]),  # all censored
        ([[[0, 4, 1, 0]]], [50]),  # never clicked
        ([[[9, 0, 0, 0], [0, 0, 0, 0]]], [50]),  # never shown
        ([[[5, 0, 1, 0]]], [10**15]),  # huge
    ],
)
def test_odd_histories_are_fitted(counts, users):
    fit = dp.fit(dp.Histories(counts, users), types=1)
    assert isinstance(fit, Fit)
    assert np.isfinite(fit.log_likelihood)
    assert np.isfinite(fit.errors.click).all()
    assert fit.warnings


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"histories": [1, 2]}, "expected Histories"),
        ({"histories": dp.Histories(np.zeros((0, 2, 4), int))}, "nothing to fit"),
        ({"histories": dp.Histories(np.zeros((3, 2, 4), int))}, "nothing to fit"),
        ({"types": 0}, "types is 0; expected an integer ≥ 1"),
        ({"types": []}, "types is empty"),
        ({"types": 9}, "types is 9; at most 3 are allowed"),
        ({"types": 65}, "at most 64"),
        ({"criterion": "aic"}, "criterion is 'aic'; allowed are bic, held-out"),
        ({"depart": 0.5}, "depart is 0.5; allowed are 1"),
        ({"depart": 1}, "users stayed after 3 no-clicks"),
        ({"depart_on_click": 1}, "depart_on_click is 1; allowed are 0"),
        ({"depart_on_click": 0}, "1 users departed after a click"),
        ({"pseudo": 0}, "pseudo is 0; expected a number from 1e-06"),
        ({"starts": 0}, "starts is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_input_gets_one_clear_sentence(change, sentence):
    arguments = {"histories": dp.Histories([[[2, 1, 0, 0]], [[0, 2, 1, 0]], [[1, 0, 0, 1]]]), "types": 1}
    with pytest.raises(dp.InputError, match=sentence):
        dp.fit(**(arguments | change))


def test_bad_questions_to_a_fit_get_one_clear_sentence():
    fit = dp.fit(dp.sample_log(SITE, users=300, seed=3).histories, types=1)
    with pytest.raises(dp.InputError, match="kind is 'jackknife'; allowed are parametric, resample"):
        fit.bootstrap(3, "jackknife")
    with pytest.raises(dp.InputError, match="confidence is 1"):
        fit.intervals(1)
    with pytest.raises(dp.InputError, match="order of steps is not known"):
        fit.check()
