"""Outcomes of the users of an experiment, read from the store in the order of their arrival.

Only users whose outcome is final count, so that users with short visits are not counted before others. The outcomes
are clicks within a window after a user's first recommendation, the rewards of clicks in it once there are any, and
retention, which is 1 for a user who requests a recommendation in the return period after that window. Sums are kept
in memory; each read adds the users whose outcome became final meanwhile. Rewards may follow later than the window, if
their clicks are in it: then all users are read again.
"""

import time
from dataclasses import dataclass, field

from departing.abtest.stratified import StratifiedDifference, add_outcome, new_sums, stratified_difference
from departing.model.instance import Floats
from departing.service.experiments.experiment import TREATMENT, Experiment
from departing.service.store import queries
from departing.service.store.connection import Database

CLICKS, RETENTION, REWARD = "clicks_per_user", "retention", "reward_per_user"
GUARDED = 2  # outcomes that the guardrail looks at: clicks, or rewards once there are any, and retention
SETTLE_SECONDS = 1.0  # after which everything that any process recorded is visible to the others
PART = 1000  # users read at once; bounds the memory and the distance of points
SIGNIFICANCE = 0.05  # of each outcome
GUARDRAIL_SIGNIFICANCE = 0.01 / GUARDED  # of each outcome, so that both together have 99 % confidence
MAX_POINTS = 200  # of a plot
RECOUNT_SHARE = 0.05  # of the time may be spent on reading all users again
POINT_GROWTH = 1.02  # factor by which the users grow from one point to the next


def outcomes_of(experiment: Experiment, before: "list[Outcomes]", rewarded: bool) -> "list[Outcomes]":
    """Return the outcomes of an experiment, those read before included; rewards are first once there are any."""
    outcomes = before or [Outcomes(experiment, CLICKS), Outcomes(experiment, RETENTION)]
    if rewarded and all(each.metric != REWARD for each in outcomes):
        outcomes = [Outcomes(experiment, REWARD), *outcomes]
    return outcomes


def first_worse(outcomes: "list[Outcomes]") -> "Outcomes | None":
    """Return an outcome at which the guardrail was crossed; with rewards, clicks do not count."""
    ignored = CLICKS if outcomes[0].metric == REWARD else None
    return next((each for each in outcomes if each.worse is not None and each.metric != ignored), None)


@dataclass
class Outcomes:
    """Sums of one outcome, and the confidence sequence at increasing numbers of users."""

    experiment: Experiment
    metric: str
    sums: dict[int, Floats] = field(default_factory=dict)  # of every stage
    points: list[tuple[int, float, float, float]] = field(default_factory=list)  # users, difference, lower, upper
    worse: StratifiedDifference | None = None  # the first difference at which the guardrail was crossed
    _last: tuple[float, int] = (-1.0, -1)  # arrival and number of the latest user
    _late_rewards: int = 0  # of the service, when all users were read
    _next_recount: float = 0.0  # monotonic time

    @property
    def delay(self) -> float:
        """Seconds from the arrival of a user until the outcome is final."""
        returns = self.experiment.return_period if self.metric == RETENTION else 0.0
        return self.experiment.window + returns

    def read(self, snapshot: Database, now: float, late_rewards: int = 0) -> None:
        """Add the users whose outcome is final at the time `now`, or was when the experiment ended.

        `late_rewards` have followed the feedback of their clicks so far; new ones change the sums of earlier users.
        """
        experiment, started = self.experiment, time.monotonic()
        recounts = self.metric == REWARD and late_rewards != self._late_rewards and started >= self._next_recount
        if recounts:
            self.sums, self.points, self._last, self._late_rewards = {}, [], (-1.0, -1), late_rewards
        ended = experiment.ended
        until = (now - SETTLE_SECONDS if ended is None else min(ended, now - SETTLE_SECONDS)) - self.delay
        query = queries.REWARD_OUTCOMES if self.metric == REWARD else queries.CLICK_OUTCOMES
        spans = [experiment.window]
        if self.metric == RETENTION:
            query, spans = queries.RETURN_OUTCOMES, [experiment.window, self.delay]
        more = True
        while more:
            rows = snapshot.execute(query, *spans, experiment.id, *self._last, until, PART)
            for arrived, number, stage, arm, outcome in rows:
                sums = self.sums.setdefault(stage, new_sums())
                add_outcome(sums, arm == TREATMENT, float(outcome > 0 if self.metric == RETENTION else outcome))
                self._last = arrived, number
            more = len(rows) == PART
            if rows:
                self._look()
        if recounts:
            ended_at = time.monotonic()
            self._next_recount = ended_at + (ended_at - started) / RECOUNT_SHARE

    @property
    def difference(self) -> StratifiedDifference | None:
        """Difference of the arms; None if there are too few users."""
        return stratified_difference(list(self.sums.values()))

    def users(self, treated: bool) -> int:
        """Users of an arm whose outcome is final; the holdout counts as control."""
        return int(sum(float(sums[int(treated), 0]) for sums in self.sums.values()))

    @property
    def stage_users(self) -> int:
        """Users of the smaller arm whose outcome is final, in the stage with the most of them."""
        return int(max((float(sums[:, 0].min()) for sums in self.sums.values()), default=0.0))

    def _look(self) -> None:
        """Note the interval after the present users, and whether the treatment is worse."""
        difference, planned = self.difference, self.experiment.planned_users
        if difference is None:
            return
        if self.worse is None and difference.interval(planned, GUARDRAIL_SIGNIFICANCE)[1] < 0:
            self.worse = difference
        if not self.points or difference.users >= POINT_GROWTH * self.points[-1][0]:
            interval = difference.interval(planned, SIGNIFICANCE)
            self.points.append((difference.users, difference.difference, *interval))
            if len(self.points) > MAX_POINTS:
                del self.points[1::2]
