"""Alpha: the category of the best alpha vector, the policy of a plan."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count
from departing.model.belief import IMPOSSIBLE
from departing.model.counts import Integers, flat_rows
from departing.model.errors import InputError
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.validation import check_float, check_instance
from departing.policy.belief_policy import UNBOUNDED, BeliefPolicy
from departing.policy.protocol import Category, Mask, check_category_range, check_category_refs, resolve_category

# Relative error of the value of a vector at a belief: the belief of a user of a thousand steps has lost as much.
VALUE_ROUNDING = 1e-12


class Alpha(BeliefPolicy):
    """Policy that recommends the category of the alpha vector with the largest value at the belief.

    If each vector is at most one step of its category followed by vectors of the same set, the value of the policy
    is at least that of the best vector. Of equal vectors the first is used.

    Parameters
    ----------
    instance : Instance
        Model that gives the belief.
    vectors : array_like of float, shape (n, M)
        Value of each alpha vector by type.
    categories : sequence of int or str, length n
        First category of each vector, by index or name.
    successors : array_like of int, shape (n, 2), optional
        Vectors that follow each vector after a click and after a stay. `evaluate` derives a lower bound from them.
    upper : float, optional
        Upper bound of the value under `instance`, which `evaluate` takes for granted: that of the plan.

    Examples
    --------
    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> Alpha(shop, shop.fixed_values, [0, 1]).recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[9, 0, 0, 0], [0, 0, 0, 0]]])
    array([1, 0])
    """

    kind = "alpha"

    def __init__(
        self,
        instance: Instance,
        vectors: npt.ArrayLike,
        categories: Sequence[Category] | Integers,
        successors: npt.ArrayLike | None = None,
        upper: float | None = None,
    ) -> None:
        check_instance(instance, ("reward",))
        try:
            rows = np.array(vectors, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"vectors are {vectors!r:.80}; expected numbers in rows of equal length.") from error
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != instance.n_types:
            raise InputError(
                f"vectors have shape {rows.shape}; expected rows of {instance.n_types} values, one for each type."
            )
        for i, x in np.argwhere(~np.isfinite(rows))[:1]:
            raise InputError(f"vectors[{i}, {x}] is {rows[i, x]}; expected finite numbers.")
        given = check_category_refs("categories", categories)
        chosen = np.array([resolve_category(category, instance.categories) for category in given], np.int64)
        if len(chosen) != len(rows):
            raise InputError(f"categories has {len(chosen)} entries; expected {len(rows)}, one for each vector.")
        check_category_range("Alpha", chosen, instance.n_categories)
        self.instance, self.vectors, self.categories = instance, rows, chosen
        self.successors = None if successors is None else _check_successors(successors, len(rows))
        self.upper = None if upper is None else check_float("upper", upper, 0.0, np.inf)
        for array in (rows, chosen):
            array.setflags(write=False)

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""
        categories = np.argsort(order)[self.categories]
        return type(self)(self.instance.relabel(order), self.vectors, categories, self.successors, self.upper)

    def _choose(self, counts: Integers, beliefs: Floats | None = None) -> Integers:
        from departing.kernels.policy.alpha import best_by_counts

        flat = flat_rows(counts)
        rows = np.ascontiguousarray(flat.reshape(-1, flat.shape[-1]))
        log_prior, log_outcomes = self.instance.finite_log_probabilities
        best = best_by_counts(rows, log_outcomes, log_prior, self.instance.prior, IMPOSSIBLE, self.vectors)
        return np.asarray(self.categories[best].reshape(counts.shape[:-2]))

    def value(self, weights: Floats) -> Floats:
        """Return the value of the best vector at unnormalised beliefs `weights[..., M]`."""
        from departing.kernels.policy.alpha import best_vectors

        rows = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
        best = best_vectors(rows, self.vectors).reshape(weights.shape[:-1])
        return np.asarray((self.vectors[best] * weights).sum(axis=-1))

    def value_lower_bounds(self, weights: Floats) -> Floats:
        """Lower bounds of the policy's value at unnormalised beliefs `weights[n, M]`, under its own instance.

        If every vector is at most η above one step of its category followed by its successors, type by type, the
        value of the policy is at least that of the best vector minus η times the expected steps, by induction.
        """
        return np.asarray(self.value(weights) * (1 - VALUE_ROUNDING) - weights @ self._shortfall)

    @cached_property
    def _shortfall(self) -> Floats:
        """Largest difference `[M]` of the best vector and the value of the policy for a user of each type."""
        if self.successors is None:
            raise AssertionError("The vectors of this policy have no successors.")
        outcomes = self.instance.outcome_probabilities[self.categories]
        step = self.instance.expected_reward[self.categories]
        for o, outcome in enumerate((CLICK, STAY)):
            step = step + outcomes[:, outcome] * self.vectors[self.successors[:, o]]
        excess = np.maximum((self.vectors - step).max(axis=0), 0.0) + VALUE_ROUNDING * np.abs(self.vectors).max(
            axis=0
        )
        used = np.unique(self.categories)
        return np.asarray(excess / self.instance.departure_probabilities[used].min(axis=0))

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        """The best category for one step that is followed by the best vectors."""
        beliefs, outcomes = self._beliefs(counts), self.instance.outcome_probabilities
        values = np.full(mask.shape, -np.inf)
        for a in np.flatnonzero(mask.any(axis=0)):
            rows = beliefs[mask[:, a]]
            after = sum(self.value(rows * outcomes[a, outcome]) for outcome in (CLICK, STAY))
            values[mask[:, a], a] = rows @ self.instance.expected_reward[a] + after
        return np.asarray(values.argmax(axis=1))

    @cached_property
    def _switch_coefficients(self) -> Floats:
        """`c[a, x, y]`: the largest ratio over vectors of other categories of what y gains to what x loses.

        Leaving category a requires a vector β of another category with `Σ_y b_y (β_y - α_y) ≥ 0` for every vector α
        of category a; here α is the one that is best for type x.
        """
        n_types = self.instance.n_types
        coefficients = np.full((self.instance.n_categories, n_types, n_types), UNBOUNDED)
        margin = 1e-12 * np.abs(self.vectors).max(axis=0)  # rounding of values
        for a in np.unique(self.categories):
            own, others = self.vectors[self.categories == a], self.vectors[self.categories != a]
            for x in range(n_types):
                best = own[own[:, x].argmax()]
                loss = best[x] - others[:, x] - 2 * margin[x]
                if (loss > 0).all():
                    gain = np.maximum(others - best + 2 * margin, 0.0)
                    gain[:, x] = 0.0
                    coefficients[a, x] = (gain / loss[:, None]).max(axis=0, initial=0.0)
        return coefficients

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase, with the names of the categories."""
        first = int(self.recommend(np.zeros((self.instance.n_categories, 4), np.int64)))
        rules = format_count(len(self.vectors), "decision rule")
        return f"start with {names[first]}, then adapt to the user's clicks ({rules})"

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        known = {} if self.successors is None else {"successors": self.successors.tolist()}
        return {
            "instance": self.instance.to_dict(),
            "vectors": self.vectors.tolist(),
            "categories": self.categories.tolist(),
            **known,
            **({} if self.upper is None else {"upper": self.upper}),
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


def _check_successors(successors: npt.ArrayLike, n: int) -> Integers:
    """`successors` as indices `[n, 2]` of n vectors."""
    expected = f"expected two indices of vectors, 0 to {n - 1}, for each vector"
    try:
        rows = np.array(successors)
    except ValueError as error:
        raise InputError(f"successors are {successors!r:.80}; {expected}.") from error
    if rows.shape != (n, 2) or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= n:
        raise InputError(f"successors are {successors!r:.80}; {expected}.")
    rows = rows.astype(np.int64)
    rows.setflags(write=False)
    return rows
