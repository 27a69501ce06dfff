"""Bayes: infer the instance, plan, and explore by the value of information."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.base import Option
from departing.learning.candidates import Candidates
from departing.learning.exploration import ExplorationBudget, allocate_block
from departing.learning.model_learner import TYPES, ModelLearner, plan_for_learning
from departing.learning.posterior import PosteriorSamples
from departing.model.errors import InputError
from departing.model.validation import MAX_TYPES, MAX_USERS, check_choice, check_int
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

EXPLORE = ("voi", "thompson", "none")
# Posterior samples per block, and how many of them are planned for. Set by hand: 160 and 32 were tried and dropped
# again in the early history of the learner; time per block is proportional to their product.
SAMPLES, PLANS = 64, 24
MAX_REMEMBERED = 40  # schedules kept as candidates of later blocks; set by hand, each costs one valuation per sample
MIN_BLOCK = 4  # below this block size users get plans of posterior samples; set by hand, one user cannot be divided
# Users that exploration is planned for at least, even if fewer will come. Set by hand: with fewer, unlucky first
# users were never corrected; more costs regret in short runs.
MIN_HORIZON = 100_000
AUTO, MAX_AUTO_TYPES = "auto", 6  # more than six types are hardly ever identifiable
TEST_GROWTH = 1.25  # the test for a further type is repeated when there are this many times as many users; saves time


def check_types(field: str, value: int | str) -> int | str:
    """Return `value` if it is a number of types or "auto"."""
    if isinstance(value, str):
        if value != AUTO:
            raise InputError(
                f"{field} is {value!r:.40}; expected an integer from 1 to {MAX_TYPES}, or 'auto'.", field
            )
        return value
    return check_int(field, value, 1, MAX_TYPES)


class Bayes(ModelLearner):
    """Infer prior, click and departure probabilities, plan, and explore.

    Sure departure is inferred. A block of users gets the plan with the largest posterior mean value, except those who
    explore.

    Parameters
    ----------
    types : int or "auto", default 3
        Number of types of the inferred instance. One too many costs little, one too few a lot. `"auto"` begins with
        three and adds a type, up to six, whenever a likelihood-ratio test rejects the present number.
    categories : int or sequence of str
        Number of categories, or their names.
    seed : int, default 0
        Seed of inference and exploration.
    explore : {"voi", "thompson", "none"}, default "voi"
        `"voi"`: value of information; as many users as pay off in expectation try another policy. `"thompson"`:
        posterior sampling; users get the plans of posterior samples. `"none"`: no exploration.
    users : int, optional
        Total number of users; with it, `"voi"` explores less towards the end.
    growth : float, default 0.1
        Block size as a share of the users so far.

    Examples
    --------
    >>> learner = Bayes(types=2, categories=["news", "sports"], seed=0)
    >>> learner.recommend(["ann", "bob"]).shape
    (2,)
    """

    kind = "bayes"
    saved = (*ModelLearner.saved, "_remembered", "_budget", "_tested_at")
    options: ClassVar[dict[str, Option]] = {"types": check_types, "explore": EXPLORE}

    def __init__(
        self,
        types: int | str = TYPES,
        categories: int | Sequence[str] = (),
        seed: int = 0,
        explore: str = "voi",
        *,
        users: int | None = None,
        growth: float = 0.1,
    ) -> None:
        check_choice("explore", explore, EXPLORE)
        check_types("types", types)
        super().__init__(TYPES if isinstance(types, str) else types, categories, seed, growth)
        self.types: int | str = types
        self._tested_at = 0  # users at the last test for a further type
        self.explore = explore
        self.users = None if users is None else check_int("users", users, 1, MAX_USERS)
        self.allowed: tuple[int, ...] | None = None  # categories that may be recommended, None for all
        self.loss: float | None = None  # posterior expected regret per user of the best policy so far
        self._remembered: list[Schedule] = []
        self._budget = ExplorationBudget()

    def restrict(self, allowed: tuple[int, ...] | None) -> None:
        """Recommend only the `allowed` categories from the next block on, None for all."""
        self.allowed = allowed
        if allowed is not None:
            self._remembered = [p for p in self._remembered if set(p.phase_categories.tolist()) <= set(allowed)]

    def _block(self) -> list[tuple[Policy, int]]:
        n, evidence = self._block_size(), self.evidence()
        if evidence is None:
            return [(plan_for_learning(self.posterior.sample_prior(), self.allowed).policy, n)]
        samples = self.posterior.sample(self._with_types(evidence), SAMPLES, self._starts())
        if self.explore == "thompson" or (n < MIN_BLOCK and self.explore != "none"):
            users = self.rng.multinomial(n, samples.weights)
            return [(self._plan(samples, j).policy, int(users[j])) for j in np.flatnonzero(users)]
        candidates = Candidates.of(samples, self._plans(samples), self._remembered, self._budget.greedy, self.allowed)
        ranked = [candidates.policies[c] for c in np.argsort(-candidates.means, kind="stable")]
        self._remembered = [policy for policy in ranked if isinstance(policy, Schedule)][:MAX_REMEMBERED]
        self.loss = candidates.expected_regret
        if self.explore == "none":
            return [(candidates.greedy, n)]
        ahead = inf if self.users is None else max(max(self.users, MIN_HORIZON) - self.arrived - n, 0)
        return allocate_block(candidates, n, self.arrived, ahead, self._budget)

    def _with_types(self, evidence: MixtureLikelihood) -> MixtureLikelihood:
        """Add a type if the number of types is not given and the evidence requires one more."""
        if self.types == AUTO and self.posterior.pool and self.arrived >= TEST_GROWTH * self._tested_at:
            self._tested_at = self.arrived
            while self.posterior.n_types < MAX_AUTO_TYPES and self.posterior.add_type(evidence):
                evidence = replace(evidence, n_types=self.posterior.n_types)
        return evidence

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        if self.types == AUTO and state["posterior"]:
            self.posterior.n_types = len(state["posterior"][0]["prior"])
        super().restore({"tested_at": 0} | state)  # states of earlier releases have no test

    def _plans(self, samples: PosteriorSamples) -> list[Plan]:
        """Plan for some of the samples: half of them drawn by weight, half uniformly."""
        positions = (np.arange(PLANS // 2) + self.rng.random()) / (PLANS // 2)
        likely = np.minimum(np.searchsorted(samples.weights.cumsum(), positions), len(samples.batch) - 1)
        others = self.rng.choice(len(samples.batch), PLANS // 2, replace=False)
        return [self._plan(samples, j) for j in np.unique([*likely, *others])]

    def _plan(self, samples: PosteriorSamples, j: np.intp) -> Plan:
        return plan_for_learning(samples.batch.instance(int(j)), self.allowed)
