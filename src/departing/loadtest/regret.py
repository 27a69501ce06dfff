"""Regret of recommendations to users whose instance is known."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import cast

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.model.belief import belief
from departing.model.instance import CLICK, EXTENSIONS, STAY, Floats, Instance
from departing.model.validation import check_instance
from departing.planning.horizon_controller import FixedValues
from departing.planning.plan import plan
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

CACHE_SIZE = 2**18  # distinct counts in the cache; trades memory, K floats each, for repeated belief updates
PLANNING_SECONDS = 20.0  # time limit; a plan that stops early widens the bounds, and the estimate stays unbiased

Vectors = Callable[[int], Floats]  # alpha vectors [n, M] for a number of steps left, which is 0 without a horizon


class StepRegret:
    """The regret of showing each category to a user with given counts.

    That is V(b) - Q(b, a), where b is the belief, V the maximum over alpha vectors, and Q(b, a) the expected reward
    of showing category a now and V afterwards. By the performance difference lemma the sum over the steps of a user
    is in expectation V at the start minus the user's expected reward, with far less variance than counted rewards.
    This holds for any alpha vectors; with those of a suboptimal policy the variance grows and single terms may be
    negative. With a horizon, V has vectors for each number of steps left, and is 0 after the last step.

    Parameters
    ----------
    instance
        The true instance of the users.
    policy
        Policy whose alpha vectors are compared with those of the fixed policies.
    segments
        Regret in each segment, if the users have segments.
    """

    def __init__(
        self,
        instance: Instance,
        policy: Policy | None = None,
        segments: "Mapping[str, StepRegret] | None" = None,
    ) -> None:
        self.instance, self._segments = instance, segments or {}
        self._vectors = value_vectors(instance, policy)
        self.start = float((self._vectors(instance.horizon or 0) @ instance.normalised_prior).max())
        self.after = lru_cache(CACHE_SIZE)(self._after)

    def in_segment(self, name: str | None) -> "StepRegret":
        """Return the regret of users of a segment."""
        return self if name is None else self._segments[name]

    def _after(self, clicks_and_stays: tuple[int, ...]) -> list[float]:
        """Return the regret of every category after these numbers of clicks and stays, two for each category."""
        b, left = self._state(clicks_and_stays)
        vectors = self._vectors(max(left - 1, 0))
        following = (b * self.instance.outcome_probabilities[:, [CLICK, STAY]]) @ vectors.T  # [K, 2, n]
        q = self.instance.expected_reward @ b + following.max(axis=2).sum(axis=1)
        return cast(list[float], ((self._vectors(left) @ b).max() - q).tolist())

    def remaining(self, clicks_and_stays: tuple[int, ...]) -> float:
        """Return the regret of showing nothing more after these numbers of clicks and stays."""
        b, left = self._state(clicks_and_stays)
        return float((self._vectors(left) @ b).max())

    def _state(self, clicks_and_stays: tuple[int, ...]) -> tuple[Floats, int]:
        """Return the belief and the steps left, 0 without a horizon."""
        counts = np.zeros((self.instance.n_categories, 4), np.int64)
        counts[:, [CLICK, STAY]] = np.reshape(clicks_and_stays, (-1, 2))
        horizon = self.instance.horizon
        return belief(self.instance, counts), 0 if horizon is None else horizon - sum(clicks_and_stays)


def value_vectors(instance: Instance, policy: Policy | None = None) -> Vectors:
    """Return the alpha vectors of a policy and of the fixed policies, by steps left."""
    own = policy if isinstance(policy, Alpha) else None
    if instance.horizon is None:
        fixed = instance.fixed_values
        vectors = fixed if own is None else np.concatenate([own.vectors, fixed])
        return lambda left: vectors
    always = FixedValues(instance)
    steps, rows = np.zeros(0, np.int64), np.zeros((0, instance.n_types))
    if own is not None and own.steps is not None:
        steps, rows = own.steps, own.vectors
    elif isinstance(policy, Schedule):
        steps, rows = np.arange(instance.horizon + 1), _values_to_go(instance, policy)
    return cache(lambda left: np.concatenate([rows[steps == left], always.within(left)]))


def _values_to_go(instance: Instance, schedule: Schedule) -> Floats:
    """Values `[H + 1, M]` of the last 0 to H steps of a schedule within the horizon H."""
    categories = schedule.first_categories(instance.horizon or 0)
    values = np.zeros((len(categories) + 1, instance.n_types))
    stay = 1 - instance.departure_probabilities
    for left, category in enumerate(categories[::-1].tolist()):
        values[left + 1] = instance.expected_reward[category] + stay[category] * values[left]
    return values


def optimum_and_regret(instance: Instance) -> tuple[Bounds, StepRegret]:
    """Bounds on the value of the optimal policy, which knows segments, and the regret against it."""
    check_instance(instance, EXTENSIONS)
    if instance.segments is None:
        return _optimum_and_regret(instance)
    regrets, lower, upper = dict[str, StepRegret](), 0.0, 0.0
    for name, share in zip(instance.segments.names, instance.segments.share.tolist(), strict=True):
        bounds, regrets[name] = _optimum_and_regret(instance.in_segment(name))
        lower, upper = lower + share * bounds.lower, upper + share * bounds.upper
    return Bounds(lower, upper), StepRegret(instance, segments=regrets)


def _optimum_and_regret(instance: Instance) -> tuple[Bounds, StepRegret]:
    """Bounds on the value of the optimal policy, and the regret against it, in one segment."""
    scale = max(1.0, float(instance.fixed_values.max()))
    method = "search" if instance.horizon is None else "finite-horizon"
    solved = plan(instance, 1e-6 * scale, PLANNING_SECONDS, method)
    return solved, StepRegret(instance, solved.policy)


def uniform_value(instance: Instance) -> float:
    """Expected reward per user if every category is shown with equal probability at every step.

    >>> uniform_value(Instance(prior=[1.0], click=[[0.5], [0.0]], depart=1.0))
    0.3333333333333333
    """
    departure = instance.departure_probabilities.mean(axis=0)
    values = instance.expected_reward.mean(axis=0) / departure
    if instance.horizon is not None:
        with np.errstate(divide="ignore"):
            values = values * -np.expm1(instance.horizon * np.log1p(-departure))
    return float(instance.normalised_prior @ values)
