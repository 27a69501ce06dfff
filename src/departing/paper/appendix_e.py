"""Steps of the proofs for two types and two categories, in exact fractions (appendix E)."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise, product
from math import log

import numpy as np

from departing.paper import formulas
from departing.paper.exact import (
    BLOG,
    Click,
    best_then_fixed,
    best_to_counts,
    random_cases,
    random_instances,
    tail_bound,
    threshold_value,
    walk_value,
)
from departing.paper.item import Finding, Scale, check
from departing.paper.planning import n_star

Case = tuple[Fraction, Click]


def _proper(click: Click) -> bool:
    """Dominant column without ties."""
    (p1x, _), (p2x, p2y) = click
    return formulas.dominant_column(click) and p1x > p2x > p2y


def _sums(click: Click, walk: list[int], then: int, j: int) -> tuple[Fraction, Fraction]:
    """Σ P₁^m₁ᵢ P₂^m₂ᵢ over i > j for both types, along a walk that is followed by one category."""
    x, y = (
        walk_value((Fraction(1),), [[row[column]] for row in click], walk, then)
        - walk_value((Fraction(1),), [[row[column]] for row in click], walk[:j])
        for column in (0, 1)
    )
    return x, y


def _random_walks(structure: Callable[[Click], bool], n: int, seed: int) -> Iterator[tuple[Case, list[int], int]]:
    """Random beliefs, click probabilities, walks, and the category that follows them."""
    rng = np.random.default_rng(seed)
    for case in random_cases(structure, n, seed):
        yield case, rng.integers(0, 2, int(rng.integers(1, 9))).tolist(), int(rng.integers(0, 2))


@check("walk-induction")
def check_walk_induction(scale: Scale) -> Finding:
    """Both sides of the induction step along random walks, with the sum as printed and from i = 1."""
    printed, repaired, n = 0, 0, scale.of(500, 80)
    for (b, click), walk, _ in _random_walks(lambda _: True, n, 1):
        first = b * click[walk[0]][0] + (1 - b) * click[walk[0]][1]
        after = formulas.next_belief(b, click[walk[0]])
        values = [walk_value((after, 1 - after), click, walk[1:i]) for i in range(1, len(walk) + 1)]
        later = [value - before for before, value in pairwise(values)]
        value = walk_value((b, 1 - b), click, walk)
        printed += formulas.induction_step(first, later) == value
        repaired += formulas.repaired_induction_step(first, later) == value
    return Finding.repaired(
        printed == n,
        repaired == n,
        f"With the sum from i = 2 the step is an equality on {printed} of {n} random walks (those of one step), "
        f"with the sum from i = 1 on {repaired}.",
    )


@check("row-exchange")
def check_row_exchange(scale: Scale) -> Finding:
    """Every summand before and after the change of one step from category 2 to 1, on random walks."""
    wrong, changes = 0, 0
    for (b, click), walk, _ in _random_walks(formulas.dominant_row, scale.of(1000, 150), 2):
        for j in (j for j, a in enumerate(walk) if a):
            changed = [*walk[:j], 0, *walk[j + 1 :]]
            changes += 1
            wrong += any(
                _summand(b, click, changed[:i]) < _summand(b, click, walk[:i]) for i in range(j, len(walk) + 1)
            )
    return Finding.of(wrong == 0, f"No summand decreases in {changes - wrong:,} of {changes:,} changes.")


def _summand(b: Fraction, click: Click, walk: list[int]) -> Fraction:
    return formulas.active_probability((b, 1 - b), click, (walk.count(0), walk.count(1)))


@check("switching-condition")
def check_switching_condition(scale: Scale) -> Finding:
    """The condition on random walks, against the effect of a change of one step, and along optimal policies."""
    wrong, changes, n = 0, 0, scale.of(1000, 150)
    for (_, click), walk, then in _random_walks(_proper, n, 3):
        for j in (j for j, a in enumerate(walk) if a):
            after = [*walk[:j], 0, *walk[j + 1 :]]
            gain, loss = (
                s * (walk_value(type_, click, after, then) - walk_value(type_, click, walk, then))
                for s, type_ in ((1, (Fraction(1), Fraction(0))), (-1, (Fraction(0), Fraction(1))))
            )
            even = loss / (gain + loss)  # the belief at which the change makes no difference
            x, y = _sums(click, walk, then, j)
            for b, improves in ((even * Fraction(99, 100), False), (even + (1 - even) / 100, True)):
                changes += 1
                wrong += (x > formulas.switching_constant(b, click) * y) != improves
    late = 0
    for b, click in random_cases(_proper, n, 4):
        steps = formulas.repaired_switching_steps(b, click)
        conditions = []
        for j in range(min(steps, 15) + 3):
            x, y = _sums(click, [1] * steps + [0] * max(j - steps, 0), 0, j)
            conditions.append(x > formulas.switching_constant(b, click) * y)
        late += any(conditions[:steps]) or not all(conditions[steps:])
    return Finding.of(
        wrong + late == 0,
        f"The condition holds exactly if a change from category 2 to 1 improves a walk, in {changes - wrong:,} of "
        f"{changes:,} cases close to equality. Along the optimal policy it holds exactly from the first "
        f"recommendation of category 1 on, on {n - late:,} of {n:,} instances.",
    )


@check("switching-persists")
def check_switching_persists(scale: Scale) -> Finding:
    """The condition at steps j and j + 1 of random walks, with the sums of the walk."""
    wrong, met, unequal, n = 0, 0, 0, scale.of(1000, 150)
    for (b, click), walk, then in _random_walks(_proper, n, 5):
        sums = [_sums(click, walk, then, j) for j in range(len(walk))]
        conditions = [x > formulas.switching_constant(b, click) * y for x, y in sums]
        for (j, now), later in zip(enumerate(conditions), conditions[1:], strict=False):
            met += now
            wrong += now and not later
            unequal += now and walk[j] == 0 and sums[j + 1][0] != click[0][0] * sums[j][0]
    return Finding.of(
        wrong == 0,
        f"Once met, the condition stays met in {met - wrong:,} of {met:,} steps of random walks, whatever they "
        f"recommend. The equality in the proof of the paper fails in {unequal:,} of them: it takes the later steps "
        "to be category 1, which is the conclusion.",
    )


@check("most-switches")
def check_most_switches(scale: Scale) -> Finding:
    """Existence of N in exact fractions: the ratio of the sums increases with N, so that its limit decides."""
    constant, limit = _corollary(*_example())
    n, missing, most = scale.of(2000, 300), 0, 0
    for instance in random_instances("column", n):
        b = Fraction(float(instance.prior[0]))
        click: Click = [[Fraction(float(p)) for p in row] for row in instance.click]
        needed, reached = _corollary(b, click)
        missing += needed >= reached
        if needed < reached:
            most = max(most, _optimal_steps(b, click))
    (p2x, p2y), optimal = _example()[1][1], _optimal_steps(*_example())
    return Finding.of(
        missing == 0,
        f"In the example of the paper the constant is {constant} = {float(constant):.3f}, and the ratio of the sums "
        f"increases to {limit} = {float(limit):.3f}: no N satisfies the inequality. With the m₂ᵢ of the optimal "
        f"policy, which has {optimal} steps of category 2, the limit is {float((p2x / p2y) ** optimal):.3f}. There "
        f"is no N on {missing:,} of {n:,} random instances. On the others the largest number of recommendations of "
        f"category 2 in an optimal policy is {most}.",
    )


@check("most-switches-repaired")
def check_most_switches_repaired(scale: Scale) -> Finding:
    """The number of steps against the values of all switching steps and all walks, in exact fractions."""
    wrong, n, free = 0, scale.of(1000, 120), 10
    for b, click in random_cases(_proper, n, 6):
        steps = formulas.repaired_switching_steps(b, click)
        wrong += steps != _optimal_steps(b, click)
        wrong += steps <= free and best_then_fixed((b, 1 - b), click, free) != threshold_value(b, click, 1, steps)
    return Finding.of(
        wrong == 0,
        f"It is the smallest optimal number of steps on {n - wrong:,} of {n:,} random instances; no walk that is "
        f"arbitrary for {free} steps is better.",
    )


def _optimal_steps(b: Fraction, click: Click) -> int:
    """Smallest optimal number of steps of category 2 before category 1: the first after which the value falls."""
    steps, value = 0, threshold_value(b, click, 1, 0)
    while (later := threshold_value(b, click, 1, steps + 1)) > value:
        steps, value = steps + 1, later
    return steps


def _example() -> Case:
    """Belief and click probabilities of Table 1."""
    return BLOG[0][0], BLOG[1]


def _corollary(b: Fraction, click: Click) -> tuple[Fraction, Fraction]:
    """Constant of the corollary, and the limit of the ratio of the sums, which it never reaches."""
    p2x, p2y = click[1]
    return formulas.switching_constant(b, click), p2x * (1 - p2y) / ((1 - p2x) * p2y)


@check("value-of-n")
def check_value_of_n(scale: Scale) -> Finding:
    """The closed form against sums over the steps, in exact fractions."""
    equal, n = 0, scale.of(500, 80)
    for (b, click), walk, _ in _random_walks(formulas.dominant_column, n, 7):
        steps = len(walk)
        equal += formulas.switching_value(b, click, steps) == walk_value((b, 1 - b), click, [1] * steps, 0)
    return Finding.of(equal == n, f"Equal for {equal} of {n} random instances, with N from 1 to 8.")


@check("coefficient-signs")
def check_coefficient_signs(scale: Scale) -> Finding:
    """Signs of the coefficients in exact fractions, on random instances with and without ties."""
    cases = list(random_cases(formulas.dominant_column, scale.of(3000, 400), 8))
    cases += [(b, click) for b in (Fraction(0), Fraction(1)) for _, click in cases[:20]]
    strict, weak, tied, n = 0, 0, 0, [0, 0]
    for b, click in cases:
        c1, c2, c3 = formulas.switching_coefficients(b, click)
        signs, boundary = c1 > 0 > c2 and c3 > 0, click[0][0] == click[1][0] or b in (0, 1)
        n[boundary] += 1
        strict += signs and not boundary
        tied += signs and boundary
        weak += c1 >= 0 >= c2 and c3 > 0
    return Finding.repaired(
        strict + tied == sum(n),
        strict == n[0] and weak == sum(n),
        f"The signs are as stated on {strict:,} of {n[0]:,} instances with P₁ₓ > P₂ₓ and 0 < b < 1, and on {tied} "
        f"of {n[1]} with P₁ₓ = P₂ₓ or b = 0, where c₁ = 0, or b = 1, where c₂ = 0. c₁ ≥ 0 ≥ c₂ and c₃ > 0 on "
        f"{weak:,} of {sum(n):,}.",
    )


@check("stationary-point")
def check_stationary_point(scale: Scale) -> Finding:
    """The derivative at Ñ, and exact values of f at integers around it."""
    worst, wrong, n = 0.0, 0, scale.of(1500, 200)
    for b, click in random_cases(_proper, n, 9):
        point = formulas.stationary_point(b, click)
        c1, c2, _ = (float(c) for c in formulas.switching_coefficients(b, click))
        rates = [log(p) for p in click[1]]
        rise, fall = (c * r * float(p) ** point for c, r, p in zip((c1, c2), rates, click[1], strict=True))
        worst = max(worst, abs(rise + fall) / abs(rise))
        start = max(int(point) - 5, 0)
        values = [threshold_value(b, click, 1, h) for h in range(start, start + 12)]
        grows = [later > now for now, later in pairwise(values)]
        wrong += grows != sorted(grows, reverse=True) or rise * rates[0] + fall * rates[1] >= 0
        best = start + values.index(max(values))
        wrong += not max(point, 0) - 1 < best < max(point, 0) + 1
    return Finding.of(
        wrong == 0 and worst < 1e-9,
        f"On {n - wrong:,} of {n:,} random instances without ties f increases before Ñ and decreases after it, with "
        f"a negative second derivative: it is a maximum. The derivative at Ñ is 0 up to {worst:.0e} of its terms.",
    )


@check("n-star-undefined")
def check_n_star_undefined(scale: Scale) -> Finding:
    """N* on instances with and without ties, and the optimal policies where it is undefined."""
    rows, undefined, solved = [["case", "instances", "N* undefined", "always 1 or always 2 optimal"]], 0, 0
    cases = list(random_cases(formulas.dominant_column, scale.of(3000, 300), 10))
    kinds: dict[str, list[Case]] = {
        "no ties, 0 < b < 1": [case for case in cases if _proper(case[1])],
        "P₁ₓ = P₂ₓ (c₁ = 0)": [case for case in cases if case[1][0][0] == case[1][1][0]],
        "P₂ₓ = P₂ᵧ (ln 1 = 0)": [case for case in cases if case[1][0][0] > case[1][1][0] == case[1][1][1]],
        "b = 0 (c₁ = 0)": [(Fraction(0), click) for _, click in cases[:50]],
        "b = 1 (c₂ = 0)": [(Fraction(1), click) for _, click in cases[:50]],
    }
    for kind, members in kinds.items():
        without = [case for case in members if n_star(*case) is None]
        fixed = 0
        for b, click in without:
            best = max(threshold_value(b, click, 1, h) for h in (0, 1, 2, 5, 10, 100))
            fixed += max(threshold_value(b, click, a, 0) for a in (0, 1)) >= best
        rows.append([kind, str(len(members)), str(len(without)), str(fixed)])
        undefined, solved = undefined + len(without), solved + fixed
    return Finding.repaired(
        undefined == 0,
        solved == undefined,
        f"Ñ requires a division by 0 or the logarithm of 0 on {undefined} instances, all of them with ties or a "
        "certain type. There always 1 or always 2 is optimal, so that the theorem holds.",
        rows,
    )


@check("diagonal-horizon")
def check_diagonal_horizon(scale: Scale) -> Finding:
    """The best walk of k steps against both fixed policies, in exact fractions, k from 1 to 8."""
    wrong, n, steps = 0, scale.of(600, 60), 8
    for b, click in random_cases(formulas.dominant_diagonal, n, 11):
        for k in range(1, steps + 1):
            best = max(value for value, _ in best_to_counts((b, 1 - b), click, k).values())
            wrong += best > max(walk_value((b, 1 - b), click, [a] * k) for a in (0, 1))
    return Finding.of(
        wrong == 0, f"The statement fails in {wrong} of {n * steps:,} cases ({n} instances, k up to {steps})."
    )


@check("diagonal-two-steps")
def check_diagonal_two_steps(scale: Scale) -> Finding:
    """Each inequality against the comparison of two policies that it stands for, and both contradictions."""
    wrong, n = 0, scale.of(2000, 300)
    for (b, click), walk, _ in _random_walks(formulas.dominant_diagonal, n, 12):
        x, y = (q * _summand(Fraction(1), [row[::s] for row in click], walk) for q, s in ((b, 1), (1 - b, -1)))
        value = {pair: walk_value((b, 1 - b), click, [*walk, *pair]) for pair in product((0, 1), repeat=2)}
        compared = tuple(value[a, a] <= value[mixed] for mixed in ((0, 1), (1, 0)) for a in (0, 1))
        wrong += formulas.base_inequalities(x, y, click) != compared
        wrong += any(formulas.contradictions(click))
        wrong += all(compared[:2]) or all(compared[2:])
    return Finding.of(
        wrong == 0,
        f"In {n - wrong:,} of {n:,} cases every inequality is equivalent to its comparison, never both of a pair "
        "hold, and both contradictions are false.",
    )


def _last_switch(scale: Scale, seed: int) -> Iterator[tuple[Case, list[int], int, int]]:
    """Random cases with a dominant diagonal: steps before t − 1, category after the last switch, and H − t + 1."""
    rng = np.random.default_rng(seed)
    for case in random_cases(formulas.dominant_diagonal, scale.of(3000, 600), seed):
        before, last, length = rng.integers((0, 0, 1), (5, 2, 6)).tolist()
        yield case, rng.integers(0, 2, before).tolist(), last, length


@check("diagonal-ending")
def check_diagonal_ending(scale: Scale) -> Finding:
    """Both sides of the differences of values in the proof, as printed and repaired."""
    right = np.zeros((2, 3, 2), np.int64)  # by case, reading, and difference
    n = [0, 0]
    for (b, click), before, last, length in _last_switch(scale, 13):
        policy, tilde, new, printed = (
            walk_value((b, 1 - b), click, walk)
            for walk in (*_constructions(before, last, length), [*before, *[last] * length, 0])
        )
        ones, twos = before.count(0), before.count(1)
        until = (ones + last, twos + 1 - last)  # with the recommendation at time t − 1
        readings = (
            (formulas.diagonal_differences(b, click, until, last, length), printed),
            (formulas.diagonal_differences(b, click, (ones, twos), last, length), printed),
            (formulas.diagonal_differences(b, click, (ones, twos), last, length, slip=False), new),
        )
        for reading, (stated, improved) in enumerate(readings):
            right[last, reading] += stated[0] == policy - tilde, stated[1] == improved - policy
        n[last] += 1
    rows = [
        ["switch", "cases", "m₁, m₂, end of π_new, exponent", "difference to π̃ right", "difference to π_new right"]
    ]
    names = ("until t − 1, 1, i − 1 (printed)", "until t − 2, 1, i − 1", "until t − 2, last category, H − t + 1")
    for last, (reading, name) in product((0, 1), enumerate(names)):
        rows.append([("2 to 1", "1 to 2")[last], str(n[last]), name, *map(str, right[last, reading].tolist())])
    return Finding.repaired(
        int(right[:, 0].sum()) == 2 * sum(n),
        int(right[:, 2].sum()) == 2 * sum(n),
        f"As printed {right[:, 0].sum():,} of {2 * sum(n):,} differences are right. {right[:, 1].sum():,} are "
        f"if m₁ and m₂ count until t − 2, and {right[:, 2].sum():,} with all repairs.",
        rows,
    )


def _constructions(before: list[int], last: int, length: int) -> tuple[list[int], list[int], list[int]]:
    """The policy π of the proof, which switches to `last` at time t, and its changes π̃ and π_new."""
    other = 1 - last
    return (
        [*before, other, *[last] * length],
        [*before, other, other, *[last] * (length - 1)],
        [*before, last, *[last] * length],
    )


@check("diagonal-last-switch")
def check_diagonal_last_switch(scale: Scale) -> Finding:
    """The three policies of the proof on random cases, in exact fractions; π_new of the second case ends in 2."""
    wrong, met = 0, 0
    for (b, click), before, last, length in _last_switch(scale, 14):
        policy, tilde, new = (walk_value((b, 1 - b), click, walk) for walk in _constructions(before, last, length))
        if policy >= tilde:
            met += 1
            wrong += new <= policy
    return Finding.of(
        wrong == 0,
        f"E[V^π] ≥ E[V^π̃] in {met:,} random cases, and π_new is better than π in {met - wrong:,} of them; the "
        "comparison with π′ is not needed.",
    )


@check("horizon-proof")
def check_horizon_proof(_: Scale) -> Finding:
    """Probability of reaching iteration j with click probabilities 1 − ε, and the sum of later clicks."""
    epsilon, horizon = Fraction(1, 4), 6
    q = 1 - epsilon
    clicks = [walk_value((Fraction(1),), ((q,),), [0] * j) for j in range(20)]
    reached = [Fraction(1), *(later - now for now, later in pairwise(clicks))]  # iterations 1, 2, …
    tail = q / epsilon - clicks[horizon]
    printed = q ** (horizon + 2) / epsilon
    return Finding.repaired(
        all(p <= formulas.reach_probability(epsilon, j) for j, p in enumerate(reached, 1)) and tail <= printed,
        all(p <= formulas.repaired_reach_probability(epsilon, j) for j, p in enumerate(reached, 1))
        and tail <= tail_bound(q, horizon) <= formulas.horizon_loss(epsilon, horizon),
        f"If all click probabilities are 1 − ε = {q}, Pr(2 ≤ N) is {reached[1]}, not at most (1 − ε)², and with ε = "
        f"1/4 the clicks after H = {horizon} are {tail}, above {printed} = (1 − ε)^(H+2)/ε and equal to (1 − "
        f"ε)^(H+1)/ε = {tail_bound(q, horizon)}, which is below the bound of the lemma.",
    )
