"""Exploring where it pays: how many users should try another plan than the best guess."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from departing.evaluation.push import Frontier
from departing.kernels.separation import separation
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.plan import Plan
from departing.planning.sensitivity import worth
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Schedule

LOOK = 14  # steps of users that tell instances apart
RAREST = 1e-5  # share of users below which they are not followed
SHARE = 0.25  # of a block may explore at most
NATS = 1.0  # by which explorers should tell a challenger apart
SUPPORTERS = 3
AHEAD = 10  # times as many users as have come are thought to come


@dataclass(frozen=True, eq=False)
class Prospects:
    """Draws and their plans: `values[i, j]` is what plan i brings if draw j is true."""

    draws: list[Instance]
    plans: list[Plan]
    values: Floats
    chosen: int

    @classmethod
    def of(cls, draws: list[Instance], plans: list[Plan]) -> "Prospects":
        """The prospects of plans made for these draws."""
        rows: dict[Policy, Floats] = {}
        for made in plans:
            if made.policy not in rows:
                rows[made.policy] = _worths(made, draws)
        values = np.array([rows[made.policy] for made in plans])
        loss = (values.max(axis=0) - values).mean(axis=1)
        return cls(draws, plans, values, int(loss.argmin()))

    @property
    def greedy(self) -> Plan:
        """The plan that loses least over the draws."""
        return self.plans[self.chosen]

    @property
    def gains(self) -> Floats:
        """What would be gained over the greedy plan if each draw were true, `[n]`."""
        return np.asarray(self.values.max(axis=0) - self.values[self.chosen])


def _worths(made: Plan, draws: list[Instance]) -> Floats:
    """What a plan brings under every draw."""
    if not isinstance(made.policy, Schedule):
        return np.array([worth(made, draw) for draw in draws])
    weights = np.array([draw.prior for draw in draws])
    click, go = np.array([draw.click for draw in draws]), np.array([1 - draw.leave for draw in draws])
    fixed = np.array([draw.fixed_values for draw in draws])
    total = np.zeros(len(draws))
    for category, steps in made.policy.segments:
        for _ in range(min(steps, 400)):
            total += (weights * click[:, category]).sum(axis=1)
            weights = weights * go[:, category]
    return np.asarray(total + (weights * fixed[:, made.policy.then]).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Looks:
    """What is seen of users under a policy: the counts that many of them meet."""

    category: Integers
    child: Integers

    @classmethod
    def of(cls, policy: Policy, instance: Instance) -> "Looks":
        """The counts that users of `instance` meet, up to some steps and as long as they are not rare."""
        frontier = Frontier(instance, instance.prior)
        go = instance.chances[:, [CLICK, STAY]]
        categories, children = [], []
        first = 0
        for step in range(LOOK):
            shown = recommended(policy, frontier.counts)
            categories.append(shown)
            n = len(frontier)
            child = frontier.advance(shown, frontier.weights[:, None] * go[shown])
            follow = frontier.weights.sum(axis=1) >= RAREST if step + 1 < LOOK else np.zeros(len(frontier), bool)
            place = np.where(follow, np.cumsum(follow) - 1 + first + n, -1)
            children.append(np.where(child >= 0, place[child], -1))
            frontier.keep(follow)
            first += n
            if not len(frontier):
                break
        return cls(np.concatenate(categories), np.concatenate(children))

    def tell_apart(self, true: Instance, supposed: Instance) -> float:
        """Nats per user by which what is seen speaks for `true` and against `supposed`."""
        return float(separation(self.category, self.child, true.prior, true.chances, supposed.prior, supposed.chances))


def priced(prospects: Prospects, n: int, arrived: int, n_parameters: int) -> list[tuple[Policy, int]]:
    """How many of the next `n` users get which policy.

    A draw under which the greedy plan loses is a challenger. Its plan gets just enough users to tell it from the draws
    that support the greedy plan, less what others already contribute and what greedy users will tell anyway, if the
    gain over the users to come is worth the cost.
    """
    gains = prospects.gains
    hair = 1e-7 * float(prospects.values.max())
    supporters = [int(j) for j in np.argsort(gains, kind="stable")[:SUPPORTERS] if gains[j] <= hair]
    supporters = supporters or [int(gains.argmin())]
    guess = prospects.draws[supporters[0]]
    looks: dict[Policy, Looks] = {}

    def apart(policy: Policy, j: int) -> float:
        if policy not in looks:
            looks[policy] = Looks.of(policy, guess)
        return float(np.median([looks[policy].tell_apart(prospects.draws[i], prospects.draws[j]) for i in supporters]))

    greedy = prospects.greedy.policy
    allotted: list[tuple[Policy, int]] = []
    budget, ahead = int(SHARE * n), AHEAD * arrived
    value = prospects.values[prospects.chosen]
    for j in np.argsort(-gains, kind="stable").tolist():
        if gains[j] <= hair or not budget:
            break
        if n * apart(greedy, j) >= max(4.0, 0.4 * n_parameters):
            continue
        missing = NATS - sum(users * apart(policy, j) for policy, users in allotted)
        if missing <= 0:
            continue
        policy = prospects.plans[j].policy
        need = missing / max(apart(policy, j), 1e-12)
        loss = float(np.mean([value[i] - prospects.values[j, i] for i in supporters]))
        cost = need * max(loss, 1e-3 * value[prospects.chosen])
        if 4 * cost > 0.5 * gains[j] * ahead / len(gains):
            continue
        users = min(budget, ceil(need))
        allotted.append((policy, users))
        budget -= users
    return [*allotted, (greedy, n - sum(users for _, users in allotted))]
