"""Exploring where it pays: how many users should try another policy than the best guess."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from departing.evaluation.push import Frontier
from departing.kernels.separation import sights
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.plan import Plan
from departing.planning.sensitivity import worth
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Schedule

LOOK = 14  # steps of users that tell instances apart
RAREST = 1e-5  # share of users below which they are not followed
SHARES = (0.25, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4)  # of a block that may explore
AHEAD = (
    (0.5, 1.0),
    (2.0, 2.0),
    (6.0, 7.0),
)  # users to come, as multiples of those who came: (come by then, how many)
MEANS = 10  # policies that are considered to find something out by
TRIALS = 3  # policies that explore in one block, at most
DEAR = float(__import__('os').environ.get('DEAR','2'))  # times the cost, the benefit must be


@dataclass(frozen=True, eq=False)
class Prospects:
    """Instances that may be true, and policies: `values[c, j]` is what policy c brings if draw j is true.

    `weights[j]` is how likely each draw is; `chosen` is the policy that brings most on average.
    """

    draws: Sequence[Instance]
    weights: Floats
    policies: list[Policy]
    values: Floats
    dull: float

    @classmethod
    def of(
        cls, draws: Sequence[Instance], weights: Floats, dull: float, plans: list[Plan], more: Sequence[Schedule]
    ) -> "Prospects":
        """The prospects of plans and of more policies."""
        rows: dict[Policy, Floats] = {}
        batch = _Batch(draws)
        for made in plans:
            if made.policy not in rows:
                schedule = isinstance(made.policy, Schedule)
                rows[made.policy] = (
                    batch.worths(made.policy) if schedule else np.array([worth(made, draw) for draw in draws])  # type: ignore[arg-type]
                )
        for policy in more:
            if policy not in rows:
                rows[policy] = batch.worths(policy)
        return cls(draws, weights, list(rows), np.array(list(rows.values())), dull)

    @cached_property
    def means(self) -> Floats:
        """What every policy brings on average."""
        return np.asarray(self.values @ self.weights)

    @cached_property
    def chosen(self) -> int:
        """The policy that brings most on average."""
        return int(self.means.argmax())

    @property
    def greedy(self) -> Policy:
        """The policy that brings most on average."""
        return self.policies[self.chosen]

    def apart(self, policy: Policy) -> Floats:
        """`[j, i]`: nats per user by which what is seen under `policy` speaks for draw j, if it is true, against i."""
        guess = self.draws[int(self.weights.argmax())]
        seen = sights(*looks(policy, guess), *_stacked(self.draws))
        logs = np.log(np.maximum(seen, 1e-12))
        return np.maximum((seen * logs).sum(axis=1)[:, None] - seen @ logs.T, 0.0)

    def informed(self, nats: Floats) -> float:
        """What is to be expected if one knows more, and then plays what brings most: `nats[j, i]` as in `apart`."""
        known = self.weights * np.exp(-np.minimum(nats / self.dull, 600.0))
        known /= known.sum(axis=1, keepdims=True)
        played = (known @ self.values.T).argmax(axis=1)
        return float(self.weights @ self.values[played, np.arange(len(self.draws))])


class _Batch:
    """Many instances at once."""

    def __init__(self, draws: Sequence[Instance]) -> None:
        self._prior = np.array([draw.prior for draw in draws])
        self._click = np.array([draw.click for draw in draws])
        self._go = np.array([1 - draw.leave for draw in draws])
        self._fixed = np.array([draw.fixed_values for draw in draws])

    def worths(self, policy: Schedule) -> Floats:
        """What a schedule brings under each."""
        weights, total = self._prior, np.zeros(len(self._prior))
        for category, steps in policy.segments:
            stays = self._go[:, category] ** min(steps, 2**30)
            gone = (1 - stays) / (1 - self._go[:, category])
            total = total + (weights * self._click[:, category] * gone).sum(axis=1)
            weights = weights * stays
        return np.asarray(total + (weights * self._fixed[:, policy.then]).sum(axis=1))


def _stacked(draws: Sequence[Instance]) -> tuple[Floats, Floats]:
    return np.array([draw.prior for draw in draws]), np.array([draw.chances for draw in draws])


def looks(policy: Policy, instance: Instance) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
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


def priced(prospects: Prospects, n: int, arrived: int) -> list[tuple[Policy, int]]:
    """How many of the next `n` users get which policy.

    Users who explore cost what their policy brings less than the greedy one. What they tell lets the users to come
    have a better policy, sooner than the greedy users would tell it. As many explore, and by such policies, as gains
    most by that; none if nothing gains.
    """
    own = prospects.apart(prospects.greedy)
    losses = prospects.means[prospects.chosen] - prospects.means
    potential = np.maximum(prospects.values - prospects.values[prospects.chosen], 0.0) @ prospects.weights
    if not potential.any():
        return [(prospects.greedy, n)]
    wanted = (
        np.argsort(-potential, kind="stable")[: MEANS // 2].tolist()
        + np.argsort(losses, kind="stable")[: MEANS // 2].tolist()
    )
    means = [c for c in dict.fromkeys(wanted) if c != prospects.chosen]
    tells = {c: prospects.apart(prospects.policies[c]) for c in means}
    known = np.zeros_like(own)
    allotted: list[tuple[Policy, int]] = []
    left = int(SHARES[0] * n)

    def outlook(nats: Floats) -> float:
        return sum(many * arrived * prospects.informed(nats + by * arrived * own) for by, many in AHEAD)

    for _ in range(TRIALS):
        best, now = (0.0, -1, 0), outlook(known)
        for c in means:
            for users in sorted({min(left, max(1, int(share * n))) for share in SHARES}):
                net = outlook(known + users * tells[c]) - now - DEAR * users * losses[c]
                best = max(best, (net, c, users))
        _, c, users = best
        if c < 0 or not users:
            break
        allotted.append((prospects.policies[c], users))
        known = known + users * tells[c]
        left -= users
    return [*allotted, (prospects.greedy, n - sum(users for _, users in allotted))]
