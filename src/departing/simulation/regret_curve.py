"""Regret curve of a run: clicks and regret at checkpoints, numbers of users on a log scale."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import evaluate
from departing.learning.protocol import AssignedPolicy, LastOutcomeRule
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Floats, Instance
from departing.model.validation import check_float
from departing.planning.plan import plan_reference
from departing.policy.protocol import policy_in_segment

# Ten points a decade draw a smooth curve on a log axis and make at most 151 of them (for 10^15 users).
CHECKPOINTS_PER_DECADE = 10
# Error allowed in the cumulative regret of the users of one policy, in clicks (of mean reward): far below the regret
# of any learner.
REGRET_ERROR = 0.02
# Smallest gap that policies and the optimum are evaluated to: near the rounding error of long sums.
MIN_GAP = 1e-9
# Factor of the gap that is accepted for the regret so far: a policy that stays in use is evaluated once a decade.
ROUGHER = 10.0


def log_checkpoints(users: int) -> Integers:
    """Numbers of users on a log scale, ten in each decade, the last one `users`.

    >>> log_checkpoints(20).tolist()
    [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20]
    """
    exponents = np.arange(0, int(CHECKPOINTS_PER_DECADE * np.log10(users)) + 1) / CHECKPOINTS_PER_DECADE
    return np.unique(np.append(np.minimum(np.rint(10**exponents), users), users).astype(np.int64))


def fixed_name(changes: bool) -> str:
    """Name of the fixed category that regret is compared with."""
    return "best category of each period" if changes else "best fixed category"


@dataclass(frozen=True)
class PolicySegment:
    """A number of `users` who were given the same policy, within the interval up to checkpoint `interval`."""

    interval: int
    policy: AssignedPolicy
    users: int


class PolicyValues:
    """Values of policies on an instance, each evaluated once for a gap."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._known: dict[Hashable, dict[float, float]] = {}
        self._segments: list[tuple[str, float, PolicyValues]] = []  # name, share, and values in the segment
        if instance.segments is not None:
            parts = zip(instance.segments.names, instance.segments.share.tolist(), strict=True)
            self._segments = [(name, share, PolicyValues(instance.in_segment(name))) for name, share in parts]

    def value(self, policy: AssignedPolicy, gap: float) -> float:
        """Value of `policy`, evaluated to `gap`: the same number, whichever values are known already."""
        if self._segments:
            return sum(share * part.value(_in_segment(policy, name), gap) for name, share, part in self._segments)
        if not isinstance(policy, Hashable):
            return _exact_value(self._instance, policy, gap)
        known = self._known.setdefault(policy, {})
        if gap not in known:
            known[gap] = _exact_value(self._instance, policy, gap)
        return known[gap]

    def estimate(self, policy: AssignedPolicy, gap: float) -> float:
        """Value of `policy`, evaluated to `gap` unless it is known to ROUGHER times this gap."""
        if self._segments:
            return sum(share * part.estimate(_in_segment(policy, name), gap) for name, share, part in self._segments)
        smallest = min(self._known.get(policy_key(policy), ()), default=np.inf)  # no identity is a key
        return self.value(policy, smallest if smallest <= ROUGHER * gap else gap)


@dataclass(frozen=True, eq=False)
class RegretCurve:
    """Cumulative clicks and regret of a run at checkpoints; regret is in the unit of the instance.

    Attributes
    ----------
    instance : Instance
    checkpoints : array [C]
        Numbers of users, in order of arrival.
    clicks : array [C]
        Clicks of the users up to each checkpoint.
    policy_segments : sequence of PolicySegment, optional
        Policies that users were given; None if the learner does not report its policies, and then expected regret is
        not known.
    known_optimum : Bounds, optional
        Value of the optimal policy; None to plan when it is first needed.
    values : PolicyValues, optional
        Values of policies that are known already.
    rewards : array [C], optional
        Reward of the users up to each checkpoint; None if it is their clicks.
    """

    instance: Instance
    checkpoints: Integers
    clicks: Integers
    policy_segments: Sequence[PolicySegment] | None = field(repr=False)
    known_optimum: Bounds | None = field(default=None, repr=False)
    values: PolicyValues | None = field(default=None, repr=False)
    rewards: Floats | None = None

    @classmethod
    def of_policy(
        cls, instance: Instance, policy: AssignedPolicy, users: int, clicks: int, reward: float | None = None
    ) -> "RegretCurve":
        """Curve of a run under one policy with these `clicks` and `reward`, with the one checkpoint `users`."""
        rewards = np.array([reward], np.float64) if "reward" in instance.extensions else None
        used = [PolicySegment(0, policy, users)]
        return cls(instance, np.array([users]), np.array([clicks]), used, rewards=rewards)

    @cached_property
    def optimum(self) -> Bounds:
        """Bounds on the value of the optimal policy, by segment if there are any."""
        if self.known_optimum is not None:
            return self.known_optimum
        return plan_optimum(self.instance, int(self.checkpoints[-1]))

    @cached_property
    def expected_clicks(self) -> Floats:
        """Expected reward of the users up to each checkpoint, by the exact values of their policies, `[C]`."""
        if self.policy_segments is None:
            raise InputError("This learner does not report its policies; use realised_regret instead of regret.")
        expected = np.zeros(len(self.checkpoints))
        for segment, value in zip(self.policy_segments, self.segment_values, strict=True):
            expected[segment.interval] += segment.users * value
        return np.asarray(expected.cumsum())

    @cached_property
    def segment_values(self) -> list[float]:
        """Exact value of the policy of every segment, as precise as the regret of its users requires."""
        segments, users = self.policy_segments or (), Counter[Hashable]()
        for segment in segments:
            users[policy_key(segment.policy)] += segment.users
        values, scale = self.values or PolicyValues(self.instance), regret_scale(self.instance)
        return [values.value(each.policy, scale * regret_gap(users[policy_key(each.policy)])) for each in segments]

    @property
    def segment_losses(self) -> list[float]:
        """Loss per user of the policy of every segment, against the optimal policy."""
        return [self.optimum.value - value for value in self.segment_values]

    def instance_at(self, interval: int) -> Instance:
        """Instance of the users in the interval before a checkpoint."""
        return self.instance

    @property
    def fixed_regret(self) -> Floats:
        """Expected regret of the best fixed category up to each checkpoint, `[C]`."""
        return np.asarray(self.checkpoints * (self.optimum.value - self.instance.best_fixed[1]), np.float64)

    @property
    def regret(self) -> Floats:
        """Expected regret up to each checkpoint, `[C]`: value of the optimal policy less that of those used."""
        return np.asarray(self.checkpoints * self.optimum.value - self.expected_clicks, np.float64)

    @property
    def realised_regret(self) -> Floats:
        """Realised regret up to each checkpoint, `[C]`: value of the optimal policy less the observed reward."""
        observed = self.clicks if self.rewards is None else self.rewards
        return np.asarray(self.checkpoints * self.optimum.value - observed, np.float64)

    def to_frame(self) -> Any:
        """Return the curve as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each checkpoint: users, clicks, the reward if it is not the clicks, realised_regret, and the
            expected regret if it is known.
        """
        columns: dict[str, Any] = {"users": self.checkpoints, "clicks": self.clicks}
        columns |= {} if self.rewards is None else {"reward": self.rewards}
        columns["realised_regret"] = self.realised_regret
        return to_frame(columns if self.policy_segments is None else columns | {"regret": self.regret})


def policy_key(policy: AssignedPolicy) -> Hashable:
    """Key by which equal policies are merged: the policy, or its identity if it cannot be hashed."""
    return policy if isinstance(policy, Hashable) else id(policy)


def regret_gap(users: int) -> float:
    """Gap to evaluate or plan to, so that the regret of `users` is accurate to REGRET_ERROR, if that is possible."""
    return max(REGRET_ERROR / users, MIN_GAP)


def regret_scale(instance: Instance) -> float:
    """Size of one click in the unit of the instance, of which gaps are a fraction."""
    return float(instance.reward.mean())


def plan_optimum(instance: Instance, users: int) -> Bounds:
    """Bounds on the value of the optimal policy, precise enough for the regret of `users` users."""
    gap = regret_scale(instance) * regret_gap(users)
    if instance.segments is None:
        return plan_reference(instance, gap)
    plans = [plan_reference(instance.in_segment(name), gap) for name in instance.segments.names]
    share = instance.segments.share.tolist()
    lower, upper = (
        sum(weight * getattr(each, end) for weight, each in zip(share, plans, strict=True))
        for end in ("lower", "upper")
    )
    return Bounds(lower, upper)


def _in_segment(policy: AssignedPolicy, name: str) -> AssignedPolicy:
    return policy if isinstance(policy, LastOutcomeRule) else policy_in_segment(policy, name)


def _exact_value(instance: Instance, policy: AssignedPolicy, gap: float) -> float:
    """Value of `policy`; one that is more than a function of counts computes it itself."""
    return policy.value(instance) if isinstance(policy, LastOutcomeRule) else evaluate(instance, policy, gap).value


@dataclass(frozen=True)
class Slope:
    """Slope of a line on log-log axes, with its standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.stderr:.3f}"


def slope(users: npt.ArrayLike, regret: npt.ArrayLike, first: float, last: float) -> Slope:
    """Growth rate of regret between `first` and `last` users: 1 is linear, 0.5 the square root.

    Parameters
    ----------
    users : array [n]
        Checkpoints.
    regret : array [n] or [runs, n]
        Cumulative regret. One curve gives its least-squares slope with the residual error; several give the mean of
        their slopes with its standard error.
    first, last : float
        Range of users to fit.

    Examples
    --------
    >>> slope([1, 10, 100, 1000], [2.0, 20.0, 200.0, 2000.0], 10, 1000).value
    1.0
    """
    at = np.asarray(users, np.float64)
    curves = np.atleast_2d(np.asarray(regret, np.float64))
    inside = (at >= first) & (at <= last)
    if inside.sum() < 2:
        raise InputError(f"Between {first:g} and {last:g} users are fewer than two checkpoints; widen the range.")
    x = np.log(at[inside])
    x -= x.mean()
    y = np.log(np.maximum(curves[:, inside], 1e-9))
    slopes = y @ x / (x @ x)
    if len(curves) > 1:
        return Slope(round(float(slopes.mean()), 12), float(slopes.std(ddof=1) / np.sqrt(len(slopes))))
    residuals = y[0] - y[0].mean() - slopes[0] * x
    freedom = len(x) - 2
    stderr = float(np.sqrt(residuals @ residuals / freedom / (x @ x))) if freedom else nan
    return Slope(round(float(slopes[0]), 12), stderr)


def split_by_interval(arrived: int, n: int, checkpoints: Integers) -> list[tuple[int, int]]:
    """Split `n` users who arrive after `arrived` others by the checkpoints: (interval, users)."""
    parts = []
    while n:
        interval = int(np.searchsorted(checkpoints, arrived, side="right"))
        users = min(n, int(checkpoints[interval]) - arrived)
        parts.append((interval, users))
        arrived, n = arrived + users, n - users
    return parts


def optimum_bounds(optimum: float | Bounds | None) -> Bounds | None:
    """Turn the argument `optimum` of `simulate` into bounds."""
    if optimum is None or isinstance(optimum, Bounds):
        return optimum
    value = check_float("optimum", optimum, 0.0, np.inf)
    return Bounds(value, value)
