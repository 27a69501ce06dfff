"""Levels of users under a LastOutcomePolicy, which recommends one category after a click and another otherwise."""

from functools import cached_property

import numpy as np

from departing.evaluation.traversal import Booleans, Level, Weights
from departing.learning.last_outcome import LastOutcomePolicy
from departing.model.counts import Integers, merge
from departing.model.instance import CLICK, STAY, Instance


class LastOutcomeLevel(Level):
    """Level of users who differ by counts and by last outcome; `flows` must be set before `next` is read."""

    def __init__(
        self,
        instance: Instance,
        policy: LastOutcomePolicy,
        step: int,
        counts: Integers,
        weights: Weights,
        liked: Booleans,
    ) -> None:
        super().__init__(instance, policy, step, counts, weights)
        self._policy, self._liked = policy, liked

    @cached_property
    def categories(self) -> Integers:
        """Category recommended in each row, `[n]`."""
        return self._policy.at(self._liked)

    @cached_property
    def next(self) -> "LastOutcomeLevel":
        """Level after one more step: the users who clicked, then those who stayed, each with distinct counts."""
        assert self.flows is not None
        parts = [_after(self.counts, self.categories, self.flows[:, outcome], outcome) for outcome in (CLICK, STAY)]
        counts, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        liked = np.arange(len(counts)) < len(parts[CLICK][0])
        return LastOutcomeLevel(self.instance, self._policy, self.step + 1, counts, weights, liked)

    def keep(self, rows: Booleans) -> None:
        """Drop all other rows."""
        super().keep(rows)
        self._liked = self._liked[rows]


def first_last_outcome_level(instance: Instance, policy: LastOutcomePolicy, users: Integers) -> LastOutcomeLevel:
    """Level of `users[M]` without any step."""
    counts = np.zeros((1, instance.n_categories, 4), np.int64)
    return LastOutcomeLevel(instance, policy, 0, counts, users[None], np.ones(1, bool))


def _after(counts: Integers, categories: Integers, users: Integers, outcome: int) -> tuple[Integers, Integers]:
    """Distinct counts, and `users[n, M]` at each, after this outcome; merged in an order that sampling relies on."""
    some = users.any(axis=1)
    moved = counts[some]
    moved[np.arange(len(moved)), categories[some], outcome] += 1
    return merge(moved, users[some]) if len(moved) else (moved, users[some])
