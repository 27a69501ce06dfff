"""Greedy: the category most likely to be clicked under the belief."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.belief import log_weights, posterior, row_max
from departing.model.counts import Integers, as_counts
from departing.model.instance import Floats, Instance
from departing.model.validation import check_instance
from departing.policy.files import Saved
from departing.policy.protocol import Allowed, Mask, choose_allowed
from departing.policy.switching import UNBOUNDED, switch_bounds

TIE = 1e-12


@dataclass(frozen=True)
class Greedy(Saved):
    """Recommend the category with the most likely click now, given what this user did so far.

    Chances within 1e-12 of each other are a tie, and the first of the tied categories is taken. Counts that
    are impossible under the instance are answered as if nothing were known.

    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> Greedy(shop).recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[5, 0, 0, 0], [0, 0, 0, 0]]])
    array([1, 0])
    """

    instance: Instance
    kind = "greedy"

    def __post_init__(self) -> None:
        check_instance(self.instance)

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """The category with the largest predicted chance of a click, among those that are `allowed`."""
        given = as_counts(counts, self.instance.n_categories, "the policy's instance")
        return choose_allowed(self._choose(self._believe(given)), given, allowed, self._instead)

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        return self._choose(self._believe(counts), mask)

    def _believe(self, counts: Integers) -> Floats:
        return posterior(log_weights(self.instance, counts), self.instance.prior)

    def _choose(self, beliefs: Floats, mask: Mask | None = None) -> Integers:
        chances = beliefs @ self.instance.click.T
        if mask is not None:
            chances = np.where(mask, chances, -np.inf)
        return np.asarray((chances >= row_max(chances)[..., None] - TIE).argmax(axis=-1))

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Ville's inequality: how likely the evidence for other types ever grows enough to change the choice.

        Leaving category a for a' takes `Σ_y b_y (P[a',y] - P[a,y]) ≥ 0`. For a user of type x whose best
        category is a this means that `Σ_y c[a,x,y] b_y / b_x`, a martingale under x, reaches 1.
        """
        if instance != self.instance:
            return np.ones((len(counts), instance.n_types))
        beliefs = self._believe(counts)
        categories = self._choose(beliefs)
        return switch_bounds(beliefs, self.instance.prior, categories, self._switch_coefficients)

    @cached_property
    def _switch_coefficients(self) -> Floats:
        """`c[K, M, M]`: the largest ratio over a' of what y gains to what x loses by leaving a for a'."""
        click = self.instance.click
        rivalry = np.zeros((*click.shape, click.shape[1]))
        for a, own in enumerate(click):
            others = np.delete(click, a, axis=0)
            gain, loss = np.maximum(others - own + 2 * TIE, 0.0), own - others - 2 * TIE
            ratio = gain[:, None, :] / np.where(loss > 0, loss, np.inf)[:, :, None]
            rivalry[a] = np.where((loss > 0).all(axis=0)[:, None], ratio.max(axis=0, initial=0.0), UNBOUNDED)
        return rivalry

    def describe(self, names: Sequence[str]) -> str:
        """The policy in words."""
        return "greedy"

    def to_dict(self) -> dict[str, Any]:
        """The instance as plain values."""
        return {"instance": self.instance.to_dict()}
