"""Policies that pay for information, as policies of the package."""

from dataclasses import dataclass

import numpy as np

from departing.learning.lower_bound.count_lattice import CountLattice, PolicyGraph
from departing.learning.lower_bound.master import Master, MasterSolution
from departing.model.instance import Floats
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, simplest_schedule
from departing.policy.table import Table

RARE = 1e-4  # probability to be reached below which a count is left out of a table
MIN_COST = 1e-3  # of a policy that is listed, as a share of the cost of all


@dataclass(frozen=True, eq=False)
class PayingPolicy:
    """Policy that a learner plays to tell the alternatives apart, in the cheapest allocation of users.

    Attributes
    ----------
    policy : Policy
        The policy; very rare counts are left out.
    users : float
        Number of users.
    gap : float
        Loss compared with the optimal policy, in clicks per user.
    nats : array [J]
        Information per user against each alternative, in nats.
    """

    policy: Policy
    users: float
    gap: float
    nats: Floats

    @property
    def cost(self) -> float:
        """Clicks that all its users lose."""
        return self.users * self.gap


def paying_policies(master: Master, solution: MasterSolution) -> tuple[PayingPolicy, ...]:
    """Policies of a solution that cost clicks, the most expensive first."""
    keys, found = [row.alternative.key for row in master.rows], []
    for column, users in zip(master.columns, solution.users.tolist(), strict=True):
        if users * max(column.gap, 0.0) > 0:
            nats = np.array([column.nats.get(key, np.nan) for key in keys])
            found.append(PayingPolicy(_policy(master.lattice, column.graph), users, column.gap, nats))
    found.sort(key=lambda each: -each.cost)
    total = sum(each.cost for each in found)
    return tuple(each for each in found if each.cost > MIN_COST * total)


def _policy(lattice: CountLattice, graph: PolicyGraph) -> Policy:
    """Policy of a graph: a schedule if the category depends on the step only, else a table."""
    depth, reached = lattice.depth[graph.nodes], graph.number * graph.weights.sum(axis=1) > RARE
    # Nodes that are rare one by one may have a child that is not: steps end before the first with rare nodes only.
    steps = np.flatnonzero(np.bincount(depth[reached], minlength=depth.max() + 2) == 0)[0]
    reached &= depth < steps
    nodes, category, depth = graph.nodes[reached], graph.category[reached], depth[reached]
    first = [int(category[depth == step][0]) for step in range(steps)]
    if (np.array(first)[depth] == category).all():
        return simplest_schedule(first[:-1], first[-1])
    return Table(lattice.counts(nodes), category, Fixed(int(np.bincount(category).argmax())))
