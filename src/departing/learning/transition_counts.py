"""TransitionCounts: the outcomes of all users by counts and category."""

from typing import Any

import numpy as np

from departing.kernels.hash_table import find_rows, insert_rows, key_multipliers
from departing.kernels.learning.transition_counts import add_transitions
from departing.learning.blocks import BlockLearner
from departing.learning.files import check_shape
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

MAX_ROWS = 2**14  # added at a time: bounds the memory reserved in advance, three nodes per row
ARRAYS = ("nodes", "depth", "outcomes", "unresolved_users", "child")


class TransitionCounts:
    """Observed transitions of the count graph: a sufficient statistic of everything a learner has seen.

    Only the first `limit` steps of a user are added.

    Attributes
    ----------
    size : int
        Number of nodes.
    nodes : array [n, K, 2]
        Counts of clicks and stays of every node.
    depth : array [n]
        Number of steps to each node.
    outcomes : array [n, K, 4]
        Number of users per node, recommended category and outcome.
    unresolved_users : array [n]
        Number of users at each node whose next outcome has not been observed.
    child : array [n, K, 2]
        Node after a click and after a stay, -1 if not observed.
    """

    def __init__(self, categories: int, limit: int) -> None:
        self.n_categories, self.limit = categories, limit
        self._multipliers = key_multipliers(2 * categories)
        shapes = ((1, 2 * categories), (1,), (1, categories, 4), (1,), (1, categories, 2))
        root = {name: np.zeros(shape, np.int64) for name, shape in zip(ARRAYS, shapes, strict=True)}
        root["child"][:] = -1
        self._load(root, 64)

    def _load(self, state: dict[str, Any], capacity: int) -> None:
        """Copy the arrays of a `state` into longer ones, which have space for `capacity` nodes."""
        self._arrays: dict[str, Integers] = {}
        for name in ARRAYS:
            rows = state[name]
            array = np.full((capacity, *rows.shape[1:]), -1 if name == "child" else 0, np.int64)
            array[: len(rows)] = rows
            self._arrays[name] = array
        self._slots = np.full(4 * capacity, -1, np.int64)
        self._set_size(len(state["depth"]))
        insert_rows(self._slots, self._arrays["nodes"], self.size, self._multipliers)

    def _set_size(self, size: int) -> None:
        """Let the public arrays show the first `size` nodes."""
        self.size = size
        nodes, self.depth, self.outcomes, self.unresolved_users, self.child = (
            array[:size] for array in self._arrays.values()
        )
        self.nodes = nodes.reshape(size, self.n_categories, 2)

    def add(
        self, counts: Integers, categories: Integers, outcomes: Integers, arrivals: Integers | None = None
    ) -> None:
        """Add users with `counts[n, K, 4]` shown `categories[n]`: `outcomes[n, 4]` users per outcome.

        `arrivals[n]`, the number of users who arrived before each, are of use for cohorts of users only.
        """
        row = np.zeros(2 * self.n_categories, np.int64)
        for first in range(0, len(counts), MAX_ROWS):
            rows = slice(first, first + MAX_ROWS)
            needed = self.size + 3 * len(counts[rows])
            if needed > len(self._arrays["depth"]):
                self._load(self.state(), 1 << needed.bit_length())
            batch = counts[rows], categories[rows], outcomes[rows]
            arrays = *self._arrays.values(), self._slots, self._multipliers
            self._set_size(int(add_transitions(*batch, self.limit, *arrays, self.size, row)))

    @property
    def users(self) -> float:
        """Number of users with an outcome."""
        return int(self.outcomes[0].sum())

    def find(self, counts: Integers) -> Integers:
        """Return the nodes `[n]` of the `counts[n, K, 4]` of active users, -1 for those that nobody had."""
        rows = counts[..., CLICK : STAY + 1].reshape(len(counts), -1)
        nodes = find_rows(self._slots, self._arrays["nodes"], self._multipliers, np.ascontiguousarray(rows))
        return np.asarray(nodes)

    def histogram(self, max_counts: int | None = None, depth: int | None = None) -> tuple[Integers, Integers]:
        """Return distinct counts `[n, K, 4]` and the number of users with each, censored after some steps.

        Users are censored after `depth` steps, or else after as many, at most `limit`, as give no more than
        `max_counts` distinct counts.
        """
        if depth is None:
            depth = self.limit if max_counts is None else self.max_depth(max_counts)
        inside, edge = self.depth < depth, self.depth == depth
        counts, users = [], []
        for outcome in (DEPART, CLICK_DEPART):
            node, category = np.nonzero(self.outcomes[..., outcome] * inside[:, None])
            departed = self.counts(node)
            departed[np.arange(len(node)), category, outcome] += 1
            counts.append(departed)
            users.append(self.outcomes[node, category, outcome])
        reached = self.unresolved_users + self.outcomes.sum(axis=(1, 2))
        censored = np.where(edge, reached, np.where(inside, self.unresolved_users, 0))
        censored[0] = 0
        node = np.flatnonzero(censored)
        return np.concatenate([*counts, self.counts(node)]), np.concatenate([*users, censored[node]])

    def max_depth(self, max_counts: int) -> int:
        """Return the largest number of steps with at most `max_counts` distinct counts, at least 1."""
        ending = (self.outcomes[..., DEPART:] > 0).sum(axis=(1, 2)) + (self.unresolved_users > 0)
        inside = np.bincount(self.depth, ending, self.limit + 1).cumsum()
        edge = np.bincount(self.depth, minlength=self.limit + 1)
        rows = np.concatenate([[0], inside[:-1]]) + edge
        fits = np.flatnonzero(rows <= max_counts)
        return int(max(fits[-1], 1)) if len(fits) else 1

    def counts(self, nodes: Integers) -> Integers:
        """Return the counts `[n, K, 4]` of active users at `nodes[n]`."""
        counts = np.zeros((len(nodes), self.n_categories, 4), np.int64)
        counts[..., CLICK : STAY + 1] = self.nodes[nodes]
        return counts

    def add_category(self) -> None:
        """Add a category that nobody has been shown."""
        state = self.state()
        state["nodes"] = np.pad(state["nodes"], ((0, 0), (0, 2)))
        state["outcomes"] = np.pad(state["outcomes"], ((0, 0), (0, 1), (0, 0)))
        state["child"] = np.pad(state["child"], ((0, 0), (0, 1), (0, 0)), constant_values=-1)
        self.n_categories += 1
        self._multipliers = key_multipliers(2 * self.n_categories)
        self._load(state, max(1 << self.size.bit_length(), 64))

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return {"limit": self.limit} | {name: array[: self.size].copy() for name, array in self._arrays.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise `ValueError` if its arrays do not fit together."""
        n = len(state["depth"])
        for name, array in self._arrays.items():
            check_shape(name, state[name], (n, *array.shape[1:]))
        if not n or state["child"].max() >= n:
            raise ValueError(f"child refers to nodes beyond the {n} saved ones")
        self.limit = state["limit"]
        self._load(state, max(1 << len(state["depth"]).bit_length(), 64))


class TransitionLearner(BlockLearner):
    """A learner whose only memory of users is their transition counts."""

    saved = (*BlockLearner.saved, "transitions")
    transitions: TransitionCounts

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add to the transition counts."""
        self.transitions.add(counts, categories, outcomes)
