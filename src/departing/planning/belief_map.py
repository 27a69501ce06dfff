"""What is best at every belief: plans made again all over, and the best of what they bring."""

from dataclasses import dataclass

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.plan import Plan, plan
from departing.planning.problem import Clock, Problem
from departing.policy.alpha import Alpha
from departing.policy.protocol import recommended

COARSE = 2e-4  # of the value: the gap of plans at other beliefs


@dataclass(frozen=True)
class BeliefMap:
    """What is best at every belief: ways of going on, what each brings each type, and how it starts.

    `vectors[n, M]` are expected clicks and `categories[n]` the first category. At a belief the best of them counts.
    """

    vectors: Floats
    categories: Integers

    def values(self, beliefs: Floats) -> Floats:
        """What the best way brings at `beliefs[..., M]`."""
        return np.asarray((beliefs @ self.vectors.T).max(axis=-1))

    def first(self, beliefs: Floats) -> Integers:
        """The category the best way starts with at `beliefs[..., M]`."""
        return np.asarray(self.categories[(beliefs @ self.vectors.T).argmax(axis=-1)])


def belief_map(found: Plan, seconds: float | None = None) -> BeliefMap:
    """Plan again at beliefs all over, for at most about this many seconds (1.5, or 4 for three types)."""
    instance = found.instance
    clock = Clock(seconds or (1.5 if instance.n_types == 2 else 4.0))
    beliefs = _grid(instance.n_types)
    gap = max(found.gap, COARSE * found.value, 1e-9)
    ways = [way(found)]
    for weights in beliefs:
        if clock.over:
            break
        again = plan(instance.replace(prior=weights), gap, clock.seconds / len(beliefs), allowed=found.allowed)
        ways.append(way(again))
    problem = Problem.of(instance, found.allowed)
    vectors = np.vstack([*(vector for vector, _ in ways), problem.fixed])
    return BeliefMap(vectors, np.concatenate([[category for _, category in ways], problem.categories]))


def _grid(n_types: int) -> Floats:
    """Beliefs that leave no type out, evenly spread, in an order that soon gets everywhere."""
    if n_types == 2:
        first = np.arange(1, 42) / 42
        beliefs = np.stack([first, 1 - first], axis=1)
    else:
        parts = [(i, j, 24 - i - j) for i in range(1, 23) for j in range(1, 24 - i)]
        beliefs = np.array(parts) / 24
    return np.asarray(np.random.default_rng(0).permutation(beliefs))


def way(found: Plan) -> tuple[Floats, int]:
    """What the plan's policy brings each type, and the category it starts with."""
    policy, instance = found.policy, found.instance
    if isinstance(policy, Alpha):
        best = int((policy.vectors @ instance.prior).argmax())
        return policy.vectors[best], int(policy.categories[best])
    by_type = np.array([bracket.lower for bracket in evaluate(instance, policy).by_type])
    return by_type, int(recommended(policy, np.zeros((1, instance.n_categories, 4), np.int64))[0])


def fine_grid(n_types: int) -> Floats:
    """Many beliefs, corners and edges included: `[n, M]`."""
    if n_types == 2:
        first = np.linspace(0, 1, 1001)
        return np.stack([first, 1 - first], axis=1)
    parts = [(i, j, 80 - i - j) for i in range(81) for j in range(81 - i)]
    return np.array(parts) / 80
