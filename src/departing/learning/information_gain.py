"""Exploring where it pays: how many users should try another policy than the best guess."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import erfc, pi, sqrt
from typing import Any

import numpy as np

from departing.evaluation.traversal import first_level, traverse
from departing.kernels.learning.separation import sights
from departing.learning.posterior import STEP, Draws, Mode, stacked
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.plan import Plan
from departing.planning.sensitivity import worth
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule, simplest_schedule

LOOK = 30  # steps of users that are looked at
WIDE = 400  # counts that are looked at
RAREST = 1e-5  # share of users below which they are not followed
SHARES = np.array([0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4])  # of a block that may explore
FEW = np.array([1, 3, 10, 30, 100])  # users who may
AHEAD = (1.0, 3.0, 10.0, 30.0)  # ends of the stretches of users to come, as multiples of those who came
UNKNOWN = 100.0  # times as many as came are thought to come, if nobody says
TRUST = 60.0  # draws that a normal distribution is worth where it fits
RIVALS = 6  # policies that may be better than the greedy one
TRIALS = 3  # policies that explore in one block, at most
CAMPAIGN = np.array([0.1, 0.3, 1.0])  # of those who came, over many blocks
PURSE = 20.0, 0.25  # clicks that a block may spend on exploring, and of what was spent before
KEEP, SHAKEN = 0.85, 0.3  # of what was hoped before: after a block, and after one that explored
DEAR = 1.0, 3.0  # times the cost, the benefit must be; and times the root of how many came to how many come


@dataclass(frozen=True, eq=False)
class Prospects:
    """Instances that may be true, and policies: `values[c, j]` is what policy c brings if draw j is true.

    `before` is the policy that was greedy before, `allowed` are the categories that may be shown, None for all.
    """

    draws: Draws
    policies: list[Policy]
    plans: dict[Policy, Plan]
    values: Floats
    before: Policy | None = None
    allowed: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        draws: Draws,
        plans: list[Plan],
        more: Sequence[Schedule],
        before: Policy | None = None,
        allowed: tuple[int, ...] | None = None,
    ) -> "Prospects":
        """The prospects of plans and of more policies."""
        made = {plan.policy: plan for plan in plans}
        policies = list(dict.fromkeys([*made, *more]))
        batch = _Batch.of(draws.instances)
        values = [_worths(policy, made, batch, draws.instances) for policy in policies]
        return cls(draws, policies, made, np.array(values), before, allowed)

    @cached_property
    def means(self) -> Floats:
        """What every policy brings on average."""
        return np.asarray(self.values @ self.draws.weights)

    @cached_property
    def chosen(self) -> int:
        """The policy that brings most on average; the one before, unless the other is more likely better than not.

        A few draws in which a policy brings very much are a reason to explore it, not to give it to everybody.
        """
        best = int(self.means.argmax())
        if self.before in self.policies:
            old = self.policies.index(self.before)
            if self.weights[self.values[best] > self.values[old]].sum() < 0.5:
                return old
        return best

    @property
    def greedy(self) -> Policy:
        """The policy that was chosen."""
        return self.policies[self.chosen]

    @property
    def loss(self) -> float:
        """What a user of the policy that was chosen is expected to lose against the best one for each draw."""
        return float((self.values.max(axis=0) - self.values[self.chosen]) @ self.weights)

    @property
    def weights(self) -> Floats:
        """How likely each draw is."""
        return self.draws.weights


@dataclass(frozen=True, eq=False)
class _Batch:
    """Many instances at once: `prior[S, M]`; `click`, chances to go on, and what categories bring, `[S, K, M]`."""

    prior: Floats
    click: Floats
    go: Floats
    fixed: Floats

    @classmethod
    def of(cls, draws: Sequence[Instance]) -> "_Batch":
        return cls(
            np.array([draw.prior for draw in draws]),
            np.array([draw.click for draw in draws]),
            np.array([1 - draw.departure_probabilities for draw in draws]),
            np.array([draw.fixed_values for draw in draws]),
        )

    def worths(self, policy: Schedule) -> Floats:
        """What a schedule brings under each."""
        weights, total = self.prior, np.zeros(len(self.prior))
        for category, steps in policy.phases:
            stays = self.go[:, category] ** min(steps, 2**30)
            gone = (1 - stays) / (1 - self.go[:, category])
            total = total + (weights * self.click[:, category] * gone).sum(axis=1)
            weights = weights * stays
        return np.asarray(total + (weights * self.fixed[:, policy.final_category]).sum(axis=1))


def _worths(policy: Policy, plans: dict[Policy, Plan], batch: _Batch, instances: Sequence[Instance]) -> Floats:
    """What a policy brings under every instance."""
    if isinstance(policy, Schedule):
        return batch.worths(policy)
    return np.array([worth(plans[policy], instance) for instance in instances])


def looks(policy: Policy, instance: Instance) -> tuple[Integers, Integers]:
    """What is seen of users under a policy: `category[n]` and `child[n, 2]` of the counts that many of them meet."""
    if isinstance(policy, Schedule) and not instance.outcome_probabilities[:, STAY].any():
        return _looks_along(policy, instance)
    categories, children, first = [], [], 0
    for level in traverse(first_level(instance, policy, instance.prior)):
        categories.append(level.categories)
        first += len(level)
        follow = (level.next.weights.sum(axis=1) >= RAREST) & (level.next.step < LOOK) & (first < WIDE)
        rows = np.where(follow, first + np.cumsum(follow) - 1, -1)
        children.append(np.where(level.child >= 0, np.append(rows, -1)[level.child], -1))
        level.next.keep(follow)
    return np.concatenate(categories), np.concatenate(children)


def _looks_along(policy: Schedule, instance: Instance) -> tuple[Integers, Integers]:
    """The same, where nobody stays after a no-click: one way through the counts, from click to click."""
    shown = policy.first_categories(LOOK)
    here = np.cumprod(np.vstack([instance.prior, instance.outcome_probabilities[shown, CLICK]]), axis=0).sum(axis=1)[
        :LOOK
    ]
    n = max(int((here >= RAREST).argmin()) if here[-1] < RAREST else LOOK, 1)
    child = np.full((n, 2), -1)
    child[:-1, 0] = np.arange(1, n)
    return shown[:n], child


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one user under a policy tells: Fisher information at every mode, and nats that tell the modes apart.

    `information[k, d, d]`; `nats[k, i]` speak for mode k, if it is true, against mode i.
    """

    information: Floats
    nats: Floats

    @classmethod
    def of(cls, policy: Policy, modes: Sequence[Mode]) -> "Lesson":
        """The lesson of `policy`."""
        graph = looks(policy, modes[0].instance)
        centres = sights(*graph, *stacked([mode.instance for mode in modes]))
        logs = np.log(np.maximum(centres, 1e-12))
        nats = np.maximum((centres * logs).sum(axis=1)[:, None] - centres @ logs.T, 0.0)
        information = []
        for mode, centre in zip(modes, centres, strict=True):
            seen = sights(*graph, *mode.around_arrays)
            d = len(seen) // 2
            slopes = (seen[:d] - seen[d:]) / (2 * STEP)
            information.append((slopes / np.maximum(centre, 1e-12)) @ slopes.T)
        return cls(np.array(information), nats)


class Outlook:
    """What may be gained over the greedy policy by its rivals, the more one knows.

    Around each mode what a rival gains is taken as normal, with the mean and spread of the draws: `mean[k, c]` and
    `spread[k, c]`. How much of the spread goes away by knowing more is told by the curvature `known[k, d, d]` of the
    mode along `slope[k, d, c]`. `share[k]` is how likely each mode is.
    """

    def __init__(self, prospects: Prospects, memory: "Memory") -> None:
        draws = prospects.draws
        self.modes = draws.modes
        owner = draws.owner == np.arange(len(self.modes))[:, None]
        weight = owner * draws.weights
        self.share = np.maximum(weight.sum(axis=1), 1e-300)
        gains = prospects.values - prospects.values[prospects.chosen]
        mean = weight @ gains.T / self.share[:, None]
        spread = np.sqrt(np.maximum(weight @ (gains**2).T / self.share[:, None] - mean**2, 0.0))
        hope = self.share @ _positive_part(mean, spread)
        hope[prospects.chosen] = -1.0
        self.rivals = np.argsort(-hope, kind="stable")[:RIVALS]
        self.mean, self.spread = mean[:, self.rivals], spread[:, self.rivals]
        self.known = np.array([mode.curvature for mode in self.modes])
        self.slope = np.array([self._slopes(prospects, mode) for mode in self.modes])
        self.variance = np.maximum(
            np.einsum("kdc,kdc->kc", self.slope, np.linalg.solve(self.known, self.slope)), 1e-300
        )
        before = memory.hopes
        hopes = [before.get(prospects.policies[c], (0.0, 0.0)) for c in self.rivals]
        self._fit(weight, gains[self.rivals], np.array(hopes))

    def _fit(self, weight: Floats, gains: Floats, before: Floats) -> None:
        """Have the normal distributions give the hope that the draws show, these and those of the blocks `before`.

        `calm[k, c]` is what of their hope to believe, where the draws show less; where they show more, the spread is
        made larger. Where the draws spread as the curvature says, the normal distribution is worth many draws itself.
        """
        hoped = _positive_part(self.mean, self.spread)
        seen = weight @ np.maximum(gains, 0.0).T / self.share[:, None]
        many = (self.share**2 / np.maximum((weight**2).sum(axis=1), 1e-300))[:, None]
        draws, hope = before.T
        now, effective = self.share @ seen, 1 / (weight.sum(axis=0) ** 2).sum()
        pooled = (effective * now + draws * hope) / (effective + draws)
        seen = np.where(now > 0, seen * (pooled / np.maximum(now, 1e-300)), pooled)
        many = many + draws * self.share[:, None]
        linear = np.sqrt(self.variance)
        alike = np.minimum(linear, self.spread) / np.maximum(np.maximum(linear, self.spread), 1e-300)
        trust = TRUST * alike**4
        shown = (many * seen + trust * hoped) / (many + trust)
        self.calm = np.minimum(1.0, shown / np.maximum(hoped, 1e-300))
        low, high = self.spread, self.spread + 10 * np.abs(self.mean) + 10 * shown
        for _ in range(30):
            middle = (low + high) / 2
            short = _positive_part(self.mean, middle) < shown
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        self.spread = np.where(shown > hoped, high, self.spread)

    def _slopes(self, prospects: Prospects, mode: Mode) -> Floats:
        """How what rivals gain depends on the parameters, `[d, c]`."""
        around = mode.around
        batch = _Batch.of(around)
        rows = [prospects.chosen, *self.rivals]
        values = np.array([_worths(prospects.policies[c], prospects.plans, batch, around) for c in rows])
        d = values.shape[1] // 2
        slopes = (values[:, :d] - values[:, d:]) / (2 * STEP)
        return np.asarray((slopes[1:] - slopes[0]).T)

    def gain(self, information: Floats, nats: Floats) -> Floats:
        """What is gained per user by playing the best rival if it then looks better, for G ways to know more.

        `information[G, k, d, d]` comes on top of what is known, `nats[G, k, i]` tell the modes apart.
        """
        thought = self.share * np.exp(-np.minimum(nats, 600.0))
        thought /= thought.sum(axis=2, keepdims=True)
        mean = thought @ self.mean
        after = np.linalg.solve(
            self.known + information, np.broadcast_to(self.slope, (*information.shape[:2], *self.slope.shape[1:]))
        )
        learned = np.sqrt(np.clip(1 - np.einsum("kdc,gkdc->gkc", self.slope, after) / self.variance, 0.0, 1.0))
        spread = learned * np.maximum(self.spread, np.sqrt(self.variance))
        return np.asarray(np.einsum("k,gkc->gc", self.share, _positive_part(mean, spread) * self.calm).max(axis=1))


def _positive_part(mean: Floats, spread: Floats) -> Floats:
    """The expectation of the positive part of normal numbers.

    >>> _positive_part(np.array([0.0, 1.0]), np.array([1.0, 0.0])).round(4)
    array([0.3989, 1.    ])
    """
    z = np.clip(mean / np.maximum(spread, 1e-300), -38.0, 38.0)
    above = np.array([0.5 * erfc(-t / sqrt(2)) for t in z.reshape(-1).tolist()]).reshape(z.shape)
    return np.asarray(np.maximum(spread * np.exp(-0.5 * z**2) / sqrt(2 * pi) + mean * above, 0.0))


@dataclass
class Memory:
    """What exploring cost so far, and what the rivals of the greedy policy promised in earlier blocks.

    `hopes` has for every schedule how many draws were looked at, and what it gained over the greedy policy where it
    gained, on average over all of them. One block has too few draws to see rare hope, or to tell it from luck.
    """

    spent: float = 0.0
    greedy: Schedule | None = None
    hopes: dict[Policy, tuple[float, float]] = field(default_factory=dict)

    @property
    def purse(self) -> float:
        """Clicks that the next block may spend on exploring: what looks worth much more will still look so later."""
        return PURSE[0] + PURSE[1] * self.spent

    def meet(self, prospects: Prospects) -> None:
        """Forget the hopes if another policy is greedy now."""
        greedy = prospects.greedy
        if greedy != self.greedy:
            self.hopes = {}
        self.greedy = greedy if isinstance(greedy, Schedule) else None

    def learn(self, prospects: Prospects, cost: float) -> None:
        """Remember what a block hoped for, and what it spent."""
        keep = KEEP * (SHAKEN if cost else 1.0)
        self.spent += cost
        hope = np.maximum(prospects.values - prospects.values[prospects.chosen], 0.0) @ prospects.weights
        draws = 1 / float((prospects.weights**2).sum())
        old, self.hopes = self.hopes, {}
        for policy, new in zip(prospects.policies, hope.tolist(), strict=True):
            if isinstance(policy, Schedule):
                many, before = old.get(policy, (0.0, 0.0))
                self.hopes[policy] = keep * (many + draws), (many * before + draws * new) / (many + draws)

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        hopes = [[policy, *pair] for policy, pair in self.hopes.items()]
        return {"spent": self.spent, "greedy": self.greedy, "hopes": hopes}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Memory":
        """The memory with that `state`."""
        return cls(state["spent"], state["greedy"], {policy: (many, hope) for policy, many, hope in state["hopes"]})


def priced(prospects: Prospects, n: int, arrived: int, ahead: float, memory: Memory) -> list[tuple[Policy, int]]:
    """How many of the next `n` users get which policy, if `ahead` more come at most after the `arrived`.

    Users who explore cost what their policy brings less than the greedy one. What they tell lets the users to come
    have a better policy, sooner than the greedy users would tell it. The campaign that gains most by that is begun,
    if any gains; as much of it as the block and the purse allow, for the next block thinks anew.
    """
    if len(prospects.policies) < 2:
        return [(prospects.greedy, n)]
    memory.meet(prospects)
    outlook = Outlook(prospects, memory)
    own = Lesson.of(prospects.greedy, outlook.modes)
    means = _means(prospects, outlook)
    lessons = {policy: Lesson.of(policy, outlook.modes) for policy in means}
    information, nats = np.zeros_like(own.information), np.zeros_like(own.nats)
    allotted: list[tuple[Policy, int]] = []
    left, purse = int(SHARES[0] * n), memory.purse
    dear = DEAR[0] + DEAR[1] * sqrt(arrived / min(max(ahead, 1), UNKNOWN * arrived))
    ends = np.minimum(np.array([0.0, *AHEAD]) * arrived, ahead)
    stretches = [(first, last) for first, last in pairwise(ends.tolist()) if last > first]
    users = np.unique(np.concatenate([SHARES * n, FEW, CAMPAIGN * arrived]).astype(np.int64).clip(1))

    def benefit(users: Integers, lesson: Lesson) -> Floats:
        total = np.zeros(len(users))
        for first, last in stretches:
            by = (first + last) / 2
            many = np.minimum(users, left + SHARES[0] * by)[:, None, None, None]
            known = information + by * own.information + many * lesson.information
            told = nats + by * own.nats + many[..., 0] * lesson.nats
            total += (last - first) * outlook.gain(known, told)
        return total

    for _ in range(TRIALS):
        now = benefit(np.zeros(1, np.int64), own)[0]
        best, chosen, most = 0.0, prospects.greedy, 0
        for policy, loss in means.items():
            net = benefit(users, lessons[policy]) - now - dear * users * loss
            if net.max() > best:
                best, chosen, most = float(net.max()), policy, int(users[net.argmax()])
        affordable = max(purse / max(means.get(chosen, 1.0), 1e-12), 0.0 if allotted else 1.0)
        most = int(min(most, left, affordable))
        if most < 1:
            break
        allotted.append((chosen, most))
        information = information + most * lessons[chosen].information
        nats = nats + most * lessons[chosen].nats
        left -= most
        purse -= most * means[chosen]
    memory.learn(prospects, sum(users * means[policy] for policy, users in allotted))
    return [*allotted, (prospects.greedy, n - sum(users for _, users in allotted))]


def _means(prospects: Prospects, outlook: Outlook) -> dict[Policy, float]:
    """Policies to find something out by, and what each brings less than the greedy one on average."""
    greedy = prospects.greedy
    categories = prospects.allowed or range(prospects.draws.instances[0].n_categories)
    more: list[Schedule] = [Fixed(category) for category in categories]
    if isinstance(greedy, Schedule):
        steps = [category for category, times in greedy.phases for _ in range(min(times, LOOK))]
        more += [simplest_schedule([category, *steps], greedy.final_category) for category in categories]
    batch = _Batch.of(prospects.draws.instances)
    best = prospects.means[prospects.chosen]
    found: dict[Policy, float] = {prospects.policies[c]: best - float(prospects.means[c]) for c in outlook.rivals}
    for policy in more:
        if policy != greedy and policy not in found:
            found[policy] = max(best - float(batch.worths(policy) @ prospects.weights), 0.0)
    return found
