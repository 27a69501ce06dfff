"""Slow and obvious twins of the fast code, in exact fractions or by following every history."""

from collections import defaultdict
from fractions import Fraction

import numpy as np


def outcome_probabilities(instance, a, x):
    """The four outcome probabilities as fractions."""
    p, stay = Fraction(float(instance.click[a, x])), Fraction(float(instance.depart[a, x]))
    last = Fraction(float(instance.depart_on_click[a, x]))
    return [p * (1 - last), (1 - p) * (1 - stay), (1 - p) * stay, p * last]


def schedule_value(instance, policy, x):
    """The expected reward of type x, one step after the other, and a geometric series at the end."""
    here, value, left = Fraction(1), Fraction(0), instance.horizon
    phases = [*policy.phases] if left is None else [*policy.phases, (policy.then, left)]
    for a, n in phases:
        click, stay, _, last = outcome_probabilities(instance, a, x)
        for _ in range(n if left is None else min(n, left)):
            value += here * (click + last) * reward_of(instance, a)
            here *= click + stay
        left = None if left is None else max(left - n, 0)
    if left is not None:
        return value
    click, _, depart, last = outcome_probabilities(instance, policy.then, x)
    return value + here * reward_of(instance, policy.then) * (click + last) / (depart + last)


def reward_of(instance, a):
    return Fraction(float(instance.reward[a]))


def total(instance, by_type):
    shares = [Fraction(float(q)) for q in instance.prior]
    return sum(q * value for q, value in zip(shares, by_type, strict=True)) / sum(shares)


def posterior(instance, counts):
    """Bayes' rule in fractions."""
    weights = []
    for x, q in enumerate(instance.prior):
        weight = Fraction(float(q))
        for a, row in enumerate(counts):
            for probability, n in zip(outcome_probabilities(instance, a, x), row, strict=True):
                weight *= probability ** int(n)
        weights.append(weight)
    return weights


def tree_value(instance, policy, depth):
    """Bounds on the value from following every ordered history to `depth`, nothing merged, in fractions.

    They are equal to the value if `depth` is the horizon.
    """
    if depth == instance.horizon:
        worst = best = [Fraction(0)] * instance.n_types
        return _follow_tree(instance, policy, depth, worst, best)
    worst = [min(_fixed(instance, a, x) for a in range(instance.n_categories)) for x in range(instance.n_types)]
    best = [max(_fixed(instance, a, x) for a in range(instance.n_categories)) for x in range(instance.n_types)]
    return _follow_tree(instance, policy, depth, worst, best)


def _follow_tree(instance, policy, depth, worst, best):
    def follow(counts, weights, left):
        if left == 0 or not any(weights):
            return [sum(w * v for w, v in zip(weights, bound, strict=True)) for bound in (worst, best)]
        a = int(policy.recommend(counts))
        lower = upper = Fraction(0)
        for outcome in range(4):
            probabilities = [outcome_probabilities(instance, a, x)[outcome] for x in range(instance.n_types)]
            moved = [w * c for w, c in zip(weights, probabilities, strict=True)]
            if outcome in (0, 3):
                gain = sum(moved) * reward_of(instance, a)
                lower, upper = lower + gain, upper + gain
            if outcome < 2:
                after = counts.copy()
                after[a, outcome] += 1
                low, high = follow(after, moved, left - 1)
                lower, upper = lower + low, upper + high
        return [lower, upper]

    start = np.zeros((instance.n_categories, 4), np.int64)
    return follow(start, [Fraction(float(q)) for q in instance.prior], depth)


def _fixed(instance, a, x):
    click, _, depart, last = outcome_probabilities(instance, a, x)
    return reward_of(instance, a) * (click + last) / (depart + last)


def final_counts(instance, policy, smallest=1e-12, max_steps=None):
    """The probability of every final counts (as a tuple), merged in a dictionary, one node at a time."""
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
                moved = weights * instance.outcome_probabilities[a, outcome]
                if outcome >= 2:
                    final[tuple(after)] += moved.sum()
                elif moved.sum() > smallest:
                    following[tuple(after)] += moved
        level, step = following, step + 1
    return {key: probability for key, probability in final.items() if probability > 0}


class BruteForce:
    """Dynamic programming over all counts of clicks and stays to a depth, every history of equal counts once.

    At the horizon a user brings at least the best fixed category and at most what the known type would.
    """

    def __init__(self, n_categories, depth):
        self.levels, self.children = [np.zeros((1, 2 * n_categories), int)], []
        for _ in range(depth):
            moved = self.levels[-1][:, None, :] + np.eye(2 * n_categories, dtype=int)
            rows, index = np.unique(moved.reshape(-1, 2 * n_categories), axis=0, return_inverse=True)
            self.levels.append(rows)
            self.children.append(index.reshape(-1, n_categories, 2))

    def bounds(self, instance, allowed=None):
        rows = list(range(instance.n_categories)) if allowed is None else list(allowed)
        go = np.stack([instance.outcome_probabilities[:, 0], instance.outcome_probabilities[:, 1]], axis=1).reshape(
            -1, instance.n_types
        )
        prior = instance.prior / instance.prior.sum()
        weights = [prior * np.prod(go[None] ** level[:, :, None], axis=1) for level in self.levels]
        lower = (weights[-1] @ instance.fixed_values[rows].T).max(axis=1)
        upper = weights[-1] @ instance.fixed_values[rows].max(axis=0)
        for here, child in zip(weights[-2::-1], self.children[::-1], strict=True):
            gain = here @ instance.expected_reward[rows].T
            lower = (gain + lower[child[:, rows]].sum(axis=2)).max(axis=1)
            upper = (gain + upper[child[:, rows]].sum(axis=2)).max(axis=1)
        return float(lower[0]), float(upper[0])


def value_bounds(instance, weights, depth):
    """Bounds on the optimal value at unnormalised `weights`, in fractions: best steps, then fixed or known types."""
    types, categories = range(instance.n_types), range(instance.n_categories)
    outcomes = [[outcome_probabilities(instance, a, x) for x in types] for a in categories]
    fixed = [[_fixed(instance, a, x) for x in types] for a in categories]
    known = {}

    def bounds(here, counts, left):
        if counts not in known:
            lower = max(sum(w * v for w, v in zip(here, row, strict=True)) for row in fixed)
            upper = sum(w * max(row[x] for row in fixed) for x, w in enumerate(here))
            steps = []
            for a in categories if left else ():
                gain = sum(here[x] * (outcomes[a][x][0] + outcomes[a][x][3]) for x in types) * reward_of(instance, a)
                after = [
                    bounds(
                        [here[x] * outcomes[a][x][o] for x in types],
                        tuple(n + (i == 2 * a + o) for i, n in enumerate(counts)),
                        left - 1,
                    )
                    for o in range(2)
                ]
                steps.append([gain + after[0][i] + after[1][i] for i in range(2)])
            if steps:
                lower, upper = max(lower, max(s[0] for s in steps)), min(upper, max(s[1] for s in steps))
            known[counts] = (lower, upper)
        return known[counts]

    return bounds([Fraction(float(w)) for w in weights], (0,) * (2 * instance.n_categories), depth)


def walk_bounds(prior, click, depth):
    """Sure departure in fractions: bounds on the best sequence of categories, by counts of clicks to a depth.

    Returns the best value of a sequence that keeps to one category after `depth` steps, and a bound on all.
    """
    n_categories, n_types = len(click), len(prior)
    best = [max(click[a][x] / (1 - click[a][x]) for a in range(n_categories)) for x in range(n_types)]
    level = {(0,) * n_categories: (list(prior), Fraction(0))}
    lower = Fraction(0)
    for step in range(depth + 1):
        following = {}
        for counts, (weights, gained) in level.items():
            for a in range(n_categories):
                fixed = sum(w * click[a][x] / (1 - click[a][x]) for x, w in enumerate(weights))
                lower = max(lower, gained + fixed)
                moved = [w * click[a][x] for x, w in enumerate(weights)]
                after = tuple(n + (b == a) for b, n in enumerate(counts))
                if after not in following or following[after][1] < gained + sum(moved):
                    following[after] = (moved, gained + sum(moved))
        if step < depth:
            level = following
    upper = max(gained + sum(w * v for w, v in zip(weights, best, strict=True)) for weights, gained in level.values())
    return lower, upper
