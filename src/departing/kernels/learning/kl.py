"""Confidence bounds of the chance of a coin by the Kullback-Leibler divergence."""

from math import log

import numpy as np

from departing.kernels.compiling import inner, kernel

HALVINGS = 60


@inner
def _kl(p, q):
    """How far a coin of chance q, neither 0 nor 1, is from one of chance p, in nats."""
    heads = p * log(p / q) if p > 0 else 0.0
    tails = (1 - p) * log((1 - p) / (1 - q)) if p < 1 else 0.0
    return heads + tails


@kernel
def kl_end(means, room, end):
    """The chance between each of `means` and `end` that is farthest off with a divergence of at most `room`."""
    found = np.empty(len(means))
    for i in range(len(means)):
        inside, outside = means[i], end
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            if middle in (0.0, 1.0) or _kl(means[i], middle) <= room[i]:
                inside = middle
            else:
                outside = middle
        found[i] = inside
    return found
