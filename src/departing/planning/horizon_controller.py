"""Controllers for a limited number of steps: each state has the number of steps that it covers."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from departing.evaluation.horizon import endless_values, log_stay_probabilities
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.planning.controller import Controller

if TYPE_CHECKING:
    from departing.planning.problem import Deadline


class FixedValues:
    """Values of the fixed policies of an instance for any number of steps."""

    def __init__(self, instance: Instance) -> None:
        self._endless, self._log_stay = endless_values(instance), log_stay_probabilities(instance)

    def within(self, steps: int) -> Floats:
        """Values `[K, M]` within `steps` steps."""
        if steps <= 0:
            return np.zeros_like(self._endless)
        return np.asarray(self._endless * -np.expm1(steps * self._log_stay))


def continuation(successor: Integers, vectors: Floats, always: Floats) -> Floats:
    """Values `[n, M]` of successors: rows of `vectors`, or of `always[K, M]` for -1 - category."""
    if not len(vectors):
        return np.asarray(always[-1 - successor])
    fixed = always[np.maximum(-1 - successor, 0)]
    return np.asarray(np.where(successor[:, None] < 0, fixed, vectors[np.maximum(successor, 0)]))


@dataclass(frozen=True, eq=False)
class HorizonController(Controller):
    """Controller whose states cover `steps[n]` steps; the successors of a state cover one step less.

    A successor -1 - a stands for always recommending category a. States are sorted by steps.
    """

    steps: Integers = None  # type: ignore[assignment]  # a default, because the last field of the base has one

    def backups(self, instance: Instance, vectors: Floats, fixed: FixedValues, rows: Integers) -> Floats:
        """Values `[n, M]` of the states `rows`, which cover equally many steps: one step and the successors."""
        reward, click_stay, stay, _ = self.probabilities(instance)
        always = fixed.within(int(self.steps[rows[0]]) - 1)
        after = [continuation(successor, vectors, always) for successor in self.successor[rows].T]
        return np.asarray(reward[rows] + click_stay[rows] * after[0] + stay[rows] * after[1])

    def by_steps(self) -> list[Integers]:
        """States that cover equally many steps, those with the fewest first."""
        ends = np.flatnonzero(np.diff(self.steps)) + 1
        return [np.asarray(rows) for rows in np.split(np.arange(len(self.steps)), ends)]

    def best_value(self, instance: Instance, prior: Floats, horizon: int) -> float:
        """Largest value at the prior of a state that covers the horizon, or of a fixed policy that states use."""
        used = np.concatenate([self.categories, -1 - self.successor[self.successor < 0]])
        if self.start < 0:
            used = np.append(used, -1 - self.start)
        values = [FixedValues(instance).within(horizon)[used] @ prior, self.vectors[self.steps == horizon] @ prior]
        return float(np.concatenate(values).max())

    def solve(self, instance: Instance, deadline: "Deadline | None" = None) -> Self:
        """The controller with its values under `instance`, which may have another number of types."""
        vectors, fixed = np.zeros((len(self.steps), instance.n_types)), FixedValues(instance)
        for rows in self.by_steps():
            vectors[rows] = self.backups(instance, vectors, fixed, rows)
        return replace(self, vectors=vectors)
