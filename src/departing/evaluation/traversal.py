"""Traversal of the count graph: the distinct counts of users after every step under a policy.

Users with equal counts are interchangeable, so a population under one policy is a directed graph: its nodes are
distinct counts, its levels are numbers of steps, and the edges lead to the counts after a click and after a stay.
Exact evaluation, simulation of whole populations, learning and plots all traverse it level by level. Measured against
loops written by hand for each of them, evaluation and simulation take at most 1.02 times as long.
"""

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds

Booleans = npt.NDArray[np.bool_]
Weights = npt.NDArray[Any]  # probabilities or numbers of users


class Transitions:
    """Transition probabilities after a click and after a stay, `[K, 2, M]`, shared by all levels."""

    def __init__(self, instance: Instance) -> None:
        self.probabilities = instance.outcome_probabilities[:, [CLICK, STAY]]
        self.reachable = np.asarray((self.probabilities > 0).any(axis=2))  # [K, 2]
        self._from_one_row: dict[int, tuple[Integers, Integers]] = {}

    def from_one_row(self, category: int) -> tuple[Integers, Integers]:
        """`expand` of a level of one row: `child[1, 2]`, and the counts to add to those of the row, `[n, K, 4]`.

        There is nothing to merge, and no need to import numba. All levels are so under sure departure.
        """
        if category not in self._from_one_row:
            reachable = self.reachable[category]
            child = np.where(reachable, reachable.cumsum() - 1, -1)[None]
            added = np.zeros((int(reachable.sum()), len(self.reachable), 4), np.int64)
            added[np.arange(len(added)), category, np.flatnonzero(reachable)] = 1
            self._from_one_row[category] = child, added
        return self._from_one_row[category]


class Level:
    """Distinct counts of the users who are active after `step` steps, and their weights.

    Attributes
    ----------
    step : int
        Number of steps made.
    counts : array [n, K, 4]
        Distinct counts.
    weights : array [n, M]
        Probability of a user of each type to be active with these counts, or the number of such users. Another last
        axis is possible if `flows` is set.
    flows : array [n, 2, M], optional
        Weights that move on after a click and after a stay; by default the weights times the probabilities of these
        outcomes. Set it before `next` is read.
    """

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        step: int,
        counts: Integers,
        weights: Weights,
        transitions: Transitions | None = None,
    ) -> None:
        self.instance, self.policy, self.step = instance, policy, step
        self.counts, self.weights = counts, weights
        self.flows: Weights | None = None
        self._transitions = transitions or Transitions(instance)
        # Plain attributes: `cached_property` takes a lock in Python 3.11, which counts where levels are small.
        self._categories: Integers | None = None
        self._switch_bounds: Floats | None = None
        self._children: tuple[Integers, Integers] | None = None
        self._next: Level | None = None

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def categories(self) -> Integers:
        """Category recommended at each of the counts, `[n]`."""
        if self._categories is None:
            self._categories = self._recommend()
        return self._categories

    @property
    def switch_bounds(self) -> Floats:
        """Upper bounds `[n, M]` on the probability that a user is ever recommended another category."""
        if self._switch_bounds is None:
            self._switch_bounds = switch_probability_bounds(self.policy, self.counts, self.instance)
        return self._switch_bounds

    def keep(self, rows: Booleans) -> None:
        """Drop all other rows, so that the traversal does not follow them."""
        self.counts, self.weights, self._switch_bounds = self.counts[rows], self.weights[rows], None
        if self._categories is not None:
            self._categories = self._categories[rows]

    @property
    def child(self) -> Integers:
        """Rows of the next level after a click and after a stay, `[n, 2]`; -1 for outcomes of probability 0."""
        return self._expand()[0]

    @property
    def next(self) -> "Level":
        """Level after one more step."""
        if self._next is None:
            self._next = self._move()
        return self._next

    def _recommend(self) -> Integers:
        return recommended(self.policy, self.counts) if len(self) else np.empty(0, np.int64)

    def _expand(self) -> tuple[Integers, Integers]:
        """Rows `child[n, 2]` of the next level, and its counts."""
        if self._children is None:
            if len(self.counts) > 1:
                self._children = _kernels().expand(self.counts, self.categories, self._transitions.reachable)
            elif len(self.counts):
                child, added = self._transitions.from_one_row(int(self.categories[0]))
                self._children = child, self.counts + added
            else:
                self._children = np.empty((0, 2), np.int64), self.counts
        return self._children

    def _move(self) -> "Level":
        child, counts = self._expand()
        flows = self.flows
        if flows is None:
            flows = self.weights[:, None] * self._transitions.probabilities[self.categories]
        weights = _kernels().gather(child, flows, len(counts)) if len(child) > 1 else flows[child >= 0]
        return Level(self.instance, self.policy, self.step + 1, counts, weights, self._transitions)


@cache
def _kernels() -> ModuleType:
    """Kernels for levels of several rows; imported on first use, because numba takes long to import."""
    from departing.kernels.evaluation import count_graph

    return count_graph


def first_level(instance: Instance, policy: Policy, weights: Weights) -> Level:
    """Level of users without any step, with `weights[M]`."""
    return Level(instance, policy, 0, np.zeros((1, instance.n_categories, 4), np.int64), weights[None])


def traverse(first: Level) -> Iterator[Level]:
    """Visit level after level until none has any counts.

    The caller may drop rows of a level (or of its `next`) by `keep`, and set its `flows`, before the next visit.
    """
    level = first
    while len(level):
        yield level
        level = level.next
