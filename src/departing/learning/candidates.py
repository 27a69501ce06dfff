"""Candidates: policies valued under every posterior sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from departing.learning.instance_batch import CLICKS_ONLY, Controllers
from departing.learning.objective import Objective
from departing.learning.posterior import PosteriorSamples
from departing.model.instance import Floats
from departing.planning.controller import Controller
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Candidates:
    """Policies and their values (expected reward per user) `values[c, j]` under posterior sample j.

    `previous` is the greedy policy of the previous block, `allowed` the categories that may be recommended, None for
    all.
    """

    samples: PosteriorSamples
    policies: list[Policy]
    controllers: Controllers
    values: Floats
    previous: Policy | None = None
    allowed: tuple[int, ...] | None = None
    objective: Objective = CLICKS_ONLY

    @classmethod
    def of(
        cls,
        samples: PosteriorSamples,
        plans: list[Plan],
        schedules: Sequence[Schedule],
        previous: Policy | None = None,
        allowed: tuple[int, ...] | None = None,
        objective: Objective = CLICKS_ONLY,
    ) -> "Candidates":
        """Value the policies of `plans`, and more `schedules`."""
        controllers = {plan.policy: plan.controller for plan in plans if isinstance(plan.controller, Controller)}
        policies = list(dict.fromkeys([*(plan.policy for plan in plans), *schedules]))
        values = np.array([samples.batch.values(policy, controllers, objective) for policy in policies])
        return cls(samples, policies, controllers, values, previous, allowed, objective)

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
