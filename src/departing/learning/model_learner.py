"""ModelLearner: the transition counts and the posterior shared by learners that infer an instance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.base import Option
from departing.learning.blocks import check_growth
from departing.learning.posterior import Posterior
from departing.learning.transition_counts import TransitionCounts, TransitionLearner
from departing.model import random_streams
from departing.model.instance import CLICKS, Instance
from departing.model.validation import MAX_TYPES, check_int, check_seed
from departing.planning.plan import Plan, plan_within
from departing.planning.problem import PlanningProblem
from departing.policy.protocol import Allowed

# Steps per user that are stored, the first ones. Set by hand: more use data of long visits and cost memory.
MAX_STEPS = 30
# Distinct counts that inference uses; beyond, it uses fewer steps per user. Set by hand: bounds the time of a block
# whatever the number of users.
MAX_COUNTS = 1500
# Optimality gap of plans, relative to the best fixed value, by the number K * M of click probabilities. Set by hand:
# smaller gaps make plans of large instances slow, larger ones add regret of that order.
GAPS = ((12, 1e-5), (50, 1e-3), (2**40, 1e-2))
# Nodes of one plan. Plans of the instances of studies/open-problems.toml take at most a few hundred; the limit bounds
# the time of rare hard ones to seconds, and a limit on time would let the answer depend on the machine.
MAX_PLAN_NODES = 20_000
EARLY_USERS = 200  # users so far below which inference makes one random start fewer; set by hand, saves time
TYPES = 3  # default of learners: one type too many costs little, one too few a lot


def plan_for_learning(instance: Instance, allowed: Allowed = None) -> Plan:
    """Plan for an instance with a gap that depends on its size."""
    gap = next(gap for size, gap in GAPS if instance.click.size <= size)
    problem = PlanningProblem(instance, allowed)
    least = 1e-3 * float(instance.reward.mean())
    return plan_within(problem, gap * max(float(instance.fixed_values.max()), least), MAX_PLAN_NODES)


class ModelLearner(TransitionLearner):
    """A learner that infers an instance with `types` types from the transition counts of all users.

    Parameters
    ----------
    types : int, default 3
        Number of types of the inferred instance.
    categories : int or sequence of str
        Number of categories, or their names.
    seed : int, default 0
        Seed of inference.
    growth : float, default 0.1
        Block size as a share of the users so far.
    reward : sequence of float, optional
        Value of a click in each category [default: 1 each].
    unit : str, default "clicks"
        Unit of `reward`.
    horizon : int, optional
        Largest number of recommendations to one user.
    """

    options: ClassVar[dict[str, Option]] = {"types": check_int, "growth": check_growth}
    saved = (*TransitionLearner.saved, "rng", "posterior")
    depth: int | None = MAX_STEPS

    def __init__(
        self,
        types: int = TYPES,
        categories: int | Sequence[str] = (),
        seed: int = 0,
        growth: float = 0.1,
        *,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
    ) -> None:
        super().__init__(categories)
        self._set_objective(reward, unit, horizon)
        self.horizon = self.objective.horizon
        self.types: int | str = check_int("types", types, 1, MAX_TYPES)
        self.seed = check_seed(seed)
        self.growth = check_growth("growth", growth)
        self.rng = np.random.default_rng([self.seed, random_streams.LEARNER])
        self.transitions = TransitionCounts(self.n_categories, MAX_STEPS)
        self.posterior = Posterior(self.n_categories, types, self.rng)

    def evidence(self) -> MixtureLikelihood | None:
        """Return the likelihood of what has been observed so far, None before the first outcome."""
        likelihood = MixtureLikelihood.from_counts(*self.transitions.histogram(MAX_COUNTS), self.posterior.n_types)
        return likelihood if len(likelihood.users) else None

    def _prepare(self, evidence: MixtureLikelihood, n_types: int) -> MixtureLikelihood:
        """Return the evidence for a number of types, with the prior of this learner."""
        return replace(evidence, n_types=n_types)

    def _plan_for(self, instance: Instance, allowed: Allowed = None) -> Plan:
        """Plan for the rewards and the horizon of this learner."""
        return plan_for_learning(self.objective.apply(instance), allowed)

    def _starts(self) -> int:
        """Return the number of random starts of inference."""
        return 3 if self.arrived < EARLY_USERS else 4

    def _likeliest(self) -> Posterior:
        """Return the posterior with the most probable number of types."""
        return self.posterior

    def instance(self) -> Instance:
        """Return the maximum a posteriori instance so far, without changing the learner."""
        rng = np.random.default_rng([self.seed, random_streams.LEARNER_MODE, self.arrived])
        likeliest = self._likeliest()
        posterior = Posterior(self.n_categories, likeliest.n_types, rng, list(likeliest.pool))
        evidence = self.evidence()
        if evidence is None:
            return posterior.sample_prior()
        return posterior.mode(self._prepare(evidence, posterior.n_types), self._starts())
