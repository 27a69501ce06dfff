"""Slow and obvious twins of the fast code, in exact fractions or by following every history."""

from collections import defaultdict
from fractions import Fraction

import numpy as np


def outcome_chances(instance, a, x):
    """The four chances of the theory's table, as fractions."""
    p, stay = Fraction(float(instance.click[a, x])), Fraction(float(instance.depart[a, x]))
    last = Fraction(float(instance.depart_on_click[a, x]))
    return [p * (1 - last), (1 - p) * (1 - stay), (1 - p) * stay, p * last]


def schedule_value(instance, policy, x):
    """The expected clicks of type x, one step after the other, and a geometric series at the end."""
    here, value = Fraction(1), Fraction(0)
    for a, n in policy.segments:
        click, stay, _, last = outcome_chances(instance, a, x)
        for _ in range(n):
            value += here * (click + last)
            here *= click + stay
    click, _, depart, last = outcome_chances(instance, policy.then, x)
    return value + here * (click + last) / (depart + last)


def total(instance, by_type):
    shares = [Fraction(float(q)) for q in instance.prior]
    return sum(q * value for q, value in zip(shares, by_type, strict=True)) / sum(shares)


def posterior(instance, counts):
    """Bayes' rule in fractions."""
    weights = []
    for x, q in enumerate(instance.prior):
        weight = Fraction(float(q))
        for a, row in enumerate(counts):
            for chance, n in zip(outcome_chances(instance, a, x), row, strict=True):
                weight *= chance ** int(n)
        weights.append(weight)
    return weights


def tree_value(instance, policy, depth):
    """Bounds on the value from following every ordered history to `depth`, nothing merged, in fractions."""
    worst = [min(_fixed(instance, a, x) for a in range(instance.n_categories)) for x in range(instance.n_types)]
    best = [max(_fixed(instance, a, x) for a in range(instance.n_categories)) for x in range(instance.n_types)]

    def follow(counts, weights, left):
        if left == 0 or not any(weights):
            return [sum(w * v for w, v in zip(weights, bound, strict=True)) for bound in (worst, best)]
        a = int(policy.recommend(counts))
        lower = upper = Fraction(0)
        for outcome in range(4):
            chances = [outcome_chances(instance, a, x)[outcome] for x in range(instance.n_types)]
            moved = [w * c for w, c in zip(weights, chances, strict=True)]
            if outcome in (0, 3):
                lower, upper = lower + sum(moved), upper + sum(moved)
            if outcome < 2:
                after = counts.copy()
                after[a, outcome] += 1
                low, high = follow(after, moved, left - 1)
                lower, upper = lower + low, upper + high
        return [lower, upper]

    start = np.zeros((instance.n_categories, 4), np.int64)
    return follow(start, [Fraction(float(q)) for q in instance.prior], depth)


def _fixed(instance, a, x):
    click, _, depart, last = outcome_chances(instance, a, x)
    return (click + last) / (depart + last)


def final_counts(instance, policy, smallest=1e-12, max_steps=None):
    """The chance of every final counts (as a tuple), merged in a dictionary, one node at a time."""
    level = {(0,) * (4 * instance.n_categories): np.array(instance.prior)}
    final, step = defaultdict(float), 0
    while level:
        following = defaultdict(lambda: np.zeros(instance.n_types))
        for key, weights in level.items():
            if step == max_steps:
                final[key] += weights.sum()
                continue
            a = int(policy.recommend(np.array(key).reshape(-1, 4)))
            for outcome in range(4):
                after = list(key)
                after[4 * a + outcome] += 1
                moved = weights * instance.chances[a, outcome]
                if outcome >= 2:
                    final[tuple(after)] += moved.sum()
                elif moved.sum() > smallest:
                    following[tuple(after)] += moved
        level, step = following, step + 1
    return {key: chance for key, chance in final.items() if chance > 0}
