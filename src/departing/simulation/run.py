"""Run: the result of a simulation."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import fsum, nan, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count
from departing.html_tables import html_repr
from departing.model.counts import Integers
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, Floats, Instance
from departing.model.packing import by_rows
from departing.model.validation import check_confidence
from departing.simulation.regret_curve import RegretCurve, Slope, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from departing.learning.lower_bound.result import RegretBound


Rewards = npt.NDArray[Any]  # clicks of users, or their rewards


@dataclass(frozen=True, eq=False)
class Run:
    """Result of a simulation.

    Attributes
    ----------
    users : int
        Number of users simulated.
    clicks, steps : int
        Clicks and recommendations of all users together.
    reward : float
        Reward of all users together in `unit`; the clicks by default.
    mean : float
        Reward per user.
    truncated : int
        Users who had not departed after `max_steps`; not those who finished at the horizon of the instance.
    engine : str
        Engine that was used.
    seed : int
    returns : array [R]
        Distinct numbers of clicks of a user, in order.
    returns_users : array [R]
        Number of users with each of these.
    regret_curve : RegretCurve
        Clicks and regret at checkpoints; a run under one policy has one checkpoint, all users.
    """

    users: int = field(init=False)
    clicks: int = field(init=False)
    steps: int
    truncated: int
    engine: str
    seed: int
    returns: Integers = field(repr=False)
    returns_users: Integers = field(repr=False)
    regret_curve: RegretCurve = field(repr=False)
    _count_histories: Callable[[], Histories] = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", int(self.returns_users.sum()))
        object.__setattr__(self, "clicks", exact_total(self.returns, self.returns_users))

    @property
    def unit(self) -> str:
        """Unit of the reward."""
        return self.regret_curve.instance.unit

    @cached_property
    def reward(self) -> float:
        """Reward of all users together in `unit`; the number of clicks by default."""
        if "reward" not in self.regret_curve.instance.extensions:
            return self.clicks
        rewards, users = self._user_rewards
        return fsum((rewards * users).tolist())

    @property
    def mean(self) -> float:
        """Reward per user in `unit`; clicks per user by default."""
        return self.reward / self.users

    @cached_property
    def stderr(self) -> float:
        """Standard error of the mean; NaN for a single user."""
        return standard_error(*self._user_rewards)

    @property
    def _user_rewards(self) -> tuple[Rewards, Integers]:
        """Rewards of a user, not necessarily distinct, and the number of users with each."""
        instance = self.regret_curve.instance
        if "reward" not in instance.extensions:
            return self.returns, self.returns_users
        if instance.equal_rewards:
            return instance.reward[0] * self.returns, self.returns_users
        return user_rewards(instance, self.histories.counts), self.histories.multiplicity

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean, by the normal approximation."""
        return normal_interval(self.mean, self.stderr, confidence)

    @cached_property
    def histories(self) -> Histories:
        """Distinct counts of all users, and the number of users with each.

        They have the rewards, unit and horizon of the instance, so that a fit of them has too. The engines `lanes`
        and `arms` do not keep them: they repeat the run from its seed and count.
        """
        return self._count_histories().of_site(self.regret_curve.instance)

    @property
    def checkpoints(self) -> Integers:
        """Numbers of users at which regret is given, `[C]`."""
        return self.regret_curve.checkpoints

    @cached_property
    def regret(self) -> Floats:
        """Cumulative expected regret at the checkpoints, `[C]`, by the exact value of the policy of each user."""
        return self.regret_curve.regret

    @cached_property
    def realised_regret(self) -> Floats:
        """Cumulative realised regret at the checkpoints, `[C]`: value of the optimal policy less the clicks."""
        return self.regret_curve.realised_regret

    def slope(self, first: float, last: float) -> Slope:
        """Growth rate of the expected regret between `first` and `last` users on log-log axes; see `slope`."""
        return slope(self.checkpoints, self.regret, first, last)

    def describe(self) -> str:
        """Result in one sentence."""
        low, high = self.interval()
        interval = f"95% interval {low:.6g} to {high:.6g}"
        if "reward" in self.regret_curve.instance.extensions:
            return f"{format_count(self.users, 'user')} brought {self.mean:.6g} {self.unit} on average ({interval})."
        return f"{format_count(self.users, 'user')} clicked {self.mean:.6g} times on average ({interval})."

    def summary(self) -> str:
        """Overview for printing: users, clicks, steps and their means."""
        low, high = self.interval()
        lines = [
            f"Users: {self.users:,} (engine {self.engine}, seed {self.seed})",
            f"{self.unit.capitalize()} per user: {self.mean:.6g} ± {self.stderr:.2g} "
            f"(95% interval {low:.6g} to {high:.6g})",
            f"Steps per user: {self.steps / self.users:.6g}",
        ]
        if self.truncated:
            lines.append(f"Truncated users: {self.truncated:,} ({self.truncated / self.users:.3%})")
        return "\n".join(lines)

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the distribution of clicks as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each number of clicks that occurred: clicks, users. `regret_curve.to_frame()` has the
            checkpoints.
        """
        return to_frame({"clicks": self.returns, "users": self.returns_users})

    def _repr_html_(self) -> str:
        rows = [
            ["users", f"{self.users:,}"],
            [f"{self.unit} per user", f"{self.mean:.6g} ± {self.stderr:.2g}"],
            ["steps per user", f"{self.steps / self.users:.6g}"],
            ["truncated users", f"{self.truncated:,}"],
            ["engine, seed", f"{self.engine}, {self.seed}"],
        ]
        return html_repr(self.describe(), [], rows)

    def plot(self, path: str | os.PathLike[str] | None = None, bound: "RegretBound | None" = None) -> "Figure":
        """Draw the regret and the policies of a learner over time, or the clicks per user under a policy.

        With a learner, the upper panel has the cumulative regret by users on log-log axes, the loss of the best
        fixed category and the lower bound. The lower panel has the share of the users between two checkpoints who
        were assigned each of the main policies, and a list of these with their users and their loss per user. A
        learner that does not report its policies has the first panel only, with realised regret. The axes of a site
        that changes are linear, and dotted lines mark the changes.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.
        bound : RegretBound, optional
            Lower bound of `regret_bound` on the regret of a learner.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.plotting.figures import save

        if len(self.checkpoints) > 1:
            from departing.simulation.learning_plot import LearningCurves, draw_learning

            return save(draw_learning(LearningCurves.of_run(self, bound)), path)
        from departing.simulation.plot import draw_clicks

        return save(draw_clicks(self), path)


def run_from_histories(
    histories: Histories, engine: str, seed: int, regret_curve: RegretCurve, max_steps: int | None = None
) -> Run:
    """Run in which users had these histories, truncated at `max_steps` or finished at the horizon of the instance."""
    users = histories.multiplicity
    returns, steps = merge_values([histories.clicks], [users]), exact_total(histories.steps, users)
    truncated = int(users[histories.censored].sum()) if truncates(regret_curve.instance, max_steps) else 0
    return Run(steps, truncated, engine, seed, *returns, regret_curve, partial(_same, histories))


def truncates(instance: Instance, max_steps: int | None) -> bool:
    """True if active users are truncated: they have not finished at the horizon of the instance."""
    return instance.horizon is None or (max_steps is not None and max_steps < instance.horizon)


def user_rewards(instance: Instance, counts: Integers) -> Floats:
    """Rewards `[n]` of users with `counts[n, K, 4]`."""
    reward = np.zeros((instance.n_categories, 4))
    reward[:, CLICK] = reward[:, CLICK_DEPART] = instance.reward
    return np.asarray(
        by_rows(lambda rows: rows.reshape(len(rows), reward.size) @ reward.reshape(-1), counts), np.float64
    )


def total_reward(instance: Instance, histories: Histories) -> float:
    """Reward of all users: an integer for clicks, otherwise a float without accumulated rounding errors."""
    if "reward" not in instance.extensions:
        return exact_total(histories.clicks, histories.multiplicity)
    return fsum((user_rewards(instance, histories.counts) * histories.multiplicity).tolist())


def _same(histories: Histories) -> Histories:
    return histories  # a function of the module, so that runs can be pickled


def exact_total(values: Integers, multiplicity: Integers) -> int:
    """Sum of `values * multiplicity` in Python's integers, which do not overflow."""
    return sum(v * n for v, n in zip(values.tolist(), multiplicity.tolist(), strict=True))


def merge_values(values: list[Integers], multiplicities: list[Integers]) -> tuple[Integers, Integers]:
    """Distinct values that occur, in order, and the multiplicity of each."""
    distinct, inverse = np.unique(np.concatenate(values), return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, inverse, np.concatenate(multiplicities))
    return distinct[total > 0], total[total > 0]


def standard_error(values: Rewards, multiplicity: Integers) -> float:
    """Standard error of the mean of `values`, each occurring `multiplicity` times."""
    n = int(multiplicity.sum())
    if n < 2:
        return nan
    mean = float(values @ (multiplicity / n))
    variance = float((values - mean) ** 2 @ (multiplicity / (n - 1)))
    return sqrt(variance / n)


def normal_interval(mean: float, stderr: float, confidence: float) -> tuple[float, float]:
    """`mean` plus and minus the normal quantile times `stderr`."""
    z = NormalDist().inv_cdf((1 + check_confidence(confidence)) / 2)
    return mean - z * stderr, mean + z * stderr
