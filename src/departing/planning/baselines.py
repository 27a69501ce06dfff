"""The cost of myopia: what simpler ways of recommending lose against a plan."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.model.instance import Instance
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed

if TYPE_CHECKING:
    from departing.planning.plan import Plan

NODES = 3_000_000


@dataclass(frozen=True)
class Baseline:
    """A simpler policy with its value, and what it loses against the plan: between these bounds."""

    policy: Policy
    found: Evaluation
    loss: Bounds


def rivals(plan: "Plan", nodes: int = NODES) -> tuple[Baseline, ...]:
    """Greedy and the best fixed category, held against the plan, about `nodes` counts at most for greedy.

    Only categories that the plan may recommend compete.
    """
    instance = plan.instance
    fixed = np.array(plan.allowed)
    best = Fixed(int(fixed[(instance.fixed_values[fixed] @ instance.prior).argmax()]))
    fields = (instance.click[fixed], instance.depart[fixed], instance.depart_on_click[fixed])
    allowed = instance
    if len(fixed) < instance.n_categories:
        allowed = Instance(instance.prior, *fields, [instance.categories[a] for a in fixed], instance.types)
    found = []
    for where, policy in ((allowed, Greedy(allowed)), (instance, best)):
        value = evaluate(where, policy, max(0.1 * plan.gap, 1e-8 * plan.upper), nodes // instance.n_categories + 1)
        loss = Bounds(max(plan.lower - value.upper, 0.0), max(plan.upper - value.lower, 0.0))
        found.append(Baseline(policy, value, loss))
    return tuple(found)
