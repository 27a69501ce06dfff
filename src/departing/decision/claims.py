"""Claimed values: corrected for the optimism of choosing what looks best on an estimate, with intervals."""

from dataclasses import dataclass

import numpy as np

from departing.formatting import format_clicks_per_user
from departing.model.instance import Floats

Z = 1.959964  # standard errors of a 95% interval
SAME_VALUE = 1e-6  # relative difference of values under all draws below which two policies are the same
SMALLEST = 1e-300  # in the place of 0 where a logarithm or a quotient follows
# Intervals are centred between the value under the fit and the corrected value. The correction is an estimate itself,
# and choosing the largest of several values reduces their variance: centred at either end, the intervals of simulated
# logs cover too seldom or too often. `scripts/bench decision` measures the coverage.
CENTRE = 0.5


@dataclass(frozen=True)
class PolicyValue:
    """Expected reward per user of a policy, clicks by default, or a difference of two, with a 95% interval.

    Attributes
    ----------
    name : str
        Policy, or the policy that is compared with.
    value : float
        Estimate of the expected reward per user, corrected for optimism.
    lower, upper : float
        Ends of the interval.
    """

    name: str
    value: float
    lower: float
    upper: float

    @property
    def cells(self) -> list[str]:
        """Value and interval as text."""
        value, lower, upper = map(format_clicks_per_user, (self.value, self.lower, self.upper))
        return [value, f"{lower} … {upper}"]

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


@dataclass(frozen=True, eq=False)
class Claim:
    """Policies that are chosen given the fit, first, and given each of the draws, with their values.

    Attributes
    ----------
    in_own : array [n]
        Value under the instance that the policy was chosen for: what would be claimed without correction.
    in_fit : array [n]
        Value under the fitted instance, from which the draws were sampled: the truth about the claims of the draws.
    in_draws : array [n]
        Value under each instance of the policy that is chosen given the fit.
    """

    in_own: Floats
    in_fit: Floats
    in_draws: Floats

    def value(self, name: str) -> PolicyValue:
        """Estimate the value of the policy that is chosen given the fit.

        The errors of the claims of the draws estimate the error of the claim of the fit; all are differences of
        logarithms. Their mean is subtracted, and their standard deviation is the standard error.
        """
        own, fit = (np.log(np.maximum(values[1:], SMALLEST)) for values in (self.in_own, self.in_fit))
        errors = own - fit
        bias, radius = float(errors.mean()), Z * float(errors.std(ddof=1))
        value, lower, upper = self.in_own[0] * np.exp((-bias, -CENTRE * bias - radius, -CENTRE * bias + radius))
        return PolicyValue(name, float(value), float(min(lower, value)), float(max(upper, value)))


def observed_value(name: str, values: Floats) -> PolicyValue:
    """Mean of a log, `values[0]`, with a normal interval from its resamples: nothing was chosen, so no correction."""
    value, radius = float(values[0]), Z * float(values[1:].std(ddof=1))
    return PolicyValue(name, value, max(value - radius, 0.0), value + radius)


def gain(first: PolicyValue, second: PolicyValue, in_draws: Floats, second_in_draws: Floats) -> PolicyValue:
    """Difference of two values, with an interval from theirs and the correlation of their values under the draws.

    Method of variance estimates recovery (Zou and Donner 2008): the distance of the lower end is that of the lower
    end of the first value and of the upper end of the second, added like standard errors.
    """
    if np.allclose(in_draws, second_in_draws, rtol=SAME_VALUE, atol=0):
        return PolicyValue(second.name, 0.0, 0.0, 0.0)
    spread = [values[1:] - values[1:].mean() for values in (in_draws, second_in_draws)]
    scale = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    correlation = float(spread[0] @ spread[1]) / scale if scale > 0 else 0.0
    difference = first.value - second.value

    def radius(mine: float, theirs: float) -> float:
        return float(np.sqrt(max(mine**2 + theirs**2 - 2 * correlation * mine * theirs, 0.0)))

    below = radius(first.value - first.lower, second.upper - second.value)
    above = radius(first.upper - first.value, second.value - second.lower)
    return PolicyValue(second.name, difference, difference - below, difference + above)
