"""Table: categories looked up by counts."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, gone, steps
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.policy.files import Saved, to_document
from departing.policy.protocol import Policy, as_category, unsettled


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
        rows = np.array(as_counts(counts))
        if rows.ndim != 3:
            raise InputError(f"counts have shape {rows.shape}; expected [entries, categories, 4].")
        if gone(rows).any():
            raise InputError("counts hold a user who departed; a table is for users who are still here.")
        if len(categories) != len(rows):
            raise InputError(f"categories has {len(categories)} entries; expected {len(rows)}, one for every counts.")
        chosen = [as_category(f"categories[{i}]", a) for i, a in enumerate(np.asarray(categories).tolist())]
        if not isinstance(fallback, Policy):
            raise InputError(f"fallback is {fallback!r}; expected a policy.")
        self.counts = rows
        self.categories = np.array(chosen, np.int64)
        self.fallback = fallback
        self._multipliers = self._scatter()
        keys = self._keys(rows)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        for array in (self.counts, self.categories):
            array.setflags(write=False)

    def _scatter(self) -> npt.NDArray[np.uint64]:
        """Random odd multipliers under which the table's counts have distinct keys."""
        n_distinct = len(np.unique(self.counts.reshape(len(self.counts), -1), axis=0))
        if n_distinct != len(self.counts):
            raise InputError("counts hold the same counts twice; every counts may have one category only.")
        width = self.counts.shape[1] * self.counts.shape[2]
        for seed in range(64):
            words = np.random.default_rng(seed).integers(0, 2**64, width, np.uint64)
            self._multipliers = words | np.uint64(1)
            if len(np.unique(self._keys(self.counts))) == n_distinct:
                break
        return self._multipliers

    def _keys(self, counts: Integers) -> npt.NDArray[np.uint64]:
        return np.asarray(counts.reshape(len(counts), -1).astype(np.uint64) @ self._multipliers)

    @cached_property
    def depth(self) -> int:
        """The most steps of any counts in the table."""
        return int(steps(self.counts).max(initial=-1))

    def recommend(self, counts: npt.ArrayLike) -> Integers:
        """The category of the counts in the table, or the fallback's."""
        given = as_counts(counts)
        rows = given.reshape(-1, *given.shape[-2:])
        answer = np.empty(len(rows), np.int64)
        entry = self._find(rows)
        found = entry >= 0
        answer[found] = self.categories[entry[found]]
        if not found.all():
            answer[~found] = self.fallback.recommend(rows[~found])
        return answer.reshape(given.shape[:-2])

    def _find(self, rows: Integers) -> Integers:
        """The entry of every row, or -1."""
        if not len(self.counts):
            return np.full(len(rows), -1, np.int64)
        if rows.shape[1] != self.counts.shape[1]:
            raise InputError(f"counts have {rows.shape[1]} categories; the table has {self.counts.shape[1]}.")
        at = np.searchsorted(self._sorted, self._keys(rows))
        entry = self._order[np.minimum(at, len(self._order) - 1)]
        return np.where((self.counts[entry] == rows).all(axis=(1, 2)), entry, -1)

    def unsettled(self, counts: Integers, instance: Instance) -> Floats:
        """What the fallback tells of counts that are deeper than the table, one elsewhere."""
        bounds = np.ones((len(counts), instance.n_types))
        deep = steps(counts) > self.depth
        bounds[deep] = unsettled(self.fallback, counts[deep], instance)
        return bounds

    def words(self, names: Sequence[str]) -> str:
        """The policy in words."""
        words = getattr(self.fallback, "words", None)
        rest = words(names) if words else type(self.fallback).__name__
        return f"a table of {len(self.counts)} counts of up to {max(self.depth, 0)} steps, else {rest}"

    def document(self) -> dict[str, Any]:
        """The entries and the fallback as plain values."""
        return {
            "counts": self.counts.tolist(),
            "categories": self.categories.tolist(),
            "fallback": to_document(self.fallback),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.document() == other.document()

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.categories.tobytes()))

    def __repr__(self) -> str:
        return f"<Table of {len(self.counts)} counts, fallback {self.fallback!r}>"
