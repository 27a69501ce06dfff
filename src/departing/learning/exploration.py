"""Exploration by the value of information: how many users try another policy than the greedy one."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log, pi, sqrt
from typing import Any

import numpy as np
from scipy.special import ndtr

from departing.learning.candidates import Candidates
from departing.learning.information_gain import MAX_STEPS, InformationGain
from departing.learning.posterior import DIFFERENCE_STEP
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule, simplest_schedule

# Constants without a derivation were set by comparison of runs; rules with fewer of them were not better
# (docs/limitations/learner-benchmarks.md).
MAX_BLOCK_SHARE = 0.25  # of a block that may explore; the rest plays the greedy policy
# Numbers of exploring users that are compared, and ends of the periods of future users over which the gain is summed
# up, grow by this factor. Both are smooth functions of the logarithm, so a finer grid costs time only.
GRID_RATIO = sqrt(10.0)
# Future users that count, as a multiple of the users so far: the decision is made again long before later ones come.
MAX_PERIOD = 30.0
MAX_HORIZON = 100.0  # multiple of the users so far that are assumed to come at most, or if their number is unknown
MAX_ALTERNATIVES = 6  # candidates whose gain over the greedy policy is modelled; each costs 2d valuations per mode
MAX_TRIALS = 3  # different policies that explore in one block; each costs one more search over policies
NORMAL_WEIGHT = 64.0  # samples that the normal model of an advantage counts as: those of one block
BISECTIONS = 30  # halvings for the spread: 30 give a relative accuracy of 1e-9
# Budget per block: the reward of this many clicks, plus a share of those spent so far. It bounds the cost of a wrong
# posterior: a real advantage is still there in the next block, sampling noise is not.
BUDGET_CLICKS, BUDGET_SHARE = 20.0, 0.25
# Discount per block of the advantages seen earlier: 1 / (1 - 0.85) = 7 blocks count, in which the users double by
# default. A block that explored changes the posterior, so what was seen before it counts less.
DISCOUNT, EXPLORED_DISCOUNT = 0.85, 0.3
COST_SLOPE = 3.0  # the gain must exceed the cost times 1 + 3 sqrt(users so far / users to come)
TINY, MIN_LOSS = 1e-300, 1e-12  # guard divisions by zero


@dataclass
class ExplorationBudget:
    """Expected reward spent on exploration, and the advantages over the greedy policy seen in earlier blocks.

    `advantages` has for every schedule a discounted number of samples, and the mean over them of the positive part of
    its advantage. One block has too few samples to find a rare advantage, or to distinguish it from noise. `scale` is
    the mean reward of a click.
    """

    spent: float = 0.0
    greedy: Schedule | None = None
    advantages: dict[Policy, tuple[float, float]] = field(default_factory=dict)
    scale: float = 1.0

    @property
    def available(self) -> float:
        """Expected reward that the next block may spend."""
        return BUDGET_CLICKS * self.scale + BUDGET_SHARE * self.spent

    def rescale(self, scale: float) -> None:
        """Express everything in rewards whose mean is `scale`."""
        factor = scale / self.scale
        self.spent, self.scale = factor * self.spent, scale
        self.advantages = {policy: (n, factor * mean) for policy, (n, mean) in self.advantages.items()}

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        vars(self).update(state)

    def set_greedy(self, greedy: Policy) -> None:
        """Discard the advantages if they were over another greedy policy."""
        if greedy != self.greedy:
            self.advantages = {}
        self.greedy = greedy if isinstance(greedy, Schedule) else None

    def record(self, candidates: Candidates, cost: float) -> None:
        """Add the advantages seen in a block, and its cost."""
        discount = DISCOUNT * (EXPLORED_DISCOUNT if cost else 1.0)
        self.spent += cost
        positive = np.maximum(candidates.advantages, 0.0) @ candidates.weights
        size = 1 / float((candidates.weights**2).sum())
        previous, self.advantages = self.advantages, {}
        for policy, now in zip(candidates.policies, positive.tolist(), strict=True):
            if isinstance(policy, Schedule):
                n, mean = previous.get(policy, (0.0, 0.0))
                self.advantages[policy] = discount * (n + size), (n * mean + size * now) / (n + size)


class GainModel:
    """The expected gain per user of switching to an alternative after more information.

    At each mode k the advantage of alternative c over the greedy policy is modelled as normal, with the mean
    `mean[k, c]` and standard deviation `spread[k, c]` of the samples. Information reduces the posterior variance of
    the advantage along its gradient `slope[k, d, c]`, by the precision `precision[k, d, d]` of the mode. `share[k]`
    is the posterior probability of each mode.
    """

    def __init__(self, candidates: Candidates, budget: ExplorationBudget) -> None:
        samples = candidates.samples
        self.modes = samples.modes
        weight = (samples.owner == np.arange(len(self.modes))[:, None]) * samples.weights
        self.share = np.maximum(weight.sum(axis=1), TINY)
        advantages = candidates.advantages
        mean = weight @ advantages.T / self.share[:, None]
        spread = np.sqrt(np.maximum(weight @ (advantages**2).T / self.share[:, None] - mean**2, 0.0))
        expected = self.share @ positive_part(mean, spread)
        expected[candidates.greedy_index] = -1.0
        self.alternatives = np.argsort(-expected, kind="stable")[:MAX_ALTERNATIVES]
        self.mean, self.spread = mean[:, self.alternatives], spread[:, self.alternatives]
        self._set_slopes(candidates)
        earlier = [budget.advantages.get(candidates.policies[c], (0.0, 0.0)) for c in self.alternatives]
        self._calibrate(weight, advantages[self.alternatives], *np.array(earlier).T)

    def _set_slopes(self, candidates: Candidates) -> None:
        """Set the precision of the modes, and the slopes and variances of the advantages."""
        self.precision = np.array([mode.precision for mode in self.modes])
        self.slope = self._slopes(candidates)
        self.variance = np.maximum(
            np.einsum("kdc,kdc->kc", self.slope, np.linalg.solve(self.precision, self.slope)), TINY
        )

    def _slopes(self, candidates: Candidates) -> Floats:
        """Return the gradients of the advantages with respect to the parameters at every mode, `[k, d, c]`."""
        policies = [candidates.policies[c] for c in (candidates.greedy_index, *self.alternatives)]
        slopes = []
        for mode in self.modes:
            values = np.array(
                [mode.neighbours.values(policy, candidates.controllers, candidates.objective) for policy in policies]
            )
            d = values.shape[1] // 2
            gradients = (values[:, 1 : d + 1] - values[:, d + 1 :]) / (2 * DIFFERENCE_STEP)
            slopes.append((gradients[1:] - gradients[0]).T)
        return np.array(slopes)

    def _calibrate(self, weight: Floats, advantages: Floats, earlier_n: Floats, earlier_mean: Floats) -> None:
        """Match the expected positive part of the normal model to that of the samples, of this and earlier blocks.

        Where the samples show less, the model is scaled down by `factor[k, c]`; where they show more, the spread is
        increased. The model counts as many samples itself where the samples spread as the curvature predicts.
        """
        model = positive_part(self.mean, self.spread)
        sampled = weight @ np.maximum(advantages, 0.0).T / self.share[:, None]
        size = (self.share**2 / np.maximum((weight**2).sum(axis=1), TINY))[:, None]
        now, total_size = self.share @ sampled, 1 / (weight.sum(axis=0) ** 2).sum()
        pooled = (total_size * now + earlier_n * earlier_mean) / (total_size + earlier_n)
        sampled = np.where(now > 0, sampled * (pooled / np.maximum(now, TINY)), pooled)
        size = size + earlier_n * self.share[:, None]
        linear = np.sqrt(self.variance)
        agreement = np.minimum(linear, self.spread) / np.maximum(np.maximum(linear, self.spread), TINY)
        model_size = NORMAL_WEIGHT * agreement**4
        # A mode of which no sample has weight has no samples, and may have no normal model either.
        target = (size * sampled + model_size * model) / np.maximum(size + model_size, TINY)
        self.factor = np.minimum(1.0, target / np.maximum(model, TINY))
        low, high = self.spread, self.spread + 10 * np.abs(self.mean) + 10 * target
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            short = positive_part(self.mean, middle) < target
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        self.spread = np.where(target > model, high, self.spread)

    def gain(self, fisher: Floats, divergence: Floats) -> Floats:
        """Return the expected gain per user `[G, c]` of playing each alternative if it then has an advantage.

        `fisher[G, k, d, d]` is added to the precision of the modes; `divergence[G, k, i]` separates them.
        """
        posterior = self.share * np.exp(-np.minimum(divergence, 600.0))
        posterior /= posterior.sum(axis=2, keepdims=True)
        mean = posterior @ self.mean
        resolved = np.sqrt(np.clip(1 - self._remaining(fisher) / self.variance, 0.0, 1.0))
        spread = resolved * np.maximum(self.spread, np.sqrt(self.variance))
        return np.asarray(np.einsum("k,gkc->gc", self.share, positive_part(mean, spread) * self.factor))

    def _remaining(self, fisher: Floats) -> Floats:
        """Return the variance of the advantages after information `fisher[G, k, d, d]`, `[G, k, c]`."""
        remaining = np.linalg.solve(
            self.precision + fisher, np.broadcast_to(self.slope, (*fisher.shape[:2], *self.slope.shape[1:]))
        )
        return np.asarray(np.einsum("kdc,gkdc->gkc", self.slope, remaining))


def positive_part(mean: Floats, spread: Floats) -> Floats:
    """Return the expected positive part of normal variables (the expected improvement).

    >>> positive_part(np.array([0.0, 1.0]), np.array([1.0, 0.0])).round(4)
    array([0.3989, 1.    ])
    """
    z = np.clip(mean / np.maximum(spread, TINY), -38.0, 38.0)
    return np.asarray(np.maximum(spread * np.exp(-0.5 * z**2) / sqrt(2 * pi) + mean * ndtr(z), 0.0))


class BlockAllocation:
    """Numbers of users of the next block who explore, by policy."""

    def __init__(self, candidates: Candidates, n: int, arrived: int, ahead: float, budget: ExplorationBudget) -> None:
        self.model = GainModel(candidates, budget)
        self.steps = min(MAX_STEPS, candidates.objective.horizon or MAX_STEPS)
        losses = exploration_losses(candidates, self.model)
        self._start(candidates.greedy, losses, n, arrived, ahead, budget.available)

    def _start(
        self, greedy: Any, losses: dict[Policy, float], n: int, arrived: int, ahead: float, available: float
    ) -> None:
        """Compute the information of the policies that may explore, with their `losses`; none is allocated yet."""
        self.arrived, self.ahead, self.losses = arrived, ahead, losses
        self.own = self._information(greedy)
        self.information = {policy: self._information(policy) for policy in losses}
        self.fisher, self.divergence = 0.0 * self.own.fisher, np.zeros_like(self.own.divergence)
        self.allocated: list[tuple[Policy, int]] = []
        self.left, self.available = int(MAX_BLOCK_SHARE * n), available
        ends = np.minimum(np.append(0.0, geometric(arrived, MAX_PERIOD * arrived)), ahead).tolist()
        self.periods = [(first, last) for first, last in pairwise(ends) if last > first]

    def _information(self, policy: Policy) -> InformationGain:
        return InformationGain.of(policy, self.model.modes, self.steps)

    @property
    def cost(self) -> float:
        """Expected reward that the allocated users cost."""
        return sum(users * self.losses[policy] for policy, users in self.allocated)

    def _benefit(self, users: Integers, information: InformationGain) -> Floats:
        """Return the expected reward `[G]` that future users gain by the best alternative if `users[G]` explore."""
        total = np.zeros((len(users), len(self.model.alternatives)))
        for first, last in self.periods:
            middle = (first + last) / 2
            exploring = np.minimum(users, self.left + MAX_BLOCK_SHARE * middle)[:, None, None, None]
            total += (last - first) * self.model.gain(
                self.fisher + middle * self.own.fisher + exploring * information.fisher,
                self.divergence + middle * self.own.divergence + exploring[..., 0] * information.divergence,
            )
        return self._best(total)

    def _best(self, total: Floats) -> Floats:
        """The gain of the best alternative, from those of all, `[G, c]`."""
        return np.asarray(total.max(axis=1))

    def _allocate(self, policy: Policy, users: float) -> bool:
        """Let up to `users` users explore by `policy`, within the limits of block and budget; return if any do."""
        affordable = max(self.available / max(self.losses[policy], MIN_LOSS), 0.0 if self.allocated else 1.0)
        n = int(min(users, self.left, affordable))
        if n < 1:
            return False
        self.allocated.append((policy, n))
        self.fisher = self.fisher + n * self.information[policy].fisher
        self.divergence = self.divergence + n * self.information[policy].divergence
        self.left -= n
        self.available -= n * self.losses[policy]
        return True

    def add(self) -> bool:
        """Allocate the policy and number of users with the largest net benefit; return False if none is positive."""
        horizon = min(max(self.ahead, 1), MAX_HORIZON * self.arrived)
        multiplier = 1 + COST_SLOPE * sqrt(self.arrived / horizon)
        numbers = np.unique(geometric(1.0, self.arrived).astype(np.int64))
        baseline, best, chosen = self._benefit(np.zeros(1, np.int64), self.own)[0], 0.0, None
        for policy, loss in self.losses.items():
            net = self._benefit(numbers, self.information[policy]) - baseline - multiplier * numbers * loss
            if net.max() > best:
                best, chosen = float(net.max()), (policy, int(numbers[net.argmax()]))
        return chosen is not None and self._allocate(*chosen)


def allocate_block(
    candidates: Candidates, n: int, arrived: int, ahead: float, budget: ExplorationBudget
) -> list[tuple[Policy, int]]:
    """Allocate policies to the next `n` users after `arrived` users, with at most `ahead` more to come.

    The cost of an exploring user is the loss in posterior mean value against the greedy policy. The benefit is the
    value of information: future users get a better policy sooner than the greedy users alone would reveal it. The
    next block decides again.
    """
    greedy = candidates.greedy
    if len(candidates.policies) < 2:
        return [(greedy, n)]
    budget.set_greedy(greedy)
    block = BlockAllocation(candidates, n, arrived, ahead, budget)
    while len(block.allocated) < MAX_TRIALS and block.add():
        pass
    budget.record(candidates, block.cost)
    return [*block.allocated, (greedy, n - sum(users for _, users in block.allocated))]


def geometric(first: float, last: float) -> Floats:
    """Return numbers from `first` to `last`, each `GRID_RATIO` times the one before it, and `last`.

    >>> geometric(1, 20).round(2).tolist()
    [1.0, 3.16, 10.0, 20.0]
    """
    n = max(ceil(log(last / first, GRID_RATIO)), 0)
    return np.append(first * GRID_RATIO ** np.arange(n), last)


def exploration_losses(candidates: Candidates, model: GainModel) -> dict[Policy, float]:
    """Return the policies that may explore, with the loss of each in posterior mean value against the greedy policy.

    These are the alternatives, every fixed category, and the greedy schedule with one category inserted at its start.
    """
    greedy, best = candidates.greedy, candidates.means[candidates.greedy_index]
    batch = candidates.samples.batch
    categories = candidates.allowed or range(batch.click.shape[1])
    schedules: list[Schedule] = [Fixed(category) for category in categories]
    if isinstance(greedy, Schedule):
        steps = [category for category, times in greedy.phases for _ in range(min(times, MAX_STEPS))]
        schedules += [simplest_schedule([category, *steps], greedy.final_category) for category in categories]
    losses = {candidates.policies[c]: best - float(candidates.means[c]) for c in model.alternatives}
    for policy in schedules:
        if policy != greedy and policy not in losses:
            losses[policy] = max(
                best - float(batch.values(policy, {}, candidates.objective) @ candidates.weights), 0.0
            )
    return losses
