"""Users with similar numbers, brought together: k-means from several starts."""

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats

STARTS, ROUNDS = 10, 300


def clusters(points: Floats, n: int, rng: np.random.Generator) -> Integers:
    """The cluster of every one of `points[N, D]`, 0 to n - 1, none of them empty: the best of several starts.

    The points must have at least n different rows. Starts are drawn as k-means++ does, each far from the others.

    >>> clusters(np.array([[0.0], [0.1], [5.0], [5.2], [5.1]]), 2, np.random.default_rng(0)).tolist()
    [1, 1, 0, 0, 0]
    """
    found = [_settle(points, _start(points, n, rng)) for _ in range(STARTS)]
    return min(found, key=lambda one: one[1])[0]


def _start(points: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Centres `[n, D]`: points drawn by the square of how far they are from the centres before."""
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < n:
        far = _distances(points, centres).min(axis=1).cumsum()
        at = min(int(np.searchsorted(far, rng.random() * far[-1], side="right")), len(points) - 1)
        centres = np.concatenate([centres, points[[at]]])
    return centres


def _settle(points: Floats, centres: Floats) -> tuple[Integers, float]:
    """Points to the nearest centre, centres to the mean of their points, until nothing moves; the sum of squares."""
    before = np.full(len(points), -1)
    for _ in range(ROUNDS):
        squares = _distances(points, centres)
        labels = squares.argmin(axis=1)
        _fill(labels, squares)
        if (labels == before).all():
            break
        before = labels
        sizes = np.bincount(labels, minlength=len(centres))
        sums = [np.bincount(labels, weights=column, minlength=len(centres)) for column in points.T]
        centres = np.stack(sums, axis=1) / sizes[:, None]
    return before, float(((points - centres[before]) ** 2).sum())


def _distances(points: Floats, centres: Floats) -> Floats:
    """Squared distances `[N, n]`, exactly zero where a point is a centre."""
    return np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)


def _fill(labels: Integers, squares: Floats) -> None:
    """Give every empty cluster the point that is farthest from its centre, of a cluster that has others."""
    sizes = np.bincount(labels, minlength=squares.shape[1])
    for x in np.flatnonzero(sizes == 0):
        own = squares[np.arange(len(labels)), labels]
        at = int(np.where(sizes[labels] > 1, own, -1.0).argmax())
        sizes[labels[at]] -= 1
        labels[at], sizes[x], squares[at, x] = x, 1, 0.0
