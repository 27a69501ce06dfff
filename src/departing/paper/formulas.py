"""Formulas of the paper as printed; the checks compare them with independent computations.

Arguments follow the paper: `p` is a click probability, `depart` the probability Λ of a departure after a no-click,
`leave` the probability Λ(1 − P) of a departure in a step, and `epsilon` the paper's ε. Rational formulas take and
return fractions as well.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import e, exp, log, log1p
from typing import TypeVar

import numpy as np

from departing.model.instance import Floats

Number = TypeVar("Number", float, Fraction)


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


# Repairs: what holds in place of refuted formulas


def repaired_length_constant(leave: float) -> float:
    """C₂ of the number of steps after the first, N − 1."""
    return -1 / log1p(-leave)


def smallest_hazard(click: float, leave: float) -> float:
    """Lower bound of Pr[V = k | V ≥ k] under every policy, where P and Λ(1 − P) are those of the largest ratio."""
    return leave / (leave + click)


def sharp_scale(epsilon: float) -> float:
    """τ = b of the return of every policy if ε ≤ Λ(1 − P) for all categories and types."""
    return -1.5 / log1p(-epsilon)
