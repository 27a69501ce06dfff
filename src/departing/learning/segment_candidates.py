"""SegmentCandidates: policies valued under every posterior sample for the users of every segment."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from departing.learning.candidates import Candidates
from departing.learning.instance_batch import Controllers, InstanceBatch
from departing.learning.objective import Objective
from departing.learning.posterior import PosteriorSamples
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.controller import Controller
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

Policies = tuple[Policy, ...]  # one for each segment


def values_in_segments(
    batch: InstanceBatch, policy: Policy, controllers: Controllers, objective: Objective
) -> Floats:
    """Value of a policy for the users of every segment under every instance of a batch, `[J, S]`."""
    assert batch.segment_priors is not None
    by_type = batch.values_by_type(policy, controllers, objective)
    return np.asarray(np.einsum("jsx,jx->js", batch.segment_priors, by_type))


@dataclass(frozen=True, eq=False)
class SegmentCandidates:
    """Policies and their values `values[s, c, j]` for the users of segment s under posterior sample j.

    `shares[s]` are those of the segments, and `previous[s]` their greedy policies of the previous block.
    """

    samples: PosteriorSamples
    policies: list[Policy]
    controllers: Controllers
    values: Floats
    shares: Floats
    previous: Sequence[Policy | None]
    allowed: tuple[int, ...] | None
    objective: Objective

    @classmethod
    def of(
        cls,
        samples: PosteriorSamples,
        plans: list[Plan],
        schedules: Sequence[Schedule],
        shares: Floats,
        previous: Sequence[Policy | None],
        allowed: tuple[int, ...] | None,
        objective: Objective,
    ) -> "SegmentCandidates":
        """Value the policies of `plans`, and more `schedules`, in all segments."""
        controllers = {plan.policy: plan.controller for plan in plans if isinstance(plan.controller, Controller)}
        policies = list(dict.fromkeys([*(plan.policy for plan in plans), *schedules]))
        values = [values_in_segments(samples.batch, policy, controllers, objective) for policy in policies]
        by_segment = np.array(values).transpose(2, 0, 1)
        return cls(samples, policies, controllers, by_segment, shares, previous, allowed, objective)

    @cached_property
    def segments(self) -> list[Candidates]:
        """The candidates of each segment by itself."""
        rest = self.controllers, self.previous, self.allowed, self.objective
        controllers, previous, allowed, objective = rest
        return [
            Candidates(self.samples, self.policies, controllers, values, before, allowed, objective)
            for values, before in zip(self.values, previous, strict=True)
        ]

    @property
    def weights(self) -> Floats:
        """The posterior probability of each sample."""
        return self.samples.weights

    @cached_property
    def greedy_indices(self) -> Integers:
        """Greedy policy of each segment, `[S]`."""
        return np.array([each.greedy_index for each in self.segments])

    @property
    def greedy(self) -> Policies:
        """The greedy policies, by segment."""
        return tuple(self.policies[index] for index in self.greedy_indices)

    @property
    def expected_regret(self) -> float:
        """The posterior expected regret per user of the greedy policies."""
        return float(self.shares @ [each.expected_regret for each in self.segments])

    @cached_property
    def advantages(self) -> Floats:
        """Value of every policy less that of the greedy one in every segment, times its share, `[S, c, j]`."""
        return np.asarray(self.shares[:, None, None] * np.array([each.advantages for each in self.segments]))

    def best_schedules(self, most: int) -> list[Schedule]:
        """Return the schedules with the largest mean of each segment, `most` in all."""
        each = max(most // len(self.segments), 4)
        kept: dict[Schedule, None] = {}
        for candidates in self.segments:
            ranked = [self.policies[c] for c in np.argsort(-candidates.means, kind="stable")]
            kept |= dict.fromkeys([policy for policy in ranked if isinstance(policy, Schedule)][:each])
        return list(kept)
