"""What users did, by counts: all that a learner keeps of them."""

from typing import Any

import numpy as np

from departing.kernels.hash_table import insert_rows, key_multipliers
from departing.kernels.learning.transition_counts import record
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

MOST_ROWS = 2**14  # booked at a time


class TransitionCounts:
    """The counts that users had, what they were shown there and what came of it.

    `nodes[n, K, 2]` are counts of clicks and stays, `depth[n]` their sum; `seen[n, K, 4]` how many users were shown
    each category there and ended in each outcome; `here[n]` how many came there of whom nothing more is known.
    `child[n, K, 2]` is the node after a click and after a stay, -1 where nobody went. Only the first `limit` steps of
    a user are booked.
    """

    def __init__(self, categories: int, limit: int) -> None:
        self.n_categories, self.limit, self.size = categories, limit, 1
        self._multipliers = key_multipliers(2 * categories)
        self._arrays(64)
        insert_rows(self._slots, self._nodes, 1, self._multipliers)

    def _arrays(self, room: int) -> None:
        k = self.n_categories
        self._nodes = np.zeros((room, 2 * k), np.int64)
        self._depth = np.zeros(room, np.int64)
        self._seen = np.zeros((room, k, 4), np.int64)
        self._here = np.zeros(room, np.int64)
        self._child = np.full((room, k, 2), -1, np.int64)
        self._slots = np.full(4 * room, -1, np.int64)

    @property
    def nodes(self) -> Integers:
        """Counts of clicks and stays, `[n, K, 2]`."""
        return self._nodes[: self.size].reshape(self.size, self.n_categories, 2)

    @property
    def depth(self) -> Integers:
        """How many steps led to each node."""
        return self._depth[: self.size]

    @property
    def seen(self) -> Integers:
        """How many users were shown each category and ended in each outcome, `[n, K, 4]`."""
        return self._seen[: self.size]

    @property
    def here(self) -> Integers:
        """How many users came here of whom nothing more is known."""
        return self._here[: self.size]

    @property
    def child(self) -> Integers:
        """The node after a click and after a stay, `[n, K, 2]`."""
        return self._child[: self.size]

    def book(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add users with `counts[n, K, 4]`, shown `categories[n]`; `outcomes[n, 4]` are numbers of users."""
        for first in range(0, len(counts), MOST_ROWS):
            rows = slice(first, first + MOST_ROWS)
            self._grow(self.size + 3 * len(counts[rows]))
            self.size = int(
                record(
                    counts[rows],
                    categories[rows],
                    outcomes[rows],
                    self.limit,
                    self._nodes,
                    self._depth,
                    self._seen,
                    self._here,
                    self._child,
                    self._slots,
                    self._multipliers,
                    self.size,
                    np.zeros(2 * self.n_categories, np.int64),
                )
            )

    def _grow(self, room: int) -> None:
        if room <= len(self._depth):
            return
        kept = [array[: self.size] for array in (self._nodes, self._depth, self._seen, self._here, self._child)]
        self._arrays(1 << room.bit_length())
        for array, values in zip((self._nodes, self._depth, self._seen, self._here, self._child), kept, strict=True):
            array[: self.size] = values
        insert_rows(self._slots, self._nodes, self.size, self._multipliers)

    def histogram(self, most: int | None = None) -> tuple[Integers, Integers]:
        """Distinct counts `[n, K, 4]` and how many users have each, for users looked at for a limited time.

        They are looked at for as many steps, at most `limit`, as give no more than `most` different counts; users who
        are here after that, or of whom nothing more is known, are here still.
        """
        depth = self.limit if most is None else self._affordable(most)
        inside, edge = self.depth < depth, self.depth == depth
        counts, users = [], []
        for outcome in (DEPART, CLICK_DEPART):
            node, category = np.nonzero(self.seen[..., outcome] * inside[:, None])
            left = self._full(node)
            left[np.arange(len(node)), category, outcome] += 1
            counts.append(left)
            users.append(self.seen[node, category, outcome])
        staying = np.where(edge, self.here + self.seen.sum(axis=(1, 2)), np.where(inside, self.here, 0))
        staying[0] = 0
        node = np.flatnonzero(staying)
        return np.concatenate([*counts, self._full(node)]), np.concatenate([*users, staying[node]])

    def _affordable(self, most: int) -> int:
        """The largest number of steps that gives no more than `most` different counts."""
        leaving = (self.seen[..., DEPART:] > 0).sum(axis=(1, 2)) + (self.here > 0)
        inside = np.bincount(self.depth, leaving, self.limit + 1).cumsum()
        edge = np.bincount(self.depth, minlength=self.limit + 1)
        rows = np.concatenate([[0], inside[:-1]]) + edge
        fits = np.flatnonzero(rows <= most)
        return int(max(fits[-1], 1)) if len(fits) else 1

    def _full(self, nodes: Integers) -> Integers:
        """The counts `[n, K, 4]` of users at nodes."""
        counts = np.zeros((len(nodes), self.n_categories, 4), np.int64)
        counts[..., CLICK : STAY + 1] = self.nodes[nodes]
        return counts

    def state(self) -> dict[str, Any]:
        """Its arrays."""
        return {
            "limit": self.limit,
            "nodes": self._nodes[: self.size].copy(),
            "depth": self.depth.copy(),
            "seen": self.seen.copy(),
            "here": self.here.copy(),
            "child": self.child.copy(),
        }

    @classmethod
    def from_state(cls, categories: int, state: dict[str, Any]) -> "TransitionCounts":
        """The ledger with this state."""
        ledger = cls(categories, state["limit"])
        ledger.size = len(state["depth"])
        room = max(1 << ledger.size.bit_length(), 64)
        ledger._arrays(room)
        for name in ("nodes", "depth", "seen", "here", "child"):
            getattr(ledger, f"_{name}")[: ledger.size] = state[name]
        insert_rows(ledger._slots, ledger._nodes, ledger.size, ledger._multipliers)
        return ledger
