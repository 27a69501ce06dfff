"""Policies that look at the number of steps alone: Fixed, Threshold and Walk."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, steps
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.policy.files import Saved
from departing.policy.protocol import Allowed, Mask, check_categories, check_category, choose_allowed


class Schedule(Saved, ABC):
    """Recommend by the clock: some categories for some steps each, then one for ever."""

    then: int

    @property
    @abstractmethod
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The (category, number of steps) before `then`, each of at least one step."""

    @cached_property
    def _phase_ends(self) -> Integers:
        return np.cumsum([n for _, n in self.phases], dtype=np.int64)

    @cached_property
    def phase_categories(self) -> Integers:
        """The categories in the order of the segments, `then` last."""
        return np.array([a for a, _ in self.phases] + [self.then], np.int64)

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """The category of the current step; if it is not allowed, the next that is, or else the first allowed."""
        given = as_counts(counts)
        return choose_allowed(np.asarray(self.phase_categories[self._phase(given)]), given, allowed, self._instead)

    def _phase(self, counts: Integers) -> Integers:
        return np.asarray(np.searchsorted(self._phase_ends, steps(counts), side="right"))

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        answer, phase = mask.argmax(axis=1), self._phase(counts)
        found = np.zeros(len(counts), bool)
        for later, category in enumerate(self.phase_categories):
            hit = ~found & (phase <= later) & mask[:, category]
            answer[hit], found[hit] = category, True
        return np.asarray(answer)

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Zero where the last category has been reached, one elsewhere."""
        last = self._phase_ends[-1] if len(self._phase_ends) else 0
        return np.repeat((steps(counts) < last).astype(np.float64)[:, None], instance.n_types, axis=1)

    def describe(self, names: Sequence[str]) -> str:
        """The policy in words."""
        parts = [f"{names[a]} × {n}" for a, n in self.phases]
        return ", ".join([*parts, f"then {names[self.then]}"]) if parts else f"always {names[self.then]}"


@dataclass(frozen=True)
class Fixed(Schedule):
    """Always the same category: the paper's fixed-arm policy.

    >>> Fixed(1).recommend([[3, 0, 0, 0], [0, 0, 0, 0]])
    array(1)
    """

    category: int
    kind = "fixed"
    phases = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "category", check_category("category", self.category))

    @property
    def then(self) -> int:  # type: ignore[override]
        """The category."""
        return self.category

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"category": self.category}


@dataclass(frozen=True, kw_only=True)
class Threshold(Schedule):
    """One category for a number of steps, then another for ever: the paper's (a, h)-threshold policy.

    >>> Threshold(first=1, steps=6, then=0).describe(["economics", "sports"])
    'sports × 6, then economics'
    """

    first: int
    steps: int
    then: int
    kind = "threshold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", check_category("first", self.first))
        object.__setattr__(self, "then", check_category("then", self.then))
        if isinstance(self.steps, bool) or not isinstance(self.steps, int | np.integer) or self.steps < 0:
            raise InputError(f"steps is {self.steps!r}; expected an integer ≥ 0.")
        if self.steps >= 2**62:
            raise InputError(f"steps is {self.steps}; at most {2**62 - 1} are allowed.")
        object.__setattr__(self, "steps", int(self.steps))

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The first category, unless it has no steps."""
        return ((self.first, self.steps),) if self.steps else ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"first": self.first, "steps": self.steps, "then": self.then}


@dataclass(frozen=True)
class Walk(Schedule):
    """A sequence of categories, then one for ever: the paper's belief-category walk.

    >>> Walk([0, 2, 2], then=1).describe(["news", "sport", "music"])
    'news × 1, music × 2, then sport'
    """

    categories: tuple[int, ...]
    then: int = field(kw_only=True)
    kind = "walk"

    def __init__(self, categories: Sequence[int], *, then: int) -> None:
        object.__setattr__(self, "categories", tuple(check_categories("categories", categories)))
        object.__setattr__(self, "then", check_category("then", then))

    @cached_property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The runs of equal categories."""
        return tuple((a, sum(1 for _ in run)) for a, run in groupby(self.categories))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {"categories": list(self.categories), "then": self.then}
