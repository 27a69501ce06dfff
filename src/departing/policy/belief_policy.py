"""Base of the policies that depend on the belief, with bounds on the probability that they switch category."""

from abc import abstractmethod
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from departing.model.belief import log_weights, posterior
from departing.model.counts import Booleans, Integers, as_counts
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.files import SerializablePolicy

UNBOUNDED = 1e90  # coefficient where another category may be better for the type itself: the bound is then 1
EXPONENT_BITS = 12  # of exponents: an exponent is at most 2^-12 below the largest valid one


class BeliefPolicy(SerializablePolicy):
    """Policy that depends on the belief under an instance.

    Counts that are impossible under the instance are treated like empty counts.
    """

    instance: Instance

    @property
    def category_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the instance's categories."""
        return self.instance.categories

    @property
    def segment_names(self) -> tuple[str, ...]:
        """The names of the instance's segments."""
        return () if self.instance.segments is None else self.instance.segments.names

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
        """Bounds `[n, M]` by Ville's inequality, for users who behave according to `instance`."""
        beliefs = self._beliefs(self._check_counts(counts))
        categories = self._choose(counts, beliefs)
        evidence = switch_evidence(beliefs, self.instance.prior, categories, self._switch_coefficients)
        if instance == self.instance:
            return np.asarray(np.minimum(1.0, evidence))
        exponents = np.where(self._switch_coefficients[..., None] > 0, switch_exponents(self.instance, instance), 1.0)
        return powers_of_evidence(evidence, categories, exponents.min(axis=2))


def switch_evidence(beliefs: Floats, prior: Floats, categories: Integers, coefficients: Floats) -> Floats:
    """Evidence `[n, M]` against every type: `Σ_y c[a,x,y] b_y / b_x` for type x at category a of `categories`.

    With `coefficients` c of shape (K, M, M), leaving category a requires that it is at least 1 for every x. For a
    user of type x it is a martingale while a is recommended, so by Ville's inequality it ever reaches 1 with at most
    the probability of its present value.
    """
    positive = np.maximum(beliefs, np.where(prior > 0, 1e-300, 0.0))  # a belief may underflow to 0
    evidence = np.empty_like(beliefs)
    for a in np.unique(categories):
        rows = categories == a
        evidence[rows] = positive[rows] @ coefficients[a].T
    evidence = np.divide(evidence, beliefs, out=np.ones_like(beliefs), where=beliefs > 1e-200)
    return np.asarray(evidence * (1 + 1e-6))  # the factor covers the rounding of beliefs


def powers_of_evidence(evidence: Floats, categories: Integers, exponents: Floats) -> Floats:
    """Bounds `[n, M']` on the probability that users of another instance are ever shown another category.

    With s = `exponents[a, x, x']` at most 1, `Σ_y (c[a,x,y] b_y / b_x)^s` is a supermartingale for users of type x'.
    It is at least 1 where the sum without exponents is, and at most `(M - 1)^(1 - s)` times the power s of that sum.
    Every x gives a bound; the one with the smallest evidence is used.
    """
    x = evidence.argmin(axis=1)
    s = exponents[categories, x]
    least = np.minimum(evidence[np.arange(len(x)), x], 1.0)[:, None]
    others = max(evidence.shape[1] - 1, 1)
    return np.asarray(np.where(s > 0, np.minimum(1.0, others ** (1 - s) * least**s), 1.0))


@lru_cache(maxsize=4)  # a traversal of the count graph uses one pair of instances
def switch_exponents(own: Instance, other: Instance) -> Floats:
    """Largest s in [0, 1], rounded down, with `E (p_y / p_x)^s ≤ 1` for every type x' of `other`, `[K, M, M, M']`.

    p are the probabilities of a click or a stay at a category under the types x and y of `own`; the expectation is
    over the outcomes of type x', with 0 for a departure. It is convex in s and at most 1 at 0.
    """
    p, q = (each.outcome_probabilities[:, [CLICK, STAY]] for each in (own, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(p)[:, :, None, :] - np.log(p)[:, :, :, None]  # [K, 2, x, y]
    ratio, weight = ratio[..., None], q[:, :, None, None, :]
    impossible = ((p[:, :, :, None, None] == 0) & (weight > 0)).any(axis=1)  # under x, but not under x'

    def holds(s: Floats) -> Booleans:
        with np.errstate(over="ignore", invalid="ignore"):
            terms = np.where(weight > 0, weight * np.exp(s[:, None] * ratio), 0.0)
        return np.asarray(terms.sum(axis=1) <= 1 + 1e-15)

    shape = len(p), own.n_types, own.n_types, other.n_types
    high = np.ones(shape)
    low = np.where(holds(high), 1.0, 0.0)
    for _ in range(EXPONENT_BITS):
        middle = (low + high) / 2
        fits = holds(middle)
        low, high = np.where(fits, np.maximum(low, middle), low), np.where(fits, high, middle)
    return np.asarray(np.where(impossible, 0.0, low))
