"""Baseline simulators: all users in NumPy with compaction, and a Gymnasium loop."""

import gymnasium
import numpy as np


def numpy_with_compaction(instance, walk, then, users, seed):
    """Simulate all users at once, dropping departed users; return the number of steps."""
    rng = np.random.default_rng(seed)
    types = rng.choice(instance.n_types, users, p=instance.prior)
    click, depart = instance.click, instance.depart
    clicks = np.zeros(users, np.int64)
    active, step, steps = np.arange(users), 0, 0
    while len(active):
        a = walk[step] if step < len(walk) else then
        x = types[active]
        steps += len(active)
        clicked = rng.random(len(active)) < click[a, x]
        clicks[active[clicked]] += 1
        missed = active[~clicked]
        stays = rng.random(len(missed)) >= depart[a, types[missed]]
        active = np.concatenate([active[clicked], missed[stays]])
        step += 1
    return steps


class PlainEnv(gymnasium.Env):
    """Environment of one user with counts as observations."""

    def __init__(self, instance):
        self.observation_space = gymnasium.spaces.Box(0, 2**31 - 1, (instance.n_categories, 2), np.int32)
        self.action_space = gymnasium.spaces.Discrete(instance.n_categories)
        self.click, self.depart = instance.click.tolist(), instance.depart.tolist()
        self.cumulative_prior = instance.prior.cumsum()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.type = int(np.searchsorted(self.cumulative_prior, self.np_random.random()))
        self.counts = np.zeros(self.observation_space.shape, np.int32)
        return self.counts.copy(), {}

    def step(self, action):
        clicked = self.np_random.random() < self.click[action][self.type]
        self.counts[action, 0 if clicked else 1] += 1
        departed = not clicked and self.np_random.random() < self.depart[action][self.type]
        return self.counts.copy(), float(clicked), departed, False, {}


PLAIN = "benchmark/Plain-v0"
gymnasium.register(PLAIN, entry_point=PlainEnv)


def gymnasium_loop(env, walk, then, n_steps):
    """Make `n_steps` steps, with a reset after each departure."""
    counts, _ = env.reset()
    for _ in range(n_steps):
        step = int(counts.sum())
        counts, _, terminated, _, _ = env.step(walk[step] if step < len(walk) else then)
        if terminated:
            counts, _ = env.reset()
    return n_steps
