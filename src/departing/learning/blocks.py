"""BlockLearner: keep each policy for a block of users, so that they can be simulated in aggregate."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from departing.learning.base import LearnerBase
from departing.learning.protocol import AssignedPolicy
from departing.model.counts import Integers
from departing.model.validation import check_float

Block = Sequence[tuple[AssignedPolicy, int]]  # in order: a policy and its number of users
ALL_USERS = 2**62  # block size of a policy that is kept from then on; above any number of users


def check_growth(field: str, value: float) -> float:
    """Return a block size as a share of the users so far."""
    return check_float(field, value, 1e-3, 10.0)


class BlockLearner(LearnerBase):
    """A learner that decides for a block of users at a time.

    `depth` is the number of steps per user that it learns from, None for all.
    """

    saved = (*LearnerBase.saved, "arrived", "_policies", "_queue", "_next_version")
    depth: int | None = None
    growth = 0.0  # block size as a share of the users so far

    def __init__(self, categories: int | Sequence[str]) -> None:
        super().__init__(categories)
        self.arrived = 0  # users so far
        self._policies: dict[int, AssignedPolicy] = {}
        self._queue: list[tuple[int, int]] = []  # version, and the number of users still to be assigned to it
        self._next_version = 0

    @abstractmethod
    def _block(self) -> Block:
        """Choose the policies of the next block."""

    def _block_size(self) -> int:
        return max(1, int(self.arrived * self.growth))

    def _take(self, max_users: int) -> tuple[int, int, bool]:
        """Assign up to `max_users` users: version, number of users, and whether the version has no more to come."""
        if not self._queue:
            for policy, n in self._block():
                if n > 0:
                    self._policies[self._next_version] = policy
                    self._queue.append((self._next_version, int(n)))
                    self._next_version += 1
        version, left = self._queue[0]
        n = min(left, max_users)
        self.arrived += n
        self._queue[0] = version, left - n
        if n == left:
            self._queue.pop(0)
        return version, n, n == left

    def admit(self, max_users: int) -> tuple[AssignedPolicy, int]:
        """Return the policy of the next users and their number, from 1 to `max_users`."""
        version, n, last = self._take(max_users)
        policy = self._policies[version]
        if last:
            self._release(version)
        return policy, n

    def _assign(self, n: int) -> Integers:
        versions = np.empty(n, np.int64)
        done = 0
        while done < n:
            version, now, _ = self._take(n - done)
            versions[done : done + now] = version
            done += now
        return versions

    def policy(self, version: int) -> AssignedPolicy:
        """Return the policy of a version that some active user has."""
        return self._policies[version]

    def _release(self, version: int) -> None:
        if not self._users_of[version] and all(queued != version for queued, _ in self._queue):
            del self._policies[version]
