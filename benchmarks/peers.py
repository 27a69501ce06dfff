"""What others would write: all users in NumPy with compaction, and a Gymnasium loop."""

import random

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
    """A lean environment of one user in plain Python: the number of steps is all it shows."""

    def __init__(self, instance):
        self.observation_space = gymnasium.spaces.Discrete(2**31)
        self.action_space = gymnasium.spaces.Discrete(instance.n_categories)
        self.click, self.leave = instance.click.tolist(), instance.depart.tolist()
        self.shares, self.types = instance.prior.tolist(), range(instance.n_types)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.type = random.choices(self.types, self.shares)[0]
        self.steps = 0
        return self.steps, {}

    def step(self, action):
        self.steps += 1
        if random.random() < self.click[action][self.type]:
            return self.steps, 1.0, False, False, {}
        return self.steps, 0.0, random.random() < self.leave[action][self.type], False, {}


def gymnasium_loop(env, walk, then, n_steps):
    """Make `n_steps` steps, starting over whenever a user departs."""
    step, _ = env.reset()
    for _ in range(n_steps):
        step, _, terminated, _, _ = env.step(walk[step] if step < len(walk) else then)
        if terminated:
            step, _ = env.reset()
    return n_steps
