"""ExploreThenCommit: explore with the first users, then play one plan."""

from collections.abc import Sequence
from math import ceil
from typing import ClassVar

import numpy as np

from departing.learning.base import Option
from departing.learning.blocks import ALL_USERS, Block
from departing.learning.model_learner import ModelLearner
from departing.learning.protocol import AssignedPolicy
from departing.model.instance import CLICKS
from departing.model.validation import MAX_USERS, check_int
from departing.policy.schedule import Fixed, Threshold

FINAL_STARTS = 10  # random starts of the one final fit; set by hand, more than per block since it is made only once


class ExploreThenCommit(ModelLearner):
    """Assign simple policies to the first users in turn, then plan for the most likely instance and keep that plan.

    The simple policies are every fixed category, and every category for one step followed by another.

    Parameters
    ----------
    types : int
        Number of types of the inferred instance.
    categories : int or sequence of str
        Number of categories, or their names.
    users : int
        Total number of users T.
    seed : int, default 0
        Seed of inference.
    explore_users : int, optional
        Number of users who explore; T^(2/3) by default, the order that minimises the worst-case regret of
        explore-then-commit.
    reward, unit, horizon
        As for `Bayes`.
    """

    kind = "explore-then-commit"
    options: ClassVar[dict[str, Option]] = {"types": check_int, "explore_users": check_int}

    def __init__(
        self,
        types: int,
        categories: int | Sequence[str],
        users: int,
        seed: int = 0,
        explore_users: int | None = None,
        *,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
    ) -> None:
        super().__init__(types, categories, seed, reward=reward, unit=unit, horizon=horizon)
        self.users = check_int("users", users, 1, MAX_USERS)
        self.explore_users = (
            ceil(self.users ** (2 / 3)) if explore_users is None else check_int("explore_users", explore_users)
        )

    def _block(self) -> Block:
        evidence = self.evidence()
        if self.arrived < self.explore_users or evidence is None:
            return self._explore(max(self.explore_users - self.arrived, 1))
        return [(self._plan_for(self.posterior.mode(evidence, FINAL_STARTS)).policy, ALL_USERS)]

    def _explore(self, n: int) -> Block:
        every = range(self.n_categories)
        policies: list[AssignedPolicy] = [Fixed(a) for a in every]
        policies += [Threshold(first=a, steps=1, then=b) for a in every for b in every if a != b]
        users = np.diff(np.linspace(0, n, len(policies) + 1).astype(np.int64))
        return list(zip(policies, users.tolist(), strict=True))
