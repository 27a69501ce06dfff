"""Alpha: the category of the best alpha vector, the policy of a plan."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count
from departing.model.belief import IMPOSSIBLE
from departing.model.counts import Integers, flat_rows, steps
from departing.model.errors import InputError
from departing.model.instance import CLICK, EXTENSIONS, STAY, Floats, Instance
from departing.model.validation import check_float, check_instance
from departing.policy.belief_policy import UNBOUNDED, BeliefPolicy
from departing.policy.protocol import Category, Mask, check_category_range, check_category_refs, resolve_category
from departing.policy.starts import describe_by_segment

# Relative error of the value of a vector at a belief: the belief of a user of a thousand steps has lost as much.
VALUE_ROUNDING = 1e-12


class Alpha(BeliefPolicy):
    """Policy that recommends the category of the alpha vector with the largest value at the belief.

    If each vector is at most one step of its category followed by vectors of the same set, the value of the policy
    is at least that of the best vector. Of equal vectors the first is used. With a horizon, each vector covers a
    number of steps; the policy compares those that cover the steps left, and the fixed policies of their categories.

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
        With a horizon, -1 - a stands for always recommending category a.
    upper : float, optional
        Upper bound of the value under `instance`, which `evaluate` takes for granted: that of the plan. If the
        instance has segments, that for a user of unknown segment.
    steps : array_like of int, shape (n,), optional
        Number of steps that each vector covers; required with a horizon.
    segment_upper : sequence of float, length S, optional
        Upper bound for each segment.

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
        steps: npt.ArrayLike | None = None,
        segment_upper: Sequence[float] | None = None,
    ) -> None:
        check_instance(instance, EXTENSIONS)
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
        if isinstance(categories, np.ndarray) and categories.dtype == np.int64:
            chosen = categories.copy()
        else:
            given = check_category_refs("categories", categories)
            chosen = np.array([resolve_category(category, instance.categories) for category in given], np.int64)
        if len(chosen) != len(rows):
            raise InputError(f"categories has {len(chosen)} entries; expected {len(rows)}, one for each vector.")
        check_category_range("Alpha", chosen, instance.n_categories)
        self.instance, self.vectors, self.categories = instance, rows, chosen
        self.steps = _check_steps(steps, len(rows), instance)
        least = 0 if steps is None else -instance.n_categories
        self.successors = None if successors is None else _check_successors(successors, len(rows), least)
        self.upper = None if upper is None else check_float("upper", upper, 0.0, np.inf)
        self.segment_upper = _check_segment_upper(segment_upper, instance)
        for array in (rows, chosen):
            array.setflags(write=False)

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""
        place, successors = np.argsort(order), self.successors
        if successors is not None:
            successors = np.where(successors < 0, -1 - place[np.maximum(-1 - successors, 0)], successors)
        rest = (successors, self.upper, self.steps, self.segment_upper)
        return type(self)(self.instance.relabel(order), self.vectors, place[self.categories], *rest)

    def in_segment(self, name: str | None) -> Self:
        """Return the policy for the users of a segment, which starts from its prior."""
        segments = self.instance.segments
        if segments is None:
            return self
        index, upper = segments.index(name), self.upper
        if index is not None:
            upper = None if self.segment_upper is None else self.segment_upper[index]
        return self.with_prior(self.instance.in_segment(name), upper)

    def with_prior(self, instance: Instance, upper: float | None) -> Self:
        """Return this policy for an instance that differs in the prior only; both share their arrays.

        `upper` is the upper bound of the value under `instance`.
        """
        other = object.__new__(type(self))
        other.instance, other.upper, other.segment_upper = instance, upper, None
        other.vectors, other.categories = self.vectors, self.categories
        other.successors, other.steps = self.successors, self.steps
        return other

    def _choose(self, counts: Integers, beliefs: Floats | None = None) -> Integers:
        from departing.kernels.policy.alpha import best_by_counts

        flat = flat_rows(counts)
        rows = np.ascontiguousarray(flat.reshape(-1, flat.shape[-1]))
        log_prior, log_outcomes = self.instance.finite_log_probabilities
        arrays = (log_outcomes, log_prior, self.instance.prior, IMPOSSIBLE)
        if self.steps is None:
            best = self.categories[best_by_counts(rows, *arrays, self.vectors)]
            return np.asarray(best.reshape(counts.shape[:-2]))
        best, left = np.empty(len(rows), np.int64), self._steps_left(counts.reshape(-1, *counts.shape[-2:]))
        for n in np.unique(left).tolist():
            vectors, categories = self._within(n)
            best[left == n] = categories[best_by_counts(rows[left == n], *arrays, vectors)]
        return np.asarray(best.reshape(counts.shape[:-2]))

    def _steps_left(self, counts: Integers) -> Integers:
        """Steps left after `counts[n, K, 4]`, at least 1."""
        return np.asarray(np.maximum((self.instance.horizon or 1) - steps(counts), 1))

    @cached_property
    def _fixed_categories(self) -> Integers:
        """Categories whose fixed policies are compared with the vectors."""
        after = np.zeros(0, np.int64) if self.successors is None else self.successors[self.successors < 0]
        return np.unique(np.concatenate([self.categories, -1 - after]))

    def _within(self, left: int) -> tuple[Floats, Integers]:
        """Vectors to compare with `left` steps left, and their categories."""
        if left not in self._by_steps:
            rows, fixed = np.flatnonzero(self.steps == left), self._fixed_categories
            values = self.instance.replace(horizon=left, segments=None).fixed_values[fixed]
            vectors = np.ascontiguousarray(np.concatenate([self.vectors[rows], values]))
            self._by_steps[left] = vectors, np.concatenate([self.categories[rows], fixed])
        return self._by_steps[left]

    @cached_property
    def _by_steps(self) -> dict[int, tuple[Floats, Integers]]:
        """Results of `_within`."""
        return {}

    def value(self, weights: Floats, left: int | None = None) -> Floats:
        """Return the value of the best vector at unnormalised beliefs `weights[..., M]`, with `left` steps left."""
        from departing.kernels.policy.alpha import best_vectors

        vectors = self.vectors if self.steps is None else self._within(left or int(self.instance.horizon or 1))[0]
        rows = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
        best = best_vectors(rows, vectors).reshape(weights.shape[:-1])
        return np.asarray((vectors[best] * weights).sum(axis=-1))

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
        values, left = np.full(mask.shape, -np.inf), np.full(len(mask), 2)  # 2: any number but the last one, 1
        if self.steps is not None:
            left = self._steps_left(counts)
        for a in np.flatnonzero(mask.any(axis=0)):
            values[mask[:, a], a] = beliefs[mask[:, a]] @ self.instance.expected_reward[a]
            for n in np.unique(left[mask[:, a] & (left > 1)]).tolist():
                at = mask[:, a] & (left == n)
                for outcome in (CLICK, STAY):
                    values[at, a] += self.value(beliefs[at] * outcomes[a, outcome], n - 1)
        return np.asarray(values.argmax(axis=1))

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Bounds `[n, M]` as of other policies of beliefs; with a horizon, 1 until the last step."""
        if self.steps is None:
            return super().switch_probability_bounds(counts, instance)
        left = self._steps_left(self._check_counts(counts))
        return np.repeat((left > 1).astype(np.float64)[:, None], instance.n_types, axis=1)

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
        """Describe the policy in one phrase, with the names of the categories and of the segments."""
        if (segments := self.instance.segments) is not None:
            return describe_by_segment(self, names, segments.names, segments.share.tolist())
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
            **({} if self.steps is None else {"steps": self.steps.tolist()}),
            **({} if self.segment_upper is None else {"segment_upper": list(self.segment_upper)}),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Alpha)
            and self.instance == other.instance
            and np.array_equal(self.vectors, other.vectors)
            and np.array_equal(self.categories, other.categories)
            and (self.steps is None or np.array_equal(self.steps, np.asarray(other.steps)))
        )

    def __hash__(self) -> int:
        return hash((self.instance, self.vectors.tobytes(), self.categories.tobytes()))

    def __repr__(self) -> str:
        return f"<Alpha of {len(self.vectors)} vectors for {self.instance.n_types} types>"


def _check_successors(successors: npt.ArrayLike, n: int, least: int = 0) -> Integers:
    """`successors` as indices `[n, 2]` of n vectors, or down to `least`."""
    expected = f"expected two indices of vectors, {least} to {n - 1}, for each vector"
    try:
        rows = np.array(successors)
    except ValueError as error:
        raise InputError(f"successors are {successors!r:.80}; {expected}.") from error
    if rows.shape != (n, 2) or rows.dtype.kind not in "iu" or rows.min() < least or rows.max() >= n:
        raise InputError(f"successors are {successors!r:.80}; {expected}.")
    rows = rows.astype(np.int64, copy=False)
    rows.setflags(write=False)
    return rows


def _check_steps(given: npt.ArrayLike | None, n: int, instance: Instance) -> Integers | None:
    """`given` steps of n vectors, if the instance has a horizon."""
    if (given is None) != (instance.horizon is None):
        raise InputError(
            f"steps is {given!r:.40} and the horizon of the instance {instance.horizon}; expected both or none.",
            "steps",
        )
    if given is None or instance.horizon is None:
        return None
    rows = np.array(given)
    if rows.shape != (n,) or rows.dtype.kind not in "iu" or rows.min() < 1 or rows.max() > instance.horizon:
        raise InputError(
            f"steps are {given!r:.80}; expected an integer from 1 to {instance.horizon} for each of {n} vectors.",
            "steps",
        )
    rows = rows.astype(np.int64)
    rows.setflags(write=False)
    return rows


def _check_segment_upper(given: Sequence[float] | None, instance: Instance) -> tuple[float, ...] | None:
    """`given` upper bounds of the segments of the instance."""
    if given is None:
        return None
    n = 0 if instance.segments is None else len(instance.segments.names)
    if not isinstance(given, Sequence) or len(given) != n:
        raise InputError(
            f"segment_upper is {given!r:.80}; expected a number for each of {n} segments.", "segment_upper"
        )
    return tuple(check_float("segment_upper", each, 0.0, np.inf) for each in given)
