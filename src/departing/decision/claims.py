"""Values that are chosen because they look best: correction for optimism, and intervals, by the bootstrap."""

from dataclasses import dataclass

import numpy as np

from departing.formatting import format_clicks_per_user
from departing.model.instance import Floats

TAILS = 0.025, 0.975  # quantiles of a 95% interval


@dataclass(frozen=True)
class PolicyValue:
    """Clicks per user of a policy, or a difference of two, with a 95% interval.

    Attributes
    ----------
    name : str
        Policy, or the policy that is compared with.
    value : float
        Estimate in clicks per user, corrected for optimism.
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


def claim_value(name: str, fitted: float, in_draws: Floats, in_fit: Floats) -> PolicyValue:
    """Estimate the value of a policy, on the logarithmic scale.

    `fitted` is the value under the fit of the policy chosen by the fit. For every draw `in_draws[B]` is the value
    under the draw of the policy chosen by the draw, and `in_fit[B]` its value under the fit, which is the truth from
    which the draw was sampled.
    """
    errors = np.log(np.maximum(in_draws, 1e-300)) - np.log(np.maximum(in_fit, 1e-300))
    low, high = np.quantile(errors, TAILS)
    value, lower, upper = fitted * np.exp([-errors.mean(), -high, -low])
    return PolicyValue(name, float(value), float(lower), float(upper))


def claim_difference(name: str, fitted: float, in_draws: Floats, in_fit: Floats) -> PolicyValue:
    """The same for the difference of two values, on the linear scale."""
    errors = in_draws - in_fit
    low, high = np.quantile(errors, TAILS)
    return PolicyValue(name, float(fitted - errors.mean()), float(fitted - high), float(fitted - low))
