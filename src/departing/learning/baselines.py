"""Baseline learners: Uniform, Thompson sampling over fixed categories, ULCB and KL-ULCB."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from departing.kernels.learning.kl import kl_bound
from departing.learning.blocks import Block, BlockLearner
from departing.learning.last_outcome import LastOutcomePolicy
from departing.learning.protocol import AssignedPolicy
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, CLICKS, STAY, Floats
from departing.model.validation import check_float, check_seed
from departing.policy.schedule import Fixed

# Block size as a share of the users so far. Set by hand: 10^9 users are then fewer than 6,000 blocks (tested);
# larger is faster and reacts later.
GROWTH = 0.01
# Posterior samples per block. Set by hand: assignment shares are then accurate to about 0.016 (one standard error).
SAMPLES = 1000


class RandomisedBlocks(BlockLearner):
    """A learner that assigns policies to blocks of a share `growth` of the users so far, possibly at random.

    Parameters
    ----------
    categories : int or sequence of str
        Number of categories, or their names.
    seed : int, default 0
        Seed of the random assignment.
    growth : float, default 0.01
        Block size as a share of the users so far; 0 makes every user a block.
    """

    saved = (*BlockLearner.saved, "_rng")

    def __init__(self, categories: int | Sequence[str], seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories)
        self.growth = check_float("growth", growth, 0.0, 1.0)
        self.seed = check_seed(seed)
        self._rng = np.random.default_rng(self.seed)

    def _fixed(self, users: Integers) -> Block:
        """Assign fixed categories to `users[K]` users, starting at a random position of the block and wrapping.

        So every user of the block has the same probability of each category, also if the block is cut short.
        """
        ends = users.cumsum()
        start = int(self._rng.integers(ends[-1]))
        after = np.diff(np.maximum(ends - start, 0), prepend=0)
        parts = [*enumerate(after.tolist()), *enumerate((users - after).tolist())]
        return [(Fixed(a), n) for a, n in parts if n]


class Uniform(RandomisedBlocks):
    """A learner that never learns: every user always sees one category, drawn uniformly at random.

    Examples
    --------
    >>> set(Uniform(categories=3, seed=1).recommend(range(100)).tolist())
    {0, 1, 2}
    """

    kind = "uniform"
    depth = 0

    def _block(self) -> Block:
        probabilities = np.full(self.n_categories, 1 / self.n_categories)
        return self._fixed(self._rng.multinomial(self._block_size(), probabilities))


class CategoryStats(RandomisedBlocks):
    """A learner that counts the outcomes of each category, as if all users were of one type."""

    saved = (*RandomisedBlocks.saved, "_outcomes")

    def __init__(self, categories: int | Sequence[str], seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories, seed, growth)
        self._outcomes = np.zeros((self.n_categories, 4), np.int64)

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add the outcomes of each category."""
        np.add.at(self._outcomes, categories, outcomes)


class Thompson(CategoryStats):
    """Thompson sampling over fixed categories, as if all users were of one type.

    The probabilities of a click, of departure after a no-click and of departure after a click have uniform priors in
    each category. A posterior sample gives the value of each fixed category, reward × P(click) / P(departure), and
    the user gets the largest. Users of a large block are assigned in proportion to how often each category is best in
    1,000 samples.

    Parameters
    ----------
    categories, seed, growth
        As for all of these learners.
    reward : sequence of float, optional
        Value of a click in each category [default: 1 each].
    unit : str, default "clicks"
        Unit of `reward`.
    horizon : int, optional
        Largest number of recommendations to one user.
    """

    kind = "thompson"

    def __init__(
        self,
        categories: int | Sequence[str],
        seed: int = 0,
        growth: float = GROWTH,
        *,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
    ) -> None:
        super().__init__(categories, seed, growth)
        self._set_objective(reward, unit, horizon)
        self.horizon = self.objective.horizon

    def _block(self) -> Block:
        users = self._block_size()
        best = np.bincount(self.sample_values(min(users, SAMPLES)).argmax(axis=1), minlength=self.n_categories)
        return self._fixed(best if users <= SAMPLES else self._rng.multinomial(users, best / SAMPLES))

    def sample_values(self, n: int) -> Floats:
        """Sample the value (expected reward per user) of each fixed category n times from the posterior, `[n, K]`."""
        clicked, stayed, departed, click_departed = self._outcomes.T
        size = (n, self.n_categories)
        click = self._rng.beta(1 + clicked + click_departed, 1 + stayed + departed, size)
        depart = self._rng.beta(1 + departed, 1 + stayed, size)
        depart_on_click = self._rng.beta(1 + click_departed, 1 + clicked, size)
        leave = (1 - click) * depart + click * depart_on_click
        values = click / np.maximum(leave, np.finfo(float).tiny)
        if self.objective.reward is not None:
            values = values * np.array(self.objective.reward)
        if self.objective.horizon is not None:
            values = values * (1 - (1 - leave) ** self.objective.horizon)
        return np.asarray(values)


class ULCB(CategoryStats):
    """ULCB: the largest upper confidence bound after a click, the largest lower confidence bound after a no-click.

    After Yang, Liu and Ying, "Exploration, Exploitation, and Engagement in Multi-Armed Bandits with Abandonment". The
    bounds are on the click probability: with n recommendations of a category and t users so far, mean ± sqrt(ln t /
    2n). A category without observations has bounds ±inf. Every user keeps the two categories chosen on arrival.
    Nothing is random: `seed` has no effect.

    Examples
    --------
    >>> ULCB(categories=2).recommend(["ann"])
    array([0])
    """

    kind = "ulcb"
    unsupported: ClassVar[dict[str, str]] = {"reward": "ULCB has bounds on click probabilities, not on rewards"}
    saved = (*CategoryStats.saved, "_clicked_last")

    def __init__(self, categories: int | Sequence[str], seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories, seed, growth)
        self._clicked_last = np.zeros(0, bool)  # by row: the user clicked last, or is new

    def bounds(self) -> tuple[Floats, Floats]:
        """Return lower and upper confidence bounds of the click probability, `[K]` each."""
        shown = self._outcomes.sum(axis=1)
        clicks = self._outcomes[:, CLICK] + self._outcomes[:, CLICK_DEPART]
        n = np.maximum(shown, 1)
        lower, upper = self._interval(clicks / n, np.log(self.arrived + 1) / n)
        return np.where(shown, lower, -np.inf), np.where(shown, upper, np.inf)

    def _interval(self, mean: Floats, divergence: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the confidence interval for ln t / n = `divergence[K]`."""
        return mean - np.sqrt(divergence / 2), mean + np.sqrt(divergence / 2)

    def _block(self) -> Block:
        lower, upper = self.bounds()
        optimistic, cautious = int(upper.argmax()), int(lower.argmax())
        policy: AssignedPolicy = (
            Fixed(optimistic) if optimistic == cautious else LastOutcomePolicy(optimistic, cautious)
        )
        return [(policy, self._block_size())]

    def _recommend(self, version: int, rows: Integers) -> Integers:
        policy = self.policy(version)
        if isinstance(policy, LastOutcomePolicy):
            return policy.recommend_after(self._clicked_last[rows])
        return super()._recommend(version, rows)

    def _after_outcome(self, rows: Integers, outcomes: Integers) -> None:
        self._clicked_last[rows] = outcomes != STAY  # a departed user leaves the row to a new one

    def _grow(self, more: int) -> None:
        super()._grow(more)
        self._clicked_last = np.concatenate(
            [self._clicked_last, np.ones(len(self._version) - len(self._clicked_last), bool)]
        )


class KLULCB(ULCB):
    """KL-ULCB: ULCB with the interval {p : n kl(mean, p) ≤ ln t} instead, which is inside that of ULCB."""

    kind = "kl-ulcb"

    def _interval(self, mean: Floats, divergence: Floats) -> tuple[Floats, Floats]:
        return kl_bound(mean, divergence, 0.0), kl_bound(mean, divergence, 1.0)
