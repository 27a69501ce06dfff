"""Reward per user, clicks by default, under the policy that produced a log, corrected for censoring."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.model.counts import Booleans, Integers, clicks, departed, steps
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, Floats, Instance


@dataclass(frozen=True, eq=False)
class LogValue:
    """Inverse-probability-of-censoring estimator of the mean reward of a user.

    A user who departed after t steps counts as one over the probability not to be censored before, which is
    estimated by Kaplan and Meier's method. Users of the longest history count as departed: with a horizon, nothing
    follows its last step.

    Attributes
    ----------
    reward, steps : array [N]
        Reward of the clicks, and steps, of a user of each distinct history.
    ended : array of bool [N]
        False for censored users.
    horizon : int or None
        Largest number of recommendations to a user.
    """

    reward: npt.NDArray[Any]
    steps: Integers
    ended: Booleans
    horizon: int | None = None

    @classmethod
    def of(cls, histories: Histories, instance: Instance | None = None) -> Self:
        """Rows of the histories that a fit uses, with the rewards of the instance."""

        def reward(rows: Integers) -> npt.NDArray[Any]:
            if instance is None or "reward" not in instance.extensions:
                return clicks(rows)
            return np.asarray(rows[..., [CLICK, CLICK_DEPART]].sum(axis=-1) @ instance.reward)

        rows = (each.counts for each in histories.confirmed_rows())
        parts = [(reward(counts), steps(counts), departed(counts)) for counts in rows]
        rewards, lengths, ended = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(rewards, lengths, ended, histories.horizon)

    def value(self, users: Floats) -> float:
        """Mean reward, given the number of users of each row `[N]`."""
        longest = int(self.steps[users > 0].max())
        gone, censored, reached = self._by_step(users)
        active = np.maximum(reached - gone, 1e-300)  # users who did not depart at step t
        observed = np.cumprod(np.append(1.0, 1 - censored / active))  # not censored before step t
        ended = self.ended | (self.steps == longest)
        weights = users * ended / np.maximum(observed[self.steps], 1e-300)
        return float(weights @ self.reward / users.sum())

    def final_survival(self, users: Floats) -> float:
        """Share of users who are active after the longest history (Kaplan-Meier estimate); 0 at the horizon."""
        if self.steps[users > 0].max() == self.horizon:
            return 0.0
        gone, _, reached = self._by_step(users)
        return float(np.prod(1 - gone / np.maximum(reached, 1e-300)))

    def _by_step(self, users: Floats) -> tuple[Floats, Floats, Floats]:
        """Users who departed at each step, who were censored after it, and who reached it."""
        gone = np.bincount(self.steps, users * self.ended).astype(np.float64)
        censored = np.bincount(self.steps, users * ~self.ended).astype(np.float64)
        return gone, censored, (gone + censored)[::-1].cumsum()[::-1]
