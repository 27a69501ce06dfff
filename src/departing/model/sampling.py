"""Sampling of types and outcomes of single users."""

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats, Instance


def sample_types(instance: Instance, n: int, rng: np.random.Generator) -> Integers:
    """Sample the types `[n]` of new users from the prior."""
    return instance.cumulative_prior.searchsorted(rng.random(n), side="right")


def sample_type_counts(instance: Instance, users: int, rng: np.random.Generator) -> Integers:
    """Sample how many of `users` are of each type, `[M]`."""
    order = np.argsort(instance.prior)  # the last takes what is left after rounding, so it must not be a rare one
    counts = np.empty(instance.n_types, np.int64)
    counts[order] = rng.multinomial(users, instance.normalised_prior[order])
    return counts


def sample_outcomes(instance: Instance, categories: Integers, types: Integers, uniforms: Floats) -> Integers:
    """Outcome of recommending `categories[n]` to users of `types[n]`, by one uniform number in [0, 1) each."""
    thresholds = instance.cumulative_outcome_probabilities[categories, :, types]
    return np.asarray((uniforms[:, None] >= thresholds).sum(axis=1))
