"""Traversal of the count graph: the distinct counts of users after every step under a policy.

Users with equal counts are interchangeable, so a population under one policy is a directed graph: its nodes are
distinct counts, its levels are numbers of steps, and the edges lead to the counts after a click and after a stay.
Exact evaluation, simulation of whole populations, learning and plots all traverse it level by level.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds

Booleans = npt.NDArray[np.bool_]
Weights = npt.NDArray[Any]  # probabilities or numbers of users


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

    def __init__(self, instance: Instance, policy: Policy, step: int, counts: Integers, weights: Weights) -> None:
        self.instance, self.policy, self.step = instance, policy, step
        self.counts, self.weights = counts, weights
        self.flows: Weights | None = None

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def categories(self) -> Integers:
        """Category recommended at each of the counts, `[n]`."""
        return recommended(self.policy, self.counts) if len(self) else np.empty(0, np.int64)

    @cached_property
    def switch_bounds(self) -> Floats:
        """Upper bounds `[n, M]` on the probability that a user is ever recommended another category."""
        return switch_probability_bounds(self.policy, self.counts, self.instance)

    def keep(self, rows: Booleans) -> None:
        """Drop all other rows, so that the traversal does not follow them."""
        self.counts, self.weights = self.counts[rows], self.weights[rows]
        for name in ("categories", "switch_bounds"):
            if name in self.__dict__:
                self.__dict__[name] = self.__dict__[name][rows]

    @cached_property
    def _children(self) -> tuple[Integers, Integers]:
        """Rows `child[n, 2]` of the next level, and its counts."""
        reachable = np.asarray((self.instance.outcome_probabilities[:, [CLICK, STAY]] > 0).any(axis=2))
        if len(self) > 1:
            from departing.kernels.evaluation.count_graph import expand

            child, counts = expand(self.counts, self.categories, reachable)
            return child, counts
        # A chain, as under sure departure: nothing to merge, and no need to import numba.
        outcomes = np.flatnonzero(reachable[self.categories].any(axis=0))
        rows = np.arange(len(outcomes))
        child = np.full((len(self), 2), -1, np.int64)
        child[:, outcomes] = rows
        counts = self.counts.repeat(len(outcomes), axis=0)
        counts[rows, self.categories.repeat(len(outcomes)), outcomes] += 1
        return child, counts

    @property
    def child(self) -> Integers:
        """Rows of the next level after a click and after a stay, `[n, 2]`; -1 for outcomes of probability 0."""
        return self._children[0]

    @cached_property
    def next(self) -> "Level":
        """Level after one more step."""
        child, counts = self._children
        flows = self.flows
        if flows is None:
            flows = self.weights[:, None] * self.instance.outcome_probabilities[:, [CLICK, STAY]][self.categories]
        if len(self) > 1:
            from departing.kernels.evaluation.count_graph import gather

            weights = gather(child, flows, len(counts))
        else:
            weights = flows[child >= 0]
        return Level(self.instance, self.policy, self.step + 1, counts, weights)


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
