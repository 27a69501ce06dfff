"""Levels of users under a rule that depends on the last outcome of a user."""

from typing import cast

import numpy as np

from departing.evaluation.traversal import Booleans, Level, Weights
from departing.learning.protocol import LastOutcomeRule
from departing.model.counts import Integers, merge
from departing.model.instance import CLICK, STAY, Instance
from departing.policy.protocol import Policy


class LastOutcomeLevel(Level):
    """Level of users who differ by counts and by last outcome; `flows` must be set before `next` is read."""

    def __init__(
        self,
        instance: Instance,
        policy: LastOutcomeRule,
        step: int,
        counts: Integers,
        weights: Weights,
        clicked: Booleans,
    ) -> None:
        super().__init__(instance, cast(Policy, policy), step, counts, weights)  # only `categories` asks it
        self._rule, self._clicked = policy, clicked

    def _recommend(self) -> Integers:
        return self._rule.recommend_after(self._clicked)

    def _move(self) -> "LastOutcomeLevel":
        """Users who clicked, then those who stayed, each with distinct counts."""
        assert self.flows is not None
        parts = [_after(self.counts, self.categories, self.flows[:, outcome], outcome) for outcome in (CLICK, STAY)]
        counts, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        clicked = np.arange(len(counts)) < len(parts[CLICK][0])
        return LastOutcomeLevel(self.instance, self._rule, self.step + 1, counts, weights, clicked)

    def keep(self, rows: Booleans) -> None:
        """Drop all other rows."""
        super().keep(rows)
        self._clicked = self._clicked[rows]


def first_last_outcome_level(instance: Instance, policy: LastOutcomeRule, users: Integers) -> LastOutcomeLevel:
    """Level of `users[M]` without any step."""
    counts = np.zeros((1, instance.n_categories, 4), np.int64)
    return LastOutcomeLevel(instance, policy, 0, counts, users[None], np.ones(1, bool))


def _after(counts: Integers, categories: Integers, users: Integers, outcome: int) -> tuple[Integers, Integers]:
    """Distinct counts, and `users[n, M]` at each, after this outcome; merged in an order that sampling relies on."""
    some = users.any(axis=1)
    moved = counts[some]
    moved[np.arange(len(moved)), categories[some], outcome] += 1
    return merge(moved, users[some]) if len(moved) else (moved, users[some])
