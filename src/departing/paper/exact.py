"""Reference arithmetic for sure departure, independent of the planners: fractions, and the recursion of the paper."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper.formulas import Number

BLOG = (
    (Fraction(2, 5), Fraction(3, 5)),
    ((Fraction(1, 2), Fraction(7, 25)), (Fraction(2, 5), Fraction(39, 100))),
)  # prior and click probabilities of Table 1
Row = Sequence[Fraction]
Click = Sequence[Row]
Counts = tuple[int, ...]
Reached = dict[Counts, tuple[Fraction, list[Fraction]]]


def random_instances(family: str, n: int, **options: Any) -> Iterator[Instance]:
    """Random instances of a family with the seeds 0, 1, …"""
    return (random_instance(family, seed=seed, **options) for seed in range(n))


def random_cases(structure: Callable[[Click], bool], n: int, seed: int = 0) -> Iterator[tuple[Fraction, Click]]:
    """Random beliefs and 2 × 2 click probabilities of a structure, the largest of them first.

    They are hundredths; every third case has tenths, so that ties are frequent.
    """
    rng, accepted = np.random.default_rng(seed), 0
    while accepted < n:
        unit = 10 if accepted % 3 == 2 else 100
        b, *p = (Fraction(int(i), unit) for i in rng.integers(1, unit, 5))
        b, click = largest_first(b, (p[:2], p[2:]))
        if structure(click):
            accepted += 1
            yield b, click


def instance_of(b: Fraction, click: Click) -> Instance:
    """Instance with two types, the belief b in the first one, and sure departure."""
    return Instance([float(b), float(1 - b)], np.array(click, np.float64))


def random_tables(rng: np.random.Generator, categories: int, types: int) -> tuple[Row, Click]:
    """Random prior, and click probabilities in hundredths."""
    shares = rng.integers(1, 50, types)
    prior = [Fraction(int(share), int(shares.sum())) for share in shares]
    return prior, [[Fraction(int(i), 100) for i in rng.integers(1, 100, types)] for _ in range(categories)]


def largest_first(b: Fraction, click: Click) -> tuple[Fraction, Click]:
    """Relabel categories and types so that the largest click probability is that of category 1 and type x."""
    a, x = max(product((0, 1), repeat=2), key=lambda place: click[place[0]][place[1]])
    return (1 - b if x else b), [[click[i][j] for j in (x, 1 - x)] for i in (a, 1 - a)]


def walk_value(prior: Row, click: Click, walk: Sequence[int], then: int | None = None) -> Fraction:
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


def best_walk_value(prior: Row, click: Click, steps: int) -> Fraction:
    """Maximal expected clicks within `steps` steps, by enumeration of all walks."""
    return max(walk_value(prior, click, walk) for walk in product(range(len(click)), repeat=steps))


def best_to_counts(prior: Row, click: Click, steps: int) -> Reached:
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


def best_then_fixed(prior: Row, click: Click, steps: int) -> Fraction:
    """Maximal value of all walks that recommend one category from step `steps` + 1 on."""
    fixed = [[p / (1 - p) for p in row] for row in click]
    return max(
        value + max(sum(_clicked(weights, row)) for row in fixed)
        for value, weights in best_to_counts(prior, click, steps).values()
    )


def threshold_value(b: Fraction, click: Click, a: int, h: int) -> Fraction:
    """Exact value of the (a, h)-threshold policy for two types and two categories."""
    return two_phase_value((b, 1 - b), click, a, h)


def two_phase_value(prior: Sequence[Number], click: Sequence[Sequence[Number]], a: int, h: Any) -> Number:
    """Value of h steps of one of two categories and then the other, by sums of geometric series; exact for fractions.

    With floats h may be an array.
    """
    total = 0 * prior[0]
    for q, p, then in zip(prior, click[a], click[1 - a], strict=True):
        total += q * ((p - p ** (h + 1)) / (1 - p) + p**h * then / (1 - then))
    return total


def count_recursion(
    categories: int, steps: int, active: Callable[[Counts], Fraction]
) -> tuple[dict[Counts, Fraction], list[int], list[int]]:
    """The recursion D̃ of appendix A: its last level, the policy found by backtracking, and the sizes of all levels.

    `active(counts)` is the paper's α. D̃ of counts c is α(c) plus the largest D̃ of the counts before the last step.
    """
    levels: list[dict[Counts, Fraction]] = [{(0,) * categories: Fraction(0)}]
    for _ in range(steps):
        level = levels[-1]
        reached = {(*c[:a], n + 1, *c[a + 1 :]) for c in level for a, n in enumerate(c)}
        levels.append({c: max(level[before] for _, before in _before(c)) + active(c) for c in sorted(reached)})
    last = levels[-1]
    at = max(last, key=lambda c: last[c])
    walk = []
    for level in levels[-2::-1]:
        category, at = max(_before(at), key=lambda step: level[step[1]])
        walk.append(category)
    return last, walk[::-1], [len(level) for level in levels[1:]]


def _before(counts: Counts) -> list[tuple[int, Counts]]:
    """Categories of the last step, and the counts before it."""
    return [(a, (*counts[:a], n - 1, *counts[a + 1 :])) for a, n in enumerate(counts) if n]


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


def best_values(cases: Sequence[tuple[Fraction, Click]], steps: int) -> Floats:
    """Maximal expected clicks within `steps` steps for each belief and 2 × 2 click probabilities, in floats."""
    prior = np.array([(b, 1 - b) for b, _ in cases], np.float64)
    click = np.array([click for _, click in cases], np.float64)
    batches = range(0, len(cases), 500)
    return np.concatenate([recursion(prior[i : i + 500], click[i : i + 500], steps)[0] for i in batches])


def tail_bound(click: Number, steps: int) -> Number:
    """Upper bound of the expected clicks after `steps` steps if `click` is the largest click probability."""
    return click ** (steps + 1) / (1 - click)
