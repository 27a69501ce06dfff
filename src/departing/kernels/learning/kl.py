"""Confidence bounds of a Bernoulli probability by the Kullback-Leibler divergence."""

from math import log

import numpy as np

from departing.kernels.compiling import inner, kernel

HALVINGS = 60  # bisection to the last bit of a double, from an interval of at most 1


@inner
def _kl(p, q):
    """Divergence kl(p, q) in nats, for 0 < q < 1."""
    heads = p * log(p / q) if p > 0 else 0.0
    tails = (1 - p) * log((1 - p) / (1 - q)) if p < 1 else 0.0
    return heads + tails


@kernel
def kl_bound(means, divergence, limit):
    """The probability between each of `means[n]` and `limit` farthest from the mean with kl ≤ `divergence[n]`."""
    bound = np.empty(len(means))
    for i in range(len(means)):
        inside, outside = means[i], limit
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            if middle in (0.0, 1.0) or _kl(means[i], middle) <= divergence[i]:
                inside = middle
            else:
                outside = middle
        bound[i] = inside
    return bound
