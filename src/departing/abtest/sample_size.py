"""Sample size of an A/B test: users, power, minimum detectable effect."""

import os
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from departing.abtest.returns import Returns
from departing.abtest.sequence import MIN_USERS, unit_variance, users_to_decide
from departing.abtest.welch import ArmMoments, rejection_probability
from departing.formatting import format_clicks_per_user, format_percent, format_significant
from departing.html_tables import html_repr
from departing.model import random_streams
from departing.model.frames import to_frame
from departing.model.validation import check_int, check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 0.01  # clicks per user; smaller differences have significant digits instead of decimals
COLUMNS = ("arm", "policy", "users", "clicks per user", "std. deviation", "skewness")


@dataclass(frozen=True, eq=False)
class SampleSize:
    """Users of an A/B test of two policies, and its power.

    Attributes
    ----------
    treatment, control : Returns
        Exact distribution of the clicks of one user under each policy.
    users : int
        Users of both arms together.
    share : float
        Share of the users in the treatment arm.
    power : float
        Probability that the test finds the difference with these users.
    requested_power : float
        Power that was requested; `detectable` refers to it.
    significance : float
        Probability that the test finds a difference where there is none.
    notes : tuple of str
        Sentences about the assumptions.
    """

    treatment: Returns
    control: Returns
    users: int
    share: float
    power: float
    requested_power: float
    significance: float
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Difference of the expected clicks per user, treatment minus control."""
        return self.treatment.mean - self.control.mean

    @property
    def lift(self) -> float:
        """Difference relative to the control."""
        return self.difference / self.control.mean if self.control.mean > 0 else inf

    @property
    def treatment_users(self) -> int:
        """Users of the treatment arm."""
        return split_users(self.users, self.share)[0]

    @property
    def control_users(self) -> int:
        """Users of the control arm."""
        return split_users(self.users, self.share)[1]

    @property
    def users_per_arm(self) -> int:
        """Users of each arm, or of the larger one if the arms are unequal."""
        return max(self.treatment_users, self.control_users)

    @cached_property
    def detectable(self) -> float:
        """Minimum detectable effect: the difference that these users find with the requested power."""
        return _detectable(
            self.treatment, self.control, self.users, self.share, self.significance, self.requested_power
        )

    @cached_property
    def sequential_users(self) -> int:
        """Users of both arms with which a confidence sequence finds the difference with the requested power.

        Set it as `planned_users` of `ab_test` for a test that is monitored continuously.
        """
        variances = np.array([self.control.variance, self.treatment.variance])
        unit_error = sqrt(unit_variance(variances, np.array([1 - self.share, self.share])))
        if unit_error == 0:
            return 2 * MIN_USERS
        users = self.users
        for _ in range(50):  # a fixed point: the sequence is narrowest at its own number of users
            needed = users_to_decide(self.difference, unit_error, users, self.significance, self.requested_power)
            if abs(needed - users) < 1:
                break
            users = ceil(needed)
        return max(users, ceil(MIN_USERS / min(self.share, 1 - self.share)))

    def power_at(self, users: int) -> float:
        """Power with another number of `users` of both arms."""
        return power_of(self.treatment, self.control, self.difference, users, self.share, self.significance)

    def simulate(self, experiments: int = 10_000, seed: int = 0) -> float:
        """Simulate the experiment, and return the share of tests that find a difference.

        Parameters
        ----------
        experiments : int
            Number of experiments. The standard error of the share is at most 0.5 / √experiments.
        seed : int
            Seed of the random numbers.

        Returns
        -------
        float
            An estimate of `power` without any approximation of the test.
        """
        experiments = check_int("experiments", experiments)
        rng = np.random.default_rng([check_seed(seed), random_streams.POWER])
        means, errors, degrees = [], [], []
        for arm, n in ((self.treatment, self.treatment_users), (self.control, self.control_users)):
            clicks = np.arange(len(arm.probabilities), dtype=np.float64) - arm.mean
            drawn = rng.multinomial(n, arm.probabilities / arm.probabilities.sum(), experiments)
            total = drawn @ clicks / n
            means.append(total + arm.mean)
            errors.append((drawn @ clicks**2 - n * total**2) / (n - 1) / n)
            degrees.append(errors[-1] ** 2 / (n - 1))
        error = errors[0] + errors[1]
        freedom = np.divide(error**2, degrees[0] + degrees[1], out=np.ones_like(error), where=error > 0)
        critical = stats.t.isf(self.significance / 2, np.maximum(freedom, 1))
        return float((np.abs(means[0] - means[1]) > critical * np.sqrt(error)).mean())

    def describe(self) -> str:
        """Describe the sample size in one sentence."""
        size = f"{self.users_per_arm:,} users per arm"
        if self.treatment_users != self.control_users:
            size = f"{self.treatment_users:,} users in the treatment arm and {self.control_users:,} in the control"
        gain = f"{_difference(abs(self.difference))} clicks per user ({format_percent(abs(self.lift))})"
        return f"{size} detect a difference of {gain} with power {format_percent(self.power)}."

    def summary(self) -> str:
        """Overview in several lines: both policies, users, power, and what monitoring costs."""
        lines = [self.describe()]
        for name, arm, n in self._arms():
            lines += [f"  {name}: {arm.name}", f"    {n:,} users, {_moments(arm)}"]
        return "\n".join([*lines, *self.sentences(), *self.notes])

    def sentences(self) -> list[str]:
        """Sentences about the test, the detectable effect, and continuous monitoring."""
        requested = format_percent(self.requested_power)
        return [
            f"Two-sided Welch test at significance {self.significance:g}.",
            f"Minimum detectable effect with {self.users:,} users at power {requested}: "
            f"{_difference(self.detectable)} clicks per user.",
            f"For continuous monitoring by a confidence sequence, plan {self.sequential_users:,} users in total.",
        ]

    def rows(self) -> list[list[str]]:
        """Rows of a table, one per arm, in the order of `COLUMNS`."""
        return [
            [name, arm.name, f"{n:,}", *(f"{value:.3f}" for value in (arm.mean, sqrt(arm.variance), arm.skewness))]
            for name, arm, n in self._arms()
        ]

    def to_frame(self) -> Any:
        """Return a frame of pandas or polars with one row per arm."""
        arms = self._arms()
        return to_frame(
            {
                "arm": [name for name, _, _ in arms],
                "policy": [arm.name for _, arm, _ in arms],
                "users": [n for _, _, n in arms],
                "mean": [arm.mean for _, arm, _ in arms],
                "variance": [arm.variance for _, arm, _ in arms],
                "skewness": [arm.skewness for _, arm, _ in arms],
            }
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the distributions of clicks, and the power over the number of users.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.abtest.plot import draw_sample_size
        from departing.plotting.figures import save

        return save(draw_sample_size(self), path)

    def _arms(self) -> list[tuple[str, Returns, int]]:
        return [
            ("treatment", self.treatment, self.treatment_users),
            ("control", self.control, self.control_users),
        ]

    def __repr__(self) -> str:
        return f"<SampleSize: {self.describe()}>"

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), COLUMNS, self.rows(), [*self.sentences(), *self.notes])


def split_users(users: int, share: float) -> tuple[int, int]:
    """Users of the treatment and of the control arm."""
    treated = round(users * share)
    return treated, users - treated


def power_of(
    treatment: Returns, control: Returns, difference: float, users: int, share: float, significance: float
) -> float:
    """Power if the difference of the means were `difference` and the distributions were otherwise the same."""
    n, m = split_users(users, share)
    arms = (
        ArmMoments(control.mean + difference, treatment.variance, treatment.third_moment, n),
        ArmMoments(control.mean, control.variance, control.third_moment, m),
    )
    return rejection_probability(*arms, significance)


def _detectable(
    treatment: Returns, control: Returns, users: int, share: float, significance: float, requested: float
) -> float:
    """Smallest difference, in the direction of the policies' difference, with the requested power."""
    sign = 1 if treatment.mean >= control.mean else -1
    n, m = split_users(users, share)
    low, high = 0.0, 100 * sqrt(treatment.variance / n + control.variance / m)
    for _ in range(60):
        middle = (low + high) / 2
        found = power_of(treatment, control, sign * middle, users, share, significance) >= requested
        low, high = (low, middle) if found else (middle, high)
    return high


def _difference(clicks: float) -> str:
    """Format a difference of clicks per user, never as 0.000."""
    return format_clicks_per_user(clicks) if clicks >= SMALL else format_significant(clicks)


def _moments(arm: Returns) -> str:
    spread = f"standard deviation {sqrt(arm.variance):.3f}, skewness {arm.skewness:.2f}"
    return f"{format_clicks_per_user(arm.mean)} clicks per user, {spread}"
