"""Rewards of a fit: means of a log, and draws of them for intervals."""

from typing import Any

import numpy as np

from departing.model.instance import Floats


def mean_rewards(rewards: Any) -> Floats:
    """Mean reward of a click in each category `[K]`; the mean of all clicks where there are none."""
    mean, clicks = np.asarray(rewards.mean, np.float64), np.asarray(rewards.clicks)
    known = (clicks > 0) & np.isfinite(mean)
    overall = float(np.average(mean[known], weights=clicks[known])) if known.any() else 1.0
    return np.where(known, mean, overall)


def draw_rewards(rewards: Any, n: int, rng: np.random.Generator) -> Floats:
    """Draw `[n, K]` mean rewards with their standard errors: gamma distributed, so that none is negative.

    A category with fewer than two clicks has the spread of all clicks.
    """
    mean = mean_rewards(rewards)
    stderr = np.asarray(rewards.stderr, np.float64)
    spread = np.asarray(rewards.sd, np.float64)
    typical = float(np.nanmax(np.where(np.isfinite(spread), spread, 0.0), initial=0.0))
    stderr = np.where(np.isfinite(stderr) & (np.asarray(rewards.clicks) > 1), stderr, typical)
    draws = np.tile(mean, (n, 1))
    varies = (mean > 0) & (stderr > 0)
    shape = (mean[varies] / stderr[varies]) ** 2
    draws[:, varies] = rng.gamma(shape, mean[varies] / shape, (n, int(varies.sum())))
    return draws
