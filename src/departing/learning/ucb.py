"""UCBHybrid: the paper's learner, upper confidence bounds of the returns of a finite set of policies."""

from collections.abc import Sequence
from math import ceil, e, inf, log, log1p
from typing import Any, ClassVar, Self

import numpy as np

from departing.kernels.learning.arms import estimated_tau, radius, record_return
from departing.learning.base import MAX_CATEGORIES, LearnerBase, Option, check_users, min_departure
from departing.learning.protocol import ArmStatistics
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_choice, check_fraction, check_int, check_positive
from departing.policy.protocol import Policy, resolve_policy
from departing.policy.schedule import Fixed, Schedule, Threshold

SCALES = ("proved", "estimated")
MAX_PARAMETER = 1e100  # of tau and eta: their products in the index stay finite
MAX_HORIZON = 2**20  # a sanity limit: there are 2 (horizon + 1) policies


class UCBHybrid(LearnerBase):
    """Algorithm 2 of the paper over a finite set of policies.

    Every user gets the first policy with the largest upper confidence bound U. After n of its users departed,

        U = mean return + 8 sqrt(eta) tau ln(users) / n    if n < 8 eta ln(users), and otherwise
        U = mean return + sqrt(8 tau^2 ln(users) / n),

    and U is infinite for n = 0. Active users count in n but not in the mean; while no user of a policy has departed,
    its mean is the largest mean of all (0 before any). If users arrive one after the other this is Algorithm 2
    exactly.

    Parameters
    ----------
    policies : sequence of Policy
        The arms.
    users : int
        Total number of users, T in the paper.
    tau : float, optional
        The paper's τ, the scale of the sub-exponential returns, in clicks.
    eta : float, default 1.0
        The paper's η: the index changes from its first to its second form at n = 8 η ln T.
    epsilon : float, optional
        The paper's ε: no click probability is above 1 - ε. It sets tau to 8e / ln(1 / (1 - ε)).
    scale : {"proved", "estimated"}, default "proved"
        `"proved"` needs either `tau` or `epsilon`. `"estimated"`: tau is half the standard deviation of all returns
        so far (with one more of variance 1 added), which makes the second radius that of UCB for normal returns; no
        regret bound is known for it.
    categories : int or sequence of str, optional
        Number of categories, or their names; by default as many as the policies, all schedules, recommend.

    Examples
    --------
    >>> UCBHybrid([Fixed(0), Fixed(1)], users=1000, epsilon=0.5).recommend(["ann", "bob", "eve"])
    array([0, 1, 0])
    """

    kind = "ucb-hybrid"
    saved = (*LearnerBase.saved, "_pulls", "_clicks", "_totals")
    options: ClassVar[dict[str, Option]] = {
        "policies": ("thresholds", "fixed"),
        "scale": SCALES,
        "epsilon": check_fraction,
        "tau": check_positive,
        "eta": check_positive,
        "horizon": check_int,
    }

    def __init__(
        self,
        policies: Sequence[Policy],
        users: int | None = None,
        tau: float | None = None,
        eta: float = 1.0,
        epsilon: float | None = None,
        scale: str = "proved",
        *,
        categories: int | Sequence[str] | None = None,
    ) -> None:
        if not isinstance(policies, Sequence) or not policies:
            raise InputError(f"policies is {policies!r:.80}; expected a list of at least one policy.")
        names = categories if isinstance(categories, Sequence) else ()
        self.policies = tuple(resolve_policy(policy, names) for policy in policies)
        needed = _needed_categories(self.policies, categories)
        super().__init__(needed if categories is None else categories)
        if needed > self.n_categories:
            raise InputError(f"categories is {categories}; the policies recommend up to category {needed - 1}.")
        self.users = check_users(users)
        self.eta = check_positive("eta", eta, MAX_PARAMETER)
        check_choice("scale", scale, SCALES)
        self.scale, self.epsilon = scale, None  # saved as tau
        self._tau = _proved_or_given_tau(tau, epsilon, scale)  # None if it is estimated
        self._pulls = np.zeros(len(self.policies), np.int64)  # departed users by policy
        self._clicks = np.zeros(len(self.policies), np.int64)  # and their clicks
        self._totals = np.zeros(3, np.int64)  # departed users, their clicks, and the sum of squared clicks

    @classmethod
    def fixed(cls, categories: int, users: int | None = None, **options: Any) -> Self:
        """Create UCB-Hybrid over all fixed categories: the paper's learner for one type.

        `options` are `tau`, `eta`, `epsilon` and `scale` as above.
        """
        policies = [Fixed(a) for a in range(check_int("categories", categories, 1, MAX_CATEGORIES))]
        return cls(policies, users, **options)

    @classmethod
    def thresholds(cls, users: int | None = None, *, horizon: int | None = None, **options: Any) -> Self:
        """Create UCB-Hybrid over the 2 H + 2 threshold policies of two categories: the paper's learner for two types.

        These recommend one category for 0 to H steps and then always the other. The paper chooses H proportional to
        ln(users); it is `horizon`, by default ln(users) rounded up. `options` are `tau`, `eta`, `epsilon` and `scale`
        as above.

        Examples
        --------
        >>> len(UCBHybrid.thresholds(users=10**6, epsilon=0.5).policies)
        30
        """
        steps = ceil(log(check_users(users))) if horizon is None else check_int("horizon", horizon, 0, MAX_HORIZON)
        policies = [Threshold(first=a, steps=h, then=1 - a) for a in (0, 1) for h in range(steps + 1)]
        return cls(policies, users, categories=2, **options)

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create UCB-Hybrid over thresholds of two categories, or over fixed categories."""
        arguments = dict(options)
        policies = arguments.pop("policies", "thresholds")
        if arguments.get("scale", "proved") == "proved" and "tau" not in arguments:
            arguments.setdefault("epsilon", min_departure(instance))
        if policies == "fixed":
            if "horizon" in arguments:
                raise InputError("horizon applies to ucb-hybrid with policies = 'thresholds', not 'fixed'.")
            return cls.fixed(instance.n_categories, users=users, **arguments)
        if instance.n_categories != 2:
            raise InputError(
                f"ucb-hybrid with thresholds requires 2 categories, but the instance has {instance.n_categories}; "
                "set policies = 'fixed'."
            )
        return cls.thresholds(users=users, **arguments)

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"tau": self._tau}

    @property
    def tau(self) -> float:
        """The paper's τ: given, proved or estimated, in clicks."""
        return float(estimated_tau(*self._totals)) if self._tau is None else self._tau

    @property
    def pulls(self) -> Integers:
        """The number of departed users of each policy."""
        return self._pulls.copy()

    @property
    def bounds(self) -> Floats:
        """The upper confidence bound U of each policy, in clicks per user."""
        best = self._best_mean()
        return np.array([self._bound(p, self._users_of[p], best) for p in range(len(self.policies))])

    def _bound(self, version: int, active: int, best: float) -> float:
        """Return the upper confidence bound U of a policy with `active` active users; `best` is the largest mean."""
        departed = int(self._pulls[version])
        if not departed + active:
            return inf
        mean = self._clicks[version] / departed if departed else best
        return float(mean + self.tau * radius(departed + active, log(self.users), self.eta))

    def _best_mean(self) -> float:
        tried = self._pulls > 0
        return float((self._clicks[tried] / self._pulls[tried]).max(initial=0.0))

    def _assign(self, n: int) -> Integers:
        versions, bounds, best = np.empty(n, np.int64), self.bounds, self._best_mean()
        active = self._users_of.copy()
        for i in range(n):
            version = int(bounds.argmax())
            versions[i] = version
            active[version] += 1
            bounds[version] = self._bound(version, active[version], best)
        return versions

    def policy(self, version: int) -> Policy:
        """Return the policy at index `version`."""
        return self.policies[version]

    def _finish(self, versions: Integers, returns: Integers) -> None:
        for version, clicks in zip(versions, returns, strict=True):
            record_return(self._pulls, self._clicks, self._totals, version, clicks)

    def statistics(self) -> ArmStatistics:
        """Return the statistics of the index, which the arms engine updates in place."""
        return ArmStatistics(self._pulls, self._clicks, self._totals, log(self.users), self.eta, self._tau or 0.0)


def proved_tau(epsilon: float) -> float:
    """Return the paper's τ = 8e / ln(1 / (1 - ε)), where no click probability is above 1 - ε.

    >>> round(proved_tau(0.5), 3)
    31.373
    """
    return -8 * e / log1p(-check_fraction("epsilon", epsilon))


def _needed_categories(policies: Sequence[Policy], categories: int | Sequence[str] | None) -> int:
    """Return how many categories the schedules among `policies` need; all must be schedules if none are given."""
    needed = 1
    for policy in policies:
        if isinstance(policy, Schedule):
            needed = max(needed, 1 + int(policy.phase_categories.max()))
        elif categories is None:
            name = type(policy).__name__
            raise InputError(f"categories is missing; it cannot be derived from a policy of type {name}.")
    return needed


def _proved_or_given_tau(tau: float | None, epsilon: float | None, scale: str) -> float | None:
    if scale == "estimated":
        if tau is not None or epsilon is not None:
            raise InputError("scale is 'estimated', but tau or epsilon is set; expected neither.")
        return None
    if epsilon is not None and tau is None:
        return proved_tau(epsilon)
    if tau is not None and epsilon is None:
        return check_positive("tau", tau, MAX_PARAMETER)
    set_ones = "neither tau nor epsilon is set" if tau is None else "both tau and epsilon are set"
    raise InputError(f"scale is 'proved', but {set_ones}; expected one of them.")
