"""ChangingCatalogue: learners whose categories are added and retired while they run."""

from collections.abc import Iterable
from functools import partial
from math import inf
from typing import Any

import numpy as np

from departing.learning.objective import Objective
from departing.learning.posterior import Posterior
from departing.learning.segment_learner import SegmentLearner
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.names import check_names, find_category
from departing.model.validation import check_float
from departing.policy.protocol import Policy, recommended

# Users that count as those so far when categories have changed, for the size of the next blocks: a tenth of all users
# would be too coarse for the first trials of a new category. Set by hand; costs about 40 more blocks.
USERS_AT_CHANGE = 1000


class ChangingCatalogue(SegmentLearner):
    """A learner that infers an instance and whose categories may be added and retired.

    Indices of categories never change: a new category gets the next one, and a retired one keeps its own. Users keep
    the policy that they were assigned, which recommends no retired category any more.
    """

    saved = (*SegmentLearner.saved, "_widths", "_retired", "_added", "_changed_at", "_restricted")
    allowed: tuple[int, ...] | None

    def _start_catalogue(self) -> None:
        """Initialise the attributes; all categories are available."""
        self._widths: dict[int, int] = {}  # number of categories of policies that were made for fewer than now
        self._retired: set[int] = set()
        self._added: list[int] = []  # categories added after the first user: their prior is hierarchical
        self._changed_at: int | None = None  # users so far when categories changed last
        self._restricted: tuple[int, ...] | None = None

    @property
    def retired(self) -> tuple[int, ...]:
        """Indices of the retired categories."""
        return tuple(sorted(self._retired))

    def add_category(self, name: str, *, reward: float | None = None) -> int:
        """Add a category, which new users may be recommended from now on.

        Its click and departure probabilities start from a hierarchical prior, which is learned from those of the
        other categories by type. Users explore it where the value of information pays.

        Parameters
        ----------
        name : str
            Name of the category, different from all others, or from a retired one to make that available again.
        reward : float, optional
            Value of a click in a new category, if the learner has rewards.

        Returns
        -------
        int
            Index of the category.

        Raises
        ------
        InputError
            If there is a category of this name that is not retired.
        """
        if name in self.category_names and self.category_names.index(name) in self._retired:
            index = self.category_names.index(name)
            own = 1.0 if self.objective.reward is None else self.objective.reward[index]
            if reward is not None and reward != own:
                raise InputError(
                    f"reward of the retired category {name!r} is {reward!r}; expected {own:g} as before, or none.",
                    "reward",
                )
            self._retired.discard(index)
        else:
            index = self.n_categories
            names = check_names("categories", [*self.category_names, name])
            self._extend_rewards(name, reward)
            self._names = names
            self._extend()
        self._replan()
        return index

    def retire_category(self, name: str | int) -> int:
        """Retire a category: it is not recommended any more; what its users did still counts as evidence.

        Parameters
        ----------
        name : str or int
            Name or index of the category.

        Returns
        -------
        int
            Index of the category.

        Raises
        ------
        InputError
            If there is no such category, it is retired already, or no other category is available and allowed.
        """
        index = find_category(name, self.category_names)
        if index in self._retired:
            raise InputError(f"Category {self.category_names[index]!r} is retired already.")
        if len(self._retired) + 1 == self.n_categories:
            raise InputError(f"Category {self.category_names[index]!r} is the last one; add another before.")
        if self._restricted is not None and set(self._restricted) <= self._retired | {index}:
            name = self.category_names[index]
            raise InputError(f"Category {name!r} is the last one allowed by restrict; allow another before.")
        self._retired.add(index)
        self._replan()
        return index

    def restrict(self, allowed: tuple[int, ...] | None) -> None:
        """Recommend only the `allowed` categories from the next block on, None for all that are not retired."""
        if allowed is not None and not len(allowed):
            raise InputError("allowed is empty; expected at least one category, or None for all.", "allowed")
        for a in () if allowed is None else allowed:
            if isinstance(a, bool) or not isinstance(a, int | np.integer) or not 0 <= a < self.n_categories:
                expected = f"expected indices from 0 to {self.n_categories - 1}"
                raise InputError(f"allowed has {a!r:.80}; {expected}.", "allowed")
        left = allowed
        if self._retired:
            every = range(self.n_categories) if allowed is None else allowed
            left = tuple(a for a in every if a not in self._retired)
        if left is not None and not left:
            named = ", ".join(self.category_names[a] for a in allowed or ())
            raise InputError(f"allowed has retired categories only: {named}; allow another.", "allowed")
        self._restricted = allowed
        self._restrict(left)

    def _restrict(self, allowed: tuple[int, ...] | None) -> None:
        self.allowed = allowed

    def _posteriors(self) -> Iterable[Posterior]:
        """Return all posteriors, each once."""
        return [self.posterior]

    def _extend_rewards(self, name: str, reward: float | None) -> None:
        """Add the reward of a new category."""
        if (reward is None) != (self.objective.reward is None):
            expected = "expected none, as the learner has no rewards" if reward is not None else "expected a number"
            raise InputError(f"reward of the new category {name!r} is {reward!r}; {expected}.", "reward")
        if self.objective.reward is not None and reward is not None:
            rewards = [*self.objective.reward, check_float("reward", reward, 0.0, inf)]
            objective = self.objective
            self.objective = Objective.checked(rewards, objective.unit, objective.horizon, self.n_categories + 1)
            self.reward = rewards
            self._rescale(self.objective.scale)

    def _rescale(self, scale: float) -> None:
        """Express what was spent on exploration in rewards whose mean is `scale`."""
        self._segment_budget.rescale(scale)

    def _extend(self) -> None:
        """Make room for one more category in everything that is stored."""
        for version in self._policies:
            self._widths.setdefault(version, self.n_categories)
        if self.arrived:
            self._added.append(self.n_categories)
        self.n_categories += 1
        self._counts = np.concatenate([self._counts, np.zeros((len(self._counts), 1, 4), np.int64)], axis=1)
        self.transitions.add_category()
        self._by_segment.add_category()
        for posterior in self._posteriors():
            posterior.add_category()

    def _block_size(self) -> int:
        if self._changed_at is None:
            return super()._block_size()
        since = self.arrived - self._changed_at + USERS_AT_CHANGE
        return max(1, int(min(self.arrived, since) * self.growth))

    def _replan(self) -> None:
        """Let the next user start a block; active users keep their policies."""
        self._end_block()
        self._changed_at = self.arrived
        self.restrict(self._restricted)

    def _end_block(self) -> None:
        """Drop the policies of the users to come in this block."""
        self._queue = []
        for version in [version for version in self._policies if not self._users_of[version]]:
            self._release(version)

    def _release(self, version: int) -> None:
        super()._release(version)
        if version not in self._policies:
            self._widths.pop(version, None)

    def _recommend(self, version: int, rows: Integers) -> Integers:
        policy: Any = self.policy(version)
        if not isinstance(policy, Policy) or (not self._retired and version not in self._widths):
            return super()._recommend(version, rows)
        return self._in_segments(version, rows, partial(self._recommend_available, version))

    def _recommend_available(self, version: int, policy: Policy, rows: Integers) -> Integers:
        """Recommend by a policy that was made for earlier categories, without the retired ones."""
        width = self._widths.get(version, self.n_categories)
        counts = self._counts[rows, :width]
        available = np.array([a not in self._retired for a in range(width)])
        if available.all():
            return recommended(policy, counts)
        if not available.any():  # all categories of the policy are retired
            return np.full(len(rows), min(set(range(self.n_categories)) - self._retired))
        return recommended(policy, counts, np.broadcast_to(available, (len(rows), width)))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        fresh: dict[str, Any] = {
            "widths": {},
            "retired": set(),
            "added": [],
            "changed_at": None,
            "restricted": None,
        }  # of earlier releases
        super().restore(fresh | state)
        self.restrict(None if self._restricted is None else tuple(self._restricted))
