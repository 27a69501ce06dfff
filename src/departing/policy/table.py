"""Table: categories looked up by counts."""

from collections.abc import Sequence
from copy import copy
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count
from departing.model.counts import Integers, as_counts, departed, flat_rows, merge, steps
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.policy.files import SerializablePolicy, policy_to_dict
from departing.policy.protocol import (
    Category,
    Mask,
    Policy,
    check_category_refs,
    own_segments,
    policy_in_segment,
    recommended,
    reorder_policy,
    resolve_category,
    resolve_policy,
    resolved_indices,
    switch_probability_bounds,
)


@cache
def _kernels() -> ModuleType:
    from departing.kernels import hash_table  # on first use, because numba takes long to import

    return hash_table


class Table(SerializablePolicy):
    """Policy that looks counts up in a table and uses another policy for counts that are not in it.

    Parameters
    ----------
    counts : array_like of int, shape (n, K, 4)
        Distinct counts of users who have not departed.
    categories : sequence of int or str, length n
        Category for each of the counts, by index or name.
    fallback : Policy
        Policy for all other counts, and where the category of the table is not allowed.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed
    >>> table = Table([[[0, 0, 0, 0], [0, 0, 0, 0]]], [1], fallback=Fixed(0))
    >>> table.recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [1, 0, 0, 0]]])
    array([1, 0])
    """

    kind = "table"

    def __init__(self, counts: npt.ArrayLike, categories: Sequence[Category] | Integers, fallback: Policy) -> None:
        empty = isinstance(counts, Sequence | np.ndarray) and not len(counts)
        rows = np.zeros((0, 1, 4), np.int64) if empty else np.array(as_counts(counts))
        if rows.ndim != 3:
            raise InputError(f"counts have shape {rows.shape}; expected [entries, categories, 4].")
        if departed(rows).any():
            raise InputError("counts contain a departed user; a table is for users who have not departed.")
        self.given_categories = tuple(check_category_refs("categories", categories))
        if len(self.given_categories) != len(rows):
            raise InputError(
                f"categories has {len(self.given_categories)} entries; expected {len(rows)}, one for each counts."
            )
        if not isinstance(fallback, Policy):
            raise InputError(f"fallback is {fallback!r}; expected a policy.")
        rows.setflags(write=False)
        self.counts, self.fallback = rows, fallback
        distinct, _ = merge(rows, np.ones(len(rows), np.int64))
        if len(distinct) != len(rows):
            raise InputError("counts contain the same counts twice; expected one category for each counts.")

    @cached_property
    def categories(self) -> Integers:
        """Category index of each entry, shape (n,)."""
        indices = resolved_indices(self.given_categories)
        indices.setflags(write=False)
        return indices

    @cached_property
    def _hash_table(self) -> tuple[Integers, Integers, npt.NDArray[np.uint64]]:
        """Slots, rows `[entries, 4 K]` and multipliers of the hash keys."""
        rows, multipliers = flat_rows(self.counts), _kernels().key_multipliers(self.counts.shape[1] * 4)
        slots = np.full(1 << (2 * len(rows) + 1).bit_length(), -1, np.int64)
        _kernels().insert_rows(slots, rows, len(rows), multipliers)
        return slots, rows, multipliers

    @cached_property
    def depth(self) -> int:
        """Largest number of steps of the counts in the table."""
        return int(steps(self.counts).max(initial=-1))

    def resolve(self, categories: Sequence[str]) -> Self:
        """Return this policy, and its fallback, with category names replaced by indices into `categories`."""
        resolved = copy(self)
        if any(isinstance(category, str) for category in self.given_categories):
            resolved.__dict__.pop("categories", None)
            resolved.given_categories = tuple(
                resolve_category(category, categories) for category in self.given_categories
            )
        resolved.fallback = resolve_policy(self.fallback, categories)
        resolved.category_names = tuple(categories)
        return resolved

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments that the fallback distinguishes."""
        return own_segments(self.fallback)

    def in_segment(self, name: str | None) -> Self:
        """Return this policy with the fallback for the users of a segment."""
        fallback = policy_in_segment(self.fallback, name)
        if fallback is self.fallback:
            return self
        own = copy(self)
        own.fallback = fallback
        return own

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy, and its fallback, for its categories in another order, given as old indices."""
        place = np.argsort(order)
        counts = self.counts[:, list(order)] if len(self.counts) else self.counts
        given = [
            category if isinstance(category, str) else int(place[category]) for category in self.given_categories
        ]
        reordered = type(self)(counts, given, reorder_policy(self.fallback, order))
        reordered.category_names = tuple(self.category_names[i] for i in order) if self.category_names else ()
        return reordered

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        return recommended(self.fallback, counts, mask)

    def _choose(self, counts: Integers) -> Integers:
        rows = counts.reshape(-1, *counts.shape[-2:])
        entry = self._look_up(rows)
        unknown = entry < 0
        answer = self.categories[entry] if len(self.categories) else entry
        if unknown.any():
            answer[unknown] = recommended(self.fallback, rows[unknown])
        return answer.reshape(counts.shape[:-2])

    def _look_up(self, rows: Integers) -> Integers:
        """The entry of each row, or -1."""
        if not len(self.counts):
            return np.full(len(rows), -1, np.int64)
        if rows.shape[1] != self.counts.shape[1]:
            raise InputError(f"counts have {rows.shape[1]} categories; the table has {self.counts.shape[1]}.")
        return np.asarray(_kernels().find_rows(*self._hash_table, np.ascontiguousarray(flat_rows(rows))))

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Bounds of the fallback for counts deeper than the table, one elsewhere."""
        bounds = np.ones((len(counts), instance.n_types))
        deep = steps(counts) > self.depth
        bounds[deep] = switch_probability_bounds(self.fallback, counts[deep], instance)
        return bounds

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase, with the names of the categories."""
        describe = getattr(self.fallback, "describe", None)
        rest = describe(names) if describe else type(self.fallback).__name__
        return (
            f"a table of {len(self.counts)} counts of up to {format_count(max(self.depth, 0), 'step')}, else {rest}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {
            "counts": self.counts.tolist(),
            "categories": list(self.given_categories),
            "fallback": policy_to_dict(self.fallback),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and np.array_equal(self.counts, other.counts)
            and self.given_categories == other.given_categories
            and self.fallback == other.fallback
        )

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.given_categories))

    def __repr__(self) -> str:
        return f"<Table of {len(self.counts)} counts, fallback {self.fallback!r}>"
