"""InstanceBatch: many instances as arrays, and the value of policies under each of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.fitting.likelihood import MixtureLikelihood
from departing.model.instance import Floats, Instance
from departing.planning.controller import MAX_SWEEPS, Controller
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

MAX_EXPONENT = 2**30  # steps of a phase beyond this change no value: nobody is active after them
# A probability observed n times is kept 1 / (50 + n) away from 0 and 1, so that a plan never relies on certainty.
# 50 set by hand; click probabilities may come ten times closer to 0.
BOUNDARY_COUNT = 50.0
MIN_SHARE = 1e-9  # of a type, so that its value is defined
VALUE_TOLERANCE = 1e-11  # relative, of the values of controllers

Controllers = dict[Policy, Controller]  # of the policies that are not schedules


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """S instances: `prior[S, M]`, and `click`, `depart`, `depart_on_click`, each `[S, K, M]`."""

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats

    @classmethod
    def bounded(
        cls, prior: Floats, click: Floats, depart: Floats, depart_on_click: Floats, impressions: Floats
    ) -> Self:
        """Keep probabilities away from 0 and 1, the less the more often a category was shown, `impressions[K]`."""
        prior = np.maximum(prior, MIN_SHARE)
        margin = (1 / (BOUNDARY_COUNT + impressions))[:, None]
        return cls(
            prior / prior.sum(axis=1, keepdims=True),
            np.clip(click, margin / 10, 1 - margin),
            np.clip(depart, margin, 1.0),
            np.clip(depart_on_click, 0.0, 1 - margin),
        )

    @classmethod
    def of_logits(cls, likelihood: MixtureLikelihood, logits: Floats) -> Self:
        """Instances at `logits[S, d]`."""
        s, m, k = len(logits), likelihood.n_types, likelihood.n_categories
        first = likelihood.n_responses * m
        responses = (0.5 * (1 + np.tanh(0.5 * logits[:, :first]))).reshape(s, -1, m)
        weight = np.concatenate([logits[:, first:], np.zeros((s, 1))], axis=1)
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        depart, depart_on_click = np.ones((s, k, m)), np.zeros((s, k, m))
        after_stays = k + len(likelihood.depart_categories)
        depart[:, likelihood.depart_categories] = responses[:, k:after_stays]
        depart_on_click[:, likelihood.depart_on_click_categories] = responses[:, after_stays:]
        return cls.bounded(weight, responses[:, :k], depart, depart_on_click, likelihood.impressions)

    def __len__(self) -> int:
        return len(self.prior)

    def instance(self, j: int) -> Instance:
        """Instance j."""
        return Instance(self.prior[j], self.click[j], self.depart[j], depart_on_click=self.depart_on_click[j])

    def take(self, chosen: npt.NDArray[Any]) -> Self:
        """The chosen instances, by indices or a mask."""
        arrays = (self.prior, self.click, self.depart, self.depart_on_click)
        return type(self)(*(array[chosen] for array in arrays))

    @cached_property
    def outcomes(self) -> Floats:
        """Probability of every outcome, `[S, K, 4, M]`: click, stay, depart, click with departure."""
        p, d, c = self.click, self.depart, self.depart_on_click
        return np.stack([p * (1 - c), (1 - p) * (1 - d), (1 - p) * d, p * c], axis=2)

    @cached_property
    def departure(self) -> Floats:
        """Probability of departing at one step, `[S, K, M]`."""
        return np.asarray((1 - self.click) * self.depart + self.click * self.depart_on_click)

    def values(self, policy: Policy, controllers: Controllers) -> Floats:
        """Value of a policy under each instance, `[S]`: in closed form for a schedule."""
        return np.asarray((self.prior * self.values_by_type(policy, controllers)).sum(axis=1))

    def values_by_type(self, policy: Policy, controllers: Controllers) -> Floats:
        """Value of a policy for each type, `[S, M]`."""
        if not isinstance(policy, Schedule):
            return self._controller_values(controllers[policy])
        active, total = np.ones_like(self.prior), np.zeros_like(self.prior)
        for category, steps in policy.phases:
            departure = self.departure[:, category]
            survive = (1 - departure) ** min(steps, MAX_EXPONENT)
            total = total + active * self.click[:, category] * (1 - survive) / departure
            active = active * survive
        last = policy.final_category
        return np.asarray(total + active * self.click[:, last] / self.departure[:, last])

    def _controller_values(self, controller: Controller) -> Floats:
        """Value of a controller for each type, `[S, M]`: all types of all instances are solved together."""
        from departing.kernels.planning.controller import evaluate_controller

        def by_state(probabilities: Floats) -> Floats:
            return np.ascontiguousarray(probabilities.transpose(1, 0, 2).reshape(k, -1)[controller.categories])

        s, k, m = self.click.shape
        click, outcomes = by_state(self.click), self.outcomes
        same = controller.vectors.shape[1] == m
        vectors = np.tile(controller.vectors, s) if same else np.zeros((len(controller.vectors), s * m))
        evaluate_controller(
            click,
            by_state(outcomes[:, :, 0]),
            by_state(outcomes[:, :, 1]),
            by_state(self.departure),
            controller.successor,
            vectors,
            VALUE_TOLERANCE,
            MAX_SWEEPS,
        )
        return np.asarray(vectors[controller.start].reshape(s, m))
