"""Record of a run of a learner: clicks and policies of its users by checkpoint, and the regret so far."""

from collections.abc import Callable, Hashable

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.learning.protocol import AssignedPolicy
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.simulation.regret_curve import (
    PolicySegment,
    PolicyValues,
    RegretCurve,
    log_checkpoints,
    plan_optimum,
    policy_key,
    regret_gap,
    regret_scale,
    split_by_interval,
)

RegretProgress = Callable[[int, float], None]  # called with a number of users and their cumulative regret


class RunRecord:
    """Clicks and policies of the users of a learner, from which the regret curve is made.

    Equal policies within the interval before a checkpoint are merged, so that the record of a learner that decides
    for every single user does not grow with their number. `progress` is called at the checkpoints with the regret so
    far: expected regret if the learner reports its policies, otherwise the realised regret of the departed users.
    """

    def __init__(
        self,
        instance: Instance,
        users: int,
        reports_policies: bool,
        optimum: Bounds | None = None,
        progress: RegretProgress | None = None,
        checkpoints: Integers | None = None,
    ) -> None:
        self.instance, self.checkpoints = instance, log_checkpoints(users) if checkpoints is None else checkpoints
        if optimum is None and progress is not None:
            optimum = plan_optimum(instance, users)
        self._optimum, self._progress = optimum, progress
        self._clicks = np.zeros(len(self.checkpoints), np.int64)
        rewarded = "reward" in instance.extensions
        self._rewards = np.zeros(len(self.checkpoints)) if rewarded else None
        self._segments: list[dict[Hashable, tuple[AssignedPolicy, int]]] | None = None
        if reports_policies:
            self._segments = [{} for _ in self.checkpoints]
        self._values = PolicyValues(instance)
        self._departed = self._reported = 0  # users, and checkpoints
        self._expected = 0.0  # clicks of the users up to the last reported checkpoint

    def assign(self, arrived: int, policy: AssignedPolicy, users: int) -> None:
        """Record the policy of the next `users` users after `arrived` others."""
        if self._segments is None:
            return
        key = policy_key(policy)
        for interval, n in split_by_interval(arrived, users, self.checkpoints):
            segments = self._segments[interval]
            first, before = segments.get(key, (policy, 0))
            segments[key] = first, before + n

    def depart(
        self, intervals: Integers | int, clicks: Integers | int, users: int, rewards: Floats | float | None = None
    ) -> None:
        """Add the clicks of finished users by their intervals, and report the regret at the checkpoints passed.

        `rewards` are their rewards, if the instance has any.
        """
        np.add.at(self._clicks, intervals, clicks)
        if self._rewards is not None:
            np.add.at(self._rewards, intervals, clicks if rewards is None else rewards)
        self._departed += users
        if self._progress is None or self._departed < self.checkpoints[self._reported]:
            return
        while self._reported < len(self.checkpoints) and self._departed >= self.checkpoints[self._reported]:
            self._expected += self._expected_clicks(self._reported)
            self._reported += 1
        self._report(self._progress)

    def curve(self) -> RegretCurve:
        """Return the regret curve of the run."""
        segments = (
            None
            if self._segments is None
            else [
                PolicySegment(interval, policy, users)
                for interval, used in enumerate(self._segments)
                for policy, users in used.values()
            ]
        )
        known = self._optimum, self._values, None if self._rewards is None else self._rewards.cumsum()
        return RegretCurve(self.instance, self.checkpoints, self._clicks.cumsum(), segments, *known)

    def _expected_clicks(self, interval: int) -> float:
        """Expected reward of the users of an interval; a policy is evaluated as precisely as its users require."""
        if self._segments is None:
            return 0.0
        scale = regret_scale(self.instance)
        return sum(
            n * self._values.estimate(policy, scale * regret_gap(n))
            for policy, n in self._segments[interval].values()
        )

    def _report(self, progress: RegretProgress) -> None:
        assert self._optimum is not None
        if self._segments is None:
            observed = self._clicks if self._rewards is None else self._rewards
            progress(self._departed, self._departed * self._optimum.value - float(observed.sum()))
        else:
            users = int(self.checkpoints[self._reported - 1])
            progress(users, users * self._optimum.value - self._expected)
