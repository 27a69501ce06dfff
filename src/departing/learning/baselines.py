"""Simple learners to compare with: Uniform, Thompson sampling over fixed categories, ULCB and KL-ULCB."""

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from departing.kernels.learning.kl import kl_end
from departing.learning.blocks import BlockLearner, next_block
from departing.learning.last_outcome import LastOutcomePolicy
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, STAY, Floats
from departing.model.validation import check_float, check_seed
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed

GROWTH = 0.01
DRAWS = 1000


class RandomisedBlocks(BlockLearner):
    """A learner that deals policies to a block of users, a share `growth` of those who have come."""

    def __init__(self, categories: int, seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories)
        self.growth = check_float("growth", growth, 0.0, 1.0)
        self._rng = np.random.default_rng(check_seed(seed))

    @abstractmethod
    def _deal(self, users: int) -> list[tuple[Policy, int]]:
        """What the next so many users get."""

    def _block(self) -> list[tuple[Policy, int]]:
        return self._deal(next_block(self.arrived, self.growth))

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {"growth": self.growth, "random": self._rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self._rng.bit_generator.state = state["random"]

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """A learner that goes on from a `state`."""
        learner = cls(state["categories"], growth=state["growth"])
        learner.restore(state)
        return learner


class Uniform(RandomisedBlocks):
    """A learner that never learns: every user gets one category, drawn uniformly at random, for ever.

    >>> set(Uniform(categories=3, seed=1).recommend(range(100)).tolist())
    {0, 1, 2}
    """

    kind = "uniform"
    depth = 0

    def _deal(self, users: int) -> list[tuple[Policy, int]]:
        return _fixed(self._rng.multinomial(users, np.full(self.n_categories, 1 / self.n_categories)), self._rng)


class CategoryStats(RandomisedBlocks):
    """A learner that counts what came of each category, as if all users were of one type."""

    def __init__(self, categories: int, seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories, seed, growth)
        self._seen = np.zeros((self.n_categories, 4), np.int64)

    def _learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        np.add.at(self._seen, categories, outcomes)

    @property
    def seen(self) -> Integers:
        """How often each category ended in each outcome, `[K, 4]`."""
        return self._seen.copy()

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self._seen = state["seen"].copy()


class Thompson(CategoryStats):
    """Thompson sampling over fixed categories, as if all users were of one type.

    The chances of a click, of departing after none and of departing after one have uniform priors, category by
    category. A draw of them gives what each fixed category would bring, clicks / chance of leaving, and a user gets
    the best. Users of a large block are dealt by how often each category is best in a thousand draws.
    """

    kind = "thompson"

    def _deal(self, users: int) -> list[tuple[Policy, int]]:
        best = np.bincount(self.draw(min(users, DRAWS)).argmax(axis=1), minlength=self.n_categories)
        return _fixed(best if users <= DRAWS else self._rng.multinomial(users, best / DRAWS), self._rng)

    def draw(self, n: int) -> Floats:
        """What each fixed category brings one user, in n draws from what is known, `[n, K]`."""
        clicked, stayed, departed, left = self._seen.T
        size = (n, self.n_categories)
        click = self._rng.beta(1 + clicked + left, 1 + stayed + departed, size)
        depart = self._rng.beta(1 + departed, 1 + stayed, size)
        last = self._rng.beta(1 + left, 1 + clicked, size)
        return np.asarray(click / np.maximum((1 - click) * depart + click * last, np.finfo(float).tiny))


class ULCB(CategoryStats):
    """ULCB, or KL-ULCB with `kl`: optimistic with users who liked the last recommendation, cautious with the others.

    After Yang, Liu and Ying, "Exploration, Exploitation, and Engagement in Multi-Armed Bandits with Abandonment". On
    arrival and after a click a user sees the category with the largest upper confidence bound of the chance of a
    click, after none that with the largest lower bound. With n recommendations of a category and t users so far the
    bounds are the mean ± sqrt(ln t / 2n), or with `kl` the ends of where n kl(mean, chance) is at most ln t. A
    category not yet seen comes first with the former users and last with the latter. Every user keeps to the two
    categories of the day of arrival. Nothing is random: `seed` changes nothing.

    >>> ULCB(categories=2).recommend(["ann"])
    array([0])
    """

    kind = "ulcb"

    def __init__(self, categories: int, kl: bool = False, seed: int = 0, growth: float = GROWTH) -> None:
        super().__init__(categories, seed, growth)
        if not isinstance(kl, bool):
            raise InputError(f"kl is {kl!r}; expected True or False.")
        self.kl = kl
        self._liked = np.zeros(0, bool)  # whether the user of each row clicked last, or is new

    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper confidence bounds of the chance of a click, `[K]`; infinite where nothing is known."""
        shown = self._seen.sum(axis=1)
        clicks = self._seen[:, CLICK] + self._seen[:, CLICK_DEPART]
        n = np.maximum(shown, 1)
        mean, room = clicks / n, np.log(self.arrived + 1) / n
        if self.kl:
            lower, upper = kl_end(mean, room, 0.0), kl_end(mean, room, 1.0)
        else:
            lower, upper = mean - np.sqrt(room / 2), mean + np.sqrt(room / 2)
        return np.where(shown, lower, -np.inf), np.where(shown, upper, np.inf)

    def _deal(self, users: int) -> list[tuple[Policy, int]]:
        lower, upper = self.bounds()
        liked, missed = int(upper.argmax()), int(lower.argmax())
        return [(Fixed(liked) if liked == missed else LastOutcomePolicy(liked, missed), users)]

    def _recommend(self, version: int, rows: Integers) -> Integers:
        policy = self.policy(version)
        return (
            policy.at(self._liked[rows])
            if isinstance(policy, LastOutcomePolicy)
            else super()._recommend(version, rows)
        )

    def _note(self, rows: Integers, outcomes: Integers) -> None:
        self._liked[rows] = outcomes != STAY  # who departed leaves the row to one who is new

    def _make_room(self, more: int) -> None:
        super()._make_room(more)
        self._liked = np.concatenate([self._liked, np.ones(len(self._version) - len(self._liked), bool)])

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        held = super().state()
        policies = [
            [each.liked, each.missed] if isinstance(each, LastOutcomePolicy) else each for each in held["policies"]
        ]
        return held | {"kl": self.kl, "liked": self._liked.copy(), "policies": policies}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        policies = [
            LastOutcomePolicy(*policy) if isinstance(policy, list) else policy for policy in state["policies"]
        ]
        super().restore(state | {"policies": policies})
        self._liked = state["liked"].copy()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """A learner that goes on from a `state`."""
        learner = cls(state["categories"], state["kl"], growth=state["growth"])
        learner.restore(state)
        return learner


def _fixed(users: Integers, rng: np.random.Generator) -> list[tuple[Policy, int]]:
    """So many users for every fixed category, from a random point of the block on and around to it.

    So any user of the block, also of one that is cut short, has the same chance of each category.
    """
    ends = users.cumsum()
    start = int(rng.integers(ends[-1]))
    after = np.diff(np.maximum(ends - start, 0), prepend=0)
    parts = [*enumerate(after.tolist()), *enumerate((users - after).tolist())]
    return [(Fixed(a), n) for a, n in parts if n]
