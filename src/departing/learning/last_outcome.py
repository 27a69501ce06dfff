"""LastOutcomePolicy: one category for users who liked the last recommendation, another for those who did not."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, STAY, Floats, Instance
from departing.policy.protocol import check_category, check_category_range


@dataclass(frozen=True)
class LastOutcomePolicy:
    """Show `liked` on arrival and after a click, `missed` after none.

    It goes by the last outcome, which counts do not tell, so only the learners that use it can follow it.

    >>> LastOutcomePolicy(liked=1, missed=0).at(np.array([True, False]))
    array([1, 0])
    """

    liked: int
    missed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "liked", check_category("liked", self.liked))
        object.__setattr__(self, "missed", check_category("missed", self.missed))

    def at(self, liked: npt.NDArray[np.bool_]) -> Integers:
        """The category of users who liked the last recommendation, or have seen none, and of those who did not."""
        return np.where(liked, self.liked, self.missed)

    def recommend(self, counts: npt.ArrayLike) -> Integers:
        """Raise: counts do not tell the last outcome."""
        raise InputError("A LastOutcomePolicy goes by the last outcome of a user, which counts do not tell.")

    def brings(self, instance: Instance) -> float:
        """What it brings one user, in closed form."""
        return float(instance.prior @ self.values(instance))

    def values(self, instance: Instance) -> Floats:
        """What it brings one user of each type, `[M]`.

        With chances of a click that goes on k, of a stay s, of leaving l and of any click g, the values v after a
        click and w after none are v = g + k v + s w with those of `liked`, and w = g + k v + s w with those of
        `missed`: two equations for each type.
        """
        check_category_range("LastOutcomePolicy", np.array([self.liked, self.missed]), instance.n_categories)
        chances, leave = instance.outcome_probabilities, instance.departure_probabilities
        gain = chances[:, CLICK] + chances[:, CLICK_DEPART]
        a, b = self.liked, self.missed
        back, away = leave[b] + chances[b, CLICK], chances[a, STAY]  # 1 - s of missed, s of liked
        return np.asarray((gain[a] * back + away * gain[b]) / (leave[a] * back + away * leave[b]))
