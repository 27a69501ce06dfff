"""Draws of the mean rewards of a log, for intervals of values."""

import numpy as np

from departing.data.rewards import RewardStats
from departing.model.instance import Floats


def draw_rewards(rewards: RewardStats, n: int, rng: np.random.Generator) -> Floats:
    """Draw `[n, K]` mean rewards with their standard errors: gamma distributed, so that none is negative.

    A mean of fewer than two clicks has the largest standard deviation of a click as its error.
    """
    mean, sd = rewards.mean, rewards.sd[np.isfinite(rewards.sd)]
    stderr = np.where(np.isfinite(rewards.stderr), rewards.stderr, sd.max(initial=0.0))
    draws = np.tile(mean, (n, 1))
    varies = (mean > 0) & (stderr > 0)
    shape = (mean[varies] / stderr[varies]) ** 2
    draws[:, varies] = rng.gamma(shape, mean[varies] / shape, (n, int(varies.sum())))
    return draws
