"""What others would write: all users in NumPy with compaction, and a Gymnasium loop."""

import gymnasium
import numpy as np


def numpy_with_compaction(instance, walk, then, users, seed):
    """All users at once, arrays made smaller as users depart; returns the number of steps."""
    rng = np.random.default_rng(seed)
    types = rng.choice(instance.n_types, users, p=instance.prior)
    click, leave = instance.click, instance.depart
    clicks = np.zeros(users, np.int64)
    here, step, steps = np.arange(users), 0, 0
    while len(here):
        a = walk[step] if step < len(walk) else then
        x = types[here]
        steps += len(here)
        clicked = rng.random(len(here)) < click[a, x]
        clicks[here[clicked]] += 1
        missed = here[~clicked]
        stays = rng.random(len(missed)) >= leave[a, types[missed]]
        here = np.concatenate([here[clicked], missed[stays]])
        step += 1
    return steps


class PlainEnv(gymnasium.Env):
    """One user as a researcher would write it: counts to look at, the environment's own generator."""

    def __init__(self, instance):
        self.observation_space = gymnasium.spaces.Box(0, 2**31 - 1, (instance.n_categories, 2), np.int32)
        self.action_space = gymnasium.spaces.Discrete(instance.n_categories)
        self.click, self.leave = instance.click.tolist(), instance.depart.tolist()
        self.shares = instance.prior.cumsum()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.type = int(np.searchsorted(self.shares, self.np_random.random()))
        self.counts = np.zeros(self.observation_space.shape, np.int32)
        return self.counts.copy(), {}

    def step(self, action):
        clicked = self.np_random.random() < self.click[action][self.type]
        self.counts[action, 0 if clicked else 1] += 1
        departed = not clicked and self.np_random.random() < self.leave[action][self.type]
        return self.counts.copy(), float(clicked), departed, False, {}


PLAIN = "benchmark/Plain-v0"
gymnasium.register(PLAIN, entry_point=PlainEnv)


def gymnasium_loop(env, walk, then, n_steps):
    """Make `n_steps` steps, starting over whenever a user departs."""
    counts, _ = env.reset()
    for _ in range(n_steps):
        step = int(counts.sum())
        counts, _, terminated, _, _ = env.step(walk[step] if step < len(walk) else then)
        if terminated:
            counts, _ = env.reset()
    return n_steps
