"""Fits against closed forms, a textbook EM and known instances; criteria, errors, invalid input."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.fit import Fit
from departing.fitting.type_matching import match_types
from helpers.mixtures import parameters_of

SITE = dp.Instance(
    [0.6, 0.4],
    [[0.8, 0.3], [0.3, 0.7], [0.5, 0.4]],
    [[0.3, 0.6], [0.7, 0.4], [0.5, 0.5]],
    categories=["news", "sport", "film"],
)


def truth_for(instance, fit):
    """The parameters of the instance, types in the order of the fit."""
    return match_types(parameters_of(instance), fit.instance)


def z_scores(instance, fit):
    """Errors of all identified estimates, in standard errors."""
    true, scores = truth_for(instance, fit), []
    for name in ("prior", "click", "depart", "depart_on_click"):
        error, sure = getattr(fit.stderr, name), np.asarray(getattr(fit.identified, name), bool)
        chosen = sure & (error > 0)
        scores.append(((getattr(fit.instance, name) - getattr(true, name)) / np.where(chosen, error, 1))[chosen])
    return np.concatenate(scores)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_with_one_type_estimates_are_relative_frequencies(seed, categories, pseudocount):
    """Of successes among trials, pseudocounts included."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, (30, categories, 4))
    counts[..., 2:] = 0
    gone = rng.random(30) < 0.7
    counts[gone, rng.integers(0, categories, gone.sum()), rng.integers(2, 4, gone.sum())] = 1
    pending = np.where(gone[:, None, None], 0, rng.integers(0, 3, (30, categories, 2)))
    pending = np.minimum(pending, counts[..., :2])
    fit = dp.fit(dp.Histories(counts, pending=pending), types=1, pseudocount=pseudocount)
    counts[..., :2] -= pending
    click, stay, depart, last = counts.sum(axis=0).T.tolist()
    for a in range(categories):
        responses = {
            "click": (click[a] + last[a], click[a] + stay[a] + depart[a] + last[a]),
            "depart": (depart[a], depart[a] + stay[a]),
            "depart_on_click": (last[a], click[a] + last[a]),
        }
        for name, (successes, trials) in responses.items():
            if name == "depart_on_click" and not sum(last):
                expected = Fraction(0)
            elif name == "depart" and not sum(stay):
                expected = Fraction(1)
            else:
                expected = Fraction(successes + pseudocount, trials + 2 * pseudocount)
            assert getattr(fit.instance, name)[a, 0] == pytest.approx(float(expected), abs=1e-6)


def plain_em(histories, start, rounds):
    """Log-likelihood after EM as in a textbook, on the probabilities themselves."""
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
def test_a_textbook_em_finds_no_higher_likelihood(seed):
    histories = dp.sample_log(SITE, users=3000, seed=seed).histories
    fit = dp.fit(histories, types=2)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        start = rng.dirichlet([3, 3]), *rng.uniform(0.2, 0.8, (2, 3, 2))
        assert plain_em(histories, start, 1500) <= fit.log_likelihood + 0.05


@pytest.mark.parametrize(
    "family",
    [
        "uniform",
        "specialists",
        pytest.param("sticky", marks=pytest.mark.slow),
        "row",
        "column",
        "diagonal",
    ],
)
def test_instances_of_every_family_are_recovered(family):
    """No z-score is beyond 4.5, and the likelihood ratio to the true instance has its chi-squared distribution."""
    size = {"types": 2, "categories": 2 if family in ("row", "column", "diagonal") else 3}
    for seed in range(3):
        instance = dp.random_instance(family, **size, seed=seed)
        fit = dp.fit(dp.sample_log(instance, users=30_000, seed=seed, days=60).histories, types=2)
        assert np.abs(z_scores(instance, fit)).max(initial=0) < 4.5
        likelihood, d = fit.likelihood, fit.likelihood.n_parameters
        true = likelihood.log_likelihood(likelihood.to_logits(truth_for(instance, fit)))
        assert -0.5 < 2 * (fit.log_likelihood - true) < d + 4 * np.sqrt(2 * d)


@pytest.mark.slow
def test_bic_selects_the_true_number_of_types():
    for instance in (dp.Instance([1.0], [[0.6], [0.4]], 0.5), SITE, dp.random_instance("specialists", 3, 3, seed=1)):
        fit = dp.fit(dp.sample_log(instance, users=20_000, seed=5).histories, types=range(1, 5))
        assert fit.instance.n_types == instance.n_types
        values = [row.log_likelihood for row in fit.criteria]
        assert values == sorted(values)
        for row in fit.criteria:
            assert row.bic == pytest.approx(row.parameters * np.log(fit.histories.users) - 2 * row.log_likelihood)


def test_held_out_log_likelihood_selects_the_true_number_of_types():
    histories = dp.sample_log(SITE, users=20_000, seed=5).histories
    fit = dp.fit(histories, types=[1, 2], criterion="held-out")
    assert fit.instance.n_types == 2
    one, two = (row.held_out for row in fit.criteria)
    assert two > one
    assert two == pytest.approx(fit.log_likelihood / histories.users, rel=0.02)


def test_treating_censored_users_as_departed_biases_departure_probabilities():
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


@pytest.mark.parametrize("method", ["parametric", "nonparametric"])
def test_bootstrap_and_observed_information_give_the_same_standard_errors(method):
    fit = dp.fit(dp.sample_log(SITE, users=20_000, seed=3, days=60).histories, types=2)
    replicates = fit.bootstrap(60, method, seed=1)
    for name in ("prior", "click", "depart"):
        spread = np.std([getattr(one, name) for one in replicates], axis=0)
        ratio = spread / getattr(fit.stderr, name)
        assert ratio.min() > 0.6
        assert ratio.max() < 1.6
        assert np.exp(np.log(ratio).mean()) == pytest.approx(1, abs=0.25)
    assert [one.prior.tolist() for one in fit.bootstrap(2, method, seed=1)] == [
        one.prior.tolist() for one in replicates[:2]
    ]


def test_intervals_contain_the_estimate_and_stay_between_0_and_1():
    fit = dp.fit(dp.sample_log(SITE, users=300, seed=3).histories, types=2)
    for level in (0.5, 0.95, 0.999):
        low, high = fit.intervals(level)
        for name in ("prior", "click", "depart", "depart_on_click"):
            ends = getattr(low, name), getattr(fit.instance, name), getattr(high, name)
            assert (np.diff(np.stack(ends), axis=0) >= -1e-12).all()
            assert (ends[0] >= 0).all()
            assert (ends[2] <= 1).all()


def test_types_are_sorted_by_share_and_a_seed_determines_the_fit():
    histories = dp.sample_log(SITE, users=5000, seed=3).histories
    one, two = dp.fit(histories, types=2, seed=4), dp.fit(histories, types=2, seed=4)
    other = dp.fit(histories, types=2, seed=5)
    assert one.instance.click.tolist() == two.instance.click.tolist()
    assert one.instance.click == pytest.approx(other.instance.click, abs=1e-3)
    assert (np.diff(one.instance.prior) <= 0).all()
    assert one.instance.categories == ("news", "sport", "film")


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
def test_extreme_histories_can_be_fitted(counts, users):
    fit = dp.fit(dp.Histories(counts, users), types=1)
    assert isinstance(fit, Fit)
    assert np.isfinite(fit.log_likelihood)
    assert np.isfinite(fit.stderr.click).all()
    assert fit.warnings


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": [1, 2]}, "source is .1, 2.; expected a path, or a table"),
        ({"source": "no.csv"}, "no.csv"),
        ({"inactive_after": "14 days"}, "the source is read already: .*pass inactive_after to read_log"),
        ({"source": dp.Histories(np.zeros((0, 2, 4), int))}, "nothing to fit"),
        ({"source": dp.Histories(np.zeros((3, 2, 4), int))}, "nothing to fit"),
        ({"types": 0}, "types is 0; expected an integer ≥ 1"),
        ({"types": []}, "types is empty"),
        ({"types": 9}, "types is 9; expected at most 3"),
        ({"types": 65}, "at most 64"),
        ({"criterion": "aic"}, "criterion is 'aic'; expected one of sabic, bic, held-out"),
        ({"depart": 0.5}, "depart is 0.5; expected 1"),
        ({"depart": 1}, "users stayed after 3 no-clicks"),
        ({"depart_on_click": 1}, "depart_on_click is 1; expected 0"),
        ({"depart_on_click": 0}, "1 users departed after a click"),
        ({"pseudocount": 0}, "pseudocount is 0; expected"),
        ({"n_init": 0}, "n_init is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments_raise_input_errors(change, sentence):
    arguments = {"source": dp.Histories([[[2, 1, 0, 0]], [[0, 2, 1, 0]], [[1, 0, 0, 1]]]), "types": 1}
    with pytest.raises(dp.InputError, match=sentence):
        dp.fit(**(arguments | change))


def test_unknown_arguments_suggest_similar_ones():
    with pytest.raises(TypeError, match="unexpected keyword argument 'inactive'; did you mean 'inactive_after'"):
        dp.fit("events.csv", inactive="14 days")


def test_frames_and_files_are_read_with_the_options_of_read_log(tmp_path):
    sample = dp.sample_log(SITE, users=400, seed=3)
    sample.save(tmp_path / "events.csv")
    options = {"inactive_after": "9 days", "user": "who"}
    frame = sample.to_frame().rename(columns={"user": "who"})
    expected = dp.fit(dp.read_log(frame, **options), types=[1, 2], seed=1)
    given = dp.fit(frame, [1, 2], seed=1, **options)
    assert given.instance == expected.instance
    assert isinstance(given.histories, dp.Log)
    assert dp.fit(tmp_path / "events.csv", [1, 2], seed=1, inactive_after="9 days").instance == expected.instance
    given.save(tmp_path / "found.toml")
    assert dp.Instance.load(tmp_path / "found.toml") == given.instance
    check = given.check()
    assert np.allclose(given.histories.retention, check.survival)


def test_invalid_arguments_of_methods_raise_input_errors():
    fit = dp.fit(dp.sample_log(SITE, users=300, seed=3).histories, types=1)
    for function in (lambda: dp.evaluate(fit, "greedy"), lambda: dp.belief(fit, events=[])):
        with pytest.raises(dp.InputError, match="expected an Instance, pass its attribute `instance`"):
            function()
    with pytest.raises(dp.InputError, match="method is 'jackknife'; expected one of parametric, nonparametric"):
        fit.bootstrap(3, "jackknife")
    with pytest.raises(dp.InputError, match="confidence is 1"):
        fit.intervals(1)
    with pytest.raises(dp.InputError, match="do not keep the order of steps"):
        fit.check()


def test_summary_lists_types_criteria_and_warnings():
    fit = dp.fit(dp.sample_log(SITE, users=3000, seed=3).histories, types=[1, 2])
    lines = fit.summary().splitlines()
    assert lines[0] == fit.describe()
    assert fit.describe().endswith("estimated from 3,000 users.")
    assert lines[1].strip().endswith("love news, leave after sport")
    assert [line.split()[:2] for line in lines[4:6]] == [["1", "6"], ["*", "2"]]
    assert [line for line in lines if line.startswith("Warning: ")] == [f"Warning: {each}" for each in fit.warnings]


def test_the_plot_shows_probabilities_and_with_a_check_survival(tmp_path):
    log = dp.sample_log(SITE, users=1000, seed=3)
    log.save(tmp_path / "events.csv")
    fit = dp.fit(dp.read_log(tmp_path / "events.csv", inactive_after="14 days"), types=2)
    assert len(fit.plot().axes) == 2
    *_, survival = fit.plot(tmp_path / "fit.svg", check=fit.check()).axes
    assert survival.get_title(loc="left") == "share of active users"
    assert (tmp_path / "fit.svg").read_text().startswith("<?xml")
