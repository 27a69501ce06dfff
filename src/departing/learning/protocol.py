"""Contracts of learners: the minimum, and what faster simulation engines need."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.policy.protocol import Policy

UserIds = Sequence[Any] | npt.NDArray[Any]  # integers or strings


@runtime_checkable
class Learner(Protocol):
    """Anything that recommends to users with known IDs and observes the outcomes.

    Users arrive in any order and may interleave; outcomes may be delayed or never arrive. An unknown ID is a new
    user. A second request before the outcome of the first gets the same category again.
    """

    def recommend(self, users: UserIds) -> Integers:
        """Return a category index `[n]` for each of `users[n]`, identified by integers or strings."""

    def observe(self, users: UserIds, categories: npt.ArrayLike, outcomes: npt.ArrayLike) -> None:
        """Record the outcome (0 to 3: CLICK, STAY, DEPART, CLICK_DEPART) of recommending `categories[n]`."""


@runtime_checkable
class LastOutcomeRule(Protocol):
    """A decision rule that depends on a user's last outcome, which counts do not determine."""

    def recommend_after(self, clicked: npt.NDArray[np.bool_]) -> Integers:
        """Return categories `[n]` for users who clicked last or are new (True), and for the others."""

    def value(self, instance: Instance) -> float:
        """Return the expected reward per user."""


AssignedPolicy = Policy | LastOutcomeRule


@runtime_checkable
class AssignsPolicies(Learner, Protocol):
    """A learner that assigns every user one policy on arrival and reports it, so that expected regret is known."""

    @property
    def active_users(self) -> int:
        """The number of active users."""

    @property
    def next_user_id(self) -> int:
        """The smallest integer above all integer IDs seen so far, at least 0."""

    def check(self, instance: Instance) -> None:
        """Raise `InputError` unless this learner can recommend the categories of `instance`."""

    def versions(self, users: UserIds) -> Integers:
        """Return the policy version `[n]` of each of the active `users[n]`."""

    def policy(self, version: int) -> AssignedPolicy:
        """Return the policy of a version that some active user has."""


@runtime_checkable
class SupportsBlocks(AssignsPolicies, Protocol):
    """A learner that keeps each policy for a block of users, so that they can be simulated in aggregate."""

    depth: int | None  # number of steps per user to report to `learn`, None for all

    def admit(self, max_users: int) -> tuple[AssignedPolicy, int]:
        """Return the policy of the next users and their number, from 1 to `max_users`."""

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Learn from users with `counts[n, K, 4]` shown `categories[n]`: `outcomes[n, 4]` users per outcome."""


class ArmStatistics(NamedTuple):
    """Sufficient statistics and parameters of the UCB-Hybrid index; the learner owns and updates the arrays.

    `pulls[p]` users of policy p departed after `clicks[p]` clicks in all; `totals[3]` are the departed users, their
    clicks and the sum of squared clicks per user. `etas[p]` and `taus[p]` are the constants of the policies; `taus`
    is empty if one τ for all is estimated from `totals`.
    """

    pulls: Integers
    clicks: Integers
    totals: Integers
    log_users: float
    etas: Floats
    taus: Floats

    def copy(self) -> "ArmStatistics":
        """Return a snapshot with arrays of its own."""
        return self._replace(pulls=self.pulls.copy(), clicks=self.clicks.copy(), totals=self.totals.copy())


@runtime_checkable
class SupportsArms(AssignsPolicies, Protocol):
    """A learner that chooses a policy for each user by the index of UCB-Hybrid; the arms engine runs it."""

    policies: tuple[Policy, ...]  # the arms

    def statistics(self) -> ArmStatistics:
        """Return the statistics of the index, which the engine updates in place."""
