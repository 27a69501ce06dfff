"""Items on planning with many types and categories and a finite horizon (appendix A)."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from departing.model.instance import Floats, Instance
from departing.paper import formulas
from departing.paper.distributions import ROUNDING
from departing.paper.exact import (
    Click,
    Counts,
    Row,
    best_walk_value,
    count_recursion,
    random_tables,
    tail_bound,
    two_phase_value,
    walk_value,
)
from departing.paper.item import Finding, Scale, check
from departing.planning.plan import plan

THREE_TYPES = (
    (Fraction(37, 40), Fraction(7, 100), Fraction(1, 200)),
    ((Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)), (Fraction(1, 20), Fraction(13, 20), Fraction(4, 5))),
)  # prior and click probabilities of an instance whose optimal policy switches twice


@check("finite-return")
def check_finite_return(scale: Scale) -> Finding:
    """The sum against a backward pass over the beliefs of random walks, in exact fractions."""
    rng, equal, n = np.random.default_rng(18), 0, scale.of(300, 60)
    for i in range(n):
        prior, click = random_tables(rng, 2, 2 + i % 3)
        walk = rng.integers(0, 2, int(rng.integers(1, 9))).tolist()
        prefixes = [walk[:h] for h in range(1, len(walk) + 1)]
        terms = [formulas.active_probability(prior, click, (w.count(0), w.count(1))) for w in prefixes]
        equal += sum(terms) == _value_by_beliefs(prior, click, walk)
    return Finding.of(equal == n, f"Equal on {equal} of {n} random walks with 2 to 4 types.")


def _value_by_beliefs(beliefs: Row, click: Click, walk: Sequence[int]) -> Fraction:
    """Expected clicks of a finite walk by the Bellman equation, with a belief update after every click."""
    if not walk:
        return Fraction(0)
    joint = [b * p for b, p in zip(beliefs, click[walk[0]], strict=True)]
    clicked = sum(joint, Fraction(0))
    return clicked * (1 + _value_by_beliefs([w / clicked for w in joint], click, walk[1:]))


@check("bijection")
def check_bijection(_: Scale) -> Finding:
    """Enumeration of all binary variables for H = 5; objectives in exact fractions."""
    prior, click = random_tables(np.random.default_rng(12), 2, 2)
    horizon, objectives = 5, {}
    for z in product((0, 1), repeat=2 * horizon):
        ones, twos = z[:horizon], z[horizon:]
        if all(first + second == 1 for first, second in zip(ones, twos, strict=True)):
            counts = tuple((sum(ones[:i]), sum(twos[:i])) for i in range(1, horizon + 1))
            objectives[counts] = sum(formulas.active_probability(prior, click, c) for c in counts), twos
    equal = sum(objective == walk_value(prior, click, walk) for objective, walk in objectives.values())
    walks = {walk for _, walk in objectives.values()}
    return Finding.of(
        len(objectives) == len(walks) == formulas.n_policies(2, horizon) == equal,
        f"Of {4**horizon:,} assignments {len(objectives)} are feasible, one for each of the {len(walks)} policies; "
        f"the objective is the value of the policy for {equal} of them.",
    )


@check("integer-program")
def check_integer_program(_: Scale) -> Finding:
    """The objective for H = 2 in exact fractions: a linear one has equal sums over crossed pairs of policies."""
    prior, click = random_tables(np.random.default_rng(12), 2, 2)
    value = {walk: walk_value(prior, click, walk) for walk in product((0, 1), repeat=2)}
    equal, crossed = value[0, 0] + value[1, 1], value[0, 1] + value[1, 0]
    return Finding.repaired(
        equal == crossed,
        max(value.values()) == max(_paper_recursion(prior, click, 2)[0].values()),
        f"The policies 11 and 22 have values with the sum {float(equal):.6f}, 12 and 21 with the sum "
        f"{float(crossed):.6f}; a linear objective in z would have equal sums.",
    )


def _paper_recursion(prior: Row, click: Click, steps: int) -> tuple[dict[Counts, Fraction], list[int]]:
    """Last level and policy of the recursion of appendix A."""
    level, walk, _ = count_recursion(len(click), steps, lambda c: formulas.active_probability(prior, click, c))
    return level, walk


def _compare_recursion(rng: np.random.Generator, shapes: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Numbers of instances on which the value, and the policy, of the recursion is that of the best walk."""
    values, policies = 0, 0
    for k, m, steps in shapes:
        prior, click = random_tables(rng, k, m)
        level, walk = _paper_recursion(prior, click, steps)
        best = best_walk_value(prior, click, steps)
        values += max(level.values()) == best
        policies += walk_value(prior, click, walk) == best
    return values, policies


@check("prefix-values")
def check_prefix_values(scale: Scale) -> Finding:
    """All inputs (c₁, c₂) of the recursion against the enumeration of the walks with these counts, in fractions."""
    rng, steps, wrong, n = np.random.default_rng(17), 6, 0, scale.of(60, 8)
    for i in range(n):
        prior, click = random_tables(rng, 2, 2 + i % 3)
        best: dict[Counts, Fraction] = {}
        for walk in product((0, 1), repeat=steps):
            counts = (walk.count(0), walk.count(1))
            best[counts] = max(best.get(counts, Fraction(0)), walk_value(prior, click, walk))
        wrong += _paper_recursion(prior, click, steps)[0] != best
    return Finding.of(
        wrong == 0,
        f"D̃ of all {steps + 1} counts is the value of the best walk with these counts on {n - wrong} of {n} "
        "instances.",
    )


@check("recursion")
def check_recursion(scale: Scale) -> Finding:
    """The recursion as printed against the enumeration of all walks, in exact fractions."""
    shapes = [(2, 2 + i % 3, 7) for i in range(scale.of(60, 8))]
    values, _ = _compare_recursion(np.random.default_rng(9), shapes)
    return Finding.of(
        values == len(shapes),
        f"The value of the best of 128 walks on {values} of {len(shapes)} random instances with 2 to 4 types.",
    )


@check("backtracking")
def check_backtracking(scale: Scale) -> Finding:
    """The value of the policy found by backtracking, in exact fractions: against enumeration and dp.plan."""
    shapes = [(2, 2 + i % 3, 7) for i in range(scale.of(60, 8))]
    rng, outside, n = np.random.default_rng(13), 0, scale.of(60, 8)
    _, policies = _compare_recursion(rng, shapes)
    for i in range(n):
        prior, click = random_tables(rng, 2, 2 + i % 3)
        click = [[p * Fraction(3, 5) for p in row] for row in click]
        level, walk = _paper_recursion(prior, click, 24)
        completed = max(walk_value(prior, click, walk, then) for then in (0, 1))
        instance = Instance([float(q) for q in prior], [[float(p) for p in row] for row in click])
        planned = plan(instance, ROUNDING, method="lattice")
        known = float(max(level.values()) + tail_bound(max(p for row in click for p in row), 24))
        outside += not (float(completed) <= planned.upper + ROUNDING and planned.lower <= known + ROUNDING)
        outside += planned.value < float(completed) - ROUNDING
    return Finding.of(
        policies == len(shapes) and outside == 0,
        f"The policy has the value of the best walk of 7 steps on {policies} of {len(shapes)} random instances. "
        f"With 24 steps it agrees with the lattice planner on {n - outside} of {n} instances with 2 to 4 types.",
    )


@check("recursion-time")
def check_recursion_time(scale: Scale) -> Finding:
    """Number of evaluations of α, by level."""
    rows, holds = [["horizon", "evaluations", "share of H²"]], True
    for h in (25, 50, scale.of(200, 100)):
        sizes = count_recursion(2, h, lambda _: Fraction(1))[2]
        holds &= sizes == [formulas.n_counts(level) for level in range(1, h + 1)]
        rows.append([str(h), f"{sum(sizes):,}", f"{sum(sizes) / h**2:.3f}"])
    return Finding.of(holds, "Level h has h + 1 inputs with one evaluation each, H(H + 3)/2 in total.", rows)


@check("many-types")
def check_many_types(scale: Scale) -> Finding:
    """The recursion and its policy with 3 to 6 types against the enumeration of all walks, in exact fractions."""
    shapes = [(2, 3 + i % 4, 6) for i in range(scale.of(40, 8))]
    values, policies = _compare_recursion(np.random.default_rng(19), shapes)
    return Finding.of(
        values == policies == len(shapes),
        f"Value and policy of the best walk on {min(values, policies)} of {len(shapes)} random instances.",
    )


@check("many-categories-time")
def check_many_categories_time(scale: Scale) -> Finding:
    """The recursion with 3 and 4 categories against the enumeration of all walks, and its number of evaluations."""
    shapes = [(3, 2, 5), (3, 3, 5), (4, 2, 4), (4, 4, 4)] * scale.of(10, 1)
    values, policies = _compare_recursion(np.random.default_rng(14), shapes)
    rows, bounded = [["categories", "horizon", "evaluations", "H^K", "policies"]], True
    for k, h in ((3, 10), (3, 20), (3, 40), (4, 5), (4, 10), (4, 20)):
        evaluations = sum(count_recursion(k, h, lambda _: Fraction(1))[2])
        bounded &= evaluations <= formulas.recursion_time(k, h)
        rows.append([str(k), str(h), f"{evaluations:,}", f"{h**k:,}", f"{formulas.n_policies(k, h):.1e}"])
    return Finding.of(
        values == policies == len(shapes) and bounded,
        f"Value and policy of the best walk on {min(values, policies)} of {len(shapes)} random instances, with "
        "fewer than H^K evaluations of α.",
        rows,
    )


@check("recursion-error")
def check_recursion_error(scale: Scale) -> Finding:
    """Clicks within H steps under the policy found, against an upper bound of all policies, in exact fractions."""
    rng, worst, n = np.random.default_rng(15), Fraction(0), scale.of(60, 8)
    cases = [random_tables(rng, 2, 2 + i % 4) for i in range(n)]
    cases.append(((Fraction(1, 2),) * 2, ((Fraction(99, 100),) * 2,) * 2))
    for prior, click in cases:
        largest = max(p for row in click for p in row)
        upper = max(_paper_recursion(prior, click, 40)[0].values()) + tail_bound(largest, 40)
        for h in (1, 5, 10, 15):
            loss = upper - max(_paper_recursion(prior, click, h)[0].values())
            worst = max(worst, loss / formulas.horizon_loss(1 - largest, h))
    return Finding.of(
        worst <= 1,
        f"At most {float(worst):.3f} of (1 − ε)^H / ε, on {n} random instances with 2 to 5 types and one in which "
        "all click probabilities are 0.99.",
    )


@check("dp-candidates")
def check_dp_candidates(scale: Scale) -> Finding:
    """Distinct walks that are the only optimum of a random instance; an instance of three types in fractions."""
    rng, n, horizons = np.random.default_rng(16), scale.of(12_000, 1500), (4, 6, 8, 10)
    rows = [["types", *(f"H = {h}" for h in horizons), "most switches"]]
    for types in (2, 3, 4, 5):
        optimal = []
        for h in horizons:
            batches = (_unique_optima(*_nested_types(rng, 500, types), h) for _ in range(n // 500))
            optimal.append([_switches(walk, h) for walk in set().union(*batches)])
        rows.append([str(types), *(str(len(switches)) for switches in optimal), str(max(map(max, optimal)))])
    lead = walk_value(*THREE_TYPES, [0, 1, 1, 1, 1, 1], 0) - max(
        two_phase_value(*THREE_TYPES, a, h) for a, h in product((0, 1), range(300))
    )  # later switches add less than 1e-14
    rows.append(["threshold walks", *(str(2 * h) for h in horizons), "1"])
    rows.append(["all walks", *(str(2**h) for h in horizons), str(horizons[-1] - 1)])
    return Finding.measured(
        f"Number of distinct walks of H steps that are the only optimum of one of {n:,} random instances; a set of "
        "candidates needs all of them. Threshold walks have one switch. In an instance with three types a second "
        f"switch gains {float(lead):.5f} clicks, in fractions.",
        rows,
    )


def _nested_types(rng: np.random.Generator, n: int, types: int) -> tuple[Floats, Floats]:
    """Random `prior[n, M]` and `click[n, 2, M]`: rare types stay longer, and favourites alternate."""
    favourite = np.sort(rng.uniform(0.05, 0.98, (n, types)), axis=1)
    other = favourite * rng.uniform(0.4, 1.0, (n, types)) ** rng.choice([0.2, 1.0], (n, types))
    first = np.arange(types) % 2 == 0
    click = np.stack([np.where(first, favourite, other), np.where(first, other, favourite)], axis=1)
    prior = np.exp(rng.normal(0, 0.5, (n, types)) - np.arange(types) * rng.uniform(0.3, 3, (n, 1)))
    return prior / prior.sum(axis=1, keepdims=True), click


def _unique_optima(prior: Floats, click: Floats, horizon: int) -> set[int]:
    """Distinct walks that are optimal by more than the rounding error; the bits of a walk are its categories."""
    weights, values = prior[:, None, :], np.zeros((len(prior), 1))
    for _ in range(horizon):
        weights = (weights[:, :, None, :] * click[:, None, :, :]).reshape(len(prior), -1, prior.shape[1])
        values = np.repeat(values, click.shape[1], axis=1) + weights.sum(axis=2)
    second, best = np.partition(values, -2, axis=1)[:, -2:].T
    return set(values.argmax(axis=1)[best - second > ROUNDING].tolist())


def _switches(walk: int, horizon: int) -> int:
    return bin((walk ^ (walk >> 1)) & (2 ** (horizon - 1) - 1)).count("1")
