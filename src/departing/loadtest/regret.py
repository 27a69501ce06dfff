"""Regret of recommendations to users whose instance is known."""

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.model.belief import belief
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.validation import check_instance
from departing.planning.plan import plan
from departing.policy.alpha import Alpha

CACHE_SIZE = 2**18  # distinct counts in the cache; trades memory, K floats each, for repeated belief updates
PLANNING_SECONDS = 20.0  # time limit; a plan that stops early widens the bounds, and the estimate stays unbiased


class StepRegret:
    """The regret of showing each category to a user with given counts.

    That is V(b) - Q(b, a), where b is the belief, V the maximum over alpha vectors, and Q(b, a) the expected reward
    of showing category a now and V afterwards. By the performance difference lemma the sum over the steps of a user
    is in expectation V at the start minus the user's expected reward, with far less variance than counted rewards.
    This holds for any alpha vectors; with those of a suboptimal policy the variance grows and single terms may be
    negative.

    Parameters
    ----------
    instance
        The true instance of the users.
    vectors
        Alpha vectors `[n, M]`; those of the fixed policies are added.
    segments
        Regret in each segment, if the users have segments.
    """

    def __init__(
        self,
        instance: Instance,
        vectors: Floats | None = None,
        segments: "Mapping[str, StepRegret] | None" = None,
    ) -> None:
        self.instance, self._segments = instance, segments or {}
        fixed = instance.fixed_values
        self.vectors = fixed if vectors is None else np.concatenate([vectors, fixed])  # [n, M]
        self.start = float((self.vectors @ instance.normalised_prior).max())
        self.after = lru_cache(CACHE_SIZE)(self._after)

    def in_segment(self, name: str | None) -> "StepRegret":
        """Return the regret of users of a segment."""
        return self if name is None else self._segments[name]

    def _after(self, clicks_and_stays: tuple[int, ...]) -> list[float]:
        """Return the regret of every category after these numbers of clicks and stays, two for each category."""
        counts = np.zeros((self.instance.n_categories, 4), np.int64)
        counts[:, [CLICK, STAY]] = np.reshape(clicks_and_stays, (-1, 2))
        b = belief(self.instance, counts)
        following = (b * self.instance.outcome_probabilities[:, [CLICK, STAY]]) @ self.vectors.T  # [K, 2, n]
        q = self.instance.expected_reward @ b + following.max(axis=2).sum(axis=1)
        return cast(list[float], ((self.vectors @ b).max() - q).tolist())


def optimum_and_regret(instance: Instance) -> tuple[Bounds, StepRegret]:
    """Bounds on the value of the optimal policy, which knows segments, and the regret against it."""
    check_instance(instance, ("reward", "segments"))
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
    solved = plan(instance, 1e-6 * scale, PLANNING_SECONDS, "search")
    return solved, StepRegret(instance, solved.policy.vectors if isinstance(solved.policy, Alpha) else None)


def uniform_value(instance: Instance) -> float:
    """Expected reward per user if every category is shown with equal probability at every step.

    >>> uniform_value(Instance(prior=[1.0], click=[[0.5], [0.0]], depart=1.0))
    0.3333333333333333
    """
    departure = instance.departure_probabilities.mean(axis=0)
    return float(instance.normalised_prior @ (instance.expected_reward.mean(axis=0) / departure))
