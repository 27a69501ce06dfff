"""Stack: instances of the same shape as the types of one, to evaluate a policy under all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from departing.decision.policy_graph import PolicyGraph
from departing.evaluation.closed_form import schedule_values
from departing.fitting.likelihood import Parameters
from departing.model.instance import Floats, Instance
from departing.planning.controller import Controller
from departing.policy.schedule import Schedule

Rule = Schedule | Controller | PolicyGraph
"""A policy in a form that is evaluated without a search."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Several instances: `instance` has the types of all of them, `priors[n, M]` are the shares of their types."""

    instance: Instance
    priors: Floats

    @classmethod
    def of(cls, members: Sequence[Instance | Parameters]) -> Self:
        """Stack instances of the same shape."""
        tables = ("click", "depart", "depart_on_click")
        click, depart, last = (np.concatenate([getattr(each, name) for each in members], axis=1) for name in tables)
        priors = np.array([each.prior / each.prior.sum() for each in members])
        horizon = getattr(members[0], "horizon", None)
        instance = Instance(priors.reshape(-1) / len(members), click, depart, last, horizon=horizon)
        if any("reward" in getattr(each, "extensions", ()) for each in members):
            # Rewards may differ between members; all values derive from the expected reward of a recommendation.
            vars(instance)["expected_reward"] = np.concatenate([_expected_reward(each) for each in members], axis=1)
        return cls(instance, priors)

    def values(self, rule: Rule) -> Floats:
        """Expected reward per user under each of the instances, `[n]`."""
        if isinstance(rule, Schedule):
            return self.mean(np.mean(schedule_values(self.instance, rule), axis=0))
        if isinstance(rule, PolicyGraph):
            return self.mean(rule.values(self.instance))
        copies = replace(rule, vectors=np.tile(rule.vectors, (1, len(self.priors))))
        return self.mean(copies.solve(self.instance).vectors[rule.start])

    @cached_property
    def fixed_values(self) -> Floats:
        """Values of the fixed policies under each of the instances, `[K, n]`."""
        return np.array([self.mean(row) for row in self.instance.fixed_values])

    def mean(self, by_type: Floats) -> Floats:
        """Mean over the types of every instance, `[n]`."""
        return np.asarray((by_type.reshape(self.priors.shape) * self.priors).sum(axis=1))


def _expected_reward(member: Instance | Parameters) -> Floats:
    return member.expected_reward if isinstance(member, Instance) else member.click
