"""Exploring where it pays: how many users should try another policy than the best guess."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import erfc, pi, sqrt

import numpy as np

from departing.evaluation.push import Frontier
from departing.kernels.separation import sights
from departing.learning.posterior import STEP, Draws, Mode, stacked
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.lattice import plainest
from departing.planning.plan import Plan
from departing.planning.sensitivity import worth
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Fixed, Schedule

LOOK = 14  # steps of users that are looked at
RAREST = 1e-5  # share of users below which they are not followed
SHARES = np.array([0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4])  # of a block that may explore
FEW = np.array([1, 3, 10, 30, 100])  # users who may
AHEAD = (1.0, 3.0, 10.0, 30.0)  # ends of the stretches of users to come, as multiples of those who came
UNKNOWN = 100.0  # times as many as came are thought to come, if nobody says
TRUST = 60.0  # draws that a normal distribution is worth where it fits
RIVALS = 6  # policies that may be better than the greedy one
TRIALS = 3  # policies that explore in one block, at most
DEAR = 2.0, 8.0  # times the cost, the benefit must be; and times the root of how many came to how many come


@dataclass(frozen=True, eq=False)
class Prospects:
    """Instances that may be true, and policies: `values[c, j]` is what policy c brings if draw j is true."""

    draws: Draws
    policies: list[Policy]
    plans: dict[Policy, Plan]
    values: Floats

    @classmethod
    def of(cls, draws: Draws, plans: list[Plan], more: Sequence[Schedule]) -> "Prospects":
        """The prospects of plans and of more policies."""
        made = {plan.policy: plan for plan in plans}
        policies = list(dict.fromkeys([*made, *more]))
        batch = _Batch.of(draws.instances)
        values = [_worths(policy, made, batch, draws.instances) for policy in policies]
        return cls(draws, policies, made, np.array(values))

    @cached_property
    def means(self) -> Floats:
        """What every policy brings on average."""
        return np.asarray(self.values @ self.draws.weights)

    @cached_property
    def chosen(self) -> int:
        """The policy that brings most on average."""
        return int(self.means.argmax())

    @property
    def greedy(self) -> Policy:
        """The policy that brings most on average."""
        return self.policies[self.chosen]

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
            np.array([1 - draw.leave for draw in draws]),
            np.array([draw.fixed_values for draw in draws]),
        )

    def worths(self, policy: Schedule) -> Floats:
        """What a schedule brings under each."""
        weights, total = self.prior, np.zeros(len(self.prior))
        for category, steps in policy.segments:
            stays = self.go[:, category] ** min(steps, 2**30)
            gone = (1 - stays) / (1 - self.go[:, category])
            total = total + (weights * self.click[:, category] * gone).sum(axis=1)
            weights = weights * stays
        return np.asarray(total + (weights * self.fixed[:, policy.then]).sum(axis=1))


def _worths(policy: Policy, plans: dict[Policy, Plan], batch: _Batch, instances: Sequence[Instance]) -> Floats:
    """What a policy brings under every instance."""
    if isinstance(policy, Schedule):
        return batch.worths(policy)
    return np.array([worth(plans[policy], instance) for instance in instances])


def looks(policy: Policy, instance: Instance) -> tuple[Integers, Integers]:
    """What is seen of users under a policy: `category[n]` and `child[n, 2]` of the counts that many of them meet."""
    frontier = Frontier(instance, instance.prior)
    go = instance.chances[:, [CLICK, STAY]]
    categories, children = [], []
    first = 0
    for step in range(LOOK):
        shown = recommended(policy, frontier.counts)
        categories.append(shown)
        n = len(frontier)
        child = frontier.advance(shown, frontier.weights[:, None] * go[shown])
        follow = (frontier.weights.sum(axis=1) >= RAREST) & (step + 1 < LOOK)
        place = np.where(follow, np.cumsum(follow) - 1 + first + n, -1)
        children.append(np.where(child >= 0, np.append(place, -1)[child], -1))
        frontier.keep(follow)
        first += n
        if not len(frontier):
            break
    return np.concatenate(categories), np.concatenate(children)


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

    def __init__(self, prospects: Prospects) -> None:
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
        self._fit(weight, gains[self.rivals])

    def _fit(self, weight: Floats, gains: Floats) -> None:
        """Have the normal distributions give the hope that the draws show.

        `calm[k, c]` is what of their hope to believe, where the draws show less; where they show more, the spread is
        made larger. Where the draws spread as the curvature says, the normal distribution is worth many draws itself.
        """
        hoped = _positive_part(self.mean, self.spread)
        seen = weight @ np.maximum(gains, 0.0).T / self.share[:, None]
        many = (self.share**2 / np.maximum((weight**2).sum(axis=1), 1e-300))[:, None]
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


def priced(prospects: Prospects, n: int, arrived: int, ahead: float) -> list[tuple[Policy, int]]:
    """How many of the next `n` users get which policy, if `ahead` more come at most after the `arrived`.

    Users who explore cost what their policy brings less than the greedy one. What they tell lets the users to come
    have a better policy, sooner than the greedy users would tell it. As many explore, and by such policies, as gains
    most by that; none if nothing gains.
    """
    if len(prospects.policies) < 2:
        return [(prospects.greedy, n)]
    outlook = Outlook(prospects)
    own = Lesson.of(prospects.greedy, outlook.modes)
    means = _means(prospects, outlook)
    lessons = {policy: Lesson.of(policy, outlook.modes) for policy in means}
    information, nats = np.zeros_like(own.information), np.zeros_like(own.nats)
    allotted: list[tuple[Policy, int]] = []
    left = int(SHARES[0] * n)
    dear = DEAR[0] + DEAR[1] * sqrt(arrived / min(max(ahead, 1), UNKNOWN * arrived))
    ends = np.minimum(np.array([0.0, *AHEAD]) * arrived, ahead)
    stretches = [(first, last) for first, last in pairwise(ends.tolist()) if last > first]

    def benefit(users: Integers, lesson: Lesson) -> Floats:
        many = users[:, None, None, None]
        total = np.zeros(len(users))
        for first, last in stretches:
            by = (first + last) / 2
            known = information + by * own.information + many * lesson.information
            told = nats + by * own.nats + many[..., 0] * lesson.nats
            total += (last - first) * outlook.gain(known, told)
        return total

    for _ in range(TRIALS):
        users = np.unique(np.clip(np.append(SHARES * n, FEW).astype(np.int64), 1, max(left, 1)))
        now = benefit(np.zeros(1, np.int64), own)[0]
        best, chosen, most = 0.0, prospects.greedy, 0
        for policy, loss in means.items():
            net = benefit(users, lessons[policy]) - now - dear * users * loss
            if net.max() > best:
                best, chosen, most = float(net.max()), policy, int(users[net.argmax()])
        if not best or left < 1:
            break
        allotted.append((chosen, most))
        information = information + most * lessons[chosen].information
        nats = nats + most * lessons[chosen].nats
        left -= most
    return [*allotted, (prospects.greedy, n - sum(users for _, users in allotted))]


def _means(prospects: Prospects, outlook: Outlook) -> dict[Policy, float]:
    """Policies to find something out by, and what each brings less than the greedy one on average."""
    greedy = prospects.greedy
    n_categories = prospects.draws.instances[0].n_categories
    more: list[Schedule] = [Fixed(category) for category in range(n_categories)]
    if isinstance(greedy, Schedule):
        steps = [category for category, times in greedy.segments for _ in range(min(times, LOOK))]
        more += [plainest([category, *steps], greedy.then) for category in range(n_categories)]
    batch = _Batch.of(prospects.draws.instances)
    best = prospects.means[prospects.chosen]
    found: dict[Policy, float] = {prospects.policies[c]: best - float(prospects.means[c]) for c in outlook.rivals}
    for policy in more:
        if policy != greedy and policy not in found:
            found[policy] = max(best - float(batch.worths(policy) @ prospects.weights), 0.0)
    return found
