"""Table: categories looked up by counts."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.kernels.hash_table import find_rows, insert_rows, key_multipliers
from departing.model.counts import Integers, as_counts, departed, flat_rows, merge, steps
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.policy.files import Saved, policy_to_dict
from departing.policy.protocol import (
    Allowed,
    Policy,
    check_categories,
    choose_allowed,
    recommended,
    switch_probability_bounds,
)


class Table(Saved):
    """Look the counts up; where they are not in the table, ask the `fallback`.

    `counts[n, K, 4]` are distinct counts of users who are still here, `categories[n]` what they get.

    >>> from departing.policy.schedule import Fixed
    >>> table = Table([[[0, 0, 0, 0], [0, 0, 0, 0]]], [1], fallback=Fixed(0))
    >>> table.recommend([[[0, 0, 0, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [1, 0, 0, 0]]])
    array([1, 0])
    """

    kind = "table"

    def __init__(self, counts: npt.ArrayLike, categories: Sequence[int] | Integers, fallback: Policy) -> None:
        empty = isinstance(counts, Sequence | np.ndarray) and not len(counts)
        rows = np.zeros((0, 1, 4), np.int64) if empty else np.array(as_counts(counts))
        if rows.ndim != 3:
            raise InputError(f"counts have shape {rows.shape}; expected [entries, categories, 4].")
        if departed(rows).any():
            raise InputError("counts hold a user who departed; a table is for users who are still here.")
        chosen = check_categories("categories", categories)
        if len(chosen) != len(rows):
            raise InputError(f"categories has {len(chosen)} entries; expected {len(rows)}, one for every counts.")
        if not isinstance(fallback, Policy):
            raise InputError(f"fallback is {fallback!r}; expected a policy.")
        self.counts = rows
        self.categories = np.array(chosen, np.int64)
        self.fallback = fallback
        self._check_distinct()
        self._multipliers = key_multipliers(rows.shape[1] * 4)
        self._slots = np.full(1 << (2 * len(rows) + 1).bit_length(), -1, np.int64)
        insert_rows(self._slots, flat_rows(rows), len(rows), self._multipliers)
        for array in (self.counts, self.categories):
            array.setflags(write=False)

    def _check_distinct(self) -> None:
        distinct, _ = merge(self.counts, np.ones(len(self.counts), np.int64))
        if len(distinct) != len(self.counts):
            raise InputError("counts hold the same counts twice; every counts may have one category only.")

    @cached_property
    def depth(self) -> int:
        """The most steps of any counts in the table."""
        return int(steps(self.counts).max(initial=-1))

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """The category of the counts in the table, or the fallback's; always the fallback's if it is not allowed."""
        given = as_counts(counts)
        return choose_allowed(
            self._choose(given), given, allowed, lambda rows, mask: recommended(self.fallback, rows, mask)
        )

    def _choose(self, given: Integers) -> Integers:
        rows = given.reshape(-1, *given.shape[-2:])
        answer = np.empty(len(rows), np.int64)
        entry = self._find(rows)
        found = entry >= 0
        answer[found] = self.categories[entry[found]]
        if not found.all():
            answer[~found] = recommended(self.fallback, rows[~found])
        return answer.reshape(given.shape[:-2])

    def _find(self, rows: Integers) -> Integers:
        """The entry of every row, or -1."""
        if not len(self.counts):
            return np.full(len(rows), -1, np.int64)
        if rows.shape[1] != self.counts.shape[1]:
            raise InputError(f"counts have {rows.shape[1]} categories; the table has {self.counts.shape[1]}.")
        flat = np.ascontiguousarray(flat_rows(rows))
        return np.asarray(find_rows(self._slots, flat_rows(self.counts), flat, self._multipliers))

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """What the fallback tells of counts that are deeper than the table, one elsewhere."""
        bounds = np.ones((len(counts), instance.n_types))
        deep = steps(counts) > self.depth
        bounds[deep] = switch_probability_bounds(self.fallback, counts[deep], instance)
        return bounds

    def describe(self, names: Sequence[str]) -> str:
        """The policy in words."""
        words = getattr(self.fallback, "describe", None)
        rest = words(names) if words else type(self.fallback).__name__
        return f"a table of {len(self.counts)} counts of up to {max(self.depth, 0)} steps, else {rest}"

    def to_dict(self) -> dict[str, Any]:
        """The entries and the fallback as plain values."""
        return {
            "counts": self.counts.tolist(),
            "categories": self.categories.tolist(),
            "fallback": policy_to_dict(self.fallback),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.categories, other.categories)
            and self.fallback == other.fallback
        )

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.categories.tobytes()))

    def __repr__(self) -> str:
        return f"<Table of {len(self.counts)} counts, fallback {self.fallback!r}>"
