"""Difference of two arms pooled over strata, from sums: for experiments whose shares change while they run.

Within a stratum the share of the treatment is constant. Means over all users would mix the difference of the arms
with a change of the users over time (Simpson's paradox), so the arms are compared within each stratum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from scipy.special import gammaln

from departing.abtest.sequence import MIN_USERS, boundary, compare_arms
from departing.model.instance import Floats

# Weight of the prior of the sample ratio, in users: largest power at deviations of about 1/√1000, three points.
RATIO_PRIOR_USERS = 1000.0


def new_sums() -> Floats:
    """Sums of a stratum without users: users and sums of y and y² `[3]`, of control and treatment `[2]`."""
    return np.zeros((2, 3))


def add_outcome(sums: Floats, treated: bool, outcome: float) -> None:
    """Add the outcome y of one user to the sums of a stratum."""
    sums[int(treated)] += (1.0, outcome, outcome**2)


@dataclass(frozen=True)
class StratifiedDifference:
    """Difference treatment minus control, averaged over the users of all strata with enough users.

    Attributes
    ----------
    users : int
        Users of both arms in these strata.
    means : tuple of float
        Mean outcomes of control and treatment, both weighted by the users of both arms in each stratum.
    error : float
        Standard error of the difference.
    """

    users: int
    means: tuple[float, float]
    error: float

    @property
    def difference(self) -> float:
        """Treatment minus control."""
        return self.means[1] - self.means[0]

    def interval(self, planned_users: int, significance: float) -> tuple[float, float]:
        """Confidence sequence after these users: with probability 1 - `significance` no such interval ever misses."""
        radius = float(boundary(self.users, planned_users, significance)) * self.error
        return self.difference - radius, self.difference + radius


def stratified_difference(strata: Sequence[Floats]) -> StratifiedDifference | None:
    """Difference over strata with at least 100 users in both arms, from sums `[2, 3]`; None if there is none.

    >>> sums = new_sums()
    >>> for i in range(400):
    ...     add_outcome(sums, treated=i % 2 == 0, outcome=i % 4)
    >>> found = stratified_difference([sums])
    >>> found.users, found.means, round(found.error, 3)
    (400, (2.0, 1.0), 0.1)
    """
    used = np.array([sums for sums in strata if sums[:, 0].min() >= MIN_USERS])
    if not len(used):
        return None
    users = used[..., 0].sum(1)
    weight = users / users.sum()
    by_stratum, variance = compare_arms(used)
    control, treatment = (weight @ by_stratum).tolist()
    return StratifiedDifference(round(users.sum()), (control, treatment), sqrt(weight**2 @ variance))


def sample_ratio_p_value(counts: Sequence[Mapping[str, int]], shares: Sequence[Mapping[str, float]]) -> float:
    """P-value of the users per arm against their shares, valid however often one looks.

    It is the inverse of a Bayes factor with a Dirichlet prior around the shares, a martingale if the shares are right
    (Lindon and Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022), multiplied over strata.

    Parameters
    ----------
    counts, shares
        Users and expected share of every arm in each stratum.

    >>> sample_ratio_p_value([{"treatment": 1000, "control": 9010}], [{"treatment": 0.1, "control": 0.9}])
    1.0
    >>> sample_ratio_p_value([{"treatment": 1300, "control": 8700}], [{"treatment": 0.1, "control": 0.9}]) < 1e-6
    True
    """
    evidence = 0.0
    for users, expected in zip(counts, shares, strict=True):
        arms = [arm for arm, share in expected.items() if share > 0]
        if any(n for arm, n in users.items() if arm not in arms):
            return 0.0
        n = np.array([users.get(arm, 0) for arm in arms], np.float64)
        share = np.array([expected[arm] for arm in arms])
        prior = RATIO_PRIOR_USERS * share
        evidence += _log_beta(prior + n) - _log_beta(prior) - float(n @ np.log(share))
    return exp(min(-evidence, 0.0))


def _log_beta(parameters: Floats) -> float:
    """Logarithm of the multivariate beta function."""
    return float(gammaln(parameters).sum() - gammaln(parameters.sum()))
