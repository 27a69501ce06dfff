"""Formulas of the paper as printed; the checks compare them with independent computations.

Arguments follow the paper: `p` is a click probability, `depart` the probability Λ of a departure after a no-click,
`leave` the probability Λ(1 − P) of a departure in a step, and `epsilon` the paper's ε. Rational formulas take and
return fractions as well.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, e, exp, floor, log, log1p, prod, sqrt
from typing import TypeVar

import numpy as np

from departing.model.instance import Floats

Number = TypeVar("Number", float, Fraction)

# Section 2: the model, and the example of Table 1. Categories are counted from 0: the paper's category 1 is 0.

FIRST_STEP = (Fraction("0.368"), Fraction("0.394"))  # expected rewards of the first recommendation
EXAMPLE_GAPS = (Fraction("0.0169"), Fraction("1.22e-5"))  # lower bounds of E[V*] − E[Vᵃ]
EXAMPLE_BETTER = 1  # the better of the two fixed categories
EXAMPLE_STEPS = 7  # recommendations of category 2 before the optimal policy switches


def outcome_probabilities(p: Floats, depart: Floats) -> tuple[Floats, Floats, Floats]:
    """Probabilities of a click, of a no-click and a stay, and of a no-click and a departure (Algorithm 1)."""
    return p, (1 - p) * (1 - depart), (1 - p) * depart


def largest_epsilon(click: Sequence[Number]) -> Number:
    """Largest ε with max P ≤ 1 − ε (section 2, assumption)."""
    return 1 - max(click)


def total_return(rewards: Iterable[int]) -> int:
    """Return of a policy from a user: the sum of the rewards until departure (section 2)."""
    return sum(rewards)


def regret(optimum: float, returns: Sequence[int]) -> float:
    """R_T = T · E[V*] − Σ V (section 2, definition of regret)."""
    return len(returns) * optimum - sum(returns)


def deterministic_choice(values: Sequence[Fraction]) -> Fraction:
    """Value of a deterministic choice among categories with these values (section 2, footnote)."""
    return max(values)


def first_reward(prior: Sequence[Number], row: Sequence[Number]) -> Number:
    """Expected reward qₓPₐₓ + qᵧPₐᵧ of recommending a category in the first round (section 2.1)."""
    return prior[0] * row[0] + prior[1] * row[1]


def example_regret(users: int) -> Fraction:
    """Lower bound of the expected regret of fixed categories in the example, linear in T (section 2.1)."""
    return users * min(EXAMPLE_GAPS)


def fixed_is_inferior(best: float, fixed: float) -> bool:
    """The best policy has a higher value than every fixed category (sections 3 and 5)."""
    return best > fixed


# Section 4 and appendix D: one type


def fixed_value(p: Number, depart: Number) -> Number:
    """Expected return of a fixed category (section 4, lemma on one type)."""
    return p / (depart * (1 - p))


def leave_probability(p: Number, depart: Number) -> Number:
    """Parameter of the geometric number of steps under a fixed category (section 4, observation)."""
    return depart * (1 - p)


def largest_leave_probability(epsilon: Number) -> Number:
    """Upper end of the range that the paper states for the parameter (section 4, observation)."""
    return 1 - epsilon


def value_before(later: Number, p: Number, depart: Number) -> Number:
    """E[Vⱼ] from E[Vⱼ₊₁] = `later` (appendix D, observation)."""
    return later * (1 - depart * (1 - p)) + p


def length_constant(leave: float) -> float:
    """C₂ of the number of steps (appendix D, lemma on geometric variables and its corollary)."""
    return -2 / log1p(-leave)


def return_constant(leave: float) -> float:
    """C₂ of the centred return (appendix D, lemma on returns)."""
    return -4 / log1p(-leave)


def return_scale(leave: float) -> float:
    """τ = b of the centred return (section 4, lemma on τ and b)."""
    return -8 * e / log1p(-leave)


def global_scale(epsilon: float) -> float:
    """τ̃ of all policies (section 4, consequence of the lemma on τ and b; section 5.3, lemma)."""
    return -8 * e / log1p(-epsilon)


# Section 3 and appendix C: sub-exponential variables


def tail_property(v: Floats, constant: float) -> Floats:
    """Upper bound of Pr[|X| > v] (section 3, definition, property 1)."""
    return np.asarray(np.exp(1 - v / constant))


def moment_property(power: float, constant: float) -> float:
    """Upper bound of E[|X|^p]^(1/p) (section 3, definition, property 2)."""
    return constant * power


def moment_generating_bound(gamma: Floats, tau: float) -> Floats:
    """Upper bound of ln E[exp(γ(X − E[X]))] for |γ| < 1/b (section 3, definition)."""
    return np.asarray(gamma**2 * tau**2 / 2)


def radius(n: float, users: float, tau: float, eta: float) -> float:
    """Confidence radius of a policy with n returns (section 3, Algorithm 2, lines 6 to 9)."""
    if n < 8 * eta * log(users):
        return 8 * sqrt(eta) * tau * log(users) / n
    return sqrt(8 * tau**2 * log(users) / n)


def bernstein(v: float, tau: float, b: float) -> float:
    """Upper bound of Pr[|X − E[X]| ≥ v] (appendix C)."""
    return 2 * exp(-(v**2) / (2 * tau**2)) if v <= tau**2 / b else 2 * exp(-v / (2 * b))


def log_sub_gaussian_tail(v: float, sigma: float) -> float:
    """Logarithm of the upper bound of Pr[X − E[X] ≥ v] of a variable that is sub-Gaussian with σ (section 3)."""
    return -(v**2) / (2 * sigma**2)


# Appendix D: steps of the proofs


def largest_return(steps: int) -> int:
    """Largest return of a user who stayed for `steps` steps (proposition on the mean return)."""
    return steps - 1


def length_needed(v: float) -> float:
    """A return above v requires more steps than this (lemma on returns)."""
    return v + 1


def geometric_series_bound(z: Number) -> Number:
    """Upper bound of Σ zᵖ over p ≥ 2, with z = e|y| < 1/2 (lemma on τ and b)."""
    return 2 * z**2


def log_factorial_bound(power: int) -> float:
    """ln of the lower bound (p/e)ᵖ of p! (lemma on τ and b)."""
    return power * (log(power) - 1)


# Section 5.3 and appendix E: threshold policies


def dominating_click(clicks: Sequence[float]) -> float:
    """Click probability of a category in the instance of one type (lemma on threshold policies)."""
    return max(clicks)


# Section 5: two types, two categories. `click` is ((P₁ₓ, P₁ᵧ), (P₂ₓ, P₂ᵧ)) and `b` the belief in type x. Categories
# are counted from 0, so the paper's category 1 is 0. The pair (a, h) is the (a, h)-threshold policy.

SURE_DEPARTURE = 1.0  # Λ of section 5


def stay_or_depart(p: Number) -> tuple[Number, Number]:
    """Tr(i | i, a) = Ω(stay | i, a) and Tr(⊥ | i, a) = Ω(depart | i, a) of the POMDP (section 5.1)."""
    return p, 1 - p


def next_belief(b: Number, row: Sequence[Number]) -> Number:
    """Belief in type x after a click, with the click probabilities of the category (section 5.1, belief update)."""
    return b * row[0] / (b * row[0] + row[1] * (1 - b))


def bellman(b: Number, row: Sequence[Number], later: Number) -> Number:
    """E[V(b)] from the click probabilities of π(b) and E[V(b')] = `later` (section 5.1, Bellman equation)."""
    return (b * row[0] + (1 - b) * row[1]) * (1 + later)


def belief_increases(before: Number, after: Number) -> bool:
    """The belief in type x increases with every click (section 5.2, dominant column)."""
    return after > before


def dominant_row(click: Sequence[Sequence[Number]]) -> bool:
    """P₁ᵧ ≥ P₂ᵧ (section 5.2)."""
    return click[0][1] >= click[1][1]


def dominant_column(click: Sequence[Sequence[Number]]) -> bool:
    """P₂ₓ ≥ P₂ᵧ > P₁ᵧ (section 5.2)."""
    return click[1][0] >= click[1][1] > click[0][1]


def dominant_diagonal(click: Sequence[Sequence[Number]]) -> bool:
    """P₁ₓ ≥ P₂ᵧ > P₁ᵧ, P₂ₓ (section 5.2)."""
    (p1x, p1y), (p2x, p2y) = click
    return p1x >= p2y and p2y > p1y and p2y > p2x


def row_policies() -> list[tuple[int, int]]:
    """Optimal policy with a dominant row (section 5.2, lemma)."""
    return [(1, 0)]


def column_policies(n_star: float) -> list[tuple[int, int]]:
    """Policies one of which is optimal with a dominant column (section 5.2, theorem)."""
    return [(1, 0), (0, 0), (1, floor(n_star)), (1, ceil(n_star))]


def diagonal_policies() -> list[tuple[int, int]]:
    """Policies one of which is optimal with a dominant diagonal (section 5.2, theorem)."""
    return [(1, 0), (0, 0)]


def threshold_category(a: int, h: int, j: int) -> int:
    """Category of the (a, h)-threshold policy in iteration j = 1, 2, … (section 5.3, definition)."""
    return a if j <= h else 1 - a


def threshold_policies(horizon: int) -> list[tuple[int, int]]:
    """The set Π_H of threshold policies (section 5.3)."""
    return [(a, h) for a in (0, 1) for h in range(horizon + 1)]


def n_threshold_policies(horizon: int) -> int:
    """Size of Π_H (section 5.3)."""
    return 2 * horizon + 2


def n_policies(categories: int, horizon: int) -> int:
    """Number of policies of H iterations: 2^H (section 5.3) and K^H (appendix A)."""
    return int(categories**horizon)


def stay_probability(epsilon: Number, horizon: int) -> Number:
    """Upper bound of the probability that a user stays beyond H iterations (section 5.3)."""
    return (1 - epsilon) ** horizon


def horizon_loss(epsilon: Number, horizon: int) -> Number:
    """Loss of the best policy with a finite horizon (section 5.3 and appendix A, constants of appendix E)."""
    return (1 - epsilon) ** horizon / epsilon


def paper_horizon(users: float) -> int:
    """H = ⌈ln T⌉, a choice of H = Θ(ln T) (section 5.3, theorem)."""
    return ceil(log(users))


# Appendix A: many types, finite horizon


def active_probability(prior: Sequence[Number], click: Sequence[Sequence[Number]], counts: Sequence[int]) -> Number:
    """α(m₁, m₂): probability of `counts[a]` clicks on each category a, for any numbers of types and categories."""
    columns = zip(prior, zip(*click, strict=True), strict=True)
    terms = [q * prod([p**m for p, m in zip(column, counts, strict=True)], start=1 + 0 * q) for q, column in columns]
    return sum(terms[1:], terms[0])


def n_counts(horizon: int) -> int:
    """Number of inputs (c₁, c₂) of D̃ after H steps."""
    return horizon + 1


def recursion_time(categories: int, horizon: int) -> int:
    """H^K: the order of the running time of the recursion."""
    return int(horizon**categories)


# Appendix E: proofs for two types and two categories


def induction_step(first: Number, later: Sequence[Number]) -> Number:
    """E[V_H(b₁)] from β₁(b₁) = `first` and βᵢ(b₂) = `later`, with a sum from i = 2 (proof on the expected return)."""
    return first * (1 + sum(later[1:], 0 * first))


def switching_constant(b: Number, click: Sequence[Sequence[Number]]) -> Number:
    """Constant of the lemma and the corollary on dominant columns."""
    (p1x, p1y), (p2x, p2y) = click
    return (1 - b) / b * (p2y - p1y) / (p1x - p2x) * p2x / p2y


def switching_coefficients(b: Number, click: Sequence[Sequence[Number]]) -> tuple[Number, Number, Number]:
    """c₁, c₂ and c₃ of E[V^π_N] = c₁ P₂ₓ^N + c₂ P₂ᵧ^N + c₃ (theorem on dominant columns)."""
    (p1x, p1y), (p2x, p2y) = click
    c1 = b * (p2x / (p2x - 1) + p1x / (1 - p1x))
    c2 = (1 - b) * (p2y / (p2y - 1) + p1y / (1 - p1y))
    return c1, c2, b * p2x / (1 - p2x) + (1 - b) * p2y / (1 - p2y)


def switching_value(b: Number, click: Sequence[Sequence[Number]], n: int) -> Number:
    """E[V^π_N] as a function of N (theorem on dominant columns, equation "func of N")."""
    c1, c2, c3 = switching_coefficients(b, click)
    return c1 * click[1][0] ** n + c2 * click[1][1] ** n + c3


def stationary_point(b: Number, click: Sequence[Sequence[Number]]) -> float:
    """Ñ (theorem on dominant columns). ZeroDivisionError or ValueError where it is undefined."""
    c1, c2, _ = switching_coefficients(b, click)
    p2x, p2y = click[1]
    return log(-(c2 * log(p2y)) / (c1 * log(p2x))) / log(p2x / p2y)


def base_inequalities(x: Number, y: Number, click: Sequence[Sequence[Number]]) -> tuple[bool, bool, bool, bool]:
    """Four inequalities of the proof on dominant diagonals with two iterations left, in its order.

    `x` and `y` are b P₁ₓ^m₁ P₂ₓ^m₂ and (1 − b) P₁ᵧ^m₁ P₂ᵧ^m₂.
    """
    (p1x, p1y), (p2x, p2y) = click
    return (
        x * p1x * (p1x - p2x) <= y * p1y * (p2y - p1y),
        y * (p2y - p1y) * (1 + p2y) <= x * (p1x - p2x) * (1 + p2x),
        x * (p1x - p2x) * (1 + p1x) <= y * (1 + p1y) * (p2y - p1y),
        y * p2y * (p2y - p1y) <= x * p2x * (p1x - p2x),
    )


def contradictions(click: Sequence[Sequence[Number]]) -> tuple[bool, bool]:
    """Inequalities that follow from each pair of `base_inequalities`; both are false with a dominant diagonal."""
    (p1x, p1y), (p2x, p2y) = click
    return p1x * (1 + p2y) <= p1y * (1 + p2x), p2y * (1 + p1x) <= p2x * (1 + p1y)


def diagonal_differences(
    b: Number, click: Sequence[Sequence[Number]], counts: tuple[int, int], last: int, length: int, slip: bool = True
) -> tuple[Number, Number]:
    """E[V^π] − E[V^π̃] and E[V^π_new] − E[V^π] in the proof on dominant diagonals.

    `counts` are m₁ and m₂, `last` is the category after the last switch, and `length` is H − t + 1. The exponent of
    P₂ᵧ in the last line of the second case is printed as i − 1; `slip` takes it with the last i of the sum.
    """
    tilde = new = 0 * b
    for i in range(length + 1):
        for y, q, p, other in zip((False, True), (b, 1 - b), click[last], click[1 - last], strict=True):
            power = i - 1 if slip and y and last == 1 and i == length else i
            term = q * p ** (counts[last] + power) * other ** counts[1 - last] * (p - other)
            new += term
            tilde += term * other if i < length else 0
    return tilde, new


def reach_probability(epsilon: Number, j: int) -> Number:
    """Upper bound of Pr(j ≤ N) in the proof on finite horizons."""
    return (1 - epsilon) ** j


# Repairs: what holds in place of refuted formulas


def repaired_length_constant(leave: float) -> float:
    """C₂ of the number of steps after the first, N − 1."""
    return -1 / log1p(-leave)


def smallest_departure(click: Sequence[Number], depart: Sequence[Number]) -> Number:
    """Repaired ε of one type: the smallest probability Λ(1 − P) of departing at a step."""
    return min(each * (1 - p) for p, each in zip(click, depart, strict=True))


def repaired_horizon(users: float, epsilon: float) -> int:
    """H = ⌈ln T / ln(1 / (1 − ε))⌉, a choice of H = Θ(ln T) (section 5.3, theorem)."""
    return ceil(log(users) / -log1p(-epsilon))


def smallest_hazard(click: float, leave: float) -> float:
    """Lower bound of Pr[V = k | V ≥ k] under every policy, where P and Λ(1 − P) are those of the largest ratio."""
    return leave / (leave + click)


def sharp_scale(epsilon: float) -> float:
    """τ = b of the return of every policy if ε ≤ Λ(1 − P) for all categories and types."""
    return -1.5 / log1p(-epsilon)


def repaired_switching_steps(b: Fraction, click: Sequence[Sequence[Fraction]]) -> int:
    """Number of recommendations of category 2 in an optimal policy, for P₁ₓ > P₂ₓ > P₂ᵧ > P₁ᵧ and 0 < b < 1.

    The smallest N with (P₂ₓ/P₂ᵧ)^N (1 − P₁ᵧ)/(1 − P₁ₓ) ≥ (1 − b)(P₂ᵧ − P₁ᵧ) / (b (P₁ₓ − P₂ₓ)).
    """
    (p1x, p1y), (p2x, p2y) = click
    ratio, n = (1 - p1y) / (1 - p1x), 0
    while ratio < (1 - b) * (p2y - p1y) / (b * (p1x - p2x)):
        ratio, n = ratio * p2x / p2y, n + 1
    return n


def repaired_induction_step(first: Number, later: Sequence[Number]) -> Number:
    """The induction step on the expected return, with its sum from i = 1."""
    return first * (1 + sum(later, 0 * first))


def repaired_reach_probability(epsilon: Number, j: int) -> Number:
    """Upper bound of Pr(j ≤ N): a user reaches iteration j after j − 1 clicks."""
    return (1 - epsilon) ** (j - 1)


# Section 6: future directions

UNCERTAIN_DEPARTURE = Fraction(1, 2)  # Λ of the second direction is any probability but 1
