"""Off-policy evaluation with rewards, a horizon and segments: known values, brute force and the laws."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import departing as dp
from departing.cli.tables.ope import segment_table
from departing.evaluation.continuation import continuation_values
from departing.model.examples import shop
from departing.offpolicy.direct_method import BootstrapEnsemble, reward_errors
from departing.offpolicy.importance_sampling import Moments
from departing.offpolicy.log_segments import LogSegments

SITE = shop()
CATEGORIES = list(SITE.categories)
BY_SEGMENT = dp.BySegment(
    {"de/mobile": dp.Fixed("offers"), "de/desktop": dp.Walk(["electronics"], then="fashion")}, dp.Fixed("fashion")
)
OPTIONS = {"segment": ["country", "device"], "reward": "revenue", "unit": "euro", "categories": CATEGORIES}


def frame(site=SITE, users=6000, seed=0, **options):
    sample = dp.sample_log(site, users, seed, reward_column="revenue", **options)
    columns = {name: np.asarray(column) for name, column in sample.columns().items()}
    return pd.DataFrame(columns | {"departed": sample.outcome >= 2})


@pytest.fixture(scope="module")
def log():
    return dp.read_log(frame(), **OPTIONS)


@pytest.fixture(scope="module")
def fit(log):
    return dp.fit(log, types=3)


@pytest.fixture(scope="module")
def logs():
    """Logs of other users than those of the fit: PDIS and DR are unbiased for any model."""
    return [dp.read_log(frame(seed=seed, users=4000), **OPTIONS) for seed in range(11, 15)]


@pytest.mark.parametrize("policy", [dp.Walk(["fashion"], then="offers"), BY_SEGMENT, dp.Greedy(SITE)])
def test_estimates_are_unbiased_over_several_logs(policy, logs, fit):
    horizon = 3
    truth = dp.evaluate(SITE.replace(horizon=horizon), policy)
    scores = {name: [] for name in ("pdis", "dr")}
    for log in logs:
        value = dp.off_policy_value(log, policy, fit=fit, bootstrap=20, horizon=horizon)
        assert value.unit == "euro"
        assert value.horizon == horizon
        assert value.tail_share < 1e-9
        assert abs(value.dm.value - truth.value) < 4 * value.dm.stderr
        for name, each in scores.items():
            estimate = getattr(value, name)
            each.append((estimate.value - truth.value) / estimate.stderr)
        for name, part in value.by_segment.items():
            exact = truth.by_segment[name].value
            assert abs(part.dr.value - exact) < 4.5 * part.dr.stderr
            assert abs(part.pdis.value - exact) < 4.5 * part.pdis.stderr
            assert part.users == log.in_segment(name).users
    for each in scores.values():
        assert max(map(abs, each)) < 4
        assert abs(np.mean(each)) < 3 / np.sqrt(len(each))


def test_pdis_on_the_policys_own_log_is_the_mean_reward(tmp_path):
    site = SITE.replace(horizon=4)
    run = dp.simulate(site, BY_SEGMENT, users=3000, seed=2, log=tmp_path / "events.csv")
    own = pd.read_csv(tmp_path / "events.csv").assign(propensity=1.0)
    log = dp.read_log(own, **(OPTIONS | {"reward": "reward"}))
    value = dp.off_policy_value(log, BY_SEGMENT, types=2, bootstrap=20, horizon=4)
    assert value.pdis.value == pytest.approx(run.mean, rel=1e-12)
    assert value.pdis.stderr == pytest.approx(run.stderr, rel=1e-3)
    for name, part in value.by_segment.items():
        rows = run.histories.in_segment(name)
        rewards = rows.counts[..., [0, 3]].sum(axis=2) @ site.reward
        assert part.pdis.value == pytest.approx(rewards @ rows.multiplicity / rows.users)


@pytest.mark.parametrize("horizon", [1, 3])
def test_pdis_is_the_sum_of_weighted_logged_rewards_of_users_who_agree_with_their_policy(fit, horizon):
    site, plans = shop(), {"de/mobile": [0, 0, 0], "de/desktop": [2, 1, 1], "fr/mobile": [1, 1, 1]}
    table = frame(site, users=3000, seed=2, days=1e5)  # nobody is censored
    value = dp.off_policy_value(dp.read_log(table, **OPTIONS), BY_SEGMENT, fit=fit, bootstrap=20, horizon=horizon)
    total = dict.fromkeys(site.segments.names, 0.0)
    for _, steps in table.sort_values("time").groupby("user"):
        name = "/".join(steps[["country", "device"]].iloc[0])
        weight = 1.0
        for a, category, reward, p in zip(
            plans.get(name, [1, 1, 1])[:horizon],
            steps["category"],
            steps["revenue"],
            steps["propensity"],
            strict=False,
        ):
            if category != CATEGORIES[a]:
                break
            weight /= p
            total[name] += weight * reward
    assert value.pdis.value == pytest.approx(sum(total.values()) / 3000)
    for name, part in value.by_segment.items():
        if part.horizon == horizon:  # few users of a segment agree for three steps
            assert part.pdis.value == pytest.approx(total[name] / part.users)
    assert horizon > 1 or all(part.horizon == 1 for part in value.by_segment.values())


def test_pdis_of_a_schedule_is_the_weighted_mean_of_logged_rewards(log, fit):
    value = dp.off_policy_value(log, dp.Fixed("fashion"), fit=fit, bootstrap=20, horizon=1)
    first = frame().sort_values("time").drop_duplicates("user")
    agrees = first["category"] == "fashion"
    assert value.pdis.value == pytest.approx((first["revenue"] * agrees / first["propensity"]).mean(), rel=1e-9)
    without = dp.read_log(frame().drop(columns="revenue"), **(OPTIONS | {"reward": None, "unit": None}))
    clicks = dp.off_policy_value(without, dp.Fixed("fashion"), types=2, bootstrap=20, horizon=1)
    assert clicks.pdis.value == pytest.approx((first["clicked"] * agrees / first["propensity"]).mean(), rel=1e-9)
    assert clicks.unit == "clicks"


def test_a_large_horizon_and_unit_rewards_change_nothing(log, fit):
    plain = fit.instance.replace(reward=None, unit="clicks")
    assert plain.extensions == ("segments",)
    one = dp.off_policy_value(log, dp.Walk(["offers"], then="fashion"), fit=fit, bootstrap=20)
    far = dp.off_policy_value(log, dp.Walk(["offers"], then="fashion"), fit=fit, bootstrap=20, horizon=10**5)
    assert far.dm.value == pytest.approx(one.dm.value, rel=1e-9)
    assert far.dr.value == pytest.approx(one.dr.value, rel=1e-9)
    assert far.pdis.value == pytest.approx(one.pdis.value, rel=1e-9)


def test_one_segment_equals_no_segments():
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], depart=0.7, categories=["news", "sport"])
    events = frame(site, 2000, 1)
    policy = dp.Walk(["news"], then="sport")
    values = []
    for options, table in (({}, events), ({"segment": "device"}, events.assign(device="mobile"))):
        log = dp.read_log(table, **options)
        values.append(dp.off_policy_value(log, policy, types=2, bootstrap=20))
    for name in ("pdis", "dr", "dm"):
        one, other = (getattr(value, name) for value in values)
        assert other.value == pytest.approx(one.value, rel=1e-6)
    (part,) = values[1].by_segment.values()
    assert part.dr.value == pytest.approx(values[0].dr.value, rel=1e-6)
    assert not values[0].by_segment


def test_users_of_unknown_segments_get_the_default_policy():
    table = frame(users=3000, seed=3)
    unknown = table["user"] % 4 == 0
    table.loc[unknown, "country"] = None
    log = dp.read_log(table, **OPTIONS)
    segments = LogSegments.of(log, BY_SEGMENT)
    assert segments.names[-1] is None
    assert segments.share.sum() == pytest.approx(1)
    assert segments.policies[segments.group[-1]] == dp.Fixed("fashion")
    value = dp.off_policy_value(log, BY_SEGMENT, types=3, bootstrap=20, horizon=2)
    short = SITE.replace(horizon=2)
    rest = dp.evaluate(short.in_segment(None), dp.Fixed("fashion")).value
    share = unknown.groupby(table["user"]).first().mean()
    truth = (1 - share) * dp.evaluate(short, BY_SEGMENT).value + share * rest
    for estimate in value.estimates.values():
        assert abs(estimate.value - truth) < 4 * estimate.stderr


def test_the_direct_method_is_the_mix_of_the_segments(fit, log):
    segments = LogSegments.of(log, dp.BySegment(BY_SEGMENT.policies, BY_SEGMENT.default).resolve(CATEGORIES))
    ensemble = BootstrapEnsemble.from_instances([fit.instance] * 3, BY_SEGMENT, segments)
    exact = dp.evaluate(fit.instance, BY_SEGMENT)
    assert ensemble.values[0] == pytest.approx(exact.value, rel=1e-5)
    assert ensemble.bounds.lower <= exact.value <= ensemble.bounds.upper
    for i, name in enumerate(segments.names):
        assert ensemble.only(i).values[0] == pytest.approx(exact.by_segment[name].value, rel=1e-5)
    blind = LogSegments.of(log, dp.Fixed(1))
    assert len(blind.policies) == 1
    assert len(blind.names) == 4


def test_moments_of_groups_are_those_of_all_returns():
    rng = np.random.default_rng(1)
    groups = [rng.gamma(1.0, scale, n) for scale, n in ((1, 50), (4, 20), (2, 33))]

    def moments(values):
        away = values - values.mean()
        return Moments(len(values), values.mean(), (away**2).mean(), (away**3).mean())

    merged, whole = Moments.merged([moments(each) for each in groups]), moments(np.concatenate(groups))
    for name in ("n", "mean", "second", "third"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name))


def test_continuation_values_within_a_horizon_end_there():
    site = SITE.in_segment("de/mobile").replace(horizon=3)
    continuation = continuation_values(site, dp.Greedy(site), 10, 1e-9, 10**5)
    assert len(continuation.levels) == 4
    assert (continuation.levels[-1].values == 0).all()


def test_histories_with_segments_have_the_direct_method_alone(log, fit):
    value = dp.off_policy_value(log.distinct, BY_SEGMENT, fit=fit, bootstrap=20)
    assert value.dr is None
    assert set(value.by_segment) == set(SITE.segments.names)


def test_texts_and_plots_name_the_unit(log, fit):
    value = dp.off_policy_value(log, BY_SEGMENT, fit=fit, bootstrap=20, horizon=2)
    assert "expected euro per user" in value.describe()
    assert "euro per user" in value._repr_html_()
    assert value.plot().axes[0].get_title(loc="left").startswith("euro per user")


def test_errors_of_mean_rewards_are_those_of_each_segment(fit, log):
    """The derivatives of a value by the rewards are differences, because it is linear in them."""
    segments = LogSegments.of(log, BY_SEGMENT.resolve(CATEGORIES))
    stderr = np.arange(1.0, len(CATEGORIES) + 1)
    errors = reward_errors(fit.instance, segments, stderr)
    variance = np.zeros(len(errors))
    own = dp.evaluate(fit.instance, BY_SEGMENT)
    for a, error in enumerate(stderr):
        more = fit.instance.replace(reward=fit.instance.reward + (np.arange(len(stderr)) == a))
        moved = dp.evaluate(more, BY_SEGMENT)
        changes = [moved.by_segment[name].value - own.by_segment[name].value for name in segments.names]
        variance += (np.append(changes, moved.value - own.value) * error) ** 2
    np.testing.assert_allclose(errors, np.sqrt(variance), rtol=1e-3)


def test_a_fit_without_rewards_takes_those_of_the_log(fit, log):
    plain = dp.fit(log.distinct, types=3)
    value, own = (dp.off_policy_value(log, "fixed:offers", fit=each, bootstrap=20) for each in (plain, fit))
    assert value.unit == "euro"
    assert value.dr.value == pytest.approx(own.dr.value, rel=1e-3)


def test_the_value_of_a_category_without_reward_is_zero(fit, log):
    free = fit.instance.replace(reward=np.where(np.array(CATEGORIES) == "offers", 0.0, fit.instance.reward))
    value = dp.off_policy_value(
        log.distinct, "fixed:offers", fit=replace(fit, instance=free, rewards=None), bootstrap=20
    )
    assert value.dm.upper < 1e-300
    assert value.extrapolation.share == 0


def test_segments_that_the_policy_does_not_know_are_reported(log, fit):
    def warnings(log, policy, **options):
        value = dp.off_policy_value(log, policy, bootstrap=20, **options)
        return [text for text in value.warnings if "unknown segments" in text]

    partly = dp.BySegment({"de/mobile": dp.Fixed("offers")}, dp.Fixed("fashion"))
    (text,) = warnings(log, partly, fit=fit)
    share = 1 - log.segment_users[log.segments.index("de/mobile")] / log.users
    assert f"does not know the segments of {share:.0%} of the users, 'de/desktop', 'fr/desktop', 'fr/mobile'" in text
    devices = dp.read_log(frame(), **(OPTIONS | {"segment": "device"}))
    (text,) = warnings(devices, partly, types=2)
    assert "100% of the users, 'desktop', 'mobile'" in text
    (text,) = warnings(dp.read_log(frame(), **(OPTIONS | {"segment": None})), dp.Greedy(SITE), types=2)
    assert "but the log has no segments" in text
    assert not warnings(log, "greedy", fit=fit)
    assert not warnings(log, dp.Fixed("offers"), fit=fit)


def test_features_in_another_order_than_those_of_the_policy_are_refused(fit):
    turned = dp.read_log(frame(users=2000), **(OPTIONS | {"segment": ["device", "country"]}))
    with pytest.raises(dp.InputError, match="in another order; read the log with `segment`='country,device'"):
        dp.off_policy_value(turned, BY_SEGMENT, types=2, bootstrap=20)
    with pytest.raises(dp.InputError, match=r"fit has the segments 'de/desktop'.*, but the log has 'desktop/de'"):
        dp.off_policy_value(turned, "fixed:offers", fit=fit, bootstrap=20)


def test_users_by_segment_are_all_users_of_the_log():
    """Users whose only step is pending have no confirmed step."""
    table = frame(days=20).drop(columns="departed")
    log = dp.read_log(table, **OPTIONS, inactive_after="8 days")
    assert log.confirmed.users < log.users
    value = dp.off_policy_value(log, BY_SEGMENT, types=2, bootstrap=20)
    users = dict(zip(log.segments, log.segment_users.tolist(), strict=True))
    assert {name: part.users for name, part in value.by_segment.items()} == users
    assert sum(users.values()) == value.users


def test_segments_with_hardly_any_overlap_have_the_direct_method_and_are_named(log, fit):
    policy = dp.Fixed("fashion")
    shown = frame()
    starts = shown.sort_values("time").groupby("user")["category"].transform("first")
    disagree = (shown["country"] == "fr") & (shown["device"] == "mobile") & (starts == "fashion")
    few = set(shown.loc[disagree, "user"].unique()[:5])
    table = shown[~disagree | shown["user"].isin(few)]
    value = dp.off_policy_value(dp.read_log(table, **OPTIONS), policy, fit=fit, bootstrap=20)
    assert value.by_segment["fr/mobile"].best_name == "dm"
    assert value.by_segment["de/mobile"].best_name == "dr"
    (text,) = [each for each in value.warnings if each.startswith("Poor overlap by segment")]
    assert "in 'fr/mobile' on it alone (DM)" in text
    for part in value.by_segment.values():
        assert part.dr is None or part.dr.ess >= 9.99
    table = segment_table("always fashion", value)
    assert list(table.columns[2].cells) == [part.best_name.upper() for part in value.by_segment.values()]
