"""`power`: users that an A/B test of two policies needs, from the exact distributions of their clicks."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from departing.abtest.returns import Returns, mixture_returns, policy_returns
from departing.abtest.sequence import MIN_USERS, users_to_decide
from departing.abtest.welch import ArmMoments, rejection_probability
from departing.fitting.fit import Fit
from departing.formatting import format_clicks_per_user, format_percent
from departing.html_tables import html_repr
from departing.model import random_streams
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Instance
from departing.model.logged_policy import LoggedPolicy
from departing.model.validation import MAX_USERS, check_fraction, check_int, check_seed
from departing.policy.library import PolicyLike, describe, to_policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = "log"
# Relative difference of two values below which they count as equal: that of the computed distributions is smaller.
NO_DIFFERENCE = 1e-5
# Relative difference of the clicks of the log and of its shown frequencies above which a note appears; a rule of
# thumb, it changes no result.
LOG_NOTE = 0.1
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
        return _split(self.users, self.share)[0]

    @property
    def control_users(self) -> int:
        """Users of the control arm."""
        return _split(self.users, self.share)[1]

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
        unit_error = sqrt(self.treatment.variance / self.share + self.control.variance / (1 - self.share))
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
        return _power(self.treatment, self.control, users, self.share, self.significance)

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
        gain = f"{format_clicks_per_user(abs(self.difference))} clicks per user ({format_percent(abs(self.lift))})"
        return f"{size} detect a difference of {gain} with power {format_percent(self.power)}."

    def summary(self) -> str:
        """Overview in several lines: both policies, users, power, and what monitoring costs."""
        lines = [self.describe()]
        for name, arm, n in self._arms():
            lines.append(f"  {name}, {arm.name}: {n:,} users, {_moments(arm)}")
        return "\n".join([*lines, *self.sentences(), *self.notes])

    def sentences(self) -> list[str]:
        """Sentences about the test, the detectable effect, and continuous monitoring."""
        requested = format_percent(self.requested_power)
        return [
            f"Two-sided Welch test at significance {self.significance:g}.",
            f"Minimum detectable effect with {self.users:,} users at power {requested}: "
            f"{format_clicks_per_user(self.detectable)} clicks per user.",
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

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), COLUMNS, self.rows(), [*self.sentences(), *self.notes])


def power(
    source: Fit | Instance | str | os.PathLike[str],
    policy: PolicyLike,
    against: PolicyLike = LOG,
    *,
    power: float = 0.8,
    significance: float = 0.05,
    share: float = 0.5,
    users: int | None = None,
    max_nodes: int | None = None,
) -> SampleSize:
    """Compute the users that an A/B test of two policies needs, from the exact distributions of their clicks.

    Parameters
    ----------
    source : Fit, Decision, Instance or path
        Model of the users: a fit, a decision of `plan(fit)`, an instance, or a file of `Fit.save`.
    policy : Policy, Plan, Decision or str
        Policy of the treatment arm, also in short form such as "greedy" or "fixed:news".
    against : "log", or like `policy`
        Policy of the control arm. "log" is the policy of the log that the fit was made of: a random category at every
        step, with the frequencies at which the log showed each category.
    power : float
        Probability with which the test is to find the difference.
    significance : float
        Significance level of the two-sided test.
    share : float
        Share of the users in the treatment arm.
    users : int, optional
        Users of both arms together, if their number is given: computes the power and the minimum detectable effect.
    max_nodes : int, optional
        Largest number of nodes (distinct counts) to expand for each policy, as in `evaluate`.

    Returns
    -------
    SampleSize
        Users per arm, power, and minimum detectable effect.

    Raises
    ------
    InputError
        If the policies have equal values, the source has no log for `against`, or an argument is invalid.

    Examples
    --------
    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    >>> size = power(blog, "fixed:sports", against="fixed:economics")
    >>> size.users_per_arm
    62605
    >>> print(size.describe())
    62,605 users per arm detect a difference of 0.017 clicks per user (2.7%) with power 80%.
    """
    requested, significance = check_fraction("power", power), check_fraction("significance", significance)
    share = check_fraction("share", share)
    if requested <= significance:
        raise InputError(f"power is {requested:g}; expected more than the significance, {significance:g}.", "power")
    users = None if users is None else check_int("users", users, _smallest(share), MAX_USERS)
    instance, log = _model(source)
    treatment = _arm(instance, policy, max_nodes)
    notes: list[str] = []
    if isinstance(against, str) and against == LOG:
        if log is None:
            raise InputError(_missing_log(source), "against")
        control = mixture_returns("policy of the log", instance, log.shown)
        notes += _log_notes(log, control)
    else:
        control = _arm(instance, against, max_nodes)
    if abs(treatment.mean - control.mean) <= NO_DIFFERENCE * max(treatment.mean, control.mean):
        raise InputError(
            f"{treatment.name} and {control.name} both have {format_clicks_per_user(control.mean)} expected clicks "
            "per user. There is no difference, so no number of users suffices; compare other policies."
        )
    if users is None:
        each = 2 if share == 0.5 else 1  # equal arms grow by one user each
        first = ceil(_smallest(share) / each)
        users = each * _least(lambda n: _power(treatment, control, each * n, share, significance) >= requested, first)
        if users > MAX_USERS:
            raise InputError(
                f"The difference of {treatment.mean - control.mean:.3g} clicks per user needs more than "
                f"{MAX_USERS:g} users; compare other policies."
            )
    reached = _power(treatment, control, users, share, significance)
    if min(_split(users, share)) < MIN_USERS:
        notes.append(
            f"An arm has fewer than {MIN_USERS} users, where the approximation of the test is rough; "
            f"use at least {ceil(MIN_USERS / min(share, 1 - share)):,} users in total."
        )
    return SampleSize(treatment, control, users, share, reached, requested, significance, tuple(notes))


def _model(source: Any) -> tuple[Instance, LoggedPolicy | None]:
    """Instance of a source, and the policy of its log if it has one."""
    source = getattr(source, "fit", source)  # a Decision
    if isinstance(source, Fit):
        return source.instance, LoggedPolicy.from_histories(source.histories)
    if isinstance(source, Instance):
        return source, None
    if isinstance(source, str | os.PathLike):
        instance = Instance.load(source)
        return instance, LoggedPolicy.load(source, instance.n_categories)
    raise InputError(
        f"source is {source!r:.80}; expected a Fit, a Decision, an Instance, or the path of a saved fit."
    )


def _missing_log(source: Any) -> str:
    if isinstance(source, Instance):
        return (
            "against is 'log', but an instance has no log; expected a fit as `source`, or a policy as `against`, "
            "such as 'fixed:C' or 'greedy'."
        )
    return (
        f"against is 'log', but {str(source)!r} has no table 'log' with the shown frequencies; write the file again "
        "with departing fit LOG -o FILE, or give a policy as `against`, such as 'fixed:C' or 'greedy'."
    )


def _log_notes(log: LoggedPolicy, control: Returns) -> list[str]:
    notes = ["The policy of the log is taken as a random category at every step, with the logged frequencies."]
    if log.clicks_per_user is not None and abs(control.mean - log.clicks_per_user) > LOG_NOTE * control.mean:
        notes.append(
            f"Users of the log clicked {format_clicks_per_user(log.clicks_per_user)} times on average, but "
            f"{format_clicks_per_user(control.mean)} are expected of random categories: the log adapts to its users, "
            "or the model does not fit. Give the policy of the log as `against`."
        )
    return notes


def _arm(instance: Instance, policy: PolicyLike, max_nodes: int | None) -> Returns:
    resolved = to_policy(policy, instance.categories, instance)
    max_nodes = None if max_nodes is None else check_int("max_nodes", max_nodes)
    return policy_returns(describe(resolved, instance), instance, resolved, max_nodes)


def _moments(arm: Returns) -> str:
    spread = f"standard deviation {sqrt(arm.variance):.3f}, skewness {arm.skewness:.2f}"
    return f"{format_clicks_per_user(arm.mean)} clicks per user, {spread}"


def _smallest(share: float) -> int:
    """Smallest number of users with two in each arm."""
    return _least(lambda n: min(_split(n, share)) >= 2, 4)


def _split(users: int, share: float) -> tuple[int, int]:
    """Users of the treatment and of the control arm."""
    treated = round(users * share)
    return treated, users - treated


def _power(treatment: Returns, control: Returns, users: int, share: float, significance: float) -> float:
    return _shifted_power(treatment, control, treatment.mean - control.mean, users, share, significance)


def _shifted_power(
    treatment: Returns, control: Returns, difference: float, users: int, share: float, significance: float
) -> float:
    """Power if the difference of the means were `difference` and the distributions were otherwise the same."""
    n, m = _split(users, share)
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
    n, m = _split(users, share)
    low, high = 0.0, 100 * sqrt(treatment.variance / n + control.variance / m)
    for _ in range(60):
        middle = (low + high) / 2
        found = _shifted_power(treatment, control, sign * middle, users, share, significance) >= requested
        low, high = (low, middle) if found else (middle, high)
    return high


def _least(holds: Callable[[int], bool], start: int) -> int:
    """Smallest integer from `start` for which `holds`, which is false below some number and true above it."""
    step, high = 1, start
    while not holds(high) and high <= 4 * MAX_USERS:
        step, high = 2 * step, high + 2 * step
    low = start
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
