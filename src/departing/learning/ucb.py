"""UCB-Hybrid: the paper's learner, which tries policies and goes by upper confidence bounds of their returns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, e, inf, log, log1p
from typing import Any

import numpy as np

from departing.kernels.learning.arms import estimated_scale, learn, radius
from departing.learning.base import LearnerBase
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats
from departing.model.validation import MAX_USERS, check_fraction, check_int, check_positive
from departing.policy.protocol import Policy, resolve_policy
from departing.policy.schedule import Fixed, Schedule, Threshold

SCALES = ("proved", "estimated")
LARGEST = 1e100  # of tau and eta


@dataclass(frozen=True)
class Knowledge:
    """What UCB-Hybrid goes by, for kernels: the arrays are its own and change as it learns.

    `pulls` users of each policy have departed after `sums` clicks; `totals` are users who departed, their clicks and
    the squares of these. `scale` is tau, or 0 if that is estimated.
    """

    pulls: Integers
    sums: Integers
    totals: Integers
    log_users: float
    eta: float
    scale: float

    def copy(self) -> "Knowledge":
        """The same with arrays that do not change."""
        return replace(self, pulls=self.pulls.copy(), sums=self.sums.copy(), totals=self.totals.copy())


class UCBHybrid(LearnerBase):
    """Algorithm 2 of the paper over a finite set of policies, for `users` users.

    Every user gets the first policy with the largest bound U. After n of its users departed it is

        U = mean of their returns + 8 sqrt(eta) tau ln(users) / n    where n < 8 eta ln(users), and else
        U = mean of their returns + sqrt(8 tau^2 ln(users) / n),

    and infinite before. `tau` is told, or the paper's 8e / ln(1 / (1 - epsilon)) where no chance of a click is above
    1 - epsilon. With `scale="estimated"` it is half the standard deviation of all returns so far (with one more of
    variance one put to them), which makes the second radius that of UCB for normal returns: a practical mode that has
    no proof.

    Users who are still here count in n but not in the mean; while nobody of a policy has departed, its mean is taken
    to be the largest there is (0 before any). When users come one after the other this is Algorithm 2 to the letter.

    `categories` need only be told if it is not one more than the largest that the policies, all schedules, recommend.

    >>> UCBHybrid([Fixed(0), Fixed(1)], users=1000, epsilon=0.5).recommend(["ann", "bob", "eve"])
    array([0, 1, 0])
    """

    kind = "ucb-hybrid"

    def __init__(
        self,
        policies: Sequence[Policy],
        users: int | None = None,
        tau: float | None = None,
        eta: float = 1.0,
        epsilon: float | None = None,
        scale: str = "proved",
        *,
        categories: int | None = None,
    ) -> None:
        self.policies = _as_policies(policies)
        super().__init__(_as_enough(self.policies, categories))
        self.users = _as_users(users)
        self.eta = check_positive("eta", eta, LARGEST)
        if scale not in SCALES:
            raise InputError(f"scale is {scale!r}; allowed are {', '.join(SCALES)}.")
        self.scale = scale
        self._told = _told_scale(tau, epsilon, scale)
        self._pulls = np.zeros(len(self.policies), np.int64)  # users who departed, by policy
        self._sums = np.zeros(len(self.policies), np.int64)  # and their clicks
        self._totals = np.zeros(3, np.int64)  # users who departed, their clicks and the squares of these

    @classmethod
    def fixed(
        cls,
        categories: int,
        users: int | None = None,
        tau: float | None = None,
        eta: float = 1.0,
        epsilon: float | None = None,
        scale: str = "proved",
    ) -> "UCBHybrid":
        """UCB-Hybrid over all fixed categories: the paper's learner for one type."""
        policies = [Fixed(a) for a in range(check_int("categories", categories, 1, 2**20))]
        return cls(policies, users, tau, eta, epsilon, scale)

    @classmethod
    def thresholds(
        cls,
        users: int | None = None,
        tau: float | None = None,
        eta: float = 1.0,
        epsilon: float | None = None,
        scale: str = "proved",
        *,
        horizon: int | None = None,
    ) -> "UCBHybrid":
        """UCB-Hybrid over the 2 H + 2 threshold policies of two categories: the paper's learner for two types.

        These are one category for 0 to H steps and then the other for ever; with 0 steps, the fixed categories. The
        paper wants an H in proportion to ln(users); it is `horizon`, or ln(users) rounded up.

        >>> len(UCBHybrid.thresholds(users=10**6, epsilon=0.5).policies)
        30
        """
        steps = ceil(log(_as_users(users))) if horizon is None else check_int("horizon", horizon, 0, 2**20)
        policies = [Threshold(first=a, steps=h, then=1 - a) for a in (0, 1) for h in range(steps + 1)]
        return cls(policies, users, tau, eta, epsilon, scale, categories=2)

    @property
    def tau(self) -> float:
        """The scale of returns that the radii are made of."""
        return float(estimated_scale(*self._totals)) if self._told is None else self._told

    @property
    def pulls(self) -> Integers:
        """How many users of each policy have departed."""
        return self._pulls.copy()

    @property
    def bounds(self) -> Floats:
        """The upper confidence bound U of each policy."""
        here = np.array([self._users_of[version] for version in range(len(self.policies))])
        best = self._best_mean()
        return np.array([self._bound(version, int(n), best) for version, n in enumerate(here)])

    def _bound(self, version: int, here: int, best: float) -> float:
        """U of a policy that so many users have who are here; `best` is the largest mean."""
        gone = int(self._pulls[version])
        if not gone + here:
            return inf
        mean = self._sums[version] / gone if gone else best
        return float(mean + self.tau * radius(gone + here, log(self.users), self.eta))

    def _best_mean(self) -> float:
        tried = self._pulls > 0
        return float((self._sums[tried] / self._pulls[tried]).max(initial=0.0))

    def _assign(self, n: int) -> Integers:
        versions, bounds, best = np.empty(n, np.int64), self.bounds, self._best_mean()
        here = self._users_of.copy()
        for i in range(n):
            version = int(bounds.argmax())
            versions[i] = version
            here[version] += 1
            bounds[version] = self._bound(version, here[version], best)
        return versions

    def policy(self, version: int) -> Policy:
        """The policy of a version: its place in the set."""
        return self.policies[version]

    def _finish(self, versions: Integers, returns: Integers) -> None:
        for version, value in zip(versions, returns, strict=True):
            learn(self._pulls, self._sums, self._totals, version, value)

    def knowledge(self) -> Knowledge:
        """What it goes by; an engine that plays users by itself learns into the arrays."""
        return Knowledge(self._pulls, self._sums, self._totals, log(self.users), self.eta, self._told or 0.0)

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {
            "policies": list(self.policies),
            "of": self.users,
            "tau": self._told,
            "eta": self.eta,
            "scale": self.scale,
            "pulls": self._pulls.copy(),
            "sums": self._sums.copy(),
            "totals": self._totals.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self._pulls, self._sums, self._totals = (state[name].copy() for name in ("pulls", "sums", "totals"))

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "UCBHybrid":
        """A learner that goes on from a `state`."""
        learner = cls(
            state["policies"],
            state["of"],
            state["tau"],
            state["eta"],
            scale=state["scale"],
            categories=state["categories"],
        )
        learner.restore(state)
        return learner


def proved_tau(epsilon: float) -> float:
    """The paper's tau, 8e / ln(1 / (1 - epsilon)), where no chance of a click is above 1 - epsilon.

    >>> round(proved_tau(0.5), 3)
    31.373
    """
    return -8 * e / log1p(-check_fraction("epsilon", epsilon))


def _as_policies(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    if not isinstance(policies, Sequence):
        raise InputError(f"policies is {policies!r:.80}; expected a list of policies.")
    if not policies:
        raise InputError("policies is empty; expected at least one policy.")
    for policy in policies:
        resolve_policy(policy)
    return tuple(policies)


def _as_enough(policies: Sequence[Policy], categories: int | None) -> int:
    """`categories` if the schedules among `policies` recommend no others; unless told, as many as these need."""
    needed = 1
    for policy in policies:
        if isinstance(policy, Schedule):
            needed = max(needed, 1 + int(policy.phase_categories.max()))
        elif categories is None:
            name = type(policy).__name__
            raise InputError(f"categories is missing; a policy of type {name} does not tell how many there are.")
    if categories is not None and check_int("categories", categories) < needed:
        raise InputError(f"categories is {categories}; the policies recommend up to category {needed - 1}.")
    return needed if categories is None else categories


def _as_users(users: int | None) -> int:
    if users is None:
        raise InputError("users is missing; UCB-Hybrid needs the number of users who will come.")
    return check_int("users", users, 1, MAX_USERS)


def _told_scale(tau: float | None, epsilon: float | None, scale: str) -> float | None:
    """The tau that is told by itself or by epsilon; None if it is estimated."""
    if scale == "estimated":
        if tau is not None or epsilon is not None:
            raise InputError("scale is 'estimated'; then neither tau nor epsilon can be set.")
        return None
    if (tau is None) == (epsilon is None):
        many = "both tau and epsilon are set" if tau is not None else "neither tau nor epsilon is set"
        raise InputError(f"scale is 'proved', but {many}; expected one of them.")
    return (
        proved_tau(epsilon) if epsilon is not None else check_positive("tau", tau if tau is not None else 0, LARGEST)
    )
