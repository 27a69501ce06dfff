"""What a simulation returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import nan, sqrt
from statistics import NormalDist

import numpy as np

from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.model.validation import check_fraction
from departing.simulation.regret_curve import RegretCurve, Slope, slope

Progress = Callable[[int], None]  # called with the number of users who finished since the last call


@dataclass(frozen=True, eq=False)
class Run:
    """A finished simulation: `users` of them, their `clicks` and `steps` in all, and how each fared.

    `returns` are the numbers of clicks that occurred, and `returns_users` how many users had each.
    `truncated` users had not departed when we stopped looking.
    """

    users: int
    clicks: int
    steps: int
    truncated: int
    engine: str
    seed: int
    returns: Integers = field(repr=False)
    returns_users: Integers = field(repr=False)
    _replay: Callable[[], Histories] = field(repr=False)
    course: RegretCurve | None = field(default=None, repr=False)

    @property
    def mean(self) -> float:
        """Clicks per user."""
        return self.clicks / self.users

    @cached_property
    def stderr(self) -> float:
        """The standard error of the mean; not a number for a single user."""
        return standard_error(self.returns, self.returns_users)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The confidence interval of the mean, by the normal approximation."""
        return normal_interval(self.mean, self.stderr, confidence)

    @cached_property
    def histories(self) -> Histories:
        """The distinct counts of all users with how many users have each.

        The lanes engine does not keep them: it plays the same run again from its seed, counting.
        """
        return self._replay()

    @property
    def checkpoints(self) -> Integers:
        """Numbers of users on a log scale, the last one all; of a run under one policy just that."""
        return self._course.checkpoints

    @cached_property
    def regret(self) -> Floats:
        """Cumulative expected regret at the checkpoints, by the exact value of the policy each user was given."""
        return self._course.regret

    @cached_property
    def realised(self) -> Floats:
        """Cumulative realised regret at the checkpoints: what the best policy would bring, less the clicks."""
        return self._course.realised

    @property
    def _course(self) -> RegretCurve:
        assert self.course is not None
        return self.course

    def slope(self, first: float, last: float) -> Slope:
        """How the expected regret grows between so many users, on log-log axes; see `slope`."""
        return slope(self.checkpoints, self.regret, first, last)


def quiet(users: int) -> None:
    """Report nothing."""


def run_from_histories(histories: Histories, engine: str, seed: int, course: RegretCurve | None = None) -> Run:
    """The run in which users had these histories."""
    times = histories.multiplicity
    returns, users = add_up([histories.clicks], [times])
    return Run(
        users=histories.users,
        clicks=total(histories.clicks, times),
        steps=total(histories.steps, times),
        truncated=int(times[histories.censored].sum()),
        engine=engine,
        seed=seed,
        returns=returns,
        returns_users=users,
        _replay=partial(_keep, histories),
        course=course,
    )


def _keep(histories: Histories) -> Histories:
    return histories


def total(values: Integers, times: Integers) -> int:
    """The sum of `values * times` in Python's integers, which do not overflow."""
    return sum(v * n for v, n in zip(values.tolist(), times.tolist(), strict=True))


def add_up(values: list[Integers], times: list[Integers]) -> tuple[Integers, Integers]:
    """The distinct values that occur, in order, and how often each does."""
    found, inverse = np.unique(np.concatenate(values), return_inverse=True)
    often = np.zeros(len(found), np.int64)
    np.add.at(often, inverse, np.concatenate(times))
    return found[often > 0], often[often > 0]


def standard_error(values: Integers, times: Integers) -> float:
    """The standard error of the mean of `values`, each occurring `times` times."""
    n = int(times.sum())
    if n < 2:
        return nan
    mean = float(values @ (times / n))
    variance = float((values - mean) ** 2 @ (times / (n - 1)))
    return sqrt(variance / n)


def normal_interval(mean: float, stderr: float, confidence: float) -> tuple[float, float]:
    """`mean` plus and minus the normal quantile times `stderr`."""
    z = NormalDist().inv_cdf((1 + check_fraction("confidence", confidence)) / 2)
    return mean - z * stderr, mean + z * stderr
