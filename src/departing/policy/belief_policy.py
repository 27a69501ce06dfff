"""Base of the policies that depend on the belief, with bounds on the probability that they switch category."""

from abc import abstractmethod
from functools import cached_property

import numpy as np
import numpy.typing as npt

from departing.model.belief import log_weights, posterior
from departing.model.counts import Integers, as_counts
from departing.model.instance import Floats, Instance
from departing.policy.files import SerializablePolicy

UNBOUNDED = 1e90  # coefficient where another category may be better for the type itself: the bound is then 1


class BeliefPolicy(SerializablePolicy):
    """Policy that depends on the belief under an instance.

    Counts that are impossible under the instance are treated like empty counts.
    """

    instance: Instance

    @property
    def category_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the instance's categories."""
        return self.instance.categories

    def _check_counts(self, counts: npt.ArrayLike) -> Integers:
        return as_counts(counts, self.instance.n_categories, "the policy's instance")

    def _beliefs(self, counts: Integers) -> Floats:
        return posterior(log_weights(self.instance, counts), self.instance.prior)

    @abstractmethod
    def _choose(self, counts: Integers, beliefs: Floats | None = None) -> Integers:
        """Categories for `counts[..., K, 4]`, whose beliefs may be known already."""

    @cached_property
    @abstractmethod
    def _switch_coefficients(self) -> Floats:
        """`c[K, M, M]` such that the policy leaves category a only if `Σ_y c[a,x,y] b_y / b_x ≥ 1`, for all x."""

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Bounds `[n, M]` by Ville's inequality; 1 for users who behave according to another instance."""
        if instance != self.instance:
            return np.ones((len(counts), instance.n_types))
        beliefs = self._beliefs(counts)
        return switch_bounds(beliefs, instance.prior, self._choose(counts, beliefs), self._switch_coefficients)


def switch_bounds(beliefs: Floats, prior: Floats, categories: Integers, coefficients: Floats) -> Floats:
    """Upper bounds `[n, M]` on the probability that a user of each type ever gets a category other than `categories`.

    With `coefficients` c of shape (K, M, M), leaving category a requires `Σ_y c[a,x,y] b_y / b_x ≥ 1`. For a user of
    type x this sum is a martingale, so by Ville's inequality it ever reaches 1 with at most the probability of its
    present value.
    """
    positive = np.maximum(beliefs, np.where(prior > 0, 1e-300, 0.0))  # a belief may underflow to 0
    evidence = np.empty_like(beliefs)
    for a in np.unique(categories):
        rows = categories == a
        evidence[rows] = positive[rows] @ coefficients[a].T
    bounds = np.divide(evidence, beliefs, out=np.ones_like(beliefs), where=beliefs > 1e-200)
    return np.asarray(np.minimum(1.0, bounds * (1 + 1e-6)))  # the factor covers the rounding of beliefs
