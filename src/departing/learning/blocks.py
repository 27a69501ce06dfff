"""Learners that hold their policies for a block of users, so that whole crowds can be sent through them."""

from abc import abstractmethod
from typing import Any

import numpy as np

from departing.learning.base import LearnerBase
from departing.model.counts import Integers
from departing.model.instance import Instance
from departing.model.validation import check_instance
from departing.policy.protocol import Policy, resolve_policy


class BlockLearner(LearnerBase):
    """A learner that decides for a block of users at a time: so many get this policy, so many that one.

    `depth` is how many steps of a user it wants to be told of, None for all.
    """

    depth: int | None = None

    def __init__(self, categories: int) -> None:
        super().__init__(categories)
        self.arrived = 0  # users who have come
        self._policies: dict[int, Policy] = {}
        self._queue: list[list[int]] = []  # version and how many users are still to get it
        self._made = 0

    @abstractmethod
    def _block(self) -> list[tuple[Policy, int]]:
        """What the next users get, in order: a policy and for how many."""

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """As `_learn`: what became of crowds of users."""
        self._learn(counts, categories, outcomes)

    def admit(self, most: int) -> tuple[Policy, int]:
        """The policy of the next users, and how many get it: at least one, at most `most`."""
        if not self._queue:
            self._refill()
        version, left = self._queue[0]
        policy, n = self._policies[version], min(left, most)
        self.arrived += n
        if n == left:
            self._queue.pop(0)
            self._release(version)
        else:
            self._queue[0][1] = left - n
        return policy, n

    def _refill(self) -> None:
        for policy, n in self._block():
            if n > 0:
                self._policies[self._made] = policy
                self._queue.append([self._made, int(n)])
                self._made += 1

    def _assign(self, n: int) -> Integers:
        versions = np.empty(n, np.int64)
        done = 0
        while done < n:
            if not self._queue:
                self._refill()
            front = self._queue[0]
            now = min(front[1], n - done)
            versions[done : done + now] = front[0]
            front[1] -= now
            done += now
            self.arrived += now
            if not front[1]:
                self._queue.pop(0)
        return versions

    def policy(self, version: int) -> Policy:
        """The policy of a version that some user has."""
        return self._policies[version]

    def _release(self, version: int) -> None:
        if not self._users_of[version] and all(waiting != version for waiting, _ in self._queue):
            del self._policies[version]

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {
            "arrived": self.arrived,
            "versions": list(self._policies),
            "policies": list(self._policies.values()),
            "queue": [list(part) for part in self._queue],
            "made": self._made,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self.arrived, self._made = state["arrived"], state["made"]
        self._policies = dict(zip(state["versions"], state["policies"], strict=True))
        self._queue = [list(part) for part in state["queue"]]


def next_block(arrived: int, growth: float) -> int:
    """How many users to hold a policy for: a share of those who have come."""
    return max(1, int(arrived * growth))


class Frozen(BlockLearner):
    """A learner that never learns: everybody gets `policy`.

    >>> from departing.policy.schedule import Fixed
    >>> Frozen(Fixed(1), categories=2).recommend(["ann", "bob"])
    array([1, 1])
    """

    kind = "frozen"
    depth = 0

    def __init__(self, policy: Policy, categories: int) -> None:
        resolve_policy(policy)
        super().__init__(categories)
        self._frozen = policy

    def _block(self) -> list[tuple[Policy, int]]:
        return [(self._frozen, 2**62)]

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {"frozen": self._frozen}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Frozen":
        """A learner that goes on from a `state`."""
        learner = cls(state["frozen"], state["categories"])
        learner.restore(state)
        return learner


class Oracle(Frozen):
    """A learner that knows the instance and plays its best policy."""

    kind = "oracle"

    def __init__(self, instance: Instance) -> None:
        from departing.planning.plan import plan

        check_instance(instance)
        super().__init__(plan(instance).policy, instance.n_categories)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Oracle":
        """A learner that goes on from a `state`."""
        learner = cls.__new__(cls)
        Frozen.__init__(learner, state["frozen"], state["categories"])
        learner.restore(state)
        return learner
