"""Best first category and value at every belief, from plans at a grid of beliefs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem
from departing.policy.alpha import Alpha
from departing.policy.protocol import recommended

if TYPE_CHECKING:
    from departing.planning.plan import Plan

GAP_FRACTION = 2e-4  # of the value: gap of the plans at other beliefs, below the width of a line in the plot
GRID_STEPS = {2: 42, 3: 24}  # steps of the grid of beliefs by number of types: 41 and 253 plans
MAX_NODES = {2: 1000, 3: 300}  # nodes of one plan: a few seconds for all of them together


@dataclass(frozen=True)
class BeliefMap:
    """Alpha vectors that together give the best value known at every belief.

    `vectors[n, M]` are expected rewards by type, `categories[n]` the first categories.
    """

    vectors: Floats
    categories: Integers

    def values(self, beliefs: Floats) -> Floats:
        """Largest value at `beliefs[..., M]`."""
        return np.asarray((beliefs @ self.vectors.T).max(axis=-1))

    def first(self, beliefs: Floats) -> Integers:
        """First category of the best vector at `beliefs[..., M]`."""
        return np.asarray(self.categories[(beliefs @ self.vectors.T).argmax(axis=-1)])


def belief_map(plan: "Plan", max_nodes: int | None = None) -> BeliefMap:
    """Plan at a grid of beliefs for two or three types, with at most `max_nodes` nodes each."""
    instance = plan.instance
    limit = MAX_NODES[instance.n_types] if max_nodes is None else max_nodes
    gap = max(plan.gap, GAP_FRACTION * plan.value, 1e-9 * float(instance.reward.max()))
    vectors = [first_vector(plan)]
    for belief in _grid(instance.n_types):
        problem = PlanningProblem(instance.replace(prior=belief), plan.allowed)
        vectors.append(first_vector(plan_within(problem, gap, limit)))
    problem = PlanningProblem(instance, plan.allowed)
    values = np.vstack([*(value for value, _ in vectors), problem.fixed_values])
    return BeliefMap(values, np.concatenate([[category for _, category in vectors], problem.categories]))


def _grid(n_types: int) -> Floats:
    """Evenly spread beliefs that are positive for every type, `[n, M]`."""
    n = GRID_STEPS[n_types]
    if n_types == 2:
        return np.array([(i, n - i) for i in range(1, n)]) / n
    return np.array([(i, j, n - i - j) for i in range(1, n - 1) for j in range(1, n - i)]) / n


def first_vector(plan: "Plan") -> tuple[Floats, int]:
    """Value of the plan's policy by type, and its first category."""
    policy, instance = plan.policy, plan.instance
    if isinstance(policy, Alpha):
        values = policy.vectors @ instance.prior
        if policy.steps is not None:
            values[policy.steps != instance.horizon] = -np.inf
        best = int(values.argmax())
        return policy.vectors[best], int(policy.categories[best])
    by_type = np.array([bounds.lower for bounds in evaluate(instance, policy).by_type])
    return by_type, int(recommended(policy, np.zeros((1, instance.n_categories, 4), np.int64))[0])


def fine_grid(n_types: int) -> Floats:
    """Beliefs for drawing, corners and edges included, `[n, M]`."""
    if n_types == 2:
        first = np.linspace(0, 1, 1001)
        return np.stack([first, 1 - first], axis=1)
    return np.array([(i, j, 80 - i - j) for i in range(81) for j in range(81 - i)]) / 80
