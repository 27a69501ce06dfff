"""How a run went: clicks and regret after some users, and after more of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan

import numpy as np
import numpy.typing as npt

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import evaluate
from departing.learning.protocol import AssignedPolicy, LastOutcomeRule
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_float
from departing.planning.plan import plan

PER_DECADE = 10
OFF = 0.02  # clicks that the regret of the users of one policy may be off
FINEST = 1e-9  # how closely policies and the optimum are evaluated at most


def checkpoints_of(users: int) -> Integers:
    """Numbers of users on a log scale, ten in each decade, the last one `users`.

    >>> checkpoints_of(20).tolist()
    [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20]
    """
    exponents = np.arange(0, int(PER_DECADE * np.log10(users)) + 1) / PER_DECADE
    return np.unique(np.append(np.minimum(np.rint(10**exponents), users), users).astype(np.int64))


@dataclass(frozen=True)
class Piece:
    """`users` of those who came up to checkpoint `stretch` (and after the one before) had this policy."""

    stretch: int
    policy: AssignedPolicy
    users: int


@dataclass(frozen=True, eq=False)
class RegretCurve:
    """The course of a run: `clicks` of the users up to each of the `checkpoints`, and the policies they had.

    `pieces` is None if the learner does not tell which policies it uses.
    """

    instance: Instance
    checkpoints: Integers
    clicks: Integers
    pieces: Sequence[Piece] | None = field(repr=False)
    known: Bounds | None = field(default=None, repr=False)

    @cached_property
    def optimum(self) -> Bounds:
        """What the best policy brings one user."""
        if self.known is not None:
            return self.known
        return plan(self.instance, gap=optimum_gap(int(self.checkpoints[-1])))

    @cached_property
    def earned(self) -> Floats:
        """The clicks that the users up to each checkpoint were to expect, by the exact values of their policies."""
        if self.pieces is None:
            raise InputError("This learner does not tell its policies, so only realised regret is known.")
        worth: dict[AssignedPolicy, float] = {}
        users: dict[AssignedPolicy, int] = {}
        for piece in self.pieces:
            users[piece.policy] = users.get(piece.policy, 0) + piece.users
        for policy, n in users.items():
            worth[policy] = value_of(self.instance, policy, max(OFF / n, FINEST))
        earned = np.zeros(len(self.checkpoints))
        for piece in self.pieces:
            earned[piece.stretch] += piece.users * worth[piece.policy]
        return np.asarray(earned.cumsum())

    @property
    def regret(self) -> Floats:
        """Expected regret up to each checkpoint: what the best policy would bring, less what is to be expected."""
        return np.asarray(self.checkpoints * self.optimum.value - self.earned, np.float64)

    @property
    def realised(self) -> Floats:
        """Realised regret up to each checkpoint: what the best policy would bring, less the clicks there were."""
        return np.asarray(self.checkpoints * self.optimum.value - self.clicks, np.float64)


def optimum_gap(users: int) -> float:
    """How closely to plan, so that the regret of `users` is off by a small part of a click, if that can be had."""
    return max(OFF / users, FINEST)


def value_of(instance: Instance, policy: AssignedPolicy, tolerance: float) -> float:
    """What `policy` brings one user; a policy that is more than a function of counts tells so itself."""
    if isinstance(policy, LastOutcomeRule):
        return policy.value(instance)
    return evaluate(instance, policy, tolerance).value


@dataclass(frozen=True)
class Slope:
    """The slope of a line on log-log axes, with its standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.stderr:.3f}"


def slope(users: npt.ArrayLike, regret: npt.ArrayLike, first: float, last: float) -> Slope:
    """How regret grows from `first` to `last` users: 1 is linear, 0.5 the square root.

    `regret[..., n]` at `users[n]`. Of one curve it is the least-squares line, with its residual error; of several
    curves the mean of their slopes, with the standard error of that.

    >>> slope([1, 10, 100, 1000], [2.0, 20.0, 200.0, 2000.0], 10, 1000).value
    1.0
    """
    at = np.asarray(users, np.float64)
    curves = np.atleast_2d(np.asarray(regret, np.float64))
    inside = (at >= first) & (at <= last)
    if inside.sum() < 2:
        raise InputError(f"Between {first:g} and {last:g} users there are fewer than two checkpoints.")
    x = np.log(at[inside])
    x -= x.mean()
    y = np.log(np.maximum(curves[:, inside], 1e-9))
    slopes = y @ x / (x @ x)
    if len(curves) > 1:
        return Slope(round(float(slopes.mean()), 12), float(slopes.std(ddof=1) / np.sqrt(len(slopes))))
    rest = y[0] - y[0].mean() - slopes[0] * x
    free = len(x) - 2
    stderr = float(np.sqrt(rest @ rest / free / (x @ x))) if free else nan
    return Slope(round(float(slopes[0]), 12), stderr)


def split(come: int, n: int, checkpoints: Integers) -> list[tuple[int, int]]:
    """How `n` users who come after `come` others fall between the checkpoints: (stretch, users)."""
    parts = []
    while n:
        stretch = int(np.searchsorted(checkpoints, come, side="right"))
        now = min(n, int(checkpoints[stretch]) - come)
        parts.append((stretch, now))
        come, n = come + now, n - now
    return parts


def as_optimum(optimum: float | Bounds | None) -> Bounds | None:
    """The optimum as a bracket."""
    if optimum is None or isinstance(optimum, Bounds):
        return optimum
    value = check_float("optimum", optimum, 0.0, np.inf)
    return Bounds(value, value)
