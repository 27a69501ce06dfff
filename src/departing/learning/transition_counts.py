"""TransitionCounts: the outcomes of all users by counts and category."""

from typing import Any

import numpy as np

from departing.kernels.hash_table import insert_rows, key_multipliers
from departing.kernels.learning.transition_counts import add_transitions
from departing.learning.blocks import BlockLearner
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

MAX_ROWS = 2**14  # added at a time: bounds the memory reserved in advance, three nodes per row
ARRAYS = ("nodes", "depth", "outcomes", "unresolved_users", "child")


class TransitionCounts:
    """Observed transitions of the count graph: a sufficient statistic of everything a learner has seen.

    Only the first `limit` steps of a user are added. Arrays grow as needed; the first `size` rows are valid.
    """

    def __init__(self, categories: int, limit: int) -> None:
        self.n_categories, self.limit, self.size = categories, limit, 1
        self._multipliers = key_multipliers(2 * categories)
        self._allocate(64)
        insert_rows(self._slots, self._nodes, 1, self._multipliers)

    def _allocate(self, capacity: int) -> None:
        k = self.n_categories
        self._nodes = np.zeros((capacity, 2 * k), np.int64)
        self._depth = np.zeros(capacity, np.int64)
        self._outcomes = np.zeros((capacity, k, 4), np.int64)
        self._unresolved_users = np.zeros(capacity, np.int64)
        self._child = np.full((capacity, k, 2), -1, np.int64)
        self._slots = np.full(4 * capacity, -1, np.int64)

    @property
    def nodes(self) -> Integers:
        """Counts of clicks and stays of every node, `[n, K, 2]`."""
        return self._nodes[: self.size].reshape(self.size, self.n_categories, 2)

    @property
    def depth(self) -> Integers:
        """The number of steps to each node, `[n]`."""
        return self._depth[: self.size]

    @property
    def outcomes(self) -> Integers:
        """The number of users per node, recommended category and outcome, `[n, K, 4]`."""
        return self._outcomes[: self.size]

    @property
    def unresolved_users(self) -> Integers:
        """The number of users at each node whose next outcome has not been observed, `[n]`."""
        return self._unresolved_users[: self.size]

    @property
    def child(self) -> Integers:
        """The node after a click and after a stay, -1 if not observed, `[n, K, 2]`."""
        return self._child[: self.size]

    def add(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add users with `counts[n, K, 4]` shown `categories[n]`: `outcomes[n, 4]` users per outcome."""
        row = np.zeros(2 * self.n_categories, np.int64)
        for first in range(0, len(counts), MAX_ROWS):
            rows = slice(first, first + MAX_ROWS)
            needed = self.size + 3 * len(counts[rows])
            if needed > len(self._depth):
                self._load(self.state(), 1 << needed.bit_length())
            arrays = [getattr(self, f"_{name}") for name in (*ARRAYS, "slots", "multipliers")]
            batch = counts[rows], categories[rows], outcomes[rows]
            self.size = int(add_transitions(*batch, self.limit, *arrays, self.size, row))

    def histogram(self, max_counts: int | None = None) -> tuple[Integers, Integers]:
        """Return distinct counts `[n, K, 4]` and the number of users with each, censored after some steps.

        Users are censored after as many steps, at most `limit`, as give no more than `max_counts` distinct counts.
        """
        depth = self.limit if max_counts is None else self._max_depth(max_counts)
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

    def _max_depth(self, max_counts: int) -> int:
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

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        arrays = {name: getattr(self, f"_{name}")[: self.size].copy() for name in ARRAYS}
        return {"limit": self.limit} | arrays

    def _load(self, state: dict[str, Any], capacity: int) -> None:
        self.size = len(state["depth"])
        self._allocate(capacity)
        for name in ARRAYS:
            getattr(self, f"_{name}")[: self.size] = state[name]
        insert_rows(self._slots, self._nodes, self.size, self._multipliers)

    @classmethod
    def from_state(cls, categories: int, state: dict[str, Any]) -> "TransitionCounts":
        """Create transition counts that continue from a `state`."""
        transitions = cls(categories, state["limit"])
        transitions._load(state, max(1 << len(state["depth"]).bit_length(), 64))
        return transitions


class TransitionLearner(BlockLearner):
    """A learner whose only memory of users is their transition counts."""

    transitions: TransitionCounts

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add to the transition counts."""
        self.transitions.add(counts, categories, outcomes)

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return super().state() | {"transitions": self.transitions.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        super().restore(state)
        self.transitions = TransitionCounts.from_state(self.n_categories, state["transitions"])
