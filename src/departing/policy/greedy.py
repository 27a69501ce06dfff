"""Greedy: the category with the largest expected reward of the next step under the belief."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from departing.model.belief import row_max
from departing.model.counts import Integers
from departing.model.instance import EXTENSIONS, Floats, Instance
from departing.model.validation import check_instance
from departing.policy.belief_policy import UNBOUNDED, BeliefPolicy
from departing.policy.protocol import Mask

# Expected rewards this close, relative to the largest reward, are equal: well above the rounding of a belief, below
# any difference.
TIE = 1e-12


@dataclass(frozen=True)
class Greedy(BeliefPolicy):
    """Policy that maximises the expected reward of the next step: the probability of a click, times its reward.

    Of categories within 1e-12 of the maximum (relative to the largest reward) the first is recommended.

    Parameters
    ----------
    instance : Instance
        Model that gives the belief, the click probabilities and the rewards. If it has segments, `in_segment` starts
        from the prior of one of them.

    Examples
    --------
    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> Greedy(shop).recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[5, 0, 0, 0], [0, 0, 0, 0]]])
    array([1, 0])
    """

    instance: Instance
    kind = "greedy"

    def __post_init__(self) -> None:
        check_instance(self.instance, EXTENSIONS)

    def in_segment(self, name: str | None) -> Self:
        """Return the policy for the users of a segment."""
        return self if self.instance.segments is None else type(self)(self.instance.in_segment(name))

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""
        return type(self)(self.instance.relabel(order))

    def _choose(self, counts: Integers, beliefs: Floats | None = None) -> Integers:
        return self._most_likely(self._beliefs(counts) if beliefs is None else beliefs)

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        return self._most_likely(self._beliefs(counts), mask)

    def _most_likely(self, beliefs: Floats, mask: Mask | None = None) -> Integers:
        reward = beliefs @ self.instance.expected_reward.T
        if mask is not None:
            reward = np.where(mask, reward, -np.inf)
        return np.asarray((reward >= row_max(reward)[..., None] - self._tie).argmax(axis=-1))

    @cached_property
    def _tie(self) -> float:
        return TIE * float(self.instance.reward.max())

    @cached_property
    def _switch_coefficients(self) -> Floats:
        """`c[a, x, y]`: the largest ratio over a' of what y gains to what x loses by a change from a to a'.

        The change requires `Σ_y b_y (R[a',y] - R[a,y]) ≥ 0` with the expected rewards R.
        """
        reward, tie = self.instance.expected_reward, 2 * self._tie
        coefficients = np.zeros((*reward.shape, reward.shape[1]))
        for a, own in enumerate(reward):
            others = np.delete(reward, a, axis=0)
            gain, loss = np.maximum(others - own + tie, 0.0), own - others - tie
            ratio = gain[:, None, :] / np.where(loss > 0, loss, np.inf)[:, :, None]
            best = (loss > 0).all(axis=0)[:, None]
            coefficients[a] = np.where(best, ratio.max(axis=0, initial=0.0), UNBOUNDED)
        return coefficients

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase."""
        return "greedy"

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"instance": self.instance.to_dict()}
