"""Candidates: policies valued under every posterior sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from departing.learning.posterior import PosteriorSamples
from departing.model.instance import Floats, Instance
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

MAX_EXPONENT = 2**30  # steps of a phase beyond this change no value: nobody is active after them


@dataclass(frozen=True, eq=False)
class Candidates:
    """Policies and their values (clicks per user) `values[c, j]` under posterior sample j.

    `previous` is the greedy policy of the previous block, `allowed` the categories that may be recommended, None for
    all.
    """

    samples: PosteriorSamples
    policies: list[Policy]
    plans: dict[Policy, Plan]
    values: Floats
    previous: Policy | None = None
    allowed: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        samples: PosteriorSamples,
        plans: list[Plan],
        schedules: Sequence[Schedule],
        previous: Policy | None = None,
        allowed: tuple[int, ...] | None = None,
    ) -> "Candidates":
        """Value the policies of `plans`, and more `schedules`."""
        plan_of = {plan.policy: plan for plan in plans}
        policies = list(dict.fromkeys([*plan_of, *schedules]))
        batch = InstanceBatch.of(samples.instances)
        values = [batch.values(policy, plan_of) for policy in policies]
        return cls(samples, policies, plan_of, np.array(values), previous, allowed)

    @property
    def weights(self) -> Floats:
        """The posterior probability of each sample."""
        return self.samples.weights

    @cached_property
    def means(self) -> Floats:
        """The posterior mean value of every policy."""
        return np.asarray(self.values @ self.weights)

    @cached_property
    def greedy_index(self) -> int:
        """The policy with the largest posterior mean; the previous one unless the other is better with P ≥ 1/2.

        A few samples in which a policy has a very large value are a reason to explore it, not to assign it to all.
        """
        best = int(self.means.argmax())
        if self.previous in self.policies:
            old = self.policies.index(self.previous)
            if self.weights[self.values[best] > self.values[old]].sum() < 0.5:
                return old
        return best

    @property
    def greedy(self) -> Policy:
        """The policy at `greedy_index`."""
        return self.policies[self.greedy_index]

    @property
    def expected_regret(self) -> float:
        """The posterior expected regret per user of the greedy policy against the best candidate of each sample."""
        return float((self.values.max(axis=0) - self.values[self.greedy_index]) @ self.weights)

    @cached_property
    def advantages(self) -> Floats:
        """The value of every policy less that of the greedy policy, `[c, j]`."""
        return np.asarray(self.values - self.values[self.greedy_index])


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """S instances as arrays: `prior[S, M]`; click and survival probabilities, and fixed values, `[S, K, M]`."""

    instances: Sequence[Instance]
    prior: Floats
    click: Floats
    survival: Floats
    fixed: Floats

    @classmethod
    def of(cls, instances: Sequence[Instance]) -> "InstanceBatch":
        """Stack the instances."""
        fields = [(i.prior, i.click, 1 - i.departure_probabilities, i.fixed_values) for i in instances]
        return cls(instances, *map(np.array, zip(*fields, strict=True)))

    def values(self, policy: Policy, plans: dict[Policy, Plan]) -> Floats:
        """Return the value of a policy under each instance, `[S]`: in closed form for a schedule."""
        if not isinstance(policy, Schedule):
            return np.array([plans[policy].value_under(each) for each in self.instances])
        weights, total = self.prior, np.zeros(len(self.prior))
        for category, steps in policy.phases:
            survive = self.survival[:, category] ** min(steps, MAX_EXPONENT)
            expected_steps = (1 - survive) / (1 - self.survival[:, category])
            total = total + (weights * self.click[:, category] * expected_steps).sum(axis=1)
            weights = weights * survive
        return np.asarray(total + (weights * self.fixed[:, policy.final_category]).sum(axis=1))
