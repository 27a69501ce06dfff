"""Posterior probabilities of the number of types, for learners that infer it."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.posterior import Posterior
from departing.model.instance import Floats

# A learner with one type cannot use what a user did; more than six types are hardly ever identifiable.
MIN_NUMBER, MAX_NUMBER = 2, 6
MIN_ODDS = 0.01  # against the most probable number; less probable ones are excluded
UPDATE_GROWTH = 1.25  # probabilities are computed again when there are this many times as many users; saves time


@dataclass
class TypeNumber:
    """The posterior of the instance with one number of types, and the log marginal likelihood."""

    posterior: Posterior
    log_evidence: float = 0.0


class TypeNumbers:
    """Numbers of types, from `fewest` to one more than the most probable.

    `probabilities` are those given the evidence. Numbers that it does not exclude take turns at random, one for each
    block. Drawn in proportion to their probabilities, larger numbers explored too rarely at the beginning.
    """

    def __init__(self, n_categories: int, rng: np.random.Generator, fewest: int = MIN_NUMBER) -> None:
        self.n_categories, self.rng, self.fewest = n_categories, rng, fewest
        self.numbers: list[TypeNumber] = []
        self._add()
        self._add()
        self._updated_at = 0

    def _add(self) -> TypeNumber:
        n_types = self.fewest + len(self.numbers)
        self.numbers.append(TypeNumber(Posterior(self.n_categories, n_types, self.rng)))
        return self.numbers[-1]

    @property
    def probabilities(self) -> Floats:
        """The posterior probability of each number of types, from the fewest on."""
        log_evidence = np.array([number.log_evidence for number in self.numbers])
        weights = np.exp(log_evidence - log_evidence.max())
        return np.asarray(weights / weights.sum())

    @property
    def likeliest(self) -> TypeNumber:
        """The number of types with the largest probability."""
        return self.numbers[int(self.probabilities.argmax())]

    def draw(self, evidence: MixtureLikelihood, users: int, starts: int, effective: float = inf) -> TypeNumber:
        """Draw one of the numbers of types that the evidence of `users` users does not exclude, all alike.

        If old users are forgotten, `effective` is the number of users that count.
        """
        growth = UPDATE_GROWTH - 1
        if users >= min(UPDATE_GROWTH * self._updated_at, self._updated_at + growth * effective):
            self._updated_at = users
            self._update(evidence, starts)
        possible = np.flatnonzero(self.probabilities > MIN_ODDS * self.probabilities.max())
        return self.numbers[int(self.rng.choice(possible))]

    def _update(self, evidence: MixtureLikelihood, starts: int) -> None:
        """Compute the marginal likelihoods; add a further number if the largest is the most probable."""
        for i, number in enumerate(self.numbers):
            fewer = self.numbers[i - 1].posterior if i else None
            likelihood = replace(evidence, n_types=number.posterior.n_types)
            number.log_evidence = number.posterior.log_evidence(likelihood, starts, fewer)
        if self.likeliest is self.numbers[-1] and len(self.numbers) <= MAX_NUMBER - self.fewest:
            more, fewer = self._add(), self.numbers[-2].posterior
            likelihood = replace(evidence, n_types=more.posterior.n_types)
            more.log_evidence = more.posterior.log_evidence(likelihood, starts, fewer)
        while len(self.numbers) > 2 and self.likeliest not in self.numbers[-2:]:
            self.numbers.pop()

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume, except the random generator."""
        numbers = [(each.posterior.state(), each.log_evidence) for each in self.numbers]
        return {"numbers": numbers, "updated_at": self._updated_at, "fewest": self.fewest}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.numbers, self._updated_at = [], state["updated_at"]
        self.fewest = state.get("fewest", MIN_NUMBER)  # states of earlier releases have none
        for pool, log_evidence in state["numbers"]:
            number = self._add()
            number.posterior.restore(pool)
            number.log_evidence = log_evidence
