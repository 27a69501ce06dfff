import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import departing as dp
from departing.offpolicy.off_policy_value import _estimate

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], depart=0.7, categories=["news", "sport"])


def events(users=2000, seed=1, **options):
    """A log of random recommendations with logged departures, as a frame."""
    seen = dp.sample_log(SITE, users, seed, **options)
    columns = {name: np.asarray(column) for name, column in seen.columns().items()}
    return pd.DataFrame(columns | {"departed": seen.outcome >= 2})


@pytest.fixture(scope="module")
def log():
    return dp.read_log(events())


@pytest.fixture(scope="module")
def fit(log):
    return dp.fit(log, types=2)


@pytest.mark.parametrize("policy", [dp.Walk([1], then=0), dp.Greedy(SITE)])
def test_on_its_own_log_a_policy_has_earned_the_mean_clicks(policy, tmp_path):
    run = dp.simulate(SITE, policy, users=3000, seed=2, log=tmp_path / "events.csv")
    own = pd.read_csv(tmp_path / "events.csv").assign(propensity=1.0)
    found = dp.off_policy_value(dp.read_log(own), policy, types=2, times=5)
    assert found.weighted.value == pytest.approx(run.mean, abs=1e-12)
    assert found.weighted.stderr == pytest.approx(run.stderr, rel=1e-3)
    assert found.beyond < 1e-3
    assert found.steps == len(found.overlap) == dp.read_log(own).steps.max()
    assert not found.warnings


def test_the_three_estimates_agree_with_the_truth(log, fit):
    policy = dp.Walk([0], then=1)
    found, truth = dp.off_policy_value(log, policy, fit=fit, times=60), dp.evaluate(SITE, policy).value
    assert truth in found.model
    assert truth in found.weighted
    assert truth in found.robust
    assert found.model.stderr < found.robust.stderr < found.weighted.stderr
    assert found.fit is fit
    assert found.best is found.robust
    assert found.users == 2000
    assert found.overlap[0].following == found.overlap[0].effective == int((log_first(log) == 0).sum())
    assert found.overlap[0].share == pytest.approx(
        fit.instance.prior @ fit.instance.click[0] / found.model.value, rel=1e-3
    )
    assert str(found).startswith("model")


def log_first(log):
    return np.concatenate([part.category[part.step == 0] for part in log.episodes()])


def test_intervals_widen_with_the_level(log, fit):
    narrow, wide = (
        dp.off_policy_value(log, dp.Fixed(0), fit=fit, times=60, confidence=level) for level in (0.5, 0.99)
    )
    for name in ("model", "weighted", "robust"):
        inner, outer = getattr(narrow, name), getattr(wide, name)
        assert outer.lower < inner.lower < inner.value == outer.value < inner.upper < outer.upper


def test_the_order_of_rows_changes_nothing(log, fit):
    again = dp.read_log(events().sample(frac=1, random_state=0))
    one, two = (dp.off_policy_value(each, dp.Fixed(1), fit=fit, times=3) for each in (log, again))
    assert one.robust.value == pytest.approx(two.robust.value, abs=1e-12)


def test_a_wrong_model_is_noticed_where_the_log_tells_better():
    drifting = events(20000, seed=3)
    rng = np.random.default_rng(3)
    order = drifting.groupby("user").cumcount()
    drifting["clicked"] = np.where(order > 0, rng.random(len(drifting)) < 0.95, drifting["clicked"])
    found = dp.off_policy_value(dp.read_log(drifting), dp.Fixed(0), types=1, times=10)
    assert any("look where the model fails" in note for note in found.warnings)


def test_users_who_are_still_here_do_not_count_as_departed():
    short = dp.read_log(events(20000, days=3.0, gap=2.0))
    assert short.report.censored > 3000
    policy = dp.Walk([0], then=1)
    found, truth = dp.off_policy_value(short, policy, types=2, times=20), dp.evaluate(SITE, policy).value
    assert found.robust.value == pytest.approx(truth, abs=4 * found.robust.stderr)
    gone = events(20000, days=3.0, gap=2.0)
    gone["departed"] |= ~gone.duplicated("user", keep="last")
    mistaken = dp.off_policy_value(dp.read_log(gone), policy, types=2, times=20)
    assert mistaken.robust.value < truth - 4 * mistaken.robust.stderr


def test_without_propensities_there_is_the_model_alone(fit):
    found = dp.off_policy_value(dp.read_log(events().drop(columns="propensity")), dp.Fixed(0), fit=fit, times=3)
    assert found.weighted is None
    assert found.robust is None
    assert found.best is found.model
    (warning,) = found.warnings
    assert warning.startswith("The log has no propensities, so there is the word of the model only")


def test_histories_without_steps_have_the_model_alone(log, fit):
    plain = dp.Histories(log.counts, log.multiplicity, categories=log.categories)
    found = dp.off_policy_value(plain, dp.Fixed(0), fit=fit, times=3)
    assert found.weighted is None
    assert "histories without single steps" in found.warnings[0]
    assert found.model == dp.off_policy_value(log, dp.Fixed(0), fit=fit, times=3).model


def test_users_who_miss_a_propensity_are_left_out_and_counted(fit):
    some = events()
    some.loc[(some["user"] % 10 == 0) & (some["clicked"]), "propensity"] = None
    missing = some.loc[some["propensity"].isna(), "user"].nunique()
    found = dp.off_policy_value(dp.read_log(some), dp.Fixed(0), fit=fit, times=3)
    assert found.warnings[0].startswith(f"{missing} of 2,000 users miss a propensity")


def test_no_and_poor_overlap_are_told(log, fit):
    poor = dp.off_policy_value(log, dp.Greedy(SITE), fit=fit, times=3)
    assert re.match(r"Poor overlap: after \d+ steps too few users .* but \d+% of its clicks", poor.warnings[-1])
    assert poor.beyond > 0.1
    only = events()
    only = only[only.groupby("user").category.transform("first") == "news"]
    none = dp.off_policy_value(dp.read_log(only), dp.Fixed(1), fit=fit, times=3)
    assert none.robust is None
    assert none.warnings[-1].startswith("No overlap: the policy begins with 'sport'")


def test_departures_by_silence_do_not_bias():
    """A third of the log is as long as the silence; all three answers are within their errors of the truth."""
    truth = dp.evaluate(SITE, dp.Fixed(0)).value
    silent = dp.read_log(events(days=30.0).drop(columns="departed"), inactive_after="10 days")
    found = dp.off_policy_value(silent, dp.Fixed(0), types=2, times=30)
    for estimate in (found.model, found.weighted, found.robust):
        assert abs(estimate.value - truth) < 4 * estimate.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"log": "events.csv"}, "log is 'events.csv'; expected a Log"),
        ({"policy": "greedy"}, r"policy is 'greedy'; expected an object with a method recommend"),
        ({"policy": dp.Fixed(2)}, "Fixed recommends category 2, but the instance has 2"),
        ({"policy": dp.Walk([0, 0], then=5)}, "Walk recommends category 5"),
        ({"policy": dp.Greedy(dp.Instance([1.0], [[0.5]]))}, "counts have 2 categories; the policy's instance has 1"),
        (
            {"policy": dp.Greedy(SITE.relabel(categories=[1, 0]))},
            "The policy was made for the categories sport, news, not for news, sport. Read the log",
        ),
        ({"fit": SITE}, "fit is Instance.*; expected what dp.fit gives"),
        ({"confidence": 1.5}, "confidence is 1.5; expected a number from 0"),
        ({"times": 1}, "times is 1; expected an integer ≥ 2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments, sentence, log, fit):
    given = {"log": log, "policy": dp.Fixed(0), "fit": fit, "times": 3} | arguments
    with pytest.raises(dp.InputError, match=sentence):
        dp.off_policy_value(given.pop("log"), given.pop("policy"), **given)


def test_a_fit_of_other_categories_is_refused(log):
    other = dp.fit(dp.sample_log(dp.Instance([1.0], [[0.5], [0.4], [0.3]]), 500).histories, types=1)
    with pytest.raises(dp.InputError, match="fit is of 3 categories, but the log has 2"):
        dp.off_policy_value(log, dp.Fixed(0), fit=other)


def test_the_interval_of_skewed_summands_is_moved_towards_the_long_side():
    rng = np.random.default_rng(1)
    summands = np.where(rng.random(400) < 0.05, 20.0, 0.0)
    found = _estimate(summands, 0.0, 0.0, 1.96)
    skew = stats.skew(summands) / np.sqrt(400)
    middle = found.value + skew * (1 + 2 * 1.96**2) / 6 * found.stderr
    assert (found.lower + found.upper) / 2 == pytest.approx(middle, rel=1e-2)
    assert found.stderr == pytest.approx(stats.sem(summands), rel=1e-12)
    assert _estimate(np.ones(5), 0.04, 0.09, 2.0).stderr == pytest.approx(0.3)


def test_a_policy_that_cannot_be_followed_to_the_end_is_warned_of():
    instance = dp.random_instance("sticky", types=5, categories=5, seed=2)
    histories = dp.sample_log(instance, users=3000, seed=1, days=300).histories
    model = dp.fit(histories, types=3)
    found = dp.off_policy_value(histories, dp.Greedy(model.instance), fit=model, times=4)
    assert found.warnings[0].startswith("Users stay too long to follow the policy to the end")
