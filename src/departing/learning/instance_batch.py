"""InstanceBatch: many instances as arrays, and the value of policies under each of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.objective import Objective
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.controller import MAX_SWEEPS, Controller
from departing.planning.horizon_controller import HorizonController, continuation
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

MAX_EXPONENT = 2**30  # steps of a phase beyond this change no value: nobody is active after them
# A probability observed n times is kept 1 / (50 + n) away from 0 and 1, so that a plan never relies on certainty.
# 50 set by hand; click probabilities may come ten times closer to 0.
BOUNDARY_COUNT = 50.0
MIN_SHARE = 1e-9  # of a type, so that its value is defined
VALUE_TOLERANCE = 1e-11  # relative, of the values of controllers

CLICKS_ONLY = Objective()
Controllers = dict[Policy, Controller]  # of the policies that are not schedules


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """S instances: `prior[S, M]`, and `click`, `depart`, `depart_on_click`, each `[S, K, M]`.

    `segment_priors[S, G, M]` are the priors of G segments, if there are any.
    """

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats
    segment_priors: Floats | None = None

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

    def instance(self, j: int, segment: int | None = None) -> Instance:
        """Instance j, of all users or of a segment."""
        prior = self.prior[j] if segment is None or self.segment_priors is None else self.segment_priors[j, segment]
        return Instance(prior, self.click[j], self.depart[j], depart_on_click=self.depart_on_click[j])

    def take(self, chosen: npt.NDArray[Any]) -> Self:
        """The chosen instances, by indices or a mask."""
        arrays = (self.prior, self.click, self.depart, self.depart_on_click, self.segment_priors)
        return type(self)(*(None if array is None else array[chosen] for array in arrays))  # type: ignore[arg-type]

    @cached_property
    def outcomes(self) -> Floats:
        """Probability of every outcome, `[S, K, 4, M]`: click, stay, depart, click with departure."""
        p, d, c = self.click, self.depart, self.depart_on_click
        return np.stack([p * (1 - c), (1 - p) * (1 - d), (1 - p) * d, p * c], axis=2)

    @cached_property
    def departure(self) -> Floats:
        """Probability of departing at one step, `[S, K, M]`."""
        return np.asarray((1 - self.click) * self.depart + self.click * self.depart_on_click)

    def values(self, policy: Policy, controllers: Controllers, objective: Objective = CLICKS_ONLY) -> Floats:
        """Value of a policy under each instance, `[S]`: in closed form for a schedule."""
        return np.asarray((self.prior * self.values_by_type(policy, controllers, objective)).sum(axis=1))

    def values_by_type(self, policy: Policy, controllers: Controllers, objective: Objective = CLICKS_ONLY) -> Floats:
        """Value of a policy for each type, `[S, M]`."""
        if not isinstance(policy, Schedule):
            if objective.horizon is not None:
                return self._values_to_horizon(controllers[policy], objective, objective.horizon)
            return self._controller_values(controllers[policy], objective)
        active, total, left = np.ones_like(self.prior), np.zeros_like(self.prior), objective.horizon
        for category, given in policy.phases:
            steps = given if left is None else min(given, left)
            departure = self.departure[:, category]
            survive = (1 - departure) ** min(steps, MAX_EXPONENT)
            gain = objective.gain(self.click[:, category], category)
            total = total + active * gain * (1 - survive) / departure
            active = active * survive
            left = None if left is None else left - steps
        last = policy.final_category
        gain, departure = objective.gain(self.click[:, last], last), self.departure[:, last]
        if left is not None:
            active = active * (1 - (1 - departure) ** left)
        return np.asarray(total + active * gain / departure)

    def _controller_values(self, controller: Controller, objective: Objective) -> Floats:
        """Value of a controller for each type, `[S, M]`: all types of all instances are solved together."""
        from departing.kernels.planning.controller import evaluate_controller

        s, _, m = self.click.shape
        same = controller.vectors.shape[1] == m
        vectors = np.tile(controller.vectors, s) if same else np.zeros((len(controller.vectors), s * m))
        evaluate_controller(
            *self._by_state(controller, objective), controller.successor, vectors, VALUE_TOLERANCE, MAX_SWEEPS
        )
        return np.asarray(vectors[controller.start].reshape(s, m))

    def _by_state(self, controller: Controller, objective: Objective) -> list[Floats]:
        """Expected reward, probabilities of the outcomes click and stay, and of departure by state, `[n, S M]`."""
        tables = self._by_category(objective)
        return [np.ascontiguousarray(table[controller.categories]) for table in tables]

    def _by_category(self, objective: Objective) -> list[Floats]:
        """The same by category, `[K, S M]`."""
        reward = self.click if objective.reward is None else np.array(objective.reward)[:, None] * self.click
        tables = reward, self.outcomes[:, :, CLICK], self.outcomes[:, :, STAY], self.departure
        return [table.transpose(1, 0, 2).reshape(self.click.shape[1], -1) for table in tables]

    def _values_to_horizon(self, controller: Controller, objective: Objective, horizon: int) -> Floats:
        """Value of a controller for at most `horizon` steps for each type, `[S, M]`, by backward induction."""
        assert isinstance(controller, HorizonController)
        reward, click_stay, stay, departure = self._by_category(objective)
        with np.errstate(divide="ignore"):
            endless, log_stay = reward / departure, np.log1p(-departure)

        def within(steps: int) -> Floats:
            """Values of the fixed policies, `[K, S M]`."""
            return endless * -np.expm1(steps * log_stay) if steps > 0 else np.zeros_like(endless)

        if controller.start < 0:
            return np.asarray(within(horizon)[-1 - controller.start].reshape(self.prior.shape))
        vectors = np.zeros((len(controller.steps), reward.shape[1]))
        for rows in controller.by_steps():
            always, a = within(int(controller.steps[rows[0]]) - 1), controller.categories[rows]
            after = [continuation(successor, vectors, always) for successor in controller.successor[rows].T]
            vectors[rows] = reward[a] + click_stay[a] * after[0] + stay[a] * after[1]
        return np.asarray(vectors[controller.start].reshape(self.prior.shape))
