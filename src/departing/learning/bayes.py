"""The Bayes learner: infer the instance, plan, and explore where it pays."""

from math import ceil, inf
from typing import Any, ClassVar

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.learning.blocks import BlockLearner, next_block
from departing.learning.information_gain import Memory, Prospects, priced
from departing.learning.posterior import Draws, Posterior
from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.validation import MAX_USERS, check_float, check_int, check_seed
from departing.planning.plan import Plan, plan
from departing.policy.greedy import Greedy
from departing.policy.protocol import Allowed, Policy
from departing.policy.schedule import Fixed, Schedule, Threshold

RULES = ("priced", "thompson", "none")
DEPTH = 30  # steps of a user that are kept
ROWS = 1500  # different counts that inference looks at
DRAWS = 64  # instances that may be true
PLANS = 24  # of them are planned for
REMEMBERED = 40  # schedules that later blocks compare with
GAPS = ((12, 1e-5), (50, 1e-3), (2**40, 1e-2))  # up to so many chances of a click: the gap of plans, of the value
LEAST = 100_000  # users that are explored for at least: with fewer to come, early bad luck would never be mended
SECONDS = 20.0  # for one plan; hardly ever needed, since a plan that ends by the clock would not be fixed by a seed


def planned(instance: Instance, allowed: Allowed = None) -> Plan:
    """A plan that is good enough to learn by."""
    gap = next(gap for size, gap in GAPS if instance.click.size <= size)
    return plan(instance, gap * max(float(instance.fixed_values.max()), 1e-3), SECONDS, allowed=allowed)


class Model(BlockLearner):
    """What learners share that infer an instance: the ledger of what users did, and the posterior."""

    depth: int | None = DEPTH

    def __init__(self, types: int, categories: int, seed: int = 0, growth: float = 0.1) -> None:
        super().__init__(categories)
        self.n_types = check_int("types", types, 1, 64)
        self.seed = check_seed(seed)
        self.growth = check_float("growth", growth, 1e-3, 10.0)
        self.rng = np.random.default_rng([self.seed, 3])
        self.ledger = TransitionCounts(self.n_categories, DEPTH)
        self.posterior = Posterior(self.n_categories, self.n_types, self.rng)

    def _learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        self.ledger.book(counts, categories, outcomes)

    def evidence(self) -> MixtureLikelihood | None:
        """What users did so far, None if nothing is known."""
        found = MixtureLikelihood.from_counts(*self.ledger.histogram(ROWS), self.n_types)
        return found if len(found.users) else None

    def _starts(self) -> int:
        """How many new starts inference makes."""
        return 3 if self.arrived < 200 else 4

    def instance(self) -> Instance:
        """The most likely instance by now; to ask for it changes nothing."""
        aside = Posterior(self.n_categories, self.n_types, np.random.default_rng([self.seed, 4, self.arrived]))
        aside.pool = list(self.posterior.pool)
        evidence = self.evidence()
        return aside.imagine() if evidence is None else aside.best(evidence, self._starts())

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {
            "types": self.n_types,
            "seed": self.seed,
            "growth": self.growth,
            "rng": self.rng.bit_generator.state,
            "ledger": self.ledger.state(),
            "pool": [[p.prior, p.click, p.depart, p.depart_on_click] for p in self.posterior.pool],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self.rng.bit_generator.state = state["rng"]
        self.ledger = TransitionCounts.from_state(self.n_categories, state["ledger"])
        self.posterior.pool = [Parameters(*arrays) for arrays in state["pool"]]


class Bayes(Model):
    """Infer prior, click and depart from what users did, plan, and explore by one of three rules.

    `types` is how many types there are thought to be; one too many costs little, one too few a lot. Whether
    departure is sure is learned. Rules for exploring: `priced` plays the plan that loses least over draws from the
    posterior, and lets just enough users try the plan of a draw in which that loses, if it pays; `thompson` deals
    the users of a block over the plans of the draws; `none` plays the plan that loses least, always. With `users`,
    how many will come, `priced` explores less towards the end.

    >>> learner = Bayes(types=2, categories=2, seed=0)
    >>> learner.recommend(["ann", "bob"]).shape
    (2,)
    """

    kind: ClassVar[str] = "bayes"

    def __init__(
        self,
        types: int,
        categories: int,
        seed: int = 0,
        explore: str = "priced",
        *,
        users: int | None = None,
        growth: float = 0.1,
    ) -> None:
        if explore not in RULES:
            raise InputError(f"explore is {explore!r}; allowed are {', '.join(RULES)}.")
        super().__init__(types, categories, seed, growth)
        self.explore = explore
        self.users = None if users is None else check_int("users", users, 1, MAX_USERS)
        self.allowed: tuple[int, ...] | None = None  # categories that may be shown; all unless told
        self.loss: float | None = None  # clicks that a user of the best policy by now is expected to lose
        self._tried: list[Schedule] = []
        self._memory = Memory()

    def _block(self) -> list[tuple[Policy, int]]:
        n = next_block(self.arrived, self.growth)
        evidence = self.evidence()
        if evidence is None:
            return [(self._planned(self.posterior.imagine()).policy, n)]
        draws = self.posterior.draw(evidence, DRAWS, self._starts())
        if self.explore == "thompson" or (n < 4 and self.explore != "none"):
            dealt = self.rng.multinomial(n, draws.weights)
            return [(self._planned(draws.instances[j]).policy, int(dealt[j])) for j in np.flatnonzero(dealt)]
        prospects = Prospects.of(draws, self._plans(draws), self._tried, self._memory.greedy, self.allowed)
        self._remember(prospects)
        self.loss = prospects.loss
        if self.explore == "none":
            return [(prospects.greedy, n)]
        ahead = inf if self.users is None else max(max(self.users, LEAST) - self.arrived - n, 0)
        return priced(prospects, n, self.arrived, ahead, self._memory)

    def _plans(self, draws: Draws) -> list[Plan]:
        """Plans for some of the draws: half of them the likely ones, half any."""
        places = (np.arange(PLANS // 2) + self.rng.random()) / (PLANS // 2)
        likely = np.minimum(np.searchsorted(draws.weights.cumsum(), places), len(draws.instances) - 1)
        others = self.rng.choice(len(draws.instances), PLANS // 2, replace=False)
        return [self._planned(draws.instances[j]) for j in np.unique([*likely, *others])]

    def _planned(self, instance: Instance) -> Plan:
        return planned(instance, self.allowed)

    def _remember(self, prospects: Prospects) -> None:
        """Keep the schedules that did best, to be compared with in later blocks."""
        order = np.argsort(-prospects.means, kind="stable")
        ranked = [prospects.policies[c] for c in order]
        self._tried = [policy for policy in ranked if isinstance(policy, Schedule)][:REMEMBERED]

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        own = {"explore": self.explore, "of_users": self.users, "tried": self._tried, "memory": self._memory.state()}
        return super().state() | own

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Bayes":
        """A learner that goes on from a `state`."""
        options = {"users": state["of_users"], "growth": state["growth"]}
        learner = cls(state["types"], state["categories"], state["seed"], state["explore"], **options)
        learner.restore(state)
        learner._tried = state["tried"]
        learner._memory = Memory.from_state(state["memory"])
        return learner


class RefittedGreedy(Model):
    """Show the category with the best chance of a click under the belief, by the most likely instance so far.

    It neither plans ahead nor explores.
    """

    kind: ClassVar[str] = "refitted-greedy"

    def _block(self) -> list[tuple[Policy, int]]:
        return [(Greedy(self.instance()), next_block(self.arrived, self.growth))]

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "RefittedGreedy":
        """A learner that goes on from a `state`."""
        learner = cls(state["types"], state["categories"], state["seed"], state["growth"])
        learner.restore(state)
        return learner


class ExploreThenCommit(Model):
    """Let the first users try everything in turn, then plan for the most likely instance and keep to that.

    They try every category for ever, and every category for one step and then another for ever. `explore_users` of
    them do, the power 2/3 of `users` unless told.
    """

    kind: ClassVar[str] = "explore-then-commit"

    def __init__(
        self, types: int, categories: int, users: int, seed: int = 0, explore_users: int | None = None
    ) -> None:
        super().__init__(types, categories, seed)
        self.users = check_int("users", users, 1, MAX_USERS)
        self.explore_users = (
            ceil(self.users ** (2 / 3)) if explore_users is None else check_int("explore_users", explore_users)
        )

    def _block(self) -> list[tuple[Policy, int]]:
        evidence = self.evidence()
        if self.arrived < self.explore_users or evidence is None:
            return self._tries(max(self.explore_users - self.arrived, 1))
        return [(planned(self.posterior.best(evidence, 10)).policy, 2**62)]

    def _tries(self, n: int) -> list[tuple[Policy, int]]:
        every = range(self.n_categories)
        policies: list[Policy] = [Fixed(a) for a in every]
        policies += [Threshold(first=a, steps=1, then=b) for a in every for b in every if a != b]
        dealt = np.diff(np.linspace(0, n, len(policies) + 1).astype(np.int64))
        return [(policy, int(users)) for policy, users in zip(policies, dealt, strict=True)]

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {"of_users": self.users, "explore_users": self.explore_users}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "ExploreThenCommit":
        """A learner that goes on from a `state`."""
        learner = cls(state["types"], state["categories"], state["of_users"], state["seed"], state["explore_users"])
        learner.restore(state)
        return learner
