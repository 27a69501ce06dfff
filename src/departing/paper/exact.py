"""Reference arithmetic for sure departure, independent of the planners: fractions, and the recursion of the paper."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from departing.model.families import random_instance
from departing.model.instance import Floats, Instance

BLOG = (
    (Fraction(2, 5), Fraction(3, 5)),
    ((Fraction(1, 2), Fraction(7, 25)), (Fraction(2, 5), Fraction(39, 100))),
)  # prior and click probabilities of Table 1
Row = Sequence[Fraction]
Reached = dict[tuple[int, ...], tuple[Fraction, list[Fraction]]]


def random_instances(family: str, n: int, **options: Any) -> Iterator[Instance]:
    """Random instances of a family with the seeds 0, 1, …"""
    return (random_instance(family, seed=seed, **options) for seed in range(n))


def walk_value(prior: Row, click: Sequence[Row], walk: Sequence[int], then: int | None = None) -> Fraction:
    """Exact value of a walk followed by one category from then on, or by nothing (theorem on the expected return).

    >>> round(float(walk_value(*BLOG, [1] * 6, 0)), 10)
    0.6502905844
    """
    weights, total = list(prior), Fraction(0)
    for category in walk:
        weights = _clicked(weights, click[category])
        total += sum(weights)
    if then is None:
        return total
    return total + sum(w * p / (1 - p) for w, p in zip(weights, click[then], strict=True))


def _clicked(weights: Row, row: Row) -> list[Fraction]:
    """Weights of the types after a click."""
    return [w * p for w, p in zip(weights, row, strict=True)]


def best_walk_value(prior: Row, click: Sequence[Row], steps: int) -> Fraction:
    """Maximal expected clicks within `steps` steps, by enumeration of all walks."""
    return max(walk_value(prior, click, walk) for walk in product(range(len(click)), repeat=steps))


def best_to_counts(prior: Row, click: Sequence[Row], steps: int) -> Reached:
    """For all counts after `steps` steps: the maximal expected clicks until there, and the weights of the types."""
    level: Reached = {(0,) * len(click): (Fraction(0), list(prior))}
    for _ in range(steps):
        following: Reached = {}
        for counts, (value, weights) in level.items():
            for a, row in enumerate(click):
                child = tuple(n + (i == a) for i, n in enumerate(counts))
                after = _clicked(weights, row)
                reached = value + sum(after)
                if child not in following or reached > following[child][0]:
                    following[child] = reached, after
        level = following
    return level


def recursion(prior: Floats, click: Floats, steps: int) -> tuple[Floats, int]:
    """The paper's recursion over counts, for n instances at once: values `[n]` and the number of counts visited.

    `prior[n, M]`, `click[n, K, M]`. Level h holds the best value D(c) of the first h steps for all counts c that sum
    to h; the next level adds the probability that the user is active to the best predecessor of each count.
    """
    n, k, _ = click.shape
    shape = (steps + 1,) * (k - 1)  # counts of all categories but the last, which has the remainder
    powers = click[:, :, None, :] ** np.arange(steps + 1)[None, None, :, None]  # [n, K, power, M]
    level = np.full((n, *shape), -np.inf)
    level[(slice(None), *(0,) * (k - 1))] = 0.0
    visited = 0
    for h in range(1, steps + 1):
        best = level.copy()  # predecessor by a step of the last category
        for a in range(k - 1):
            moved = np.full_like(level, -np.inf)
            target, source = [slice(None)] * k, [slice(None)] * k
            target[1 + a], source[1 + a] = slice(1, None), slice(None, -1)
            moved[tuple(target)] = level[tuple(source)]
            best = np.maximum(best, moved)
        counts = np.array(np.meshgrid(*[np.arange(steps + 1)] * (k - 1), indexing="ij")).reshape(k - 1, -1)
        remainder = h - counts.sum(axis=0)
        reached = remainder >= 0
        visited += int(reached.sum())
        active = prior[:, None, :] * powers[:, k - 1, np.maximum(remainder, 0)]
        for a in range(k - 1):
            active = active * powers[:, a, counts[a]]
        level = np.where(reached.reshape(shape), best + active.sum(axis=2).reshape(n, *shape), -np.inf)
    return np.asarray(level.reshape(n, -1).max(axis=1)), visited


def tail_bound(click: float, steps: int) -> float:
    """Upper bound of the expected clicks after `steps` steps if `click` is the largest click probability."""
    return click ** (steps + 1) / (1 - click)
