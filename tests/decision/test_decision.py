"""`plan(fit)`: the recommended policy and its uncertainty."""

import json

import numpy as np
import pytest

import departing as dp
from departing.decision.candidates import choices
from departing.decision.claims import Claim, PolicyValue, gain, observed_value
from departing.decision.ensemble import Ensemble
from departing.model.examples import magazine
from departing.planning.plan import plan as plan_instance

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8], [0.4, 0.4]], depart=0.6, categories=["news", "film", "art"])


@pytest.fixture(scope="module")
def fit():
    return dp.fit(dp.sample_log(SITE, 3000, seed=2).histories, types=2)


@pytest.fixture(scope="module")
def decision(fit):
    return dp.plan(fit, bootstrap=40)


def test_an_instance_is_planned_exactly():
    assert dp.plan(SITE, 1e-4).value == plan_instance(SITE, 1e-4).value
    assert dp.plan(SITE, gap=1e-4, allowed=["news"]).allowed == (0,)


def test_the_recommended_policy_has_the_best_mean(decision, fit):
    means = [each.value for each in decision.candidates]
    assert means == sorted(means, reverse=True)
    assert decision.policy is decision.candidates[0].policy
    assert sum(each.probability for each in decision.candidates) == pytest.approx(1)
    assert sum(each.probability for each in decision.first) == pytest.approx(1)
    assert {each.category for each in decision.first} == set(SITE.categories)
    assert decision.plan.instance == fit.instance
    value = dp.evaluate(fit.instance, decision.policy, 1e-4).value
    assert value == pytest.approx(decision.plan.value, rel=0.02)


def test_values_and_gains_are_consistent(decision):
    assert [each.name for each in decision.values][1::2] == ["policy of the log", "greedy"]
    best, *others = decision.values
    for over, other in zip(decision.gains, others, strict=True):
        assert over.name == other.name
        assert over.value == pytest.approx(best.value - other.value)
        assert over.lower <= over.value <= over.upper
    for each in decision.values:
        assert each.lower < each.value < each.upper
    assert dp.evaluate(SITE, decision.policy, 1e-4).value in decision.value
    assert decision.value is best
    assert decision.estimated_by == "model"
    assert 0 <= decision.expected_loss < 0.1 * best.value
    assert decision.users_to_halve > 0


def test_the_same_seed_gives_the_same_decision(decision, fit):
    finished = []
    again = dp.plan(fit, bootstrap=40, progress=lambda *numbers: finished.append(numbers))
    assert (again.values, again.gains, again.first) == (decision.values, decision.gains, decision.first)
    assert again.policy == decision.policy
    assert finished == [(done, 40) for done in range(1, 41)]
    assert dp.plan(fit, bootstrap=40, seed=1).values != decision.values


def test_allowed_categories_only(fit):
    decision = dp.plan(fit, bootstrap=20, allowed=["news", "art"])
    assert decision.allowed == (0, 2)
    assert {each.category for each in decision.first} == {"news", "art"}
    counts = np.random.default_rng(0).integers(0, 4, (200, 3, 4)) * [1, 1, 0, 0]
    assert set(decision.policy.recommend(counts)) <= {0, 2}
    assert len(decision.values) == 4


def test_summary_files_and_plot(decision, tmp_path):
    text = decision.summary()
    for phrase in ("Recommended policy: start with", "first category is optimal", "Expected loss", "greedy"):
        assert phrase in text
    decision.save(tmp_path / "policy.json")
    assert dp.load_policy(tmp_path / "policy.json", SITE.categories) == decision.policy
    assert json.loads((tmp_path / "policy.json").read_text())["names"] == list(SITE.categories)
    figure = decision.plot(tmp_path / "decision.svg")
    assert len(figure.axes) == 2
    assert "news" in (tmp_path / "decision.svg").read_text()


def test_one_type_has_nothing_to_gain():
    site = dp.Instance([1.0], [[0.6], [0.3]], 0.5)
    decision = dp.plan(dp.fit(dp.sample_log(site, 2000, seed=1).histories, types=[1, 2]), bootstrap=20)
    assert decision.one_type
    assert "nothing to gain" in decision.summary()
    assert decision.users_to_halve is None
    assert decision.gains[1] == PolicyValue("always category 0", 0.0, 0.0, 0.0)
    assert decision.gains[2] == PolicyValue("greedy", 0.0, 0.0, 0.0)


def test_one_category():
    site = dp.Instance([0.5, 0.5], [[0.8, 0.3]], 0.5)
    decision = dp.plan(dp.fit(dp.sample_log(site, 2000, seed=1).histories, types=2), bootstrap=20)
    assert decision.first[0].probability == 1
    assert decision.expected_loss == pytest.approx(0, abs=1e-9)


def test_a_log_without_departures_is_extrapolated():
    counts = np.random.default_rng(0).integers(0, 3, (300, 2, 4)) * [1, 1, 0, 0] + [1, 0, 0, 0]
    decision = dp.plan(dp.fit(dp.Histories(counts), types=1), bootstrap=20)
    assert [each.name for each in decision.values][1] == "always category 0"
    assert any("extrapolated" in warning for warning in decision.warnings)
    assert any("No user departed" in warning for warning in decision.warnings)


@pytest.mark.parametrize("limit", ["MAX_REFIT_SIZE", "MAX_PARAMETERS"])
def test_draws_of_large_logs_and_models(fit, monkeypatch, limit):
    """Standard deviations over draws by one step, or by EM, and over refits agree."""
    refits = Ensemble.bootstrap(fit, 200, seed=0)
    monkeypatch.setattr(f"departing.decision.ensemble.{limit}", 0)
    other = Ensemble.bootstrap(fit, 200, seed=0)
    np.testing.assert_array_equal(other.log_values, refits.log_values)
    ratio = other.logits[1:].std(axis=0) / refits.logits[1:].std(axis=0)
    assert (ratio > 0.6).all()
    assert (ratio < 1.25).all()
    assert dp.plan(fit, bootstrap=20).value.lower > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gap": 1e-3}, "gap is 0.001; it applies to an instance only"),
        ({"method": "search"}, "method is 'search'; it applies to an instance only"),
        ({"bootstrap": 5}, "bootstrap is 5; expected an integer"),
        ({"seed": -1}, "seed is -1"),
        ({"allowed": []}, "allowed forbids every category"),
        ({"allowed": ["sport"]}, "sport"),
    ],
)
def test_invalid_arguments_for_a_fit(fit, arguments, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.plan(fit, **arguments)


def test_invalid_arguments_for_an_instance():
    with pytest.raises(dp.InputError, match="seed is 1; it applies to a fit only"):
        dp.plan(SITE, seed=1)
    with pytest.raises(dp.InputError, match="expected"):
        dp.plan("magazine")


def test_choices_are_best_means():
    values = np.array([[2.0, 1.0, 3.0, 2.0], [2.1, 1.1, 1.9, 2.0]])  # means 2 and 1.67 over three draws
    assert choices(values).tolist() == [0, 0, 0, 0]
    assert choices(np.array([[1.0, 1.0, 3.0], [2.0, 2.5, 2.5]])).tolist() == [1, 1, 0]


def test_claims_are_corrected_for_optimism():
    """The larger of two equal values, each estimated with error: the claim is right on average."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(300):
        logs = rng.normal(0.0, 0.1, 2)
        draws = np.vstack([logs, logs + rng.normal(0.0, 0.1, (100, 2))])
        own = draws.argmax(axis=1)
        in_own, in_fit = draws[np.arange(101), own], logs[own]
        claim = Claim(np.exp(in_own), np.exp(in_fit), np.exp(draws[:, own[0]]))
        errors.append([claim.in_own[0] - 1, claim.value("x").value - 1, 1.0 in claim.value("x")])
    raw, corrected, covered = np.mean(errors, axis=0)
    assert raw > 0.04
    assert abs(corrected) < 0.4 * raw
    assert covered > 0.93


def test_gain_of_independent_values_adds_variances():
    rng = np.random.default_rng(4)
    first, second = PolicyValue("a", 5.0, 4.0, 7.0), PolicyValue("b", 3.0, 2.0, 4.0)
    draws = rng.normal(size=(2, 100_000))
    difference = gain(first, second, draws[0], draws[1])
    assert (difference.name, difference.value) == ("b", 2.0)
    assert difference.lower == pytest.approx(2 - 2**0.5, abs=0.02)
    assert difference.upper == pytest.approx(2 + 5**0.5, abs=0.02)
    assert observed_value("log", np.array([2.0, 1.9, 2.1])).value == 2.0


@pytest.mark.slow
def test_claims_of_fresh_logs():
    """Coverage and bias on 25 logs; `scripts/bench decision` measures them on many more."""
    site, errors, inside = magazine(), [], 0
    for seed in range(25):
        histories = dp.sample_log(site, 3000, seed=seed, days=365).histories
        decision = dp.plan(dp.fit(histories, types=3, n_init=4), bootstrap=40)
        truth = dp.evaluate(site, decision.policy, 0.02).value
        inside += truth in decision.value
        errors.append(decision.value.value - truth)
    assert abs(np.mean(errors)) < 3.5 * np.std(errors, ddof=1) / 5
    assert inside >= 20
