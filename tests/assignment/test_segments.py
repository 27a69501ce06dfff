"""Assignment of users in segments, with rewards and a horizon."""

import numpy as np
import pytest

import departing as dp
from departing.policy.protocol import policy_in_segment
from helpers.users import random_events

pandas = pytest.importorskip("pandas")
CLICK = [[0.8, 0.3], [0.3, 0.7], [0.2, 0.4]]
NAMES = ["news", "sport", "film"]
SEGMENTS = dp.Segments(["de", "fr"], [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], columns=["country"])
SITE = dp.Instance(None, CLICK, 0.5, 0.1, categories=NAMES, segments=SEGMENTS)
READING = {"inactive_after": 6, "departed": None, "max_rejected": 1.0}


def events_in_segments(seed, codes=("de", "fr", "us", None)):
    events = random_events(seed, users=60)
    rng = np.random.default_rng(seed)
    known = [user for user in dict.fromkeys(events["user"]) if user == user]
    country = dict(zip(known, rng.choice(np.array(codes, object), len(known)), strict=True))
    return events.assign(country=events["user"].map(country))


def same(one, two):
    pandas.testing.assert_frame_equal(
        one.reset_index(drop=True), two.reset_index(drop=True), check_dtype=False, rtol=1e-3
    )


def test_beliefs_start_at_the_prior_of_the_segment():
    log = dp.read_log(events_in_segments(1), segment="country", **READING)
    policy = dp.Greedy(SITE)
    users = dp.assign(log, SITE, policy)
    table = users.to_frame()
    assert list(table.columns[:3]) == ["user", "segment", "events"]
    plain = dp.read_log(events_in_segments(1), **READING)
    for name in ("de", "fr", None):
        own = SITE.in_segment(name)
        expected = dp.assign(plain, own, policy_in_segment(policy, name)).to_frame()
        rows = table[table["segment"] == name] if name else table[~table["segment"].isin(["de", "fr"])]
        assert len(rows) > 3
        same(rows.drop(columns="segment"), expected[expected["user"].isin(rows["user"])])
    assert "segments that the fit does not know start at the common prior: us." in users.summary()
    assert "The log has no segments" in dp.assign(plain, SITE, policy).summary()


def test_one_segment_equals_no_segments(tmp_path):
    log = dp.read_log(events_in_segments(2, ("de",)), segment="country", **READING)
    plain = dp.read_log(events_in_segments(2, ("de",)), **READING)
    one = dp.Instance(None, CLICK, 0.5, 0.1, categories=NAMES, segments=dp.Segments(["de"], [1.0], [[0.7, 0.3]]))
    none = dp.Instance([0.7, 0.3], CLICK, 0.5, 0.1, categories=NAMES)
    users = dp.assign(log, one, "greedy", tmp_path / "users.parquet")
    expected = dp.assign(plain, none, "greedy").to_frame()
    same(users.to_frame().drop(columns="segment"), expected)
    written = pandas.read_parquet(tmp_path / "users.parquet")
    assert set(written["segment"]) == {"de"}
    same(dp.assign(log, none, "greedy").to_frame().drop(columns="segment"), expected)


def test_other_features_are_refused():
    events = events_in_segments(3)
    log = dp.read_log(events.assign(device=events["country"]), segment="device", **READING)
    with pytest.raises(dp.InputError, match="made of 'device', those of the fit of 'country'; read the log with"):
        dp.assign(log, SITE, "greedy")


def test_rewards_scale_what_remains():
    log = dp.read_log(random_events(4, users=60), **READING)
    plain = dp.Instance([0.7, 0.3], CLICK, 0.5, 0.1, categories=NAMES)
    euro = plain.replace(reward=[3.0] * 3, unit="euro")
    users = dp.assign(log, euro, "greedy")
    one, three = dp.assign(log, plain, "greedy").to_frame(), users.to_frame()
    clicks = one["expected_remaining_clicks"].to_numpy()
    assert three["expected_remaining_reward"].to_numpy() == pytest.approx(3 * clicks, rel=2e-3)
    assert "remaining euro" in users.summary()
    same(one.drop(columns="expected_remaining_clicks"), three.drop(columns="expected_remaining_reward"))


def test_nothing_remains_at_the_horizon():
    log = dp.read_log(random_events(5, users=60), **READING)
    site = dp.Instance([0.7, 0.3], CLICK, 0.5, 0.1, categories=NAMES, horizon=3)
    table = dp.assign(log, site, "fixed:news").to_frame()
    finished = (table["events"] >= 3) & ~table["departed"]
    assert finished.any()
    assert (table.loc[finished, "expected_remaining_clicks"] == 0).all()
    assert table.loc[finished, "recommendation"].isna().all()
    left = ~table["departed"] & (table["events"] < 3)
    assert (table.loc[left, "recommendation"] == "news").all()
    assert (table.loc[left, "expected_remaining_clicks"] > 0).all()


def test_a_policy_by_segment_serves_an_instance_without_segments():
    log = dp.read_log(events_in_segments(1), segment="country", **READING)
    none = dp.Instance([0.7, 0.3], CLICK, 0.5, 0.1, categories=NAMES)
    policy = dp.BySegment({"de": dp.Fixed("film")}, default=dp.Fixed("sport"))
    table = dp.assign(log, none, policy).to_frame()
    active = table[table["recommendation"].notna()]
    assert (active["recommendation"] == np.where(active["segment"] == "de", "film", "sport")).all()
