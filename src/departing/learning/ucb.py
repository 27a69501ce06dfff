"""UCBHybrid: the paper's learner, upper confidence bounds of the returns of a finite set of policies."""

from collections.abc import Sequence
from math import ceil, e, inf, log, log1p
from typing import Any, ClassVar, Self

import numpy as np

from departing.evaluation.sub_exponential import sub_exponential
from departing.kernels.learning.arms import estimated_tau, radius, record_return
from departing.learning.base import MAX_CATEGORIES, LearnerBase, Option, check_users, min_departure
from departing.learning.protocol import ArmStatistics
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_choice, check_fraction, check_instance, check_int, check_positive
from departing.policy.library import PolicyLike, to_policy
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule, Threshold

SCALES = ("proved", "sharp", "estimated", "exact")
FROM_EPSILON = {
    "proved": 8 * e,
    "sharp": 1.5,
}  # tau times ln(1 / (1 - epsilon)): the paper's constant, and a smaller one
MAX_PARAMETER = 1e100  # of tau and eta: their products in the index stay finite
MAX_HORIZON = 2**20  # a sanity limit: there are 2 (horizon + 1) policies
# Of a horizon that follows from epsilon. The graphs of the policies have about horizon² nodes: 10⁶, some 250 MB.
MAX_DEFAULT_HORIZON = 2**10
Constants = float | tuple[float, ...]  # one for all policies, or one for each


def check_horizon(field: str, value: object) -> int | str:
    """Return `value` if it is an integer ≥ 0 or "paper"."""
    if value == "paper":
        return "paper"
    if isinstance(value, str):
        raise InputError(f"{field} is {value!r}; expected an integer ≥ 0 or 'paper'.", field)
    return check_int(field, value, 0, MAX_HORIZON)  # type: ignore[arg-type]


class UCBHybrid(LearnerBase):
    """Algorithm 2 of the paper over a finite set of policies.

    Every user gets the first policy with the largest upper confidence bound U. After n of its users departed,

        U = mean return + 8 sqrt(eta) tau ln(users) / n    if n < 8 eta ln(users), and otherwise
        U = mean return + sqrt(8 tau^2 ln(users) / n),

    and U is infinite for n = 0. Active users count in n but not in the mean; while no user of a policy has departed,
    its mean is the largest mean of all (0 before any). If users arrive one after the other this is Algorithm 2
    exactly; with one tau and eta for each policy it is the algorithm of the work that the paper builds on.

    Parameters
    ----------
    policies : sequence of Policy
        The arms.
    users : int
        Total number of users, T in the paper.
    tau : float or sequence of float, optional
        The paper's τ, the scale of the sub-exponential returns, in clicks: one for all policies, or one for each.
    eta : float or sequence of float, default 1.0
        The paper's η = b² / τ²: the index changes from its first to its second form at n = 8 η ln T.
    epsilon : float, optional
        A lower bound ε of the probability of a no-click and a departure at a step, whatever the type and the
        category: Λ (1 - P) ≥ ε. Departures at clicks do not count. With sure departure this is the paper's assumption
        that no click probability is above 1 - ε. It sets tau to 8e / ln(1 / (1 - ε)).
    scale : {"proved", "sharp", "estimated"}, default "proved"
        `"proved"` needs either `tau` or `epsilon`. `"sharp"` needs `epsilon` and sets tau to 1.5 / ln(1 / (1 - ε)),
        which is proved as well (theory, the paper, checked). `"estimated"`: tau is half the standard deviation of all
        returns so far (with one more of variance 1 added), which makes the second radius that of UCB for normal
        returns; no regret bound is known for it. `fixed` and `thresholds` also accept `"exact"`. The attribute
        `scale` is the one that was chosen, `"proved"` if `tau` was given.
    categories : int or sequence of str, optional
        Number of categories, or their names; by default as many as the policies, all schedules, recommend.

    Examples
    --------
    >>> UCBHybrid([Fixed(0), Fixed(1)], users=1000, epsilon=0.5).recommend(["ann", "bob", "eve"])
    array([0, 1, 0])
    """

    kind = "ucb-hybrid"
    unsupported: ClassVar[dict[str, str]] = {"reward": "the index of UCB-Hybrid is for returns in clicks"}
    saved = (*LearnerBase.saved, "_pulls", "_clicks", "_totals")
    options: ClassVar[dict[str, Option]] = {
        "policies": ("thresholds", "fixed"),
        "scale": SCALES,
        "epsilon": check_fraction,
        "tau": check_positive,
        "eta": check_positive,
        "horizon": check_horizon,
    }

    def __init__(
        self,
        policies: Sequence[PolicyLike],
        users: int | None = None,
        tau: float | Sequence[float] | None = None,
        eta: float | Sequence[float] = 1.0,
        epsilon: float | None = None,
        scale: str = "proved",
        *,
        categories: int | Sequence[str] | None = None,
    ) -> None:
        if not isinstance(policies, Sequence) or not policies:
            raise InputError(f"policies is {policies!r:.80}; expected a list of at least one policy.")
        names = categories if isinstance(categories, Sequence) else ()
        self.policies = tuple(to_policy(policy, names) for policy in policies)
        needed = _needed_categories(self.policies, categories)
        super().__init__(needed if categories is None else categories)
        if needed > self.n_categories:
            raise InputError(f"categories is {categories}; the policies recommend up to category {needed - 1}.")
        self.users = check_users(users)
        self.eta = _check_constants("eta", eta, len(self.policies))
        check_choice("scale", scale, SCALES[:3])  # "exact" is resolved by `fixed` and `thresholds`
        self.scale, self.epsilon = scale, None  # epsilon is saved as tau
        self._tau = _proved_or_given_tau(tau, epsilon, scale, len(self.policies))  # None if it is estimated
        self._etas = np.full(len(self.policies), self.eta)
        self._taus = np.empty(0) if self._tau is None else np.full(len(self.policies), self._tau)
        self._pulls = np.zeros(len(self.policies), np.int64)  # departed users by policy
        self._clicks = np.zeros(len(self.policies), np.int64)  # and their clicks
        self._totals = np.zeros(3, np.int64)  # departed users, their clicks, and the sum of squared clicks

    @property
    def arrived(self) -> int:
        """Users so far."""
        return int(self._totals[0]) + self.active_users

    @classmethod
    def fixed(cls, categories: int | Sequence[str], users: int | None = None, **options: Any) -> Self:
        """Create UCB-Hybrid over all fixed categories, a number or names: the paper's learner for one type.

        `options` are `tau`, `eta`, `epsilon` and `scale` as above. With `scale="exact"` and `instance=` each policy
        has the exact constants of its returns under this instance (see `sub_exponential`): an oracle, which knows
        more than a learner can know.
        """
        named = isinstance(categories, Sequence) and not isinstance(categories, str)
        n = len(categories) if named else check_int("categories", categories, 1, MAX_CATEGORIES)  # type: ignore[arg-type]
        return cls._create([Fixed(a) for a in range(n)], users, options, categories)

    @classmethod
    def thresholds(
        cls,
        users: int | None = None,
        *,
        horizon: int | str | None = None,
        epsilon: float | None = None,
        categories: int | Sequence[str] = 2,
        **options: Any,
    ) -> Self:
        """Create UCB-Hybrid over the 2 H + 2 threshold policies of two categories: the paper's learner for two types.

        These recommend one category for 0 to H steps and then always the other.

        Parameters
        ----------
        users : int
            Total number of users, T.
        horizon : int or "paper", optional
            H. By default ln(T) / ln(1 / (1 - epsilon)), rounded up: then the optimal policy is at most
            (1 - epsilon) / epsilon clicks better than the best of these, over all users together. `"paper"` is ln(T)
            rounded up, which is too short if a click probability is above 0.607 (theory, UCB-Hybrid).
        epsilon : float, optional
            As above; required for the default horizon. If `tau` is given, or `scale` is `"estimated"` or
            `"exact"`, it sets the horizon only. With `"exact"` it is by default that of the instance.
        categories : int or sequence of str, default 2
            Names of the two categories.
        **options
            `tau`, `eta`, `scale` and `instance` as in `fixed`.

        Examples
        --------
        >>> len(UCBHybrid.thresholds(users=10**6, epsilon=0.5).policies)
        42
        >>> len(UCBHybrid.thresholds(users=10**6, epsilon=0.5, horizon="paper").policies)
        30
        """
        if options.get("scale") == "exact" and isinstance(options.get("instance"), Instance):
            smallest = min_departure(options["instance"], at_clicks=False)
            epsilon = smallest if epsilon is None else check_fraction("epsilon", epsilon)
            if epsilon > smallest:
                raise InputError(
                    f"epsilon is {epsilon:g}; expected at most {smallest:g}, that of the instance.", "epsilon"
                )
        steps = _threshold_horizon(check_users(users), horizon, epsilon)
        policies = [Threshold(first=a, steps=h, then=1 - a) for a in (0, 1) for h in range(steps + 1)]
        if options.get("tau") is None and options.get("scale", "proved") in FROM_EPSILON:
            options["epsilon"] = epsilon
        return cls._create(policies, users, options, categories)

    @classmethod
    def _create(
        cls,
        policies: Sequence[Schedule],
        users: int | None,
        options: dict[str, Any],
        categories: int | Sequence[str],
    ) -> Self:
        """Create UCB-Hybrid over schedules; resolve the scale "exact"."""
        instance, scale = options.pop("instance", None), check_choice("scale", options.get("scale", "proved"), SCALES)
        if scale != "exact":
            if instance is not None:
                raise InputError(f"instance is set, but scale is {scale!r}; expected scale 'exact', or no instance.")
            return cls(policies, users, categories=categories, **options)
        if instance is None:
            raise InputError("scale is 'exact', but instance is missing; expected the instance of the users.")
        if any(value is not None for name, value in options.items() if name != "scale"):
            raise InputError("scale is 'exact', but tau, eta or epsilon is set; expected none of them.")
        check_instance(instance)
        total = max(check_users(users), 2)
        constants = [sub_exponential(instance, policy, total, len(policies)) for policy in policies]
        tau, eta = [each.tau for each in constants], [each.eta for each in constants]
        learner = cls(policies, users, tau, eta, categories=categories)
        learner.scale = scale
        return learner

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create UCB-Hybrid over thresholds of two categories, or over fixed categories."""
        arguments = dict(options)
        policies, scale = arguments.pop("policies", "thresholds"), arguments.get("scale", "proved")
        if scale == "exact":
            arguments["instance"] = instance
        if policies == "thresholds" or (scale in FROM_EPSILON and "tau" not in arguments):
            arguments.setdefault("epsilon", min_departure(instance, at_clicks=False))
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
        return super()._arguments() | {"tau": self._tau, "scale": "estimated" if self._tau is None else "proved"}

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume: plain values, arrays and policies."""
        return super().state() | {"scale": self.scale}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        super().restore(state)
        self.scale = state.get("scale", self.scale)  # states of earlier versions do not have it

    @property
    def tau(self) -> Constants:
        """The paper's τ: given, proved or estimated, in clicks; a tuple if it was given for each policy."""
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
        tau = self._taus[version] if len(self._taus) else estimated_tau(*self._totals)
        return float(mean + tau * radius(departed + active, log(self.users), self._etas[version]))

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
        return ArmStatistics(self._pulls, self._clicks, self._totals, log(self.users), self._etas, self._taus)


def proved_tau(epsilon: float, scale: str = "proved") -> float:
    """Return the τ of all policies that follows from ε: their returns are sub-exponential with (τ², b), b = τ.

    Parameters
    ----------
    epsilon : float
        Lower bound of the probability Λ (1 - P) of a no-click and a departure at a step, over all types and
        categories. Users may also depart at clicks.
    scale : {"proved", "sharp"}, default "proved"

    Returns
    -------
    float
        The paper's 8e / ln(1 / (1 - ε)), or 1.5 / ln(1 / (1 - ε)) with the scale `"sharp"`, in clicks.

    Raises
    ------
    InputError
        If `epsilon` is not above 0 and below 1.

    Examples
    --------
    >>> round(proved_tau(0.5), 3), round(proved_tau(0.5, "sharp"), 3)
    (31.373, 2.164)
    """
    return -FROM_EPSILON[scale] / log1p(-check_fraction("epsilon", epsilon))


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


def _threshold_horizon(users: int, horizon: int | str | None, epsilon: float | None) -> int:
    """Return the largest number of steps of the threshold policies."""
    if horizon is not None:
        given = check_horizon("horizon", horizon)
        return ceil(log(users)) if isinstance(given, str) else given
    if epsilon is None:
        raise InputError(
            "epsilon is missing; set it to a lower bound of the departure probability per step, or set horizon, and "
            "tau or scale='estimated'."
        )
    steps = ceil(log(users) / -log1p(-check_fraction("epsilon", epsilon)))
    if steps > MAX_DEFAULT_HORIZON:
        raise InputError(
            f"epsilon is {epsilon:g}; with {users} users the horizon is {steps}, expected at most "
            f"{MAX_DEFAULT_HORIZON}. Set a larger epsilon, or a shorter horizon, which adds up to "
            "users · (1 - epsilon)^(horizon + 1) / epsilon clicks to the regret.",
            "epsilon",
        )
    return steps


def _check_constants(field: str, value: Any, policies: int) -> Constants:
    """Return a positive number, or one for each policy."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return check_positive(field, value, MAX_PARAMETER)  # type: ignore[arg-type]
    if len(value) != policies:
        raise InputError(f"{field} has {len(value)} values; expected one, or one for each of {policies} policies.")
    return tuple(check_positive(f"{field}[{i}]", each, MAX_PARAMETER) for i, each in enumerate(value))


def _proved_or_given_tau(
    tau: float | Sequence[float] | None, epsilon: float | None, scale: str, policies: int
) -> Constants | None:
    if scale == "estimated":
        if tau is not None or epsilon is not None:
            raise InputError("scale is 'estimated', but tau or epsilon is set; expected neither.")
        return None
    if epsilon is not None and tau is None:
        return proved_tau(epsilon, scale)
    if tau is not None and epsilon is None and scale == "proved":
        return _check_constants("tau", tau, policies)
    names = [name for name, value in (("tau", tau), ("epsilon", epsilon)) if value is not None]
    set_ones = f"{' and '.join(names) or 'neither tau nor epsilon'} {'are' if len(names) == 2 else 'is'} set"
    expected = "one of them" if scale == "proved" else "epsilon alone"
    raise InputError(f"scale is {scale!r}, but {set_ones}; expected {expected}.")
