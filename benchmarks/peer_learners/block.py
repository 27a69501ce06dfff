"""Simulation of a peer that sees capped counts: exact expected clicks, and users of a block who share its policy.

A peer is frozen for a block of users. Its policy is then a table of probabilities, one row for each vector of capped
counts (a *state*). States are numbered so that a step leads to the same state or to one with a larger number; the
number of expected visits to every state is therefore one pass over the states.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from departing.model.instance import CLICK, CLICK_DEPART, STAY

# Caps of clicks and no-clicks: the first ones with at most MAX_STATES states. The optimal policy of an instance of
# the report, evaluated at capped counts, loses under one click per million users with the first, 696 with the second.
CAPS = ((8, 8), (6, 3))
MAX_STATES = 25_000
MAX_STEPS = 10_000  # of one user; nobody stays that long


@dataclass(frozen=True, eq=False)
class States:
    """Vectors of capped counts: clicks of every category and, if users may stay after a no-click, no-clicks.

    `digits[S, D]` are the counts of a state, `strides[2, K]` what a click and a no-click add to its number (0: no
    state, the user has departed), and `columns[2, K]` the position of the count among the digits.
    """

    digits: np.ndarray
    strides: np.ndarray
    columns: np.ndarray
    caps: np.ndarray
    stays: bool

    @classmethod
    def of(cls, instance, caps=None):
        """States of an instance; `caps` of clicks and no-clicks are chosen from the number of counts by default."""
        categories = instance.n_categories
        stays = bool((instance.outcome_probabilities[:, STAY] > 0).any())
        outcomes = 2 if stays else 1
        if caps is None:
            caps = next(c for c in CAPS if np.prod([(cap + 1) ** categories for cap in c[:outcomes]]) <= MAX_STATES)
        sizes = np.repeat(np.array(caps[:outcomes]) + 1, categories)
        digits = np.indices(tuple(sizes)).reshape(len(sizes), -1).T.copy()
        strides, columns = np.zeros((2, categories), np.int64), np.zeros((2, categories), np.int64)
        for i in range(len(sizes)):
            strides[i // categories, i % categories] = np.prod(sizes[i + 1 :])
            columns[i // categories, i % categories] = i
        return cls(digits, strides, columns, np.array(caps, np.int64), stays)

    def __len__(self):
        return len(self.digits)

    def index(self, counts):
        """Return the states of `counts[n, K, 4]`."""
        clicks, stays = counts[..., CLICK], counts[..., STAY]
        capped = [np.minimum(part, self.caps[i]) @ self.strides[i] for i, part in enumerate((clicks, stays))]
        return capped[0] + capped[1]


class Block:
    """An instance and its states: expected visits and clicks, and simulated users, under a table of probabilities."""

    def __init__(self, instance, states=None):
        self.instance, self.states = instance, states or States.of(instance)
        probabilities = instance.outcome_probabilities  # [K, 4, M]
        self._go_on = np.ascontiguousarray(probabilities[:, [CLICK, STAY]].transpose(1, 0, 2))  # [2, K, M]
        self._click = np.ascontiguousarray(probabilities[:, CLICK] + probabilities[:, CLICK_DEPART])
        self._thresholds = np.ascontiguousarray(probabilities.transpose(0, 2, 1).cumsum(axis=2))  # [K, M, 4]

    def visits(self, table):
        """Return the expected visits of one user to every state by type, `[S, M]`, under `table[S, K]`."""
        s = self.states
        return _visits(table, self._go_on, self.instance.prior, s.digits, s.strides, s.columns, s.caps)

    def value(self, table, visits=None):
        """Return the expected clicks of one user under `table[S, K]`."""
        visits = self.visits(table) if visits is None else visits
        return float((table * (visits @ self._click.T)).sum())

    def simulate(self, table, users, rng, weight):
        """Simulate users; return rows of at most `weight` steps with equal state and category, `[n, 5]`.

        The columns are state, category, number of steps, clicks at these steps, and clicks from these steps to
        departure. Rows are in the order in which they are complete; incomplete ones follow at the end.
        """
        s = self.states
        types = rng.choice(self.instance.n_types, size=users, p=self.instance.normalised_prior)
        seed = int(rng.integers(2**31))
        return _simulate(table, self._thresholds, types, s.digits, s.strides, s.columns, s.caps, weight, seed)

    def step(self, state, category, type_, uniform):
        """Return whether the user clicks, and the next state, or -1 after departure, by one uniform number."""
        outcome = int((uniform >= self._thresholds[category, type_, :3]).sum())
        if outcome > STAY:
            return outcome == CLICK_DEPART, -1
        s = self.states
        room = s.digits[state, s.columns[outcome, category]] < s.caps[outcome]
        return outcome == CLICK, int(state + room * s.strides[outcome, category])


@njit(cache=True)
def _visits(table, go_on, prior, digits, strides, columns, caps):
    n_states, n_categories = table.shape
    n_types = len(prior)
    visits = np.zeros((n_states, n_types))
    visits[0] = prior
    for s in range(n_states):
        for m in range(n_types):
            inflow = visits[s, m]
            if inflow == 0:
                continue
            loop = 0.0
            for a in range(n_categories):
                for o in range(2):
                    if digits[s, columns[o, a]] == caps[o]:
                        loop += table[s, a] * go_on[o, a, m]
            inflow /= 1 - loop
            visits[s, m] = inflow
            for a in range(n_categories):
                for o in range(2):
                    if go_on[o, a, m] > 0 and digits[s, columns[o, a]] < caps[o]:
                        visits[s + strides[o, a], m] += inflow * table[s, a] * go_on[o, a, m]
    return visits


@njit(cache=True)
def _simulate(table, thresholds, types, digits, strides, columns, caps, weight, seed):
    np.random.seed(seed)
    pending = np.zeros((table.shape[0], table.shape[1], 3), np.int64)
    path = np.empty((MAX_STEPS, 3), np.int64)  # state, category, click
    rows, n_rows = np.empty((1024, 5), np.int64), 0
    for m in types:
        step = _one_user(table, thresholds, m, digits, strides, columns, caps, path)
        to_go = 0
        for i in range(step - 1, -1, -1):
            to_go += path[i, 2]
            path[i, 2] = 2 * to_go + path[i, 2]
        for i in range(step):
            s, a = path[i, 0], path[i, 1]
            pending[s, a, 0] += 1
            pending[s, a, 1] += path[i, 2] % 2
            pending[s, a, 2] += path[i, 2] // 2
            if pending[s, a, 0] == weight:
                rows, n_rows = _emit(rows, n_rows, s, a, pending)
    rest = np.flatnonzero(pending[:, :, 0])
    for i in np.random.permutation(rest):
        rows, n_rows = _emit(rows, n_rows, i // table.shape[1], i % table.shape[1], pending)
    return rows[:n_rows]


@njit(cache=True)
def _emit(rows, n_rows, s, a, pending):
    """Append a row, and clear what is pending in this state and category."""
    if n_rows == len(rows):
        larger = np.empty((2 * n_rows, 5), np.int64)
        larger[:n_rows] = rows
        rows = larger
    rows[n_rows, 0], rows[n_rows, 1] = s, a
    rows[n_rows, 2:] = pending[s, a]
    pending[s, a] = 0
    return rows, n_rows + 1


@njit(cache=True)
def _one_user(table, thresholds, m, digits, strides, columns, caps, path):
    """Simulate one user of type m; write state, category and click of every step, and return their number."""
    s, step, present = 0, 0, True
    while present:
        u, a = np.random.random(), 0
        while a < table.shape[1] - 1 and u >= table[s, a]:
            u -= table[s, a]
            a += 1
        u, outcome = np.random.random(), 0
        while outcome < 3 and u >= thresholds[a, m, outcome]:
            outcome += 1
        path[step, 0], path[step, 1], path[step, 2] = s, a, outcome == 0 or outcome == 3
        step += 1
        present = outcome < 2 and step < MAX_STEPS
        if present and digits[s, columns[outcome, a]] < caps[outcome]:
            s += strides[outcome, a]
    return step
