"""Readouts: agreement with SciPy and between formats, checks of the input, and recommendations."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.figure import Figure
from scipy import stats

import departing as dp
from departing.abtest.welch import ArmMoments, lift_interval, welch_interval


def users_frame(n=1200, seed=1, effect=0.05, arms=("control", "new")):
    """One row per user, in order of arrival."""
    rng = np.random.default_rng(seed)
    arm = rng.choice(arms, n)
    clicks = rng.geometric(np.where(arm == arms[0], 0.25, 0.25 - effect)) - 1
    return pd.DataFrame(
        {"user": [f"u{i}" for i in range(n)], "arm": arm, "clicks": clicks, "time": np.arange(n) // 3}
    )


def events_frame(users, seed=1):
    """The same as one row per event: the clicks of each user, and a no-click after which the user departs."""
    rows = []
    for row in users.itertuples():
        rows += [(row.user, row.arm, "click", row.time, 0)] * row.clicks + [
            (row.user, row.arm, "no click", row.time, 1)
        ]
    events = pd.DataFrame(rows, columns=["user", "arm", "clicked", "time", "departed"])
    return events.sample(frac=1, random_state=seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_fixed_sample_test_is_that_of_scipy(seed):
    frame = users_frame(600, seed)
    test = dp.ab_test(frame, confidence=0.9)
    one, other = (frame.clicks[frame.arm == name] for name in ("new", "control"))
    expected = stats.ttest_ind(one, other, equal_var=False)
    low, high = expected.confidence_interval(0.9)
    assert (test.lower, test.upper) == pytest.approx((low, high))
    assert test.p_value == pytest.approx(expected.pvalue)
    assert test.difference == pytest.approx(one.mean() - other.mean())
    assert test.lift == pytest.approx(one.mean() / other.mean() - 1)
    assert test.means == pytest.approx({"control": other.mean(), "new": one.mean()})


def test_the_lift_interval_excludes_0_exactly_if_the_interval_of_the_difference_does():
    rng, decided = np.random.default_rng(2), 0
    for _ in range(500):
        one, other = (ArmMoments(*rng.uniform([1, 1], [1.2, 4]), 0.0, int(rng.integers(50, 2000))) for _ in range(2))
        (low, high, _), lift = welch_interval(one, other, 0.05), lift_interval(one, other, 0.05)
        assert (low > 0, high < 0) == (lift[0] > 0, lift[1] < 0)
        decided += low > 0 or high < 0
    assert 20 < decided < 480


def test_the_lift_interval_covers_the_true_lift():
    rng, covered, runs = np.random.default_rng(3), 0, 2000
    for _ in range(runs):
        one, other = rng.poisson(1.3, 300), rng.poisson(1.0, 200)
        moments = [ArmMoments(x.mean(), x.var(ddof=1), 0.0, len(x)) for x in (one, other)]
        low, high = lift_interval(*moments, 0.05)
        covered += low <= 0.3 <= high
    assert abs(covered / runs - 0.95) < 4 * np.sqrt(0.95 * 0.05 / runs)


def test_no_lift_without_clicks_of_the_control():
    frame = users_frame(400)
    frame.loc[frame.arm == "control", "clicks"] = 0
    test = dp.ab_test(frame)
    assert np.isnan([test.lift, test.best.lift_lower]).all()
    assert test.best.verdict == "better"
    assert "–" in test.summary()


def test_all_formats_agree(tmp_path):
    users = users_frame()
    events = events_frame(users)
    users.to_csv(tmp_path / "users.csv", index=False)
    users.to_parquet(tmp_path / "users.parquet")
    events.to_csv(tmp_path / "events.csv", index=False)
    renamed = users.rename(columns={"user": "User ID", "arm": "variant", "time": "timestamp"})
    expected = dp.ab_test(users)
    assert len(expected.sequence.users) == 400
    for results in (
        tmp_path / "users.csv",
        tmp_path / "users.parquet",
        tmp_path / "events.csv",
        pl.from_pandas(users),
    ):
        test = dp.ab_test(results)
        assert test.summary() == expected.summary()
        assert test.sequence.lower == pytest.approx(expected.sequence.lower)
    test = dp.ab_test(renamed)
    assert test.recommendation == expected.recommendation
    assert any("'variant' is used for arm" in note for note in test.notes)
    assert dp.ab_test(renamed, arm="variant", user="User ID", time="timestamp").notes == ()


def test_time_orders_users_and_without_it_there_is_one_look():
    users = users_frame(2000)
    shuffled = users.sample(frac=1, random_state=1)
    assert dp.ab_test(shuffled).sequence.lower == pytest.approx(dp.ab_test(users).sequence.lower)
    once = dp.ab_test(users, time=None)
    assert len(once.sequence.users) == 1
    assert once.sequence.final == pytest.approx(dp.ab_test(users).sequence.final)
    assert any("no time column" in note for note in once.notes)
    text = users.assign(time=pd.Timestamp("2026-02-01") + pd.to_timedelta(users.time, unit="h")).astype({"time": str})
    assert dp.ab_test(text).sequence.users.tolist() == dp.ab_test(users).sequence.users.tolist()


def test_several_treatments_are_adjusted(tmp_path):
    frame = users_frame(3000, effect=0.03, arms=("old", "a", "b"))
    test = dp.ab_test(frame, control="old")
    assert [each.treatment.name for each in test.comparisons] == ["a", "b"]
    raw = []
    for each in test.comparisons:
        one, other = (frame.clicks[frame.arm == name] for name in (each.treatment.name, "old"))
        result = stats.ttest_ind(one, other, equal_var=False)
        low, high = result.confidence_interval(0.975)
        assert (each.lower, each.upper) == pytest.approx((low, high))
        raw.append(result.pvalue)
    adjusted = sorted(each.p_value for each in test.comparisons)
    assert adjusted == pytest.approx([min(1, 2 * min(raw)), max(*raw, 2 * min(raw))])
    assert "Bonferroni's" in test.summary()
    assert list(test.to_frame()["arm"]) == ["old", "a", "b"]
    assert isinstance(test.plot(tmp_path / "a.svg"), Figure)
    assert isinstance(dp.ab_test(frame, control="old", time=None).plot(tmp_path / "b.svg"), Figure)
    assert "<script>" not in dp.ab_test(frame.replace({"arm": {"a": "<script>"}}), control="old")._repr_html_()


def test_recommendations():
    assert dp.ab_test(users_frame(4000)).recommendation.startswith("Stop: new is better than control, by")
    assert dp.ab_test(users_frame(4000), control="new").recommendation.startswith(
        "Stop: control is worse than new, by"
    )
    undecided = dp.ab_test(users_frame(1200, effect=0.02))
    assert undecided.best.verdict == "undecided"
    assert undecided.describe().startswith("Continue: about ")
    far = dp.ab_test(users_frame(1200, effect=0.0, seed=4))
    assert far.describe().startswith(("No decision is near", "Continue: about"))
    few = dp.ab_test(users_frame(60))
    assert "at least 100 users in each arm" in few.describe()
    assert not np.isfinite(few.sequence.final).any()
    assert "not yet" in few.summary()
    few.plot()


def test_the_number_of_more_users_decides_about_half_of_the_experiments():
    frame = users_frame(1500, effect=0.02, seed=3)
    test = dp.ab_test(frame, planned_users=5000)
    more = int(test.recommendation.split("about ")[1].split(" more")[0].replace(",", ""))
    variances = [arm.variance for arm in test.arms]
    rng, decided = np.random.default_rng(1), 0
    for _ in range(300):
        n = (1500 + more) // 2
        means = [rng.normal(arm.mean, np.sqrt(v / n)) for arm, v in zip(test.arms, variances, strict=True)]
        radius = np.sqrt(sum(variances) / n) * dp.abtest.sequence.boundary([2 * n], 5000, 0.05)[0]
        decided += means[1] - means[0] > radius
    assert abs(decided / 300 - 0.5) < 4 * np.sqrt(0.25 / 300)


def test_a_sample_ratio_mismatch_prevents_a_decision():
    frame = users_frame(4000)
    kept = frame[(frame.arm == "control") | (np.arange(4000) % 5 > 0)]
    test = dp.ab_test(kept)
    assert test.sample_ratio_p_value < 1e-6
    assert test.best.verdict == "mismatch"
    assert test.describe().startswith("Do not decide")
    assert "Sample-ratio mismatch" in test.warnings[0]
    share = (kept.arm == "new").mean()
    assert dp.ab_test(kept, share=share).best.verdict == "better"
    assert dp.ab_test(kept, share={"new": share, "control": 1 - share}).best.verdict == "better"


def test_active_users_are_noted():
    users = users_frame(500)
    assert dp.ab_test(events_frame(users)).warnings == ()
    test = dp.ab_test(users.assign(departed=np.arange(500) % 4 > 0))
    assert "125 of 500 users (25%) have not departed" in test.warnings[0]
    assert sum(arm.active for arm in test.arms) == 125


def test_a_few_bad_rows_are_rejected_and_counted(tmp_path):
    frame = users_frame(1000).astype({"clicks": str})
    frame.loc[3, "clicks"] = "-2"
    frame.loc[4, "clicks"] = "many"
    frame.loc[5, "clicks"] = None
    frame.loc[6, "arm"] = " "
    frame = pd.concat([frame, frame.iloc[[7]].replace({"control": "new", "new": "control"})])
    frame.to_csv(tmp_path / "users.csv", index=False)
    test = dp.ab_test(tmp_path / "users.csv")
    kinds = {each.kind: each.count for each in test.irregularities}
    assert kinds == {
        "arm is missing": 1,
        "clicks cannot be parsed": 1,
        "clicks is missing": 1,
        "clicks is negative": 1,
        "user in several arms (1 users)": 2,
    }
    assert sum(arm.users for arm in test.arms) == 995
    assert "user u7" in test.irregularities[-1].examples[0]
    with pytest.raises(dp.InputError, match=r"6 of 1,001 rows .* are rejected(.|\n)*clicks is negative"):
        dp.ab_test(tmp_path / "users.csv", max_rejected=0.001)


def slow_users(rows):
    """Arm and clicks of every user of rows of text, by the rules of the docs."""
    users = {}
    for user, arm, clicks, _ in rows:
        try:
            number = float(clicks)
        except ValueError:
            continue
        if user.strip() and arm.strip() and 0 <= number <= 1e9:
            known = users.setdefault(user, [arm.strip(), 0.0, False])
            known[2] |= known[0] != arm.strip()
            known[1] += number
    return [(arm, clicks) for arm, clicks, twice in users.values() if not twice]


@pytest.mark.parametrize("seed", range(5))
def test_dirty_rows_are_read_by_the_rules(seed, tmp_path):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(400):
        user = str(rng.choice(["", " ", *(f"u{i}" for i in range(300))]))
        arm = "control" if len(user) % 2 else rng.choice(["new", " new"])
        arm = str(rng.choice(["", "control"])) if rng.random() < 0.03 else str(arm)
        clicks = str(rng.choice(["", "x", "-1", "nan", "inf", "1e10", "2.5", *map(str, range(12))]))
        rows.append((user, arm, clicks, str(rng.integers(100))))
    pd.DataFrame(rows, columns=["user", "arm", "clicks", "time"]).to_csv(tmp_path / "dirty.csv", index=False)
    test = dp.ab_test(tmp_path / "dirty.csv", max_rejected=1)
    slow = slow_users(rows)
    for name in ("control", "new"):
        clicks = [value for arm, value in slow if arm == name]
        assert test.users[name] == len(clicks)
        assert test.means[name] == pytest.approx(np.mean(clicks))
    assert sum(each.count for each in test.irregularities) > 50


def test_rows_of_a_user_are_added():
    frame = users_frame(400)
    test = dp.ab_test(pd.concat([frame, frame]))
    assert test.means == pytest.approx({name: 2 * mean for name, mean in dp.ab_test(frame).means.items()})
    assert any("400 users have several rows" in note for note in test.notes)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"control": "old"}, "control is 'old'"),
        ({}, {"control": "contrl"}, "did you mean 'control'"),
        ({}, {"arm": "armm"}, "did you mean 'arm'"),
        ({}, {"clicks": "click"}, "no column 'click'.*did you mean 'clicks'"),
        ({}, {"arm": None}, "arm is None"),
        ({}, {"confidence": 2}, "confidence is 2"),
        ({}, {"planned_users": 0}, "planned_users is 0"),
        ({}, {"share": 0}, "share is 0"),
        ({}, {"share": {"new": 0.5}}, "share lacks the arms 'control'"),
        ({}, {"share": {"new": 0.5, "controll": 0.5}}, "did you mean 'control'"),
        ({}, {"share": {"new": 0.5, "control": 0.4}}, "share sums to 0.9"),
        ({}, {"max_rejected": 2}, "max_rejected is 2"),
        ({}, {"arm": "user"}, "600 distinct arms"),
        ({"arm": "new"}, {}, "expected at least two"),
        ({"clicks": -1}, {}, "clicks is negative"),
        ({"clicks": "x"}, {}, "clicks cannot be parsed"),
        ({"clicks": pd.Timestamp("2026-01-01")}, {}, "is of type TIMESTAMP"),
        ({"user": "u1"}, {}, "several arms"),
        ({"clicks": 1e300}, {}, "clicks is above 1e"),
        ({"arm": ["new", "New ", "control"] * 200}, {}, "differ in case only"),
    ],
)
def test_errors(change, options, message):
    with pytest.raises(dp.InputError, match=message):
        dp.ab_test(users_frame(600).assign(**change), **options)


def test_more_errors(tmp_path):
    frame = users_frame(100)
    for columns, message in (
        (["user", "clicks"], "no column 'arm'"),
        (["user", "arm"], "no column of clicks"),
    ):
        with pytest.raises(dp.InputError, match=message):
            dp.ab_test(frame[columns])
    with pytest.raises(dp.InputError, match="needs the user ID"):
        dp.ab_test(events_frame(frame)[["arm", "clicked"]])
    with pytest.raises(dp.InputError, match="may be the user: 'uid', 'user_id'"):
        dp.ab_test(frame.rename(columns={"user": "uid"}).assign(user_id=1))
    with pytest.raises(dp.InputError, match="name the control arm by `control`"):
        dp.ab_test(frame.replace({"control": "old"}))
    with pytest.raises(dp.InputError, match="3 arms; expected a share for every arm"):
        dp.ab_test(users_frame(arms=("control", "a", "b")), share=0.5)
    with pytest.raises(dp.InputError, match="has one user"):
        dp.ab_test(frame[(frame.arm == "new") | (frame.index == frame.index[frame.arm == "control"][0])])
    with pytest.raises(dp.InputError, match="There are no rows"):
        dp.ab_test(frame[:0])
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(dp.InputError, match="is empty"):
        dp.ab_test(tmp_path / "empty.csv")
    with pytest.raises(dp.InputError, match="There is no file"):
        dp.ab_test(tmp_path / "nothing.csv")
    with pytest.raises(dp.InputError, match="expected a path"):
        dp.ab_test(3)


def test_arms_without_variance():
    frame = users_frame(500).assign(clicks=2)
    test = dp.ab_test(frame)
    assert (test.difference, test.lower, test.upper, test.p_value) == (0, 0, 0, 1)
    assert test.best.verdict == "undecided"


def test_presentation(tmp_path):
    test = dp.ab_test(users_frame())
    assert isinstance(test.plot(tmp_path / "ab.png"), Figure)
    assert (tmp_path / "ab.png").stat().st_size > 1000
    frame = test.to_frame()
    assert list(frame["users"]) == list(test.users.values())
    assert frame["difference"].isna().tolist() == [True, False]
    assert "<table" in test._repr_html_()
