"""LatticeUCB: optimistic planning over counts, for any number of types."""

from collections.abc import Sequence
from math import ceil, log
from typing import Any, ClassVar, Self

import numpy as np

from departing.kernels.learning.kl import kl_bound
from departing.kernels.learning.optimism import optimistic_values
from departing.learning.base import MIN_EPSILON, Option, check_users
from departing.learning.blocks import Block, check_growth
from departing.learning.transition_counts import TransitionCounts, TransitionLearner
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, CLICKS, DEPART, STAY, Floats, Instance
from departing.model.validation import check_choice, check_float, check_fraction, check_int, check_seed
from departing.policy.schedule import Fixed
from departing.policy.table import Table

# Block size as a share of the users so far. Set by hand: larger is faster and reacts later.
GROWTH = 0.01
# Default number of steps per user that are distinguished in the practical mode. Set by hand: more reach longer visits
# and spread the same data over more counts.
HORIZON = 30
SCALES = ("practical", "proved")
# Confidence radius in nats of the practical mode. Set by hand: by Chernoff's bound each end fails with probability at
# most e^-2 = 0.14, and the tests find at most 7 % of the intervals wrong. Larger is safer and explores more.
PRACTICAL_RADIUS = 2.0


class LatticeUCB(TransitionLearner):
    """Plan over the observed counts with optimistic outcome probabilities.

    The outcome probabilities at given counts do not depend on the policy, whatever the types are. Each has a KL
    confidence interval, and the policy is optimal if every probability is at the better end of its interval.

    Parameters
    ----------
    categories : int or sequence of str
        Number of categories, or their names.
    users : int
        Total number of users, approximately.
    seed : int, default 0
        Accepted for uniformity; nothing is random.
    epsilon : float, default 0.05
        Lower bound of the departure probability at every step, as in the paper.
    horizon : int, optional
        Number of steps that are distinguished; nothing is expected of later ones, so that it is also the largest
        number of recommendations to one user if there is one.
    scale : {"practical", "proved"}, default "practical"
        `"proved"`: all intervals hold together with probability 1 - 1/users, and regret grows with the square root
        of users. `"practical"`: each holds with a probability of about 95 %.
    growth : float, default 0.01
        Block size as a share of the users so far.
    reward : sequence of float, optional
        Value of a click in each category [default: 1 each].
    unit : str, default "clicks"
        Unit of `reward`.

    Examples
    --------
    >>> LatticeUCB(categories=2, users=1000).recommend(["ann"]).shape
    (1,)
    """

    kind = "lattice"
    options: ClassVar[dict[str, Option]] = {
        "epsilon": check_fraction,
        "horizon": check_int,
        "scale": SCALES,
        "growth": check_growth,
    }

    def __init__(
        self,
        categories: int | Sequence[str],
        users: int | None = None,
        seed: int = 0,
        *,
        epsilon: float = 0.05,
        horizon: int | None = None,
        scale: str = "practical",
        growth: float = GROWTH,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
    ) -> None:
        super().__init__(categories)
        self._set_objective(reward, unit, None)
        self.users = check_users(users)
        self.seed = check_seed(seed)
        self.epsilon = check_float("epsilon", epsilon, MIN_EPSILON, 1 - MIN_EPSILON)
        check_choice("scale", scale, SCALES)
        self.scale = scale
        full = ceil(log(self.users + 1) / log(1 / (1 - self.epsilon)))
        default = full if scale == "proved" else min(full, HORIZON)
        self.horizon = default if horizon is None else check_int("horizon", horizon)
        proved = 3 * log(self.users + 1) + log(6 * self.n_categories * self.horizon)
        self.confidence_radius = proved if scale == "proved" else PRACTICAL_RADIUS  # nats
        self.growth = check_growth("growth", growth)
        self.depth = self.horizon
        self.transitions = TransitionCounts(self.n_categories, self.horizon)

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create a learner that distinguishes no more steps than the horizon of the instance."""
        learner = super().from_options(options, instance.replace(horizon=None), users, seed)
        if instance.horizon is None or learner.horizon <= instance.horizon:
            return learner
        return super().from_options(options | {"horizon": instance.horizon}, instance, users, seed)

    def bounds(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return confidence bounds of every node and category, `[n, K]` each.

        Lower and upper bound of the click probability, lower bounds of departure after a no-click and after a click.
        """
        outcomes = self.transitions.outcomes
        clicks = outcomes[..., CLICK] + outcomes[..., CLICK_DEPART]
        shown = outcomes.sum(axis=2)
        no_clicks = outcomes[..., STAY] + outcomes[..., DEPART]
        return (
            self._bound(clicks, shown, 0.0),
            self._bound(clicks, shown, 1.0),
            self._bound(outcomes[..., DEPART], no_clicks, 0.0),
            self._bound(outcomes[..., CLICK_DEPART], clicks, 0.0),
        )

    def _bound(self, successes: Integers, trials: Integers, limit: float) -> Floats:
        """Return the KL confidence bound on the side of `limit`, and `limit` without data."""
        bound = np.full(successes.shape, limit)
        known = trials > 0
        if limit == 0.0:
            known &= successes > 0
        n = trials[known]
        bound[known] = kl_bound(successes[known] / n, self.confidence_radius / n, limit)
        return bound

    def _default_category(self) -> int:
        """Return the category to recommend without data: the best for a single type."""
        reward = self._rewards()
        total = self.transitions.outcomes.sum(axis=0)
        clicks = total[:, CLICK] + total[:, CLICK_DEPART]
        departures = total[:, DEPART] + total[:, CLICK_DEPART]
        return int((reward * (clicks + 1) / (departures + 1)).argmax())

    def _rewards(self) -> Floats:
        return np.ones(self.n_categories) if self.objective.reward is None else np.array(self.objective.reward)

    def _block(self) -> Block:
        transitions, default = self.transitions, self._default_category()
        if not transitions.outcomes[0].any():
            return [(Fixed(default), 1)]
        steps_left = np.arange(self.horizon, -1, -1)
        survival = 1 - self.epsilon
        # Until a departure after a click is observed, users are taken to depart only after no-clicks.
        max_click = 1.0 if transitions.outcomes[..., CLICK_DEPART].any() else survival
        rewards = self._rewards()
        upper_bound = rewards.max() * (max_click * (1 - survival**steps_left) / self.epsilon)
        graph = np.argsort(-transitions.depth, kind="stable"), transitions.depth, transitions.child
        lower, upper, depart, depart_on_click = self.bounds()
        bounds = lower, np.minimum(upper, max_click), depart, depart_on_click
        _, category = optimistic_values(*graph, *bounds, upper_bound, rewards, default)
        inside = np.flatnonzero(transitions.depth < self.horizon)
        policy = Table(transitions.counts(inside), category[inside], Fixed(default))
        return [(policy, self._block_size())]
