"""Finite-state controllers: policies that need no belief, and their values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance

if TYPE_CHECKING:
    from departing.planning.problem import Deadline

CONVERGED = 2.0**-51  # relative change of a value in the last sweep: four roundings
# Sweeps before a controller counts as not solved. The vectors start near their values; only users who stay for
# thousands of steps need thousands of sweeps.
MAX_SWEEPS = 3_000
# States, the most visited ones, that may replace others: pruning compares each state with all of these.
MAX_REPLACEMENTS = 1024
VISIT_TOLERANCE = 1e-3  # of the loss that pruning may cause: error of the visits that it is computed from
SWEEP_ENTRIES = 2**24  # entries of states by type that are swept between two deadline checks: below 0.1 s
COMPARED_ROWS = 2**12  # states that pruning compares at a time: 32 MB of values, and below 0.1 s


@dataclass(frozen=True, eq=False)
class Controller:
    """Finite-state controller: each state recommends a category and has a successor after each outcome.

    `vectors[n, M]` are the values of the states by type, `categories[n]` their recommendations, `successor[n, 2]` the
    states after a click and after a stay; users start in state `start`. The vectors are alpha vectors: the policy
    that uses the best of them at every step has at least the value of the controller. `solved` is False if the values
    had not converged.
    """

    vectors: Floats
    categories: Integers
    successor: Integers
    start: int
    solved: bool = True

    def reachable(self) -> Self:
        """Drop the states that cannot be reached."""
        reached = np.zeros(len(self.vectors), bool)
        new = self._starts
        while len(new):
            reached[new] = True
            new = np.unique(self.successor[new])
            new = new[~reached[new]]
        kept = np.flatnonzero(reached)
        number = np.cumsum(reached) - 1
        vectors, categories, successor = self.vectors[kept], self.categories[kept], number[self.successor[kept]]
        return replace(self, vectors=vectors, categories=categories, successor=successor)._renumbered(number)

    @property
    def _starts(self) -> Integers:
        """States in which users start."""
        return np.array([self.start])

    def _renumbered(self, number: Integers) -> Self:
        """The controller with new numbers of the states in which users start."""
        return replace(self, start=int(number[self.start]))

    def _entering(self, instance: Instance) -> Floats:
        """Users who start in each state by type, `[n, M]`."""
        entering = np.zeros(self.vectors.shape)
        entering[self.start] = instance.normalised_prior
        return entering

    def probabilities(self, instance: Instance) -> tuple[Floats, Floats, Floats, Floats]:
        """Expected reward of the states, and probabilities of a click, a stay and a departure, `[n, M]` each."""
        a, outcomes = self.categories, instance.outcome_probabilities
        return instance.expected_reward[a], outcomes[a, CLICK], outcomes[a, STAY], instance.departure_probabilities[a]

    def solve(self, instance: Instance, deadline: "Deadline | None" = None) -> Self:
        """The controller with its values under `instance`, which may have another number of types."""
        from departing.kernels.planning.controller import evaluate_controller

        same_types = self.vectors.shape[1] == instance.n_types
        vectors = self.vectors.copy() if same_types else np.zeros((len(self.vectors), instance.n_types))
        arrays = (*self.probabilities(instance), self.successor, vectors, CONVERGED)
        solved = _sweep(lambda sweeps: evaluate_controller(*arrays, sweeps), vectors.size, deadline)
        return replace(self, vectors=vectors, solved=solved)

    def value(self, prior: Floats) -> float:
        """Value at the prior."""
        return float(self.vectors[self.start] @ prior)

    def visits(self, instance: Instance, tolerance: float, deadline: "Deadline | None" = None) -> Floats:
        """Expected number of visits to each state by type, `[n, M]`, except those of a `tolerance` of the users."""
        from departing.kernels.planning.controller import add_visits

        total, later = (np.zeros(self.vectors.shape) for _ in range(2))
        now = self._entering(instance)
        arrays = (*self.probabilities(instance)[1:], self.successor, total, now, later, tolerance)
        _sweep(lambda sweeps: add_visits(*arrays, sweeps), total.size, deadline)
        return total

    def pruned(self, instance: Instance, max_loss: float, deadline: "Deadline | None" = None) -> Self:
        """Replace states by more visited ones, at a loss of about `max_loss` in all; none if time is up before."""
        _, click_stay, stay, depart = self.probabilities(instance)
        visits = self.visits(instance, VISIT_TOLERANCE * max_loss, deadline)
        loops = self.successor == np.arange(len(self.successor))[:, None]
        arrivals = visits * (depart + click_stay * ~loops[:, :1] + stay * ~loops[:, 1:])  # not by a loop
        candidates = np.argsort(-arrivals.sum(axis=1), kind="stable")[:MAX_REPLACEMENTS]
        rank = np.full(len(self.vectors), len(candidates))
        rank[candidates] = np.arange(len(candidates))
        replacement, loss = np.arange(len(self.vectors)), np.empty(len(self.vectors))
        for first in range(0, len(self.vectors), COMPARED_ROWS):
            if deadline is not None and deadline.expired:
                return self
            rows = slice(first, first + COMPARED_ROWS)
            values = arrivals[rows] @ self.vectors[candidates].T
            values[np.arange(len(candidates)) >= rank[rows, None]] = -np.inf  # not more visited
            replacement[rows] = candidates[values.argmax(axis=1)]
            # A gain counts like a loss: it would change the values that the other replacements are based on.
            loss[rows] = np.abs((arrivals[rows] * self.vectors[rows]).sum(axis=1) - values.max(axis=1))
        order = np.argsort(loss, kind="stable")
        dropped = order[np.cumsum(loss[order]) <= max_loss]
        target = np.arange(len(self.vectors))
        target[dropped] = replacement[dropped]
        while (target[target] != target).any():
            target = target[target]
        redirected = replace(self, successor=target[self.successor])._renumbered(target)
        return redirected.reachable().solve(instance, deadline)


def _sweep(sweep: Callable[[int], int], size: int, deadline: "Deadline | None") -> bool:
    """Call `sweep` with a number of sweeps over `size` entries until it needs fewer; False at a limit."""
    most = 2 * max(SWEEP_ENTRIES // (2 * size), 1)  # an even number
    for done in range(0, MAX_SWEEPS, most):
        sweeps = min(most, MAX_SWEEPS - done)
        if sweep(sweeps) < sweeps:
            return True
        if deadline is not None and deadline.expired:
            break
    return False
