"""Asymptotic confidence sequence of a difference of means: an interval that holds at all numbers of users at once.

Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence
sequences", Annals of Statistics 52(6), 2613-2640, 2024 (arXiv:2103.06476).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import lambertw

from departing.model.counts import Integers
from departing.model.instance import Floats

# The boundary is asymptotic. Below this number of users in an arm the estimated variance of skewed clicks is too
# uncertain, and the interval is infinite.
MIN_USERS = 100
MAX_POINTS = 1000  # of a sequence that is kept: more than a plot can show
MAX_USERS = 1e24  # search limit for the users that a decision needs: above those of any two policies that differ


def mixture_scale(significance: float) -> float:
    """Users times ρ² at which the boundary of the sequence is narrowest in standard errors.

    >>> round(mixture_scale(0.05), 2)
    8.21
    """
    return float(-lambertw(-(significance**2) * exp(-1), -1).real - 1)


def boundary(users: npt.ArrayLike, planned_users: float, significance: float) -> Floats:
    """Half-width of the sequence after `users` users, in standard errors of the difference.

    It is narrowest, about 1.5 times the fixed-sample one at 5% significance, after `planned_users` users.

    >>> boundary([100, 10_000, 1_000_000], 10_000, 0.05).round(2)
    array([8.94, 3.04, 3.57])
    """
    x = np.asarray(users, np.float64) * (mixture_scale(significance) / planned_users)
    return np.asarray(np.sqrt((x + 1) / x * np.log((x + 1) / significance**2)))


def unit_variance(variances: Floats, shares: Floats) -> Floats:
    """Variance of the difference of two means, times the number of users of both arms.

    It is at least that of two arms with the variance of both together: a small arm may lack the rare users with many
    clicks by chance, and its own variance would then be far too small. For arms of equal size it changes nothing.

    Parameters
    ----------
    variances : array [..., 2]
        Variance of the outcome in each arm.
    shares : array [..., 2]
        Share of the users in each arm.
    """
    pooled = (variances * shares).sum(-1)
    return np.asarray(np.maximum((variances / shares).sum(-1), pooled * (1 / shares).sum(-1)))


def compare_arms(sums: Floats) -> tuple[Floats, Floats]:
    """Means `[..., 2]` of control and treatment, and the variance of their difference `[...]`.

    `sums` are the number of users and the sums of y and y², of control and treatment, `[..., 2, 3]`. Outcomes y are
    integers; where all are equal, the next user counts as one who differs by 1.
    """
    n = np.maximum(sums[..., 0], 1.0)
    users = n.sum(-1, keepdims=True)
    means = sums[..., 1] / n
    variances = np.maximum(sums[..., 2] - sums[..., 1] * means, 0.0) / np.maximum(n - 1, 1.0)
    return means, unit_variance(np.maximum(variances, 1 / users), n / users) / users[..., 0]


@dataclass(frozen=True, eq=False)
class ConfidenceSequence:
    """Confidence sequence of the difference treatment minus control, at increasing numbers of users.

    Attributes
    ----------
    users : int array [n]
        Users of both arms so far.
    difference, lower, upper : float array [n]
        Difference of the means and its bounds; infinite bounds until both arms have 100 users.
    planned_users : int
        Number of users at which the sequence is narrowest.
    significance : float
        Probability that the true difference is ever outside, at most.
    decided_at : int or None
        Users after which the sequence first excluded 0.
    """

    users: Integers
    difference: Floats
    lower: Floats
    upper: Floats
    planned_users: int
    significance: float
    decided_at: int | None

    @property
    def final(self) -> tuple[float, float]:
        """Bounds after all users."""
        return float(self.lower[-1]), float(self.upper[-1])

    def columns(self) -> dict[str, Any]:
        """Columns of a frame."""
        return {name: getattr(self, name) for name in ("users", "difference", "lower", "upper")}


def confidence_sequence(
    clicks: Floats, treated: npt.NDArray[np.bool_], looks: Integers, planned_users: int, significance: float
) -> ConfidenceSequence:
    """Confidence sequence after the first `looks[n]` users, who are in order of arrival.

    Parameters
    ----------
    clicks : array [N]
        Clicks of every user.
    treated : bool array [N]
        True for users of the treatment arm.
    looks : int array [n]
        Increasing numbers of users at which to look, the last one N.
    planned_users, significance
        See `ConfidenceSequence`.
    """
    centred = clicks - float(clicks.mean())  # so that sums of squares lose no digits
    sums = _running_sums(centred, treated, looks)
    means, variance = compare_arms(sums)
    difference = means[:, 1] - means[:, 0]
    radius = boundary(looks, planned_users, significance) * np.sqrt(variance)
    radius[sums[..., 0].min(1) < MIN_USERS] = inf
    lower, upper = difference - radius, difference + radius
    excluded = np.flatnonzero((lower > 0) | (upper < 0))
    kept = np.unique(np.linspace(0, len(looks) - 1, MAX_POINTS).round().astype(np.int64))
    return ConfidenceSequence(
        looks[kept],
        difference[kept],
        lower[kept],
        upper[kept],
        planned_users,
        significance,
        int(looks[excluded[0]]) if len(excluded) else None,
    )


def _running_sums(clicks: Floats, treated: npt.NDArray[np.bool_], looks: Integers) -> Floats:
    """Sums `[n, 2, 3]` of control and treatment after each number of users in `looks`."""
    features = np.stack([np.ones_like(clicks), clicks, clicks**2], 1)
    arms = [np.cumsum(np.where(arm[:, None], features, 0.0), 0)[looks - 1] for arm in (~treated, treated)]
    return np.stack(arms, 1)


def users_to_decide(
    difference: float, unit_error: float, planned_users: int, significance: float, power: float = 0.5
) -> float:
    """Users after which the sequence excludes 0 with probability `power`, if the difference is the true one.

    `unit_error` is the standard error of the difference times the root of the number of users. Infinite above 10^24.
    """
    from scipy.stats import norm

    margin = float(norm.ppf(power))

    def undecided(users: float) -> bool:
        return abs(difference) * sqrt(users) < unit_error * (
            float(boundary(users, planned_users, significance)) + margin
        )

    if undecided(MAX_USERS):
        return inf
    low, high = 0.0, log(MAX_USERS)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if undecided(exp(middle)) else (low, middle)
    return exp(high)


def distinct_looks(time: Sequence[Any] | npt.NDArray[Any]) -> Integers:
    """Numbers of users after every distinct time, for users in order of time.

    >>> distinct_looks([1, 1, 2, 5, 5])
    array([2, 3, 5])
    """
    times = np.asarray(time)
    return np.append(np.flatnonzero(times[1:] != times[:-1]) + 1, len(times))
