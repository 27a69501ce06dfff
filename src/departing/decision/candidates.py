"""Candidate policies: the optimal policies of a fit and of its draws, with their values under all of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from departing.decision.ensemble import Ensemble
from departing.decision.stack import Rule
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Fixed

# Candidates are planned to this fraction of their value: far below the sampling error of a log. The limit on nodes
# makes the result independent of the speed of the machine.
RELATIVE_GAP, MAX_NODES = 1e-3, 5_000
# Draws that are planned for, times categories and types, and nodes likewise: about 20 seconds for 200 categories. For
# the other draws the best of these candidates counts as optimal.
MAX_PLANS_SIZE, MAX_NODES_SIZE, MIN_PLANS = 4_000, 200_000, 20
SAME_VALUE = 1e-6  # relative difference of values below which two candidates are one


@dataclass(frozen=True, eq=False)
class Candidates:
    """Distinct policies with their values.

    Attributes
    ----------
    policies : list of Policy
    values : array [c, n]
        Reward per user under each instance of the ensemble, the fitted one first: those of the controller of the
        plan, which are within the gap of the plan of the policy's own.
    first : int array [c]
        Category that each policy shows first.
    """

    policies: list[Policy]
    values: Floats
    first: Integers

    @classmethod
    def of(cls, ensemble: Ensemble, allowed: tuple[int, ...], parts: int = 1) -> Self:
        """Plan for the fitted instance and for draws, with the allowed categories; add the fixed policies.

        With several `parts` for which candidates are made, fewer draws are planned for.
        """
        size = len(allowed) * ensemble.instances[0].n_types
        nodes = min(MAX_NODES, MAX_NODES_SIZE // size + 1)
        plans = [
            plan_within(PlanningProblem(each, list(allowed)), RELATIVE_GAP * float(each.best_fixed[1]), nodes)
            for each in ensemble.instances[: max(MIN_PLANS, MAX_PLANS_SIZE // (size * parts)) + 1]
        ]
        pairs: list[tuple[Policy, Rule]] = [(each.policy, each.controller) for each in plans]
        pairs += [(Fixed(a), Fixed(a)) for a in allowed]
        policies, values = [], np.zeros((0, len(ensemble.instances)))
        for policy, rule in pairs:
            value = ensemble.stack.values(rule)
            if not (np.abs(values - value) <= SAME_VALUE * value).all(axis=1).any():
                policies.append(policy)
                values = np.vstack([values, value])
        start = np.zeros((1, ensemble.instances[0].n_categories, 4), np.int64)
        return cls(policies, values, np.array([recommended(each, start)[0] for each in policies]))

    @cached_property
    def means(self) -> Floats:
        """Mean value over the draws, `[c]`."""
        return np.asarray(self.values[:, 1:].mean(axis=1))

    @cached_property
    def best(self) -> Integers:
        """Best candidate under each of the draws, `[n - 1]`."""
        return np.asarray(self.values[:, 1:].argmax(axis=0))

    @cached_property
    def choices(self) -> Integers:
        """Candidate that is chosen given the fit and given each of the draws, `[n]`."""
        return choices(self.values)


def choices(values: Floats) -> Integers:
    """Row of `values[c, n]` that is chosen given the fit, first, and given each of the draws, `[n]`.

    The best mean over the draws is chosen. The draws that a draw would have, were it the fit, are taken to differ
    from it as those of the fit differ from the fit.
    """
    shift = values[:, 1:].mean(axis=1) - values[:, 0]
    return np.asarray((values + shift[:, None]).argmax(axis=0))
