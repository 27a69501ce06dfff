"""Distributions of steps and returns under one category, in closed form, and their moments."""

from collections.abc import Iterator
from fractions import Fraction
from math import comb, exp, log

import numpy as np

from departing.model.instance import Floats
from departing.paper.item import Scale

POWERS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0)  # of the moments
SUMMABLE = 1e-3  # departure probability per step below which a distribution is too long to sum
ROUNDING = 1e-9  # allowance for sums in floating point
E_UPPER, LN2_LOWER = Fraction(2718281829, 10**9), Fraction(693147180, 10**9)  # rational bounds of e and ln 2


def grid(scale: Scale, smallest: float = 0.0) -> Iterator[tuple[float, float, float]]:
    """Click and departure probabilities over their whole range, and Λ(1 − P) where it is at least `smallest`."""
    n = scale.of(40, 14)
    edges = np.concatenate([[1e-4, 1e-3, 0.01], np.linspace(0.03, 0.97, n), [0.99, 0.999]])
    for click in edges.tolist():
        for depart in [*edges.tolist(), 1.0]:
            leave = depart * (1 - click)
            if leave >= smallest:
                yield click, depart, leave


def geometric_moment(leave: float, power: float, first: int) -> float:
    """E[X^power]^(1/power) of a geometric variable on `first`, `first` + 1, …, without a negligible remainder."""
    # Beyond (60 + 2 power) / λ the summands are below e⁻⁶⁰ of the largest, at power / λ.
    n = int(min((60 + 2 * power) / -np.log1p(-leave) if leave < 1 else 1, 3e6)) + 40
    x = np.arange(1, n + 1)
    return norm((x - first) * np.log1p(-leave) + log(leave) + power * np.log(x), power)


def norm(logs: Floats, power: float) -> float:
    """(Σ exp(logs))^(1/power) without overflow."""
    return exp((logs.max() + log(np.exp(logs - logs.max()).sum())) / power)


def moment(law: Floats, values: Floats, power: float) -> float:
    """E[|X|^power]^(1/power) of a variable with the given `values` and their probabilities `law`."""
    return norm(np.log(np.maximum(law, 1e-300)) + power * np.log(np.maximum(np.abs(values), 1e-300)), power)


def psi_norm(law: Floats, values: Floats) -> float:
    """Sub-exponential norm: the largest E[|X|^p]^(1/p) / p over a grid of powers p from 1 to 20."""
    powers: list[float] = np.geomspace(1, 20, 40).tolist()
    return max(moment(law, values, power) / power for power in powers)


def click_distribution(click: float, depart: float) -> Floats:
    """Distribution of the clicks of one type under one category: geometric on 0, 1, …"""
    stop = depart * (1 - click) / (depart * (1 - click) + click)
    n = int(min(50 / -np.log1p(-stop), 2e5)) + 2
    return np.asarray(stop * (1 - stop) ** np.arange(n))


def return_moments(click: Fraction, depart: Fraction, power: int) -> list[Fraction]:
    """E[Vⁿ] for n = 0, …, power of a fixed category, by conditioning on the first step.

    E[Vⁿ] = P E[(1 + V)ⁿ] + (1 − P)(1 − Λ) E[Vⁿ] for n ≥ 1, solved for E[Vⁿ].
    """
    leave = depart * (1 - click)
    moments = [Fraction(1)]
    for n in range(1, power + 1):
        lower = sum((comb(n, i) * moments[i] for i in range(n)), Fraction(0))
        moments.append(click * lower / leave)
    return moments
