"""Separation of two instances: the loss per user that no policy avoids on both."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from departing.kernels.learning import pricing as kernels
from departing.learning.lower_bound.alternative import Alternative
from departing.learning.lower_bound.count_lattice import CountLattice
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem

# Weights beyond the best one at which the separation is also computed, as shares of the way to 1: a learner that
# must rarely fail on the alternative needs more information there.
FURTHER_WEIGHTS = (0.25, 0.5)
MAX_CUTS = 8  # policies that determine the best weight; more change it by less than the tolerance of the search
CERTIFIED_GAP = 2e-3  # of each of three plans, relative to the separation
MAX_PLAN_NODES = 100_000


def binary_divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of Bernoulli distributions in nats, for 0 < q < 1.

    >>> round(binary_divergence(0.99, 0.01), 3)
    4.503
    """
    return sum(a * log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


@dataclass(frozen=True)
class Separation:
    """Loss `loss` per user such that weight × gap + (1 - weight) × gap' ≥ loss for the gaps of every policy."""

    weight: float
    loss: float


@dataclass(frozen=True)
class Claim:
    """Claim to be refuted: regret below b on the instance and below `budget` (b if None) on the alternatives.

    Attributes
    ----------
    users : int
        Number of users, T.
    share : float, optional
        Share of the runs that stay below; None for expected regret.
    budget : float, optional
        Bound on the alternatives in clicks; None for the same as on the instance.
    """

    users: float
    share: float | None
    budget: float | None

    def ratio(self, bound: float) -> float:
        """Bound on the alternatives relative to that on the instance."""
        return 1.0 if self.budget is None else self.budget / max(bound, 1e-9)

    def threshold(self, separations: Sequence[Separation]) -> float:
        """Bound b below which the claim contradicts itself on instance and alternative, without information."""
        if self.budget is None:
            return max(self.users * each.loss for each in separations)
        return max((self.users * each.loss - (1 - each.weight) * self.budget) / each.weight for each in separations)

    def nats(self, separations: Sequence[Separation], bound: float) -> float:
        """Divergence that the records under instance and alternative have at least if the claim holds with b."""
        return max(self._nats(each, bound) for each in separations)

    def _nats(self, separation: Separation, bound: float) -> float:
        total = self.users * separation.loss
        if total <= 0:
            return 0.0
        missed = separation.weight * bound / total
        wrong = (1 - separation.weight) * (bound if self.budget is None else self.budget) / total
        if self.share is not None:
            return binary_divergence(self.share, 1 - self.share) if missed + wrong <= 1 else 0.0
        return binary_divergence(1 - missed, wrong) if missed + wrong < 1 and wrong > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Compromises:
    """Separations of an alternative on a lattice, with the policies that determine them.

    Attributes
    ----------
    separations : tuple of Separation
        The first has the best weight.
    policies : list of array [nodes]
        Categories; the first policy is the best one for the alternative.
    gaps : array [P, 2]
        Gaps of the policies in clicks per user, on the instance and on the alternative.
    value : float
        Value of the best policy for the alternative.
    """

    separations: tuple[Separation, ...]
    policies: list[Integers]
    gaps: Floats
    value: float


class Comparer:
    """Separations on a lattice, which are precise but not certified: leaves continue with a fixed category."""

    def __init__(self, lattice: CountLattice) -> None:
        self.lattice, self._size = lattice, 0
        self._refresh()

    def _refresh(self) -> None:
        lattice = self.lattice
        if self._size != lattice.size:
            self._size = lattice.size
            weights = lattice.weights[: lattice.size]
            self._own = lattice.click[: lattice.size], weights @ lattice.instance.fixed_values.T
            self.optimum, self.best = self._optimise(self._own, self._own, 1.0)

    def _optimise(
        self, first: tuple[Floats, Floats], second: tuple[Floats, Floats], weight: float
    ) -> tuple[Floats, Integers]:
        """Values `[2]` under both instances of the policy that is best for this weight, and its categories."""
        lattice = self.lattice
        rewards, leaves = (np.stack(pair) for pair in zip(first, second, strict=True))
        values, category = np.empty((2, lattice.size)), np.empty(lattice.size, np.int64)
        kernels.compromise(lattice.order, lattice.child, lattice.expanded, rewards, leaves, weight, values, category)
        return values[:, 0], category

    def compare(self, instance: Instance, ratio: float) -> Compromises:
        """Separate an alternative; its regret counts divided by `ratio` in the choice of the best weight."""
        self._refresh()
        weights = self.lattice.weights_under(instance)
        other = weights @ instance.click.T, weights @ instance.fixed_values.T
        values, policy = self._optimise(self._own, other, 0.0)
        best = np.array([self.optimum[0], values[1]])
        policies, lines = [policy, self.best], [best - values, best - self._optimise(self._own, other, 1.0)[0]]
        scale = np.array([1.0, 1.0 / ratio])
        for _ in range(MAX_CUTS):
            gaps, losses = (np.array(lines) * scale).T
            (weight,), (level,) = kernels.highest_minima(gaps, losses[:, None])
            chosen = _unscaled(weight, ratio)
            values, policy = self._optimise(self._own, other, chosen)
            line = best - values
            if np.array([weight, 1 - weight]) @ (line * scale) > level - 1e-3 * abs(level) - 1e-15:
                break
            policies.append(policy)
            lines.append(line)
        points = [_unscaled(weight, ratio)]
        points += [points[0] + share * (1 - points[0]) for share in FURTHER_WEIGHTS]
        separations = []
        for point in points:
            values = self._optimise(self._own, other, point)[0]
            separations.append(Separation(point, float(np.array([point, 1 - point]) @ (best - values))))
        return Compromises(tuple(separations), policies, np.array(lines), float(best[1]))


def _unscaled(weight: float, ratio: float) -> float:
    """Weight of the losses from that of the losses with the second divided by `ratio`."""
    return min(max(weight / (weight + (1 - weight) / ratio), 1e-6), 1 - 1e-6)


def certified_separation(alternative: Alternative, lower: float, guess: Separation) -> Separation:
    """Separation at the weight of `guess` that holds for every policy, rounding included.

    Parameters
    ----------
    alternative : Alternative
    lower : float
        Lower bound of the optimal value of the true instance.
    guess : Separation
        Estimate, which sets the precision.

    Returns
    -------
    Separation
        The best policy for a user who is of the true instance with probability `weight`, and of the alternative
        otherwise, is that of an instance with the types of both; its value is bounded by planning.
    """
    true, other, weight = alternative.true, alternative.instance, guess.weight
    gap = max(CERTIFIED_GAP * guess.loss, 1e-12)
    names = ("click", "depart", "depart_on_click")
    click, depart, depart_on_click = (np.hstack([getattr(true, name), getattr(other, name)]) for name in names)
    prior = np.append(weight * true.normalised_prior, (1 - weight) * other.normalised_prior)
    both = plan_within(PlanningProblem(Instance(prior, click, depart, depart_on_click)), gap, MAX_PLAN_NODES)
    alone = plan_within(PlanningProblem(other), gap, MAX_PLAN_NODES)
    return Separation(weight, weight * lower + (1 - weight) * alone.lower - both.upper * (1 + 1e-14))
