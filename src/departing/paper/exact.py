"""Slow, obvious arithmetic for sure departure, apart from the planners: fractions, and the paper's recursion."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from departing.model.instance import Floats

BLOG = (
    (Fraction(2, 5), Fraction(3, 5)),
    ((Fraction(1, 2), Fraction(7, 25)), (Fraction(2, 5), Fraction(39, 100))),
)  # the prior and the click chances of the paper's Table 1
Row = Sequence[Fraction]


def walk_value(prior: Row, click: Sequence[Row], walk: Sequence[int], then: int) -> Fraction:
    """The value of a walk that ends in one category for ever (Theorem on the expected return), exactly.

    >>> round(float(walk_value(*BLOG, [1] * 6, 0)), 10)
    0.6502905844
    """
    weights, total = list(prior), Fraction(0)
    for category in walk:
        weights = [w * p for w, p in zip(weights, click[category], strict=True)]
        total += sum(weights)
    return total + sum(w * p / (1 - p) for w, p in zip(weights, click[then], strict=True))


def first_steps_value(prior: Row, click: Sequence[Row], walk: Sequence[int]) -> Fraction:
    """The expected clicks in the steps of a finite walk."""
    weights, total = list(prior), Fraction(0)
    for category in walk:
        weights = [w * p for w, p in zip(weights, click[category], strict=True)]
        total += sum(weights)
    return total


def best_first_steps(prior: Row, click: Sequence[Row], steps: int) -> Fraction:
    """The most expected clicks in so many steps, by trying every walk."""
    return max(first_steps_value(prior, click, walk) for walk in product(range(len(click)), repeat=steps))


def best_to_counts(
    prior: Row, click: Sequence[Row], steps: int
) -> dict[tuple[int, ...], tuple[Fraction, list[Fraction]]]:
    """For all counts of so many steps: the most expected clicks on the way there, and the types' weights there."""
    level: dict[tuple[int, ...], tuple[Fraction, list[Fraction]]] = {(0,) * len(click): (Fraction(0), list(prior))}
    for _ in range(steps):
        following: dict[tuple[int, ...], tuple[Fraction, list[Fraction]]] = {}
        for counts, (value, weights) in level.items():
            for a, row in enumerate(click):
                there = tuple(n + (i == a) for i, n in enumerate(counts))
                after = [w * p for w, p in zip(weights, row, strict=True)]
                reached = value + sum(after)
                if there not in following or reached > following[there][0]:
                    following[there] = reached, after
        level = following
    return level


def recursion(prior: Floats, click: Floats, steps: int) -> tuple[Floats, int]:
    """The paper's recursion over counts, of many instances at once: values `[n]`, and how many counts were met.

    `prior[n, M]`, `click[n, K, M]`. Level h has the best value D(c) of the first h steps for all counts c that sum to
    h; the next adds to the best way to each count the chance that the user is still there.
    """
    n, k, _ = click.shape
    shape = (steps + 1,) * (k - 1)  # counts of all categories but the last, which has the rest
    powers = click[:, :, None, :] ** np.arange(steps + 1)[None, None, :, None]  # [n, K, power, M]
    level = np.full((n, *shape), -np.inf)
    level[(slice(None), *(0,) * (k - 1))] = 0.0
    met = 0
    for h in range(1, steps + 1):
        best = level.copy()  # the step was the last category
        for a in range(k - 1):
            moved = np.full_like(level, -np.inf)
            to, of = [slice(None)] * k, [slice(None)] * k
            to[1 + a], of[1 + a] = slice(1, None), slice(None, -1)
            moved[tuple(to)] = level[tuple(of)]
            best = np.maximum(best, moved)
        counts = np.array(np.meshgrid(*[np.arange(steps + 1)] * (k - 1), indexing="ij")).reshape(k - 1, -1)
        rest = h - counts.sum(axis=0)
        reached = rest >= 0
        met += int(reached.sum())
        chances = prior[:, None, :] * powers[:, k - 1, np.maximum(rest, 0)]
        for a in range(k - 1):
            chances = chances * powers[:, a, counts[a]]
        level = np.where(reached.reshape(shape), best + chances.sum(axis=2).reshape(n, *shape), -np.inf)
    return np.asarray(level.reshape(n, -1).max(axis=1)), met


def tail(click: Floats, steps: int) -> Floats:
    """The most that all later steps can bring, `[n]`: nobody clicks more often than the largest chance says."""
    most = click.reshape(len(click), -1).max(axis=1)
    return np.asarray(most ** (steps + 1) / (1 - most))
