"""Welch's two-sample t-test: power from the moments of both arms, and intervals of difference and ratio."""

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy import stats

# Above it the noncentral t-distribution equals the normal one to four digits, and SciPy's becomes unstable.
MAX_DEGREES = 10_000
# Smallest variance of the studentised difference that the expansion accepts; it is 1 to the first order.
MIN_VARIANCE = 0.25


@dataclass(frozen=True)
class ArmMoments:
    """Mean, variance and third central moment of the clicks of one user, and the number of users of an arm."""

    mean: float
    variance: float
    third_moment: float
    users: int

    @property
    def error(self) -> float:
        """Variance of the mean of the arm."""
        return self.variance / self.users


def degrees_of_freedom(treatment: ArmMoments, control: ArmMoments) -> float:
    """Welch-Satterthwaite degrees of freedom; those of a pooled test if nothing varies."""
    total = treatment.error + control.error
    if total == 0:
        return float(treatment.users + control.users - 2)
    parts = sum(arm.error**2 / (arm.users - 1) for arm in (treatment, control))
    return float(total**2 / parts)


def rejection_probability(treatment: ArmMoments, control: ArmMoments, significance: float) -> float:
    """Probability that a two-sided Welch test rejects equality.

    The noncentral t-distribution, corrected for skewness to the first order (Edgeworth). Let λ be the skewness of the
    difference of the means. It is also the covariance of the standardised difference and of the relative error of its
    estimated variance, so the test statistic at a critical value t is nearly normal with variance 1 - t λ.
    """
    error = sqrt(treatment.error + control.error)
    difference = treatment.mean - control.mean
    if error == 0:
        return float(difference != 0)
    degrees, effect = degrees_of_freedom(treatment, control), difference / error
    critical = float(stats.t.isf(significance / 2, degrees))
    third = treatment.third_moment / treatment.users**2 - control.third_moment / control.users**2
    skewness = third / error**3
    probability = 0.0
    for sign in (1, -1):  # both tails; the lower one is the upper one of control minus treatment
        cut, tilt = critical - sign * effect, sign * skewness
        if degrees < MAX_DEGREES:
            probability += float(stats.nct.sf(critical, degrees, sign * effect))
        else:
            probability += float(stats.norm.sf(cut))
        scale = sqrt(max(1 - critical * tilt, MIN_VARIANCE))
        probability += float(stats.norm.sf(cut / scale) - stats.norm.sf(cut))
        probability += tilt / 6 * (cut**2 - 1) * float(stats.norm.pdf(cut))
    return min(max(probability, 0.0), 1.0)


def welch_interval(treatment: ArmMoments, control: ArmMoments, significance: float) -> tuple[float, float, float]:
    """Interval of the difference of the means, and the two-sided p-value of equality."""
    error, difference = sqrt(treatment.error + control.error), treatment.mean - control.mean
    degrees = degrees_of_freedom(treatment, control)
    radius = float(stats.t.isf(significance / 2, degrees)) * error
    if error == 0:
        return difference, difference, float(difference == 0)
    return difference - radius, difference + radius, float(2 * stats.t.sf(abs(difference) / error, degrees))


def lift_interval(treatment: ArmMoments, control: ArmMoments, significance: float) -> tuple[float, float]:
    """Fieller's interval of the relative lift; it excludes 0 exactly if that of the difference does.

    NaN if the mean of the control is not clearly above 0, so that no bounded interval exists.

    >>> one, other = ArmMoments(1.2, 1.0, 0.0, 4000), ArmMoments(1.0, 1.0, 0.0, 4000)
    >>> [round(end, 3) for end in lift_interval(one, other, 0.05)]
    [0.153, 0.25]
    """
    critical = float(stats.t.isf(significance / 2, degrees_of_freedom(treatment, control))) ** 2
    # The interval holds all ratios r with (m1 - r m0)² ≤ critical (v1 + r² v0).
    square = control.mean**2 - critical * control.error
    if square <= 0:
        return nan, nan
    centre = treatment.mean * control.mean / square
    root = centre**2 - (treatment.mean**2 - critical * treatment.error) / square
    radius = sqrt(max(root, 0.0))
    return centre - radius - 1, centre + radius - 1


def holm(p_values: list[float]) -> list[float]:
    """P-values adjusted for several comparisons by Holm's method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
