"""The best of many vectors for many beliefs."""

import numpy as np

from departing.kernels.compiling import kernel

TILE = 64  # beliefs worked on at a time


@kernel
def best_vectors(beliefs, vectors, chosen):  # type: ignore[no-untyped-def]
    """For each of `beliefs[M, n]` which of `vectors[A, M]` brings most, the first of equals."""
    n_types, n = beliefs.shape
    tile = np.empty((n_types, TILE))
    value, best = np.empty(TILE), np.empty(TILE)
    where = np.empty(TILE, np.int64)
    for start in range(0, n, TILE):
        size = min(TILE, n - start)
        for x in range(n_types):
            for i in range(size):
                tile[x, i] = beliefs[x, start + i]
            for i in range(size, TILE):
                tile[x, i] = 0.0
        for i in range(TILE):
            best[i], where[i] = -np.inf, 0
        for v in range(len(vectors)):
            for i in range(TILE):
                value[i] = 0.0
            for x in range(n_types):
                factor = vectors[v, x]
                row = tile[x]
                for i in range(TILE):
                    value[i] += factor * row[i]
            for i in range(TILE):
                better = value[i] > best[i]
                best[i] = value[i] if better else best[i]
                where[i] = v if better else where[i]
        for i in range(size):
            chosen[start + i] = where[i]
