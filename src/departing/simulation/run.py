"""Run: the result of a simulation."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import nan, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.formatting import format_count
from departing.html_tables import html_repr
from departing.model.counts import Integers
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.model.validation import check_confidence
from departing.simulation.regret_curve import RegretCurve, Slope, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from departing.learning.lower_bound.result import RegretBound


@dataclass(frozen=True, eq=False)
class Run:
    """Result of a simulation.

    Attributes
    ----------
    users : int
        Number of users simulated.
    clicks, steps : int
        Clicks and recommendations of all users together.
    truncated : int
        Users who had not departed after `max_steps`.
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
    def mean(self) -> float:
        """Clicks per user."""
        return self.clicks / self.users

    @cached_property
    def stderr(self) -> float:
        """Standard error of the mean; NaN for a single user."""
        return standard_error(self.returns, self.returns_users)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean, by the normal approximation."""
        return normal_interval(self.mean, self.stderr, confidence)

    @cached_property
    def histories(self) -> Histories:
        """Distinct counts of all users, and the number of users with each.

        The engines `lanes` and `arms` do not keep them: they repeat the run from its seed and count.
        """
        return self._count_histories()

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
        return f"{format_count(self.users, 'user')} clicked {self.mean:.6g} times on average ({interval})."

    def summary(self) -> str:
        """Overview for printing: users, clicks, steps and their means."""
        low, high = self.interval()
        lines = [
            f"Users: {self.users:,} (engine {self.engine}, seed {self.seed})",
            f"Clicks per user: {self.mean:.6g} ± {self.stderr:.2g} (95% interval {low:.6g} to {high:.6g})",
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
            ["clicks per user", f"{self.mean:.6g} ± {self.stderr:.2g}"],
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
        learner that does not report its policies has the first panel only, with realised regret.

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


def run_from_histories(histories: Histories, engine: str, seed: int, regret_curve: RegretCurve) -> Run:
    """Run in which users had these histories."""
    users = histories.multiplicity
    returns, steps = merge_values([histories.clicks], [users]), exact_total(histories.steps, users)
    truncated = int(users[histories.censored].sum())
    return Run(steps, truncated, engine, seed, *returns, regret_curve, partial(_same, histories))


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


def standard_error(values: Integers, multiplicity: Integers) -> float:
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
