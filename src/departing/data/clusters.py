"""K-means clustering with k-means++ starts.

SciPy's `kmeans2` does not replace it: it runs a fixed number of iterations without a test for convergence, and leaves
clusters empty, whereas every type of an instance needs at least one user.
"""

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats

STARTS = 10  # as in scikit-learn's KMeans with random starts
MAX_ITERATIONS = 300  # as in scikit-learn's KMeans


def kmeans(points: Floats, n: int, rng: np.random.Generator) -> Integers:
    """Cluster of each of `points[N, D]`, 0 to n - 1, none of them empty: the best of several starts.

    The points must have at least n distinct rows.

    >>> kmeans(np.array([[0.0], [0.1], [5.0], [5.2], [5.1]]), 2, np.random.default_rng(0)).tolist()
    [1, 1, 0, 0, 0]
    """
    results = [_lloyd(points, _start(points, n, rng)) for _ in range(STARTS)]
    return min(results, key=lambda result: result[1])[0]


def _start(points: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Centres `[n, D]` by k-means++: points drawn in proportion to the squared distance from earlier centres."""
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < n:
        cumulative = _squared_distances(points, centres).min(axis=1).cumsum()
        drawn = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        centres = np.concatenate([centres, points[[min(drawn, len(points) - 1)]]])
    return centres


def _lloyd(points: Floats, centres: Floats) -> tuple[Integers, float]:
    """Labels `[N]` after convergence of Lloyd's algorithm, and the sum of squared distances."""
    labels = np.full(len(points), -1)
    for _ in range(MAX_ITERATIONS):
        squares = _squared_distances(points, centres)
        previous, labels = labels, squares.argmin(axis=1)
        _fill_empty(labels, squares)
        if (labels == previous).all():
            break
        sizes = np.bincount(labels, minlength=len(centres))
        sums = [np.bincount(labels, weights=column, minlength=len(centres)) for column in points.T]
        centres = np.stack(sums, axis=1) / sizes[:, None]
    return labels, float(((points - centres[labels]) ** 2).sum())


def _squared_distances(points: Floats, centres: Floats) -> Floats:
    """Squared distances `[N, n]`, exactly zero where a point is a centre."""
    return np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)


def _fill_empty(labels: Integers, squares: Floats) -> None:
    """Move into every empty cluster the point farthest from its centre, of a cluster with several points."""
    sizes = np.bincount(labels, minlength=squares.shape[1])
    for x in np.flatnonzero(sizes == 0):
        own = squares[np.arange(len(labels)), labels]
        farthest = int(np.where(sizes[labels] > 1, own, -1.0).argmax())
        sizes[labels[farthest]] -= 1
        labels[farthest], sizes[x], squares[farthest, x] = x, 1, 0.0
