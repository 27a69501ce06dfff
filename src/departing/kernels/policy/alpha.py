"""Best alpha vectors for many users, by their counts or by their beliefs."""

import math

import numpy as np

from departing.kernels.compiling import kernel

# Users worked on at a time: a fixed length lets the compiler vectorise the inner loops, and a tile (512 bytes a
# type) stays in the first-level cache.
TILE = 64


@kernel
def _best_of_tile(tile, vectors, value, best, where):
    """Index of the alpha vector with the largest value at each belief `tile[M, TILE]`; ties to the first."""
    for i in range(TILE):
        best[i], where[i] = -np.inf, 0
    for v in range(len(vectors)):
        for i in range(TILE):
            value[i] = 0.0
        for x in range(len(tile)):
            factor = vectors[v, x]
            row = tile[x]
            for i in range(TILE):
                value[i] += factor * row[i]
        for i in range(TILE):
            better = value[i] > best[i]
            best[i] = value[i] if better else best[i]
            where[i] = v if better else where[i]


@kernel
def best_vectors(beliefs, vectors):
    """Index of `vectors[A, M]` with the largest value at each of `beliefs[n, M]`; ties to the first."""
    n, n_types = beliefs.shape
    chosen = np.empty(n, np.int64)
    tile = np.zeros((n_types, TILE))
    value, best, where = np.empty(TILE), np.empty(TILE), np.empty(TILE, np.int64)
    for start in range(0, n, TILE):
        size = min(TILE, n - start)
        for i in range(size):
            for x in range(n_types):
                tile[x, i] = beliefs[start + i, x]
        _best_of_tile(tile, vectors, value, best, where)
        for i in range(size):
            chosen[start + i] = where[i]
    return chosen


@kernel
def best_by_counts(counts, log_outcome_probabilities, log_prior, prior, impossible, vectors):
    """As `best_vectors` at the beliefs after `counts[n, L]` (`log_outcome_probabilities[L, M]`: a row for each).

    Counts that no type can have, whose log weights are not above `impossible`, are answered at the prior.
    """
    n, n_types = len(counts), len(prior)
    beliefs, weights = np.empty((n, n_types)), np.empty(n_types)
    for i in range(n):
        for x in range(n_types):
            weights[x] = log_prior[x]
        for j in range(counts.shape[1]):
            if counts[i, j] != 0:
                times = float(counts[i, j])
                for x in range(n_types):
                    weights[x] += times * log_outcome_probabilities[j, x]
        top = weights[0]
        for x in range(1, n_types):
            top = max(top, weights[x])
        for x in range(n_types):
            beliefs[i, x] = math.exp(weights[x] - top) if top > impossible else prior[x]
    return best_vectors(beliefs, vectors)
