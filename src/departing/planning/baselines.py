"""Baselines: simpler policies, and their loss compared with the optimal policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.planning.problem import PlanningProblem, restrict
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed

if TYPE_CHECKING:
    from departing.planning.plan import Plan

NODES = 3_000_000  # nodes of an evaluation times categories: a few seconds
# Tolerance of an evaluation: a tenth of the plan's gap, so that the bounds of the loss are about as wide as the
# plan's, or a fraction of the value where the plan is exact.
GAP_FRACTION, VALUE_FRACTION = 0.1, 1e-8


@dataclass(frozen=True)
class Baseline:
    """Baseline policy with its value.

    Attributes
    ----------
    policy : Policy
        The baseline.
    evaluation : Evaluation
        Its value.
    loss : Bounds
        Bounds on its loss compared with the optimal policy, in expected reward per user.
    """

    policy: Policy
    evaluation: Evaluation
    loss: Bounds


def evaluate_baselines(plan: "Plan", nodes: int = NODES) -> tuple[Baseline, ...]:
    """Evaluate the greedy and the best fixed policy of the allowed categories, with about `nodes` nodes at most."""
    instance = plan.instance
    best = Fixed(PlanningProblem(instance, plan.allowed).best_fixed[0])
    restricted = restrict(instance, plan.allowed)
    tolerance = max(GAP_FRACTION * plan.gap, VALUE_FRACTION * plan.upper)
    rows = []
    for where, policy in ((restricted, Greedy(restricted)), (instance, best)):
        value = evaluate(where, policy, tolerance, nodes // instance.n_categories + 1)
        loss = Bounds(max(plan.lower - value.upper, 0.0), max(plan.upper - value.lower, 0.0))
        rows.append(Baseline(policy, value, loss))
    return tuple(rows)
