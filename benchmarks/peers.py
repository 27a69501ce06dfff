"""Baseline simulators: all users in NumPy with compaction, and a Gymnasium loop."""

import gymnasium
import numpy as np


def numpy_with_compaction(instance, walk, then, users, seed, chunk=1 << 17):
    """Simulate the users of each type at once, dropping departed users; return the number of steps.

    All users of a chunk are at the same step and have the same type, so probabilities are scalars and nothing is
    indexed. One uniform number decides a step; numbers are single precision from the fastest generator of NumPy;
    buffers are reused; departed users are dropped once they are half of the chunk. The only result per user is the
    number of clicks. Policies that depend on the user's clicks would need more.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    click = instance.click.astype(np.float32)
    remain = (1 - (1 - instance.click) * instance.depart).astype(np.float32)  # click, or no-click without departure
    uniform, hit, kept = np.empty(chunk, np.float32), np.empty(chunk, bool), np.empty(chunk, bool)
    returns, departed, steps = np.empty(users, np.int32), 0, 0
    for x, total in enumerate(rng.multinomial(users, instance.prior)):
        for start in range(0, total, chunk):
            n = active = min(chunk, total - start)
            clicks, present, step = np.zeros(n, np.int16), np.ones(n, bool), 0
            while active:
                a = walk[step] if step < len(walk) else then
                draws, clicked, stays = uniform[:n], hit[:n], kept[:n]
                rng.random(out=draws, dtype=np.float32)
                np.less(draws, click[a, x], out=clicked)
                np.logical_and(clicked, present, out=clicked)
                clicks += clicked
                np.less(draws, remain[a, x], out=stays)
                np.logical_and(present, stays, out=present)
                steps, step, active = steps + active, step + 1, np.count_nonzero(present)
                if 2 * active < n:
                    returns[departed : departed + n - active] = clicks[~present]
                    departed += n - active
                    clicks, n = clicks[present], active
                    present = np.ones(n, bool)
    assert departed == users
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
