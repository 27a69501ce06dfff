"""LastOutcomePolicy: one category after a click, another after a no-click."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, STAY, Floats, Instance
from departing.policy.protocol import check_category, check_category_range


@dataclass(frozen=True)
class LastOutcomePolicy:
    """Recommend `after_click` on arrival and after a click, `after_no_click` after a no-click.

    It is no function of counts, which do not determine the last outcome: a `LastOutcomeRule`, not a `Policy`.

    Examples
    --------
    >>> LastOutcomePolicy(after_click=1, after_no_click=0).recommend_after(np.array([True, False]))
    array([1, 0])
    """

    after_click: int
    after_no_click: int

    def __post_init__(self) -> None:
        for field in ("after_click", "after_no_click"):
            object.__setattr__(self, field, check_category(field, getattr(self, field)))

    def recommend_after(self, clicked: npt.NDArray[np.bool_]) -> Integers:
        """Return categories `[n]` for users who clicked last or are new (True), and for the others."""
        return np.where(clicked, self.after_click, self.after_no_click)

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase, with the names of the categories."""
        return f"{names[self.after_click]} first and after a click, {names[self.after_no_click]} after a no-click"

    def value(self, instance: Instance) -> float:
        """Return the expected reward per user."""
        return float(instance.prior @ self.values(instance))

    def values(self, instance: Instance) -> Floats:
        """Return the expected reward of a user of each type, `[M]`: in closed form without a horizon.

        With the probabilities k of a click without departure, s of a stay and the expected reward g, the values v
        after a click and w after a no-click satisfy v = g + k v + s w with those of `after_click`, and
        w = g + k v + s w with those of `after_no_click`: two linear equations per type.
        """
        a, b = self.after_click, self.after_no_click
        check_category_range("LastOutcomePolicy", np.array([a, b]), instance.n_categories)
        probabilities, depart = instance.outcome_probabilities, instance.departure_probabilities
        gain = probabilities[:, CLICK] + probabilities[:, CLICK_DEPART]
        if "reward" in instance.extensions:
            gain = instance.expected_reward
        if instance.horizon is not None:
            v = w = np.zeros(instance.n_types)
            for _ in range(instance.horizon):
                v, w = (gain[c] + probabilities[c, CLICK] * v + probabilities[c, STAY] * w for c in (a, b))
            return np.asarray(v)
        back, away = depart[b] + probabilities[b, CLICK], probabilities[a, STAY]  # 1 - s of b, s of a
        return np.asarray((gain[a] * back + away * gain[b]) / (depart[a] * back + away * depart[b]))
