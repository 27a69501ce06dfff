"""Counts that users of a policy may reach, as a table that workers can follow without the policy."""

import numpy as np

from departing.data.sources import Arrays
from departing.evaluation.continuation import ContinuationValues
from departing.model.belief import log_weights, posterior
from departing.model.counts import Integers, flat_rows, hash_rows
from departing.model.instance import CLICK, STAY, Floats
from departing.policy.protocol import recommended

FIRST_NODES, MAX_NODES = 2**14, 2**20  # added at a time: at first, and at most; 20 bytes are sent for each
MAX_CELLS = 2**24  # cells of the counts that are held at once: 128 MB
UNKNOWN = -1  # category of nodes that are not expanded


class PolicyNodes:
    """Nodes, that is distinct counts, that users who agree with a policy may reach, step by step.

    Every node has the category that the policy recommends there, the nodes after a click and after a stay, and the
    continuation value under the model. The nodes of the last step have no category yet; `expand` adds the next steps.
    """

    def __init__(self, continuation: ContinuationValues, horizon: int) -> None:
        self.continuation, self.horizon = continuation, horizon
        self.step, self.size, self.n = 0, FIRST_NODES, 1
        self.counts = np.zeros((1, continuation.instance.n_categories, 4), np.int64)  # of the nodes of the last step
        self.rows = np.zeros(1, np.int64)  # of these nodes in the level of the step
        self.category, self.child, self.value = list[Integers](), list[Integers](), list[Floats]()  # by step
        self._append()
        self.expand(np.zeros(1, np.int64))

    @property
    def initial(self) -> float:
        """Value of the policy for a new user, under the model."""
        return float(self.value[0][0])

    @property
    def first(self) -> int:
        """Category that the policy recommends to a new user."""
        return int(self.category[0][0])

    def arrays(self) -> Arrays:
        """Category `[n]`, child `[n, 2]` and value `[n]` of all nodes; the first one is that of a new user."""
        return {
            "category": np.concatenate(self.category),
            "child": np.concatenate(self.child),
            "value": np.concatenate(self.value),
        }

    def expand(self, nodes: Integers) -> None:
        """Add the next steps of these `nodes` of the last step; the others are dropped.

        Every call adds more steps than the one before, so that a few calls suffice for histories of any length.
        """
        start = self.n - len(self.counts)
        nodes, added = nodes - start, 0
        self.counts, self.rows = self.counts[nodes], self.rows[nodes]
        most = min(self.size, max(MAX_CELLS // self.counts[0].size, 1))
        while self.step < self.horizon and (not added or added + 2 * len(nodes) <= most):
            self._add_step(nodes)
            nodes = np.arange(len(self.counts))
            added += len(nodes)
        self.size = min(4 * self.size, MAX_NODES)

    def _add_step(self, nodes: Integers) -> None:
        """Add the step after `nodes`, indices of the last step, whose counts and rows are the present ones."""
        n = len(nodes)
        categories = recommended(self.continuation.policy, self.counts)
        counts, rows = np.concatenate([self.counts, self.counts]), np.empty(2 * n, np.int64)
        for i, outcome in enumerate((CLICK, STAY)):
            part = slice(i * n, (i + 1) * n)
            counts[np.arange(i * n, (i + 1) * n), categories, outcome] += 1
            rows[part] = self.continuation.child_rows(self.step, self.rows, np.full(n, outcome))
        first, inverse = _distinct(counts)
        self.category[-1][nodes], self.child[-1][nodes] = categories, self.n + inverse.reshape(2, n).T
        self.step, self.counts, self.rows = self.step + 1, counts[first], np.full(len(first), -1)
        np.maximum.at(self.rows, inverse, rows)  # of several ways to a node, the model may follow some only
        self.n += len(first)
        self._append()

    def _append(self) -> None:
        """Add the nodes of the last step to the table, with continuation values for the posterior at their counts."""
        instance, n = self.continuation.instance, len(self.counts)
        beliefs = posterior(log_weights(instance, self.counts), instance.prior)
        values = self.continuation.values(self.step, self.rows, self.counts)
        self.value.append((beliefs * values).sum(axis=1))
        self.category.append(np.full(n, UNKNOWN))
        self.child.append(np.zeros((n, 2), np.int64))


def _distinct(counts: Integers) -> tuple[Integers, Integers]:
    """Index of the first row of each distinct one of `counts[n, K, 4]`, and for every row the number of its equal."""
    _, first, inverse = np.unique(hash_rows(counts), return_index=True, return_inverse=True)
    if not (counts[first][inverse] == counts).all():  # two different rows with one key
        _, first, inverse = np.unique(flat_rows(counts), axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
