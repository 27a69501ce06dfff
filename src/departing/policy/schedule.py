"""Policies that depend on the number of past steps only: Fixed, Threshold and Walk."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import numpy as np

from departing.model.counts import Integers, steps
from departing.model.events import Events, check_events
from departing.model.instance import Floats, Instance
from departing.model.validation import check_int
from departing.policy.files import SerializablePolicy
from departing.policy.protocol import (
    Allowed,
    Category,
    Mask,
    check_category,
    check_category_refs,
    resolve_category,
    resolved_indices,
)

MAX_STEPS = 2**62 - 1  # sums of two still fit into 64 bits
MAX_DESCRIBED = 20  # phases in a description: two lines of text


class Schedule(SerializablePolicy, ABC):
    """Policy of phases: one category for a number of steps each, then `then` without end.

    Where that category is not allowed, the next phase whose category is, or the first allowed category, replaces it.
    """

    then: Category

    @property
    @abstractmethod
    def given_phases(self) -> tuple[tuple[Category, int], ...]:
        """The (category, number of steps ≥ 1) of all phases but the last, categories as they were given."""

    @cached_property
    def phase_categories(self) -> Integers:
        """Category indices of the phases, shape (number of phases,); the last is that of `then`."""
        return resolved_indices([*(category for category, _ in self.given_phases), self.then])

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The (category index, number of steps) of all phases but the last."""
        return tuple((int(a), n) for a, (_, n) in zip(self.phase_categories, self.given_phases, strict=False))

    @property
    def final_category(self) -> int:
        """Category index of the last phase."""
        return int(self.phase_categories[-1])

    @cached_property
    def _phase_ends(self) -> Integers:
        return np.cumsum([n for _, n in self.given_phases], dtype=np.int64)

    def resolve(self, categories: Sequence[str]) -> Self:
        """Return this policy with category names replaced by indices into `categories`."""

        def index(value: Any) -> Any:
            return [index(each) for each in value] if isinstance(value, list) else resolve_category(value, categories)

        if self.category_names == tuple(categories):
            return self
        if isinstance(self.then, str) or any(isinstance(a, str) for a, _ in self.given_phases):
            resolved = type(self)(**{name: index(value) for name, value in self.to_dict().items()})
        else:
            resolved = copy(self)
        object.__setattr__(resolved, "category_names", tuple(categories))
        return resolved

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""
        place = np.argsort(order)

        def moved(name: str, value: Any) -> Any:
            if isinstance(value, list):
                return [moved(name, each) for each in value]
            return value if name == "steps" or isinstance(value, str) else int(place[value])

        reordered = type(self)(**{name: moved(name, value) for name, value in self.to_dict().items()})
        if self.category_names:
            object.__setattr__(reordered, "category_names", tuple(self.category_names[i] for i in order))
        return reordered

    def _recommend_after(self, events: Events, allowed: Allowed, segment: str | None) -> str:
        """Name of the category for one user; for a schedule of names its own and those of the events suffice."""
        own = [*(category for category, _ in self.given_phases), self.then]
        if self.category_names or not all(isinstance(category, str) for category in own):
            return super()._recommend_after(events, allowed, segment)
        named = [*own, *(category for category, _ in check_events(events))]
        named += [name for name in allowed if isinstance(name, str)] if isinstance(allowed, Sequence) else []
        resolved = self.resolve([str(name) for name in dict.fromkeys(named)])
        return resolved._recommend_after(events, allowed, segment)

    def _choose(self, counts: Integers) -> Integers:
        return np.asarray(self.phase_categories[self._phase(counts)])

    def first_categories(self, steps: int) -> Integers:
        """Categories recommended at the first steps, `[steps]`."""
        return np.asarray(self.phase_categories[np.searchsorted(self._phase_ends, np.arange(steps), side="right")])

    def _phase(self, counts: Integers) -> Integers:
        return np.asarray(np.searchsorted(self._phase_ends, steps(counts), side="right"))

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        """The category of the next phase that is allowed, or the first that is."""
        answer, phase = mask.argmax(axis=1), self._phase(counts)
        nearest = np.full(len(counts), len(self.phase_categories))
        for category, phases in self._phases_of.items():
            next_phase = phases[np.searchsorted(phases, phase)]
            sooner = mask[:, category] & (next_phase < nearest)
            answer[sooner], nearest[sooner] = category, next_phase[sooner]
        return np.asarray(answer)

    @cached_property
    def _phases_of(self) -> dict[int, Integers]:
        """The phases of each category in order, followed by the number of all phases."""
        chosen = self.phase_categories
        return {a: np.append(np.flatnonzero(chosen == a), len(chosen)) for a in np.unique(chosen).tolist()}

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Zero in the last phase, one before."""
        last = self._phase_ends[-1] if len(self._phase_ends) else 0
        return np.repeat((steps(counts) < last).astype(np.float64)[:, None], instance.n_types, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase, with the names of the categories."""

        def name(category: Category) -> str:
            return category if isinstance(category, str) else names[category]

        parts = [f"{name(a)} × {n}" for a, n in self.given_phases[:MAX_DESCRIBED]]
        if len(self.given_phases) > MAX_DESCRIBED:
            parts.append("…")
        return ", ".join([*parts, f"then {name(self.then)}"]) if parts else f"always {name(self.then)}"


@dataclass(frozen=True)
class Fixed(Schedule):
    """Policy that always recommends the same category: the paper's fixed-arm policy.

    Parameters
    ----------
    category : int or str
        Index or name of the category.

    Examples
    --------
    >>> Fixed(1).recommend([[3, 0, 0, 0], [0, 0, 0, 0]])
    array(1)
    >>> Fixed("sports").resolve(["economics", "sports"])
    Fixed(category=1)
    """

    category: Category
    kind = "fixed"
    given_phases = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "category", check_category("category", self.category))

    @property
    def then(self) -> Category:  # type: ignore[override]
        """The category."""
        return self.category


@dataclass(frozen=True)
class Threshold(Schedule):
    """Policy that switches once: the paper's (a, h)-threshold policy.

    Parameters
    ----------
    first : int or str
        Category of the first `steps` steps.
    steps : int
        Number of steps before the switch, at least 0.
    then : int or str
        Category of all later steps.

    Examples
    --------
    >>> Threshold("sports", 6, "economics").describe(["economics", "sports"])
    'sports × 6, then economics'
    """

    first: Category
    steps: int
    then: Category
    kind = "threshold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", check_category("first", self.first))
        object.__setattr__(self, "then", check_category("then", self.then))
        object.__setattr__(self, "steps", check_int("steps", self.steps, 0, MAX_STEPS))

    @property
    def given_phases(self) -> tuple[tuple[Category, int], ...]:
        """The first category, unless it has no steps."""
        return ((self.first, self.steps),) if self.steps else ()


@dataclass(frozen=True)
class Walk(Schedule):
    """Policy that follows a sequence of categories: the paper's belief-category walk.

    Parameters
    ----------
    categories : sequence of int or str
        Categories of the first steps, one each.
    then : int or str
        Category of all later steps.

    Examples
    --------
    >>> Walk(["news", 2, 2], then=1).describe(["news", "sport", "music"])
    'news × 1, music × 2, then sport'
    """

    categories: tuple[Category, ...]
    then: Category = field(kw_only=True)
    kind = "walk"

    def __init__(self, categories: Sequence[Category], *, then: Category) -> None:
        object.__setattr__(self, "categories", tuple(check_category_refs("categories", categories)))
        object.__setattr__(self, "then", check_category("then", then))

    @cached_property
    def given_phases(self) -> tuple[tuple[Category, int], ...]:
        """The runs of equal categories."""
        return tuple((a, sum(1 for _ in run)) for a, run in groupby(self.categories))


def simplest_schedule(categories: Sequence[int], then: int) -> Schedule:
    """Return a walk as Fixed or Threshold where it is one.

    >>> simplest_schedule([1, 1, 0, 0], then=0)
    Threshold(first=1, steps=2, then=0)
    """
    walk = list(categories)
    while walk and walk[-1] == then:
        walk.pop()
    if not walk:
        return Fixed(then)
    return Threshold(walk[0], len(walk), then) if len(set(walk)) == 1 else Walk(walk, then=then)
