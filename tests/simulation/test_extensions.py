"""Simulation with rewards, a horizon and segments: all engines against the exact value, and the laws."""

import pickle

import gymnasium
import numpy as np
import pandas as pd
import pytest

import departing as dp
import departing.simulation.gym  # registers the environments
from departing.simulation.segments import joined_instance, segment_columns

DEVICES = dp.Segments(
    ["de/mobile", "de/desktop", "fr/mobile"],
    share=[0.5, 0.3, 0.2],
    prior=[[0.8, 0.2], [0.4, 0.6], [0.0, 1.0]],
    columns=["country", "device"],
)
ENGINES = ["aggregate", "lanes", "step", "auto"]
POLICY = dp.BySegment({"de/mobile": dp.Threshold(0, 2, 1), "fr/mobile": dp.Walk([1, 0, 0], then=1)}, dp.Fixed(0))


def shop(**fields):
    fields = {"reward": [1.0, 2.5], "unit": "euro", "horizon": 6, "segments": DEVICES} | fields
    return dp.Instance(None, [[0.75, 0.25], [0.25, 0.5]], 0.5, 0.125, **fields)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [lambda _: POLICY, dp.Greedy, lambda _: dp.Threshold(0, 3, 1)])
@pytest.mark.parametrize("fields", [{}, {"horizon": None}, {"reward": [2.0, 2.0]}])
def test_every_engine_has_the_exact_value_as_its_mean(engine, make, fields):
    instance = shop(**fields)
    policy = make(instance)
    value = dp.evaluate(instance, policy)
    for seed in (1, 2):
        run = dp.simulate(instance, policy, 10**5, seed, engine)
        assert abs(run.mean - value.value) < 4.5 * run.stderr
        assert run.reward == pytest.approx(run.mean * 10**5)
        assert run.unit == "euro"
        assert run.truncated == 0
        histories = run.histories
        assert histories.users == 10**5
        assert histories.segments == DEVICES.names
        assert histories.segment_columns == ("country", "device")
        total = histories.totals[:, [0, 3]].sum(axis=1) @ instance.reward
        assert run.reward == pytest.approx(total)
        assert run.clicks == histories.totals[:, [0, 3]].sum()
        assert run.steps == histories.totals.sum()
        for s, name in enumerate(DEVICES.names):
            rows = histories.in_segment(name)
            users = rows.users
            deviation = np.sqrt(10**5 * DEVICES.share[s] * (1 - DEVICES.share[s]))
            assert abs(users - 10**5 * DEVICES.share[s]) < 4.5 * deviation
            part = dp.evaluate(
                instance.in_segment(name),
                dp.Greedy(instance).in_segment(name)
                if make is dp.Greedy
                else policy.in_segment(name)
                if policy is POLICY
                else policy,
            )
            rewards = rows.counts[..., [0, 3]].sum(axis=2) @ instance.reward
            mean = rewards @ rows.multiplicity / users
            stderr = np.sqrt((rewards - mean) ** 2 @ rows.multiplicity / users**2)
            assert abs(mean - part.value) < 4.5 * stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_users_at_the_horizon_are_censored_and_not_truncated(engine):
    instance = shop(horizon=3).replace(prior=[0.5, 0.5], segments=None)
    run = dp.simulate(instance, dp.Threshold(0, 1, 1), 20000, 3, engine)
    assert run.truncated == 0
    censored = run.histories.censored
    assert censored.any()
    assert (run.histories.steps[censored] == 3).all()
    assert run.histories.steps.max() == 3
    cut = dp.simulate(instance, dp.Threshold(0, 1, 1), 20000, 3, engine, max_steps=2)
    assert cut.truncated == cut.histories.multiplicity[cut.histories.censored].sum() > 0
    assert dp.simulate(instance, dp.Threshold(0, 1, 1), 20000, 3, engine, max_steps=5).truncated == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_one_segment_and_unit_rewards_change_nothing(engine):
    instance = dp.random_instance("uniform", 2, 2, seed=1, depart=0.4)
    one = dp.Segments(["all"], [1.0], [instance.prior])
    policy = dp.Greedy(instance)
    run = dp.simulate(instance, policy, 20000, 5, engine)
    for other in (instance.replace(prior=None, segments=one), instance.replace(reward=[1, 1])):
        same = dp.simulate(other, policy, 20000, 5, engine)
        assert (same.mean, same.stderr, same.steps) == (run.mean, run.stderr, run.steps)
        np.testing.assert_array_equal(same.returns, run.returns)
        np.testing.assert_array_equal(
            np.sort(same.histories.counts.reshape(-1, 8), axis=0),
            np.sort(run.histories.counts.reshape(-1, 8), axis=0),
        )
    far = dp.simulate(instance.replace(horizon=10**6), policy, 20000, 5, "step")
    assert far.mean == dp.simulate(instance, policy, 20000, 5, "step").mean


def test_a_run_with_segments_can_be_pickled_and_has_any_number_of_threads():
    instance = shop()
    runs = [dp.simulate(instance, POLICY, 10**5, 1, "lanes", threads=n) for n in (1, 3)]
    assert runs[0].mean == runs[1].mean
    again = pickle.loads(pickle.dumps(runs[0]))
    np.testing.assert_array_equal(again.histories.counts, runs[1].histories.counts)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_event_log_has_the_features_and_the_reward(tmp_path, suffix):
    file = tmp_path / f"log.{suffix}"
    run = dp.simulate(shop(), POLICY, 3000, 4, log=file)
    table = pd.read_csv(file) if suffix == "csv" else pd.read_parquet(file)
    names = ["user", "time", "country", "device", "category", "clicked", "departed", "reward"]
    assert list(table.columns) == names
    assert table["reward"].sum() == pytest.approx(run.reward)
    assert (table.loc[~table["clicked"], "reward"] == 0).all()
    first = table.drop_duplicates("user")
    segment = first["country"] + "/" + first["device"]
    expected = {name: run.histories.in_segment(name).users for name in DEVICES.names}
    assert segment.value_counts().to_dict() == expected
    assert (table.groupby("user")["device"].nunique() == 1).all()


def test_columns_of_segments():
    assert segment_columns(DEVICES) == {"country": ["de", "de", "fr"], "device": ["mobile", "desktop", "mobile"]}
    plain = dp.Segments(["a/b", "c"], [0.5, 0.5], [[1.0], [1.0]], ["country", "device"])
    assert segment_columns(plain) == {"segment": ["a/b", "c"]}
    named = dp.Segments(["a/b", "c"], [0.5, 0.5], [[1.0], [1.0]], ["Time"])
    with pytest.raises(dp.InputError, match="A feature is named 'Time'"):
        segment_columns(named, ["time"])
    with pytest.raises(dp.InputError, match="A feature is named 'segment', like another column"):
        segment_columns(plain, ["segment"])


def test_the_joined_instance_has_the_value_of_the_segments():
    instance = shop()
    for policy in (dp.Fixed(1), dp.Threshold(0, 2, 1)):
        joined = dp.evaluate(joined_instance(instance), policy)
        assert joined.value == pytest.approx(dp.evaluate(instance, policy).value, rel=1e-12)


def test_policies_are_compared_on_the_same_users_in_the_unit():
    instance = shop()
    result = dp.compare(instance, POLICY, dp.Fixed(1), 10**5, seed=2)
    exact = dp.evaluate(instance, POLICY).value - dp.evaluate(instance, dp.Fixed(1)).value
    assert abs(result.difference - exact) < 4.5 * result.stderr
    assert result.difference == pytest.approx(result.first - result.second)
    assert result.stderr < result.unpaired_stderr
    assert "euro per user" in result.describe()
    assert "Euro per user of the first policy" in result.summary()
    one = dp.Segments(["all"], [1.0], [[0.5, 0.5]])
    plain = dp.Instance([0.5, 0.5], [[0.75, 0.25], [0.25, 0.5]], 0.5)
    same = [dp.compare(i, dp.Fixed(0), dp.Fixed(1), 5000) for i in (plain, plain.replace(prior=None, segments=one))]
    assert same[0] == same[1]


def test_environments_give_rewards_and_the_segment_and_end_at_the_horizon():
    env = gymnasium.make("departing/User-v0", instance=shop(), reveal_type=True)
    rng, total, ends = np.random.default_rng(1), [], set()
    for seed in range(2000):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert 0 <= info["type"] < 2
        gained, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, info = env.step(0)
            gained, done = gained + reward, terminated or truncated
            assert reward in (0.0, 1.0)
        assert truncated == (observation["counts"].sum() == 6 and not terminated)
        ends.add((terminated, truncated))
        total.append(gained)
    assert ends == {(True, False), (False, True)}
    value = dp.evaluate(shop(), dp.Fixed(0)).value
    assert abs(np.mean(total) - value) < 4.5 * np.std(total) / np.sqrt(len(total))
    many = gymnasium.make_vec("departing/User-v0", num_envs=4, instance=shop())
    observations, _ = many.reset(seed=1)
    assert observations["counts"].shape == (4, 2, 4)
    assert observations["segment"].shape == (4,)
    _, rewards, *_ = many.step(rng.integers(0, 2, 4))
    assert set(rewards.tolist()) <= {0.0, 1.0, 2.5}


def test_texts_name_the_unit():
    run = dp.simulate(shop(), POLICY, 1000, 1)
    assert "euro on average" in run.describe()
    assert "Euro per user: " in run.summary()
    assert "euro per user" in run._repr_html_()
