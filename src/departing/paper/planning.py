"""Items on planning: the three structures, threshold policies and finite horizons (sections 5.2 and 5.3)."""

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from types import FrameType
from typing import Any

import numpy as np

from departing.learning.ucb import UCBHybrid
from departing.model.instance import Instance
from departing.paper import formulas
from departing.paper.distributions import ROUNDING
from departing.paper.exact import (
    Click,
    best_then_fixed,
    best_values,
    instance_of,
    random_cases,
    tail_bound,
    threshold_value,
)
from departing.paper.item import Finding, Scale, check
from departing.planning.closed_form import two_by_two
from departing.policy.schedule import Fixed, Schedule, Threshold

# Steps of the recursion over counts, which does not use the structures: with click probabilities up to 0.9 later
# steps add less than 1e-9, the rounding allowance.
STEPS = 220
FREE = 12  # steps in which walks are arbitrary, where fractions are compared
LARGE = Fraction(9, 10)
SPREAD = (
    Fraction(1, 3),
    ((Fraction(999, 1000), Fraction(1, 2)), (Fraction(1997, 2000), Fraction(9943, 10000))),
)  # belief and click probabilities of an instance in which long horizons matter: the optimum switches late


def n_star(b: Fraction, click: Click) -> float | None:
    """The paper's N* = max(0, Ñ), or None where Ñ is undefined."""
    try:
        return max(0.0, formulas.stationary_point(b, click))
    except (ZeroDivisionError, ValueError):
        return None


def column_candidates(b: Fraction, click: Click) -> list[tuple[int, int]]:
    """The four policies of the theorem on dominant columns; the two fixed ones where N* is undefined."""
    steps = n_star(b, click)
    return formulas.diagonal_policies() if steps is None else formulas.column_policies(steps)


def best_threshold(b: Fraction, click: Click, policies: Sequence[tuple[int, int]]) -> Fraction:
    """Largest value of (a, h)-threshold policies."""
    return max(threshold_value(b, click, a, h) for a, h in policies)


@check("partition")
def check_partition(scale: Scale) -> Finding:
    """All matrices on a grid."""
    wrong, several, n = 0, 0, 0
    for entries in product(range(1, scale.of(14, 8)), repeat=4):
        structures = set()
        for a, x in product((0, 1), repeat=2):
            click = [[entries[2 * i + j] for j in (x, 1 - x)] for i in (a, 1 - a)]
            if click[0][0] == max(entries):
                tests = (formulas.dominant_row, formulas.dominant_column, formulas.dominant_diagonal)
                conditions = [test(click) for test in tests]
                wrong += sum(conditions) != 1
                structures.add(tuple(conditions))
        several += len(structures) > 1
        n += 1
    return Finding.of(
        wrong == 0,
        f"Exactly one structure for {n - wrong:,} of {n:,} matrices on a grid. If the largest entry occurs twice, "
        f"the structure can depend on the relabelling ({several:,} matrices); the policies of both are then optimal.",
    )


Candidates = Callable[[Fraction, Click], list[tuple[int, int]]]


def _check_structure(structure: Callable[[Click], bool], candidates: Candidates, scale: Scale) -> Finding:
    """Compare the policies of the paper with all walks, and with the closed form of the planner."""
    cases = list(random_cases(structure, scale.of(1500, 90)))
    wrong, apart = 0, 0.0
    for b, click in cases:
        best = best_threshold(b, click, candidates(b, click))
        wrong += best_then_fixed((b, 1 - b), click, FREE) > best
        apart = max(apart, abs(two_by_two(instance_of(b, click)).best[1].value / float(best) - 1))
    moderate = list(random_cases(lambda click: click[0][0] <= LARGE and structure(click), scale.of(3000, 90), seed=1))
    values = np.array([float(best_threshold(b, click, candidates(b, click))) for b, click in moderate])
    excess = best_values(moderate, STEPS) - values
    ties = sum(len({p for row in click for p in row}) < 4 for _, click in cases + moderate)
    n = len(cases) + len(moderate)
    wrong += int((excess > ROUNDING).sum())
    return Finding.of(
        wrong == 0 and apart < ROUNDING,
        f"No walk has a higher value on {n - wrong:,} of {n:,} instances, {ties:,} of them with ties: on "
        f"{len(cases):,} in fractions (walks that are arbitrary for {FREE} steps), on {len(moderate):,} in floats "
        f"(walks of {STEPS} steps, largest excess {excess.max():.1e}, later steps add at most "
        f"{tail_bound(float(LARGE), STEPS):.0e}). dp.plan differs by at most {apart:.0e}.",
    )


@check("row")
def check_row(scale: Scale) -> Finding:
    """The policy of the paper against all walks (recursion over counts), on random instances and ties."""
    return _check_structure(formulas.dominant_row, lambda *_: formulas.row_policies(), scale)


@check("column")
def check_column(scale: Scale) -> Finding:
    """The policies of the paper against all walks (recursion over counts), on random instances and ties."""
    return _check_structure(formulas.dominant_column, column_candidates, scale)


@check("diagonal")
def check_diagonal(scale: Scale) -> Finding:
    """The policies of the paper against all walks (recursion over counts), on random instances and ties."""
    return _check_structure(formulas.dominant_diagonal, lambda *_: formulas.diagonal_policies(), scale)


@check("only-form")
def check_only_form(scale: Scale) -> Finding:
    """Always category 2 against all switching steps, in exact fractions, with and without ties."""
    beaten, proper, tied, n = 0, 0, 0, scale.of(1000, 150)
    example = ""
    for b, click in random_cases(formulas.dominant_column, n):
        (p1x, _), (p2x, p2y) = click
        fixed = threshold_value(b, click, 0, 0)
        switching = max(threshold_value(b, click, 1, h) for h in [*range(20), 10**3])
        if p1x > p2x > p2y:
            proper += 1
            steps = n_star(b, click)
            beaten += steps is not None and best_threshold(b, click, formulas.column_policies(steps)[2:]) <= fixed
        elif switching < fixed:
            tied += 1
            rows = ", ".join(f"({float(x)}, {float(y)})" for x, y in click)
            example = example or f"P = ({rows}), q_x = {float(b)}"
    return Finding.repaired(
        beaten + tied == 0,
        beaten == 0,
        f"With ties always category 2 beats every policy that switches on {tied} of {n - proper} instances, for "
        f"example {example}. Without ties it does on {beaten} of {proper}.",
    )


@check("n-star")
def check_n_star(scale: Scale) -> Finding:
    """The best of the four policies against all switching steps, in exact fractions."""
    wrong, n, optimal = 0, scale.of(1000, 120), [0, 0, 0, 0]
    for b, click in random_cases(formulas.dominant_column, n, seed=4):
        policies = column_candidates(b, click)
        values = [threshold_value(b, click, a, h) for a, h in policies]
        around = range(max(policies[-1][1] - 10, 0), policies[-1][1] + 10)
        wrong += max(values) < max(threshold_value(b, click, 1, h) for h in (*range(20), *around))
        for i, value in enumerate(values):
            optimal[i] += value == max(values)
    names = ("always 1", "always 2", "⌊N*⌋ steps of 2", "⌈N*⌉ steps of 2")
    counts = ", ".join(f"{name}: {count}" for name, count in zip(names, optimal, strict=True))
    return Finding.of(
        wrong == 0,
        f"One of the four has the largest value of all switching steps on {n - wrong} of {n} instances. Optimal are "
        f"(ties count for each) {counts}.",
    )


class Counted(float):
    """Float that counts the operations on it."""

    operations = 0


def _counted(name: str) -> Callable[[Counted, float], Counted]:
    def operation(number: Counted, other: float) -> Counted:
        Counted.operations += 1
        return Counted(getattr(float, name)(number, other))

    return operation


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "gt", "ge", "lt", "le"):
    setattr(Counted, f"__{_name}__", _counted(f"__{_name}__"))


@check("constant-time")
def check_constant_time(_: Scale) -> Finding:
    """Number of arithmetic operations of the paper's formulas, and of function calls of dp.plan, with growing N*."""
    rows, operations, calls = [["N*", "operations", "calls"]], [], []
    for gap in (0.1, 1e-2, 1e-3, 1e-4):
        click = [[0.9, 0.5], [0.8, 0.8 - gap]]
        steps, counted = _count_operations(1e-3, click)
        instance = Instance([1e-3, 1 - 1e-3], click)
        two_by_two(instance)  # compiles
        operations.append(counted)
        calls.append(_count_calls(partial(two_by_two, instance)))
        rows.append([f"{steps:,.1f}", str(operations[-1]), str(calls[-1])])
    return Finding.of(
        max(operations) == min(operations) and max(calls) < 1.5 * min(calls),
        f"The formulas take {max(operations)} operations for every N*, and dp.plan {min(calls)} to "
        f"{max(calls)} function calls.",
        rows,
    )


def _count_operations(b: float, click: Sequence[Sequence[float]]) -> tuple[float, int]:
    """N*, and the number of operations that find the structure, N* and the value of the four policies."""
    numbers = [[Counted(p) for p in row] for row in click]
    Counted.operations = 0
    for structure in (formulas.dominant_row, formulas.dominant_column, formulas.dominant_diagonal):
        structure(numbers)
    steps = formulas.stationary_point(Counted(b), numbers)
    for _, n in formulas.column_policies(steps):
        formulas.switching_value(Counted(b), numbers, n)
    return steps, Counted.operations


def _count_calls(function: Callable[[], object]) -> int:
    calls, before = 0, sys.getprofile()

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@check("threshold-optimal")
def check_threshold_optimal(scale: Scale) -> Finding:
    """All walks that are arbitrary for some steps and then fixed, against threshold policies, in exact fractions."""
    equal, n = 0, scale.of(600, 90)
    for b, click in random_cases(lambda _: True, n, seed=5):
        best = best_threshold(b, click, formulas.threshold_policies(FREE))
        equal += best_then_fixed((b, 1 - b), click, FREE) == best
    return Finding.of(
        equal == n,
        f"The best of all {2 ** (FREE + 1):,} walks that are arbitrary for {FREE} steps and then fixed has the value "
        f"of a threshold policy on {equal} of {n} random instances.",
    )


@check("threshold-policy")
def check_threshold_policy(scale: Scale) -> Finding:
    """The definition against the policies of the package, step by step."""
    steps, wrong, n = 12, 0, 0
    for a, h in product((0, 1), range(scale.of(11, 8))):
        policy: Schedule = Threshold(first=a, steps=h, then=1 - a)
        counts, walk = np.zeros((2, 4), np.int64), []
        for _ in range(steps):
            walk.append(int(policy.recommend(counts)))
            counts[walk[-1], 0] += 1
        wrong += walk != [formulas.threshold_category(a, h, j) for j in range(1, steps + 1)]
        n += 1
    always = [int(Fixed(0).recommend(np.zeros((2, 4), np.int64)))] * steps
    wrong += [formulas.threshold_category(1, 0, j) for j in range(1, steps + 1)] != always
    return Finding.of(
        wrong == 0,
        f"dp.Threshold follows the definition for {n} pairs (a, h): `steps` is h, so that π^(2:⌊N*⌋) recommends "
        "category 2 ⌊N*⌋ times. The (2, 0)-threshold policy is always category 1.",
    )


@check("survival")
def check_survival(scale: Scale) -> Finding:
    """Probability of a click on every step of a random walk, in exact fractions; the largest is reached."""
    rng, wrong, n, tightest = np.random.default_rng(11), 0, scale.of(2000, 300), Fraction(0)
    for b, click in random_cases(lambda _: True, n, seed=6):
        horizon = int(rng.integers(1, 15))
        ones = int(rng.integers(0, horizon + 1)) if rng.random() < 0.9 else horizon
        stays = formulas.active_probability((b, 1 - b), click, (ones, horizon - ones))
        bound = formulas.stay_probability(1 - click[0][0], horizon)
        wrong += stays > bound
        tightest = max(tightest, stays / bound)
    equal = formulas.active_probability((Fraction(1, 2),) * 2, ((LARGE,) * 2,) * 2, (3, 4)) == LARGE**7
    return Finding.of(
        wrong == 0 and equal and formulas.stay_probability(1 - LARGE, 7) == LARGE**7,
        f"At most (1 − ε)^H in {n - wrong:,} of {n:,} cases, at most {float(tightest):.3f} of it, and equal to it if "
        "all click probabilities are 1 − ε.",
    )


@check("exponential-candidates")
def check_exponential_candidates(_: Scale) -> Finding:
    """Enumeration of the walks and of their counts."""
    sizes = {}
    for k, h in ((2, 1), (2, 5), (2, 10), (3, 6), (4, 5)):
        walks = product(range(k), repeat=h)
        sizes[k, h] = len(
            {tuple(tuple(walk[: i + 1].count(a) for a in range(k)) for i in range(h)) for walk in walks}
        )
    return Finding.of(
        all(size == formulas.n_policies(k, h) for (k, h), size in sizes.items()),
        ", ".join(f"K = {k}, H = {h}: {size:,}" for (k, h), size in sizes.items())
        + " policies with distinct counts.",
    )


@check("size-of-set")
def check_size_of_set(_: Scale) -> Finding:
    """Enumeration of the walks from the definition, and of the policies of dp.UCBHybrid."""
    sizes = {}
    for h in (0, 1, 2, 5, 14, 100):
        policies = product((0, 1), range(h + 1))
        walks = {tuple(formulas.threshold_category(a, s, j) for j in range(1, h + 2)) for a, s in policies}
        sizes[h] = {len(walks), len(set(UCBHybrid.thresholds(10, epsilon=0.5, horizon=h).policies))}
    holds = all(size == {formulas.n_threshold_policies(h)} for h, size in sizes.items())
    return Finding.of(holds, ", ".join(f"H = {h}: {max(size)}" for h, size in sizes.items()) + ", all distinct.")


@check("horizon")
def check_horizon(scale: Scale) -> Finding:
    """Exact values of threshold policies against the best walk, on random instances and one with a late switch."""
    cases = list(random_cases(lambda click: click[0][0] <= LARGE, scale.of(600, 60), seed=8))
    wrong, worst = 0, 0.0
    optimum = [
        *best_values(cases, STEPS).tolist(),
        float(max(threshold_value(*SPREAD, 1, n) for n in range(0, 400, 10))),
    ]
    for (b, click), best in zip([*cases, SPREAD], optimum, strict=True):
        for h in (0, 1, 2, 4, 8, 16):
            loss = best - float(best_threshold(b, click, formulas.threshold_policies(h)))
            bound = float(formulas.horizon_loss(1 - click[0][0], h))
            wrong += loss > bound + ROUNDING
            if bound > 1e3 * ROUNDING:
                worst = max(worst, loss / bound)
    return Finding.of(
        wrong == 0,
        f"At most {worst:.3f} of (1 − ε)^H / ε, for H up to 16 on {len(cases):,} random instances and one with ε = "
        "0.001 that switches late.",
    )
