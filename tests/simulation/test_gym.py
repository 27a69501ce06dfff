import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import departing as dp
import departing.simulation.gym
from departing.model.examples import blog, magazine

ID = "departing/User-v0"


@pytest.mark.parametrize("options", [{}, {"max_steps": 3}, {"reveal_type": True}])
def test_gymnasiums_own_checker_passes(options):
    check_env(gymnasium.make(ID, instance=magazine(), **options).unwrapped, skip_render_check=True)


def test_an_episode_ends_by_departing_or_by_the_limit_never_by_both():
    env = gymnasium.make(ID, instance=magazine(), max_steps=4)
    ends = set()
    for seed in range(300):
        counts, info = env.reset(seed=seed)
        assert info == {}
        assert not counts.any()
        terminated = truncated = False
        steps = clicks = 0
        while not (terminated or truncated):
            counts, reward, terminated, truncated, info = env.step(steps % 3)
            steps, clicks = steps + 1, clicks + reward
            assert info == {}
            assert counts.sum() == steps
            assert counts[:, [0, 3]].sum() == clicks
            assert (counts[:, 2:].sum() == 1) == terminated
        assert truncated == (steps == 4 and not terminated)
        ends.add((terminated, truncated))
        with pytest.raises(dp.InputError, match="call reset"):
            env.unwrapped.step(0)
    assert ends == {(True, False), (False, True)}


def test_the_type_is_revealed_only_on_request():
    env = gymnasium.make(ID, instance=magazine(), reveal_type=True)
    types = [env.reset(seed=seed)[1]["type"] for seed in range(3000)]
    np.testing.assert_allclose(np.bincount(types) / 3000, magazine().prior, atol=4 * np.sqrt(0.25 / 3000))
    assert env.observation_space.shape == (3, 4)


def test_an_instance_may_be_a_path(tmp_path):
    blog().save(tmp_path / "blog.toml")
    env = gymnasium.make(ID, instance=str(tmp_path / "blog.toml"))
    assert env.action_space.n == 2


@pytest.mark.parametrize("action", [2, -1, 0.5, "a"])
def test_invalid_actions_raise_clear_errors(action):
    env = gymnasium.make(ID, instance=blog()).unwrapped
    env.reset(seed=0)
    with pytest.raises(dp.InputError, match="expected integers from 0 to 1"):
        env.step(action)


def test_many_parallel_users_reach_the_exact_value():
    envs = gymnasium.make_vec(ID, num_envs=500, vectorization_mode="vector_entry_point", instance=magazine())
    policy = dp.Greedy(magazine())
    counts, info = envs.reset(seed=1)
    assert info == {}
    over = np.zeros(500, bool)
    returns, current = [], np.zeros(500)
    for _ in range(400):
        counts, rewards, terminated, truncated, info = envs.step(policy.recommend(counts))
        assert not counts[over].any()  # a new user took the place of one who was over
        assert not rewards[over].any()
        assert not truncated.any()
        assert info == {}
        current += rewards
        returns.extend(current[terminated].tolist())
        current[terminated] = 0
        over = terminated
    value = dp.evaluate(magazine(), policy, gap=1e-6).value
    # Short visits are over-represented when a clock stops the count, by less than the length of one visit.
    assert abs(np.mean(returns) - value) < 5 * np.std(returns) / np.sqrt(len(returns)) + 0.15


def test_the_vector_environment_conforms_to_its_interface():
    envs = gymnasium.make_vec(
        ID, num_envs=4, vectorization_mode="vector_entry_point", instance=blog(), max_steps=2, reveal_type=True
    )
    first, again = envs.reset(seed=3), envs.reset(seed=3)
    assert (first[1]["type"] == again[1]["type"]).all()
    assert envs.observation_space.contains(first[0])
    assert envs.action_space.shape == (4,)
    with pytest.raises(dp.InputError, match="expected one integer"):
        envs.reset(seed=[1, 2, 3, 4])
    with pytest.raises(dp.InputError, match="actions have shape"):
        envs.step([0, 1])
