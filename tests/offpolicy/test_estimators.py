"""Off-policy evaluation: estimators against known values, overlap, censoring, warnings and invalid input."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import departing as dp
from departing.offpolicy.estimators import _mean_estimate
from departing.offpolicy.importance_sampling import Moments

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], depart=0.7, categories=["news", "sport"])


def events(users=2000, seed=1, **options):
    """A log of random recommendations with logged departures, as a frame."""
    sample = dp.sample_log(SITE, users, seed, **options)
    columns = {name: np.asarray(column) for name, column in sample.columns().items()}
    return pd.DataFrame(columns | {"departed": sample.outcome >= 2})


@pytest.fixture(scope="module")
def log():
    return dp.read_log(events())


@pytest.fixture(scope="module")
def fit(log):
    return dp.fit(log, types=2)


@pytest.mark.parametrize("policy", [dp.Walk([1], then=0), dp.Greedy(SITE)])
def test_pdis_on_the_policys_own_log_is_the_mean_number_of_clicks(policy, tmp_path):
    run = dp.simulate(SITE, policy, users=3000, seed=2, log=tmp_path / "events.csv")
    own = pd.read_csv(tmp_path / "events.csv").assign(propensity=1.0)
    value = dp.off_policy_value(dp.read_log(own), policy, types=2, bootstrap=20)
    assert value.pdis.value == pytest.approx(run.mean, abs=1e-12)
    assert value.pdis.stderr == pytest.approx(run.stderr, rel=1e-3)
    assert value.tail_share < 1e-3
    assert value.horizon == len(value.overlap) == dp.read_log(own).steps.max()
    assert not value.warnings


def test_categories_that_were_left_out_are_a_warning():
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6], [0.5, 0.5]], 0.7, categories=["news", "sport", "zoo"])
    sample = dp.sample_log(site, 2000, 1)
    table = pd.DataFrame({name: np.asarray(column) for name, column in sample.columns().items()})
    table = table.assign(departed=sample.outcome >= 2)
    part = dp.read_log(table, categories=["news", "sport"], max_rejected=0.5)
    value = dp.off_policy_value(part, "fixed:news", types=2, bootstrap=20)
    (left_out,) = (each for each in value.warnings if "were left out" in each)
    share = 1 - part.report.used / part.report.events
    assert left_out.startswith(f"{share:.1%} of the events")
    assert f"about {share / (1 - share):.1%} a step" in left_out
    whole = dp.off_policy_value(dp.read_log(table), "fixed:news", types=2, bootstrap=20)
    assert not any("were left out" in each for each in whole.warnings)
    report = dp.report(part, types=2, bootstrap=20)
    assert report.ope is None
    assert f"{share:.1%} of the events show categories that were left out" in report.to_html()


def test_intervals_of_all_estimators_contain_the_true_value(log, fit):
    policy = dp.Walk([0], then=1)
    value, truth = dp.off_policy_value(log, policy, fit=fit, bootstrap=60), dp.evaluate(SITE, policy).value
    assert truth in value.dm
    assert truth in value.pdis
    assert truth in value.dr
    assert value.dm.stderr < value.dr.stderr < value.pdis.stderr
    assert value.fit is fit
    assert value.best is value.dr
    assert value.users == 2000
    assert value.overlap[0].users == value.overlap[0].ess == int((log_first(log) == 0).sum())
    assert value.overlap[0].click_share == pytest.approx(
        fit.instance.prior @ fit.instance.click[0] / value.dm.value, rel=1e-3
    )
    assert value.summary().splitlines()[0] == f"DM    {value.dm}, ESS 2,000"
    assert value.dm.ess == 2000
    assert value.pdis.ess == value.dr.ess == value.overlap[value.horizon - 1].ess


def log_first(log):
    return np.concatenate([part.category[part.step == 0] for part in log.episodes()])


def test_intervals_widen_with_the_confidence(log, fit):
    narrow, wide = (
        dp.off_policy_value(log, dp.Fixed(0), fit=fit, bootstrap=60, confidence=level) for level in (0.5, 0.99)
    )
    for name in ("dm", "pdis", "dr"):
        inner, outer = getattr(narrow, name), getattr(wide, name)
        assert outer.lower < inner.lower < inner.value == outer.value < inner.upper < outer.upper


def test_the_order_of_rows_changes_nothing(log, fit):
    again = dp.read_log(events().sample(frac=1, random_state=0))
    one, two = (dp.off_policy_value(each, dp.Fixed(1), fit=fit, bootstrap=20) for each in (log, again))
    assert one.dr.value == pytest.approx(two.dr.value, abs=1e-12)


def test_a_misfit_of_the_model_causes_a_warning():
    drifting = events(20000, seed=3)
    rng = np.random.default_rng(3)
    order = drifting.groupby("user").cumcount()
    drifting["clicked"] = np.where(order > 0, rng.random(len(drifting)) < 0.95, drifting["clicked"])
    value = dp.off_policy_value(dp.read_log(drifting), dp.Fixed(0), types=1, bootstrap=20)
    assert any("the model does not fit this log" in note for note in value.warnings)


def test_censored_users_do_not_count_as_departed():
    short = dp.read_log(events(20000, days=3.0, step_days=2.0))
    assert short.report.censored > 3000
    policy = dp.Walk([0], then=1)
    value, truth = dp.off_policy_value(short, policy, types=2, bootstrap=20), dp.evaluate(SITE, policy).value
    assert value.dr.value == pytest.approx(truth, abs=4 * value.dr.stderr)
    gone = events(20000, days=3.0, step_days=2.0)
    gone["departed"] |= ~gone.duplicated("user", keep="last")
    mistaken = dp.off_policy_value(dp.read_log(gone), policy, types=2, bootstrap=20)
    assert mistaken.dr.value < truth - 4 * mistaken.dr.stderr


def test_without_propensities_only_the_direct_method_applies(fit):
    value = dp.off_policy_value(dp.read_log(events().drop(columns="propensity")), dp.Fixed(0), fit=fit, bootstrap=20)
    assert value.pdis is None
    assert value.dr is None
    assert value.best is value.dm
    (warning,) = value.warnings
    assert warning.startswith("The log has no propensities, so only the direct method applies")
    assert "--propensity COLUMN" in warning


def test_for_plain_histories_only_the_direct_method_applies(log, fit):
    plain = dp.Histories(log.counts, log.multiplicity, categories=log.categories)
    value = dp.off_policy_value(plain, dp.Fixed(0), fit=fit, bootstrap=20)
    assert value.pdis is None
    assert "Plain histories have no propensities" in value.warnings[0]
    assert value.dm == dp.off_policy_value(log, dp.Fixed(0), fit=fit, bootstrap=20).dm


def test_users_without_a_propensity_are_left_out_and_counted(fit):
    some = events()
    some.loc[(some["user"] % 10 == 0) & (some["clicked"]), "propensity"] = None
    missing = some.loc[some["propensity"].isna(), "user"].nunique()
    value = dp.off_policy_value(dp.read_log(some), dp.Fixed(0), fit=fit, bootstrap=20)
    assert value.warnings[0].startswith(f"{missing} of 2,000 users lack a propensity")


def test_missing_and_poor_overlap_cause_warnings(log, fit):
    poor = dp.off_policy_value(log, dp.Greedy(SITE), fit=fit, bootstrap=20)
    assert re.match(r"Poor overlap: after \d+ steps too few users agree .* but \d+% of its clicks", poor.warnings[-1])
    assert poor.tail_share > 0.1
    only = events()
    only = only[only.groupby("user").category.transform("first") == "news"]
    none = dp.off_policy_value(dp.read_log(only), dp.Fixed(1), fit=fit, bootstrap=20)
    assert none.dr is None
    assert none.warnings[-1].startswith("No overlap: the policy starts with 'sport'")


def test_departures_inferred_from_inactivity_do_not_bias_the_estimates():
    """The inactivity period is a third of the log, and all estimates are still within their errors."""
    truth = dp.evaluate(SITE, dp.Fixed(0)).value
    silent = dp.read_log(events(days=30.0).drop(columns="departed"), inactive_after="10 days")
    value = dp.off_policy_value(silent, dp.Fixed(0), types=2, bootstrap=30)
    for estimate in (value.dm, value.pdis, value.dr):
        assert abs(estimate.value - truth) < 4 * estimate.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"log": "events.csv"}, "There is no file 'events.csv'"),
        ({"policy": 3}, "policy is 3; expected an object with a method recommend"),
        ({"policy": "greedi"}, "There is no policy 'greedi'; write fixed:C"),
        ({"policy": "fixed:8"}, "There is no category '8'"),
        ({"policy": dp.Fixed(2)}, "Fixed recommends category 2, but the instance has 2"),
        ({"policy": dp.Walk([0, 0], then=5)}, "Walk recommends category 5"),
        ({"policy": dp.Greedy(dp.Instance([1.0], [[0.5]]))}, "counts have 2 categories; the policy's instance has 1"),
        (
            {"policy": dp.Greedy(SITE.replace(categories=["news", "film"]))},
            "made for the categories news, film, not for news, sport; use a policy for these categories",
        ),
        ({"fit": SITE}, "fit is Instance.*; expected a Fit"),
        ({"confidence": 1.5}, "confidence is 1.5; expected a number above 0 and below 1"),
        ({"bootstrap": 5}, "bootstrap is 5; expected an integer ≥ 20"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments_raise_input_errors(arguments, sentence, log, fit):
    given = {"log": log, "policy": dp.Fixed(0), "fit": fit, "bootstrap": 20} | arguments
    with pytest.raises(dp.InputError, match=sentence):
        dp.off_policy_value(given.pop("log"), given.pop("policy"), **given)


def test_a_fit_of_other_categories_is_rejected(log):
    other = dp.fit(dp.sample_log(dp.Instance([1.0], [[0.5], [0.4], [0.3]]), 500).histories, types=1)
    with pytest.raises(dp.InputError, match="fit has 3 categories, but the log has 2"):
        dp.off_policy_value(log, dp.Fixed(0), fit=other)


def test_a_fit_of_the_categories_in_another_order_is_rejected(log, fit):
    other = dp.fit(dp.sample_log(SITE.relabel(categories=[1, 0]), 500).histories, types=1)
    with pytest.raises(dp.InputError, match="expected a fit of the same categories in the same order"):
        dp.off_policy_value(log, dp.Fixed(0), fit=other)


def test_a_policy_for_the_categories_in_another_order_is_reordered(log, fit):
    for policy in (dp.Greedy(SITE), dp.plan(SITE).policy, dp.Walk([0], then=1).resolve(SITE.categories)):
        other = policy.reorder([1, 0])
        one, two = (dp.off_policy_value(log, each, fit=fit, bootstrap=20) for each in (policy, other))
        assert one.dr == two.dr
        assert one.dm == two.dm


def test_the_interval_of_skewed_returns_is_shifted_towards_the_long_tail():
    rng = np.random.default_rng(1)
    returns = np.where(rng.random(400) < 0.05, 20.0, 0.0)
    moments = Moments.of(400, [(returns**k).sum() for k in (1, 2, 3)], 0.0)
    value = _mean_estimate(moments, 0.0, 0.0, 1.96, 1.0)
    skew = stats.skew(returns) / np.sqrt(400)
    middle = value.value + skew * (1 + 2 * 1.96**2) / 6 * value.stderr
    assert (value.lower + value.upper) / 2 == pytest.approx(middle, rel=1e-2)
    assert value.stderr == pytest.approx(stats.sem(returns), rel=1e-12)
    assert _mean_estimate(Moments(5, 1.0, 0.0, 0.0), 0.04, 0.09, 2.0, 1.0).stderr == pytest.approx(0.3)


def test_the_plot_shows_every_estimate_and_the_overlap(log, fit, tmp_path):
    value = dp.off_policy_value(log, dp.Fixed(0), fit=fit, bootstrap=20)
    estimates, overlap = value.plot(tmp_path / "value.svg").axes
    assert [label.get_text() for label in estimates.get_xticklabels()] == ["DM", "PDIS", "DR"]
    assert overlap.lines[0].get_ydata().tolist() == [step.ess for step in value.overlap]
    assert (tmp_path / "value.svg").read_text().startswith("<?xml")
    plain = dp.Histories(log.counts, log.multiplicity, categories=log.categories)
    assert len(dp.off_policy_value(plain, dp.Fixed(0), fit=fit, bootstrap=20).plot().axes) == 1


def test_describe_names_the_best_estimator(log, fit):
    value = dp.off_policy_value(log, dp.Fixed(0), fit=fit, bootstrap=20)
    assert value.describe().startswith(f"{value.dr.value:.4g} expected clicks per user (doubly robust, 95% interval")


def test_texts_stand_for_policies(log, fit):
    for text, policy in (("greedy", dp.Greedy(fit.instance)), ("fixed:1", dp.Fixed(1))):
        given, expected = (dp.off_policy_value(log, each, fit=fit, bootstrap=20) for each in (text, policy))
        assert given.estimates == expected.estimates


@pytest.mark.parametrize(("explored", "warns"), [(0, False), (2, False), (200, True)])
def test_the_weights_of_a_policy_that_rarely_explores_cause_no_warning(fit, explored, warns):
    """Users of the policy itself, whose first step was exploratory in 1 % of the cases, or too often."""
    frame = pd.DataFrame(
        {
            "user": [f"u{i}" for i in range(400)],
            "time": range(400),
            "category": [fit.instance.categories[int(i < explored)] for i in range(400)],
            "clicked": [i % 3 == 0 for i in range(400)],
            "departed": True,
            "propensity": [0.005 if i < explored else 0.995 for i in range(400)],
        }
    )
    log = dp.read_log(frame, categories=fit.instance.categories, max_rejected=1)
    value = dp.off_policy_value(log, dp.Fixed(0), types=1, bootstrap=20)
    assert any("instead of 1" in text for text in value.warnings) == warns
