"""Alpha: the category of the best alpha vector, the policy of a plan."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.kernels.policy.alpha import best_by_counts, best_vectors
from departing.model.belief import IMPOSSIBLE, finite_log_probabilities, log_weights, posterior
from departing.model.counts import Integers, as_counts, flat_rows
from departing.model.errors import InputError
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.validation import check_instance
from departing.policy.files import Saved
from departing.policy.protocol import Allowed, Mask, check_categories, check_category_range, choose_allowed
from departing.policy.switching import UNBOUNDED, switch_bounds


class Alpha(Saved):
    """Recommend the category of the alpha vector that brings most under the belief.

    An alpha vector says what some way of going on brings each type: `vectors[n, M]`, and `categories[n]` is the
    category that way starts with. Following the best vector at every step brings at least what the best vector
    promises, if each is (at most) one step of its category followed by vectors of the same set. Of equal vectors the
    first is taken. Counts that are impossible under the instance are answered as if nothing were known.

    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> Alpha(shop, shop.fixed_values, [0, 1]).recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[9, 0, 0, 0], [0, 0, 0, 0]]])
    array([1, 0])
    """

    kind = "alpha"

    def __init__(self, instance: Instance, vectors: npt.ArrayLike, categories: Sequence[int] | Integers) -> None:
        check_instance(instance)
        try:
            rows = np.array(vectors, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"vectors are {vectors!r:.80}; expected numbers in rows of equal length.") from error
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != instance.n_types:
            raise InputError(f"vectors have shape {rows.shape}; expected rows of {instance.n_types}, one a type.")
        if not np.isfinite(rows).all():
            raise InputError("vectors hold numbers that are not finite.")
        chosen = np.array(check_categories("categories", categories), np.int64)
        if len(chosen) != len(rows):
            raise InputError(f"categories has {len(chosen)} entries; expected {len(rows)}, one for every vector.")
        check_category_range("Alpha", chosen, instance.n_categories)
        self.instance, self.vectors, self.categories = instance, rows, chosen
        for array in (rows, chosen):
            array.setflags(write=False)

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """The category of the best vector; if it is not allowed, the best allowed one for this step alone."""
        given = as_counts(counts, self.instance.n_categories, "the policy's instance")
        return choose_allowed(self._choose(given), given, allowed, self._instead)

    def _choose(self, counts: Integers) -> Integers:
        flat = flat_rows(counts)
        rows = np.ascontiguousarray(flat.reshape(-1, flat.shape[-1]))
        log_prior, log_outcome_probabilities = finite_log_probabilities(self.instance)
        best = best_by_counts(
            rows, log_outcome_probabilities, log_prior, self.instance.prior, IMPOSSIBLE, self.vectors
        )
        return np.asarray(self.categories[best].reshape(counts.shape[:-2]))

    def _believe(self, counts: Integers) -> Floats:
        return posterior(log_weights(self.instance, counts), self.instance.prior)

    def _best(self, weights: Floats) -> Integers:
        """The index of the best vector at `weights[..., M]`."""
        rows = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
        return np.asarray(best_vectors(rows, self.vectors).reshape(weights.shape[:-1]))

    def value(self, weights: Floats) -> Floats:
        """What the best vector promises at `weights[..., M]`."""
        return np.asarray((self.vectors[self._best(weights)] * weights).sum(axis=-1))

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        """One step of every allowed category, then the best vectors."""
        beliefs, chances = self._believe(counts), self.instance.outcome_probabilities
        values = np.full(mask.shape, -np.inf)
        for a in np.flatnonzero(mask.any(axis=0)):
            rows = beliefs[mask[:, a]]
            after = sum(self.value(rows * chances[a, outcome]) for outcome in (CLICK, STAY))
            values[mask[:, a], a] = rows @ self.instance.click[a] + after
        return np.asarray(values.argmax(axis=1))

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Ville's inequality, as for `Greedy`: how likely the evidence for other types ever changes the category.

        Leaving category a takes a vector β of another category with `Σ_y b_y (β_y - α_y) ≥ 0` for every vector α
        of category a. For a user of type x to whom one such α brings more than all β, this means that
        `Σ_y c[a,x,y] b_y / b_x`, a martingale under x, reaches 1.
        """
        if instance != self.instance:
            return np.ones((len(counts), instance.n_types))
        beliefs = self._believe(counts)
        categories = self._choose(counts)
        return switch_bounds(beliefs, self.instance.prior, categories, self._switch_coefficients)

    @cached_property
    def _switch_coefficients(self) -> Floats:
        """`c[K, M, M]`: the largest ratio over vectors of other categories of what y gains to what x loses."""
        n_types = self.instance.n_types
        rivalry = np.full((self.instance.n_categories, n_types, n_types), UNBOUNDED)
        margin = 1e-12 * np.abs(self.vectors).max(axis=0)
        for a in np.unique(self.categories):
            own, others = self.vectors[self.categories == a], self.vectors[self.categories != a]
            for x in range(n_types):
                best = own[own[:, x].argmax()]
                loss = best[x] - others[:, x] - 2 * margin[x]
                if (loss > 0).all():
                    gain = np.maximum(others - best + 2 * margin, 0.0)
                    gain[:, x] = 0.0
                    rivalry[a, x] = (gain / loss[:, None]).max(axis=0, initial=0.0)
        return rivalry

    def describe(self, names: Sequence[str]) -> str:
        """The policy in words."""
        first = int(self.recommend(np.zeros((self.instance.n_categories, 4), np.int64)))
        return f"start with {names[first]}, then go by what the user does ({len(self.vectors)} ways)"

    def to_dict(self) -> dict[str, Any]:
        """The instance, the vectors and their categories as plain values."""
        return {
            "instance": self.instance.to_dict(),
            "vectors": self.vectors.tolist(),
            "categories": self.categories.tolist(),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Alpha)
            and self.instance == other.instance
            and np.array_equal(self.vectors, other.vectors)
            and np.array_equal(self.categories, other.categories)
        )

    def __hash__(self) -> int:
        return hash((self.instance, self.vectors.tobytes(), self.categories.tobytes()))

    def __repr__(self) -> str:
        return f"<Alpha of {len(self.vectors)} vectors for {self.instance.n_types} types>"
