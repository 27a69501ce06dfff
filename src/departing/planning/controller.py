"""Controllers: policies that need no belief, and what they promise."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from departing.kernels.planning.controller import solve, visits
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.problem import Problem

CLOSE = 2.0**-51  # vectors that move by less, relative to themselves, have been solved
SWEEPS = 3_000
RIVALS = 1024  # states, the most visited ones, that may take over from others


@dataclass(frozen=True, eq=False)
class Controller:
    """States that each recommend a category and go on to a state after a click and after a stay.

    `vectors[n, M]` is what each state brings each type, `categories[n]` what it recommends, `after[n, 2]` where it
    goes on; users start at the state `start`. Its vectors are alpha vectors: following the best of them at every step
    brings at least as much as the controller does. `solved` tells that the vectors belong to the states, to the last
    digits.
    """

    vectors: Floats
    categories: Integers
    after: Integers
    start: int
    solved: bool = True

    @classmethod
    def of(cls, category: int, instance: Instance) -> Self:
        """The controller of one state, one category for ever."""
        vectors = instance.fixed_values[[category]]
        return cls(vectors, np.array([category]), np.zeros((1, 2), np.int64), 0)

    def used(self) -> Self:
        """Without the states that nobody comes to."""
        used = np.zeros(len(self.vectors), bool)
        new = np.array([self.start])
        while len(new):
            used[new] = True
            new = np.unique(self.after[new])
            new = new[~used[new]]
        kept = np.flatnonzero(used)
        number = np.cumsum(used) - 1
        return replace(
            self,
            vectors=self.vectors[kept],
            categories=self.categories[kept],
            after=number[self.after[kept]],
            start=int(number[self.start]),
        )

    def redirected(self, to: Integers) -> Self:
        """With users who would come to state i sent to the state `to[i]`."""
        return replace(self, after=to[self.after], start=int(to[self.start]))

    def rates(self, instance: Instance) -> tuple[Floats, Floats, Floats, Floats]:
        """Reward, and the chances of going on after a click, after a stay, and of leaving, by state: `[n, M]`."""
        a = self.categories
        return (
            instance.click[a],
            instance.outcome_probabilities[a, CLICK],
            instance.outcome_probabilities[a, STAY],
            instance.departure_probabilities[a],
        )

    def solve(self, instance: Instance) -> Self:
        """With the vectors that its states have if users behave as `instance` says."""
        vectors = self.vectors.copy()
        sweeps = solve(*self.rates(instance), self.after, vectors, CLOSE, SWEEPS)
        return replace(self, vectors=vectors, solved=sweeps < SWEEPS)

    def promise(self, problem: Problem) -> float:
        """What it brings to a user of the prior."""
        return float(self.vectors[self.start] @ problem.prior)

    def pruned(self, problem: Problem, spare: float) -> Self:
        """With few states: those are dropped whose users others can take over, at a loss of about `spare` in all."""
        _, click, stay, leave = self.rates(problem.instance)
        seen = visits(click, stay, leave, self.after, self.start, problem.prior, 1e-3 * spare, SWEEPS)
        loops = self.after == np.arange(len(self.after))[:, None]
        arrived = seen * (leave + click * ~loops[:, :1] + stay * ~loops[:, 1:])  # for the first time, not by a loop
        rivals = np.argsort(-arrived.sum(axis=1), kind="stable")[:RIVALS]
        rank = np.full(len(self.vectors), len(rivals))
        rank[rivals] = np.arange(len(rivals))
        brought = arrived @ self.vectors[rivals].T
        busier = np.arange(len(rivals)) < rank[:, None]
        brought = np.where(busier, brought, -np.inf)  # only states that see more users take over
        heir = rivals[brought.argmax(axis=1)]
        loss = np.abs((arrived * self.vectors).sum(axis=1) - brought.max(axis=1))  # a gain would upset the others
        order = np.argsort(loss, kind="stable")
        dropped = order[np.cumsum(loss[order]) <= spare]
        target = np.arange(len(self.vectors))
        target[dropped] = heir[dropped]
        while (target[target] != target).any():
            target = target[target]
        return self.redirected(target).used().solve(problem.instance)
