"""Clicks per user under the policy that produced a log, corrected for censoring."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from departing.model.counts import Booleans, Integers, clicks, departed, steps
from departing.model.histories import Histories
from departing.model.instance import Floats


@dataclass(frozen=True, eq=False)
class LogValue:
    """Inverse-probability-of-censoring estimator of the mean clicks of a user.

    A user who departed after t steps counts as one over the probability not to be censored before, which is
    estimated by Kaplan and Meier's method. Users of the longest history count as departed.

    Attributes
    ----------
    clicks, steps : array [N]
        Clicks and steps of a user of each distinct history.
    ended : array of bool [N]
        False for censored users.
    """

    clicks: Integers
    steps: Integers
    ended: Booleans

    @classmethod
    def of(cls, histories: Histories) -> Self:
        """Rows of the histories that a fit uses."""
        parts = [(clicks(rows), steps(rows), departed(rows)) for rows, _ in histories.confirmed_parts()]
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def value(self, users: Floats) -> float:
        """Mean clicks, given the number of users of each row `[N]`."""
        longest = int(self.steps[users > 0].max())
        gone, censored, reached = self._by_step(users)
        active = np.maximum(reached - gone, 1e-300)  # users who did not depart at step t
        observed = np.cumprod(np.append(1.0, 1 - censored / active))  # not censored before step t
        ended = self.ended | (self.steps == longest)
        weights = users * ended / np.maximum(observed[self.steps], 1e-300)
        return float(weights @ self.clicks / users.sum())

    def final_survival(self, users: Floats) -> float:
        """Share of users who are active after the longest history (Kaplan-Meier estimate)."""
        gone, _, reached = self._by_step(users)
        return float(np.prod(1 - gone / np.maximum(reached, 1e-300)))

    def _by_step(self, users: Floats) -> tuple[Floats, Floats, Floats]:
        """Users who departed at each step, who were censored after it, and who reached it."""
        gone = np.bincount(self.steps, users * self.ended).astype(np.float64)
        censored = np.bincount(self.steps, users * ~self.ended).astype(np.float64)
        return gone, censored, (gone + censored)[::-1].cumsum()[::-1]
