"""Row and column generation for the lower bound, and its certificate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.learning.lower_bound.alternative import Alternative
from departing.learning.lower_bound.count_lattice import MAX_EXPANSIONS, CountLattice, Pricing
from departing.learning.lower_bound.master import Master, MasterSolution, Row
from departing.learning.lower_bound.policies import PayingPolicy, paying_policies
from departing.learning.lower_bound.search import AlternativeSearch
from departing.learning.lower_bound.separation import Claim, Comparer, Separation, certified_separation
from departing.model.instance import Floats, Instance

# Nodes of the lattice for comparisons of instances, and largest number for pricing.
COARSE_NODES, SEARCH_NODES, CERTIFIED_NODES = 5_000, 30_000, 150_000
LATTICE_DEPTH = 60  # largest number of steps of the former
CALM = 2  # rounds without a new alternative after which the search ends
MAX_COLUMNS = 12  # policies added for one bound in the search
MAX_CERTIFIED_COLUMNS = 60
# Slack of a pricing at leaves, relative to the bound, and expansions of leaves for it.
SEARCH_TOLERANCE, SEARCH_EXPANSIONS = 0.03, 20
MIN_TOLERANCE = 0.3  # clicks
CERTIFIED_TOLERANCE = 0.003
CLOSED = 0.01  # relative difference of primal and dual value at which no more policies are added
KEPT_ROWS = 40  # without multipliers
# Barriers of the search, in nats. For expected regret the required nats grow like the logarithm of the separation.
# For a share of the runs they are constant, and alternatives are searched for several bounds, one after the other: on
# the way (in logarithms) from the present bound to the value without the limit of the separations, each with its
# barrier.
BARRIER = 1.0
TARGETS = ((0.0, 0.2), (0.3, 1.0), (0.6, 0.2), (1.0, 0.2))
START = 1e-3  # clicks; a first bound, at which nearly every alternative is confusing


@dataclass(frozen=True, eq=False)
class Certified:
    """Bound with its proof by weak duality.

    Attributes
    ----------
    value : float
        The bound, in clicks.
    claim : Claim
        The claim that it refutes.
    rows : tuple of Row
        Alternatives with one certified separation each.
    multipliers : array [J]
        Clicks per nat of each.
    priced : float
        Upper bound of clicks + Σ multiplier × divergence over all policies, in clicks per user.
    slack : float
        Estimate of the clicks of all users that the bound loses at the leaves of the lattice.
    depth, nodes : int
        Size of the lattice.
    policies : tuple of PayingPolicy
        Policies with users in the linear programme.
    primal : float
        Bound over these policies only; the difference to `value` is what the pricing of all policies costs.
    """

    value: float
    claim: Claim
    rows: tuple[Row, ...]
    multipliers: Floats
    priced: float
    slack: float
    depth: int
    nodes: int
    policies: tuple[PayingPolicy, ...]
    primal: float


class LowerBoundSolver:
    """Solver of the semi-infinite linear programme of an instance, for growing numbers of users.

    Parameters
    ----------
    instance : Instance
    optimum : float
        Lower bound of the value of the optimal policy.
    seed : sequence of int
        Seed of the search for alternatives.
    """

    def __init__(self, instance: Instance, optimum: float, seed: Sequence[int]) -> None:
        self.instance, self.optimum = instance, optimum
        coarse = CountLattice(instance, 0, certified=False)
        lattice = CountLattice(instance, SEARCH_NODES, certified=True)
        for each in (coarse, lattice):
            each.expand_depth(LATTICE_DEPTH, COARSE_NODES)
        self.comparer = Comparer(coarse)
        self.master = Master(lattice, optimum, Claim(1, None, None))
        self.search = AlternativeSearch(self.master, self.comparer, np.random.default_rng(seed))

    def use(self, alternatives: Sequence[Alternative], claim: Claim, bound: float) -> None:
        """Use these alternatives, and no others."""
        ratio = claim.ratio(bound)
        self.master.rows = [
            Row(each, self.comparer.compare(each.instance, ratio).separations) for each in alternatives
        ]

    def solve(self, claim: Claim, start: float, rounds: int) -> tuple[float, MasterSolution]:
        """Bound over the alternatives found in some rounds of search, not certified; `start` is a guess."""
        master, start = self.master, max(start, START)
        master.claim = claim
        _start_columns(master, max(SEARCH_TOLERANCE * start, MIN_TOLERANCE))
        bound, solution = close(master, start)
        calm = 0
        for i in range(rounds):
            way, barrier = (0.0, BARRIER) if claim.share is None else TARGETS[i % len(TARGETS)]
            target = bound * max(solution.value / bound, 1.0) ** way if bound > 0 else start
            played = solution if target <= bound else master.solve(master.required(target))
            rows = self.search.find(target, played, barrier)
            calm = 0 if rows else calm + 1
            if calm == CALM * (1 if claim.share is None else len(TARGETS)):
                break
            if rows:
                master.rows = self._pruned(solution) + rows
                bound, solution = close(master, max(bound, start))
        return bound, solution

    def _pruned(self, solution: MasterSolution) -> list[Row]:
        """Rows with multipliers, and the latest others."""
        rows = list(zip(self.master.rows, solution.multipliers, strict=True))
        return [row for row, m in rows if m <= 0][-KEPT_ROWS:] + [row for row, m in rows if m > 0]

    def certify(self, bound: float, solution: MasterSolution) -> Certified:
        """Certify the alternatives with multipliers, price all policies, and return the bound that this proves.

        In-out separation: policies are priced at the mean of the best multipliers so far and those of the linear
        programme, which needs fewer policies than the latter alone.
        """
        claim, lattice = self.master.claim, CountLattice(self.instance, CERTIFIED_NODES, certified=True)
        lattice.expand_depth(LATTICE_DEPTH, COARSE_NODES)
        master = Master(lattice, self.optimum, claim)
        master.rows, multipliers = self._certified_rows(bound, solution)
        tolerance = max(CERTIFIED_TOLERANCE * bound, 1e-9)
        _start_columns(master, tolerance)
        proof: tuple[float, Floats, Pricing] | None = None
        limit, primal = np.inf, master.solve(np.zeros(len(multipliers)))
        for _ in range(MAX_CERTIFIED_COLUMNS):
            pricing = master.price(multipliers, tolerance, MAX_EXPANSIONS)
            value = master.root(multipliers, claim.users * (pricing.value - self.optimum))
            if proof is None or value > proof[0]:
                proof = value, multipliers, pricing
            master.refresh(pricing.category)
            new = master.add_column(pricing.category, pricing.leaf_category)
            limit, primal = master.fixed_point(max(bound, START))
            if proof[0] >= (1 - CLOSED) * limit or (new is None and (multipliers == primal.multipliers).all()):
                break
            multipliers = primal.multipliers if new is None else (proof[1] + primal.multipliers) / 2
        assert proof is not None
        value, multipliers, pricing = proof
        size = int(lattice.depth[: lattice.size].max()), lattice.size
        slack, policies = pricing.slack * claim.users, paying_policies(master, primal)
        rows = tuple(master.rows)
        return Certified(value, claim, rows, multipliers, pricing.value, slack, *size, policies, limit)

    def _certified_rows(self, bound: float, solution: MasterSolution) -> tuple[list[Row], Floats]:
        """Rows with multipliers, each with its most useful separation certified, and these multipliers."""
        rows, multipliers, claim = [], [], self.master.claim
        for row, multiplier in zip(self.master.rows, solution.multipliers.tolist(), strict=True):
            if multiplier > 0:
                best = max(row.separations, key=lambda each: _potential(claim, each, bound))
                rows.append(Row(row.alternative, (certified_separation(row.alternative, self.optimum, best),)))
                multipliers.append(multiplier)
        return rows, np.array(multipliers)


def _potential(claim: Claim, separation: Separation, bound: float) -> float:
    """Nats of a separation; for a share of the runs, where they are constant, its threshold."""
    return claim.nats((separation,), bound) if claim.share is None else claim.threshold((separation,))


def _start_columns(master: Master, tolerance: float) -> None:
    """Let the first column be the optimal policy, on a lattice that is deep enough for it."""
    pricing = master.price(np.zeros(len(master.rows)), tolerance, MAX_EXPANSIONS)
    master.refresh(pricing.category)
    if master.columns:
        del master.columns[0]
    master.add_column(pricing.category, pricing.leaf_category, first=True)
    if len(master.columns) == 1:
        _add_schedules(master)


def _add_schedules(master: Master) -> None:
    """Add the fixed categories, and short switches between them."""
    instance = master.lattice.instance
    depth, leaf = master.lattice.depth[: master.lattice.size], master.columns[0].leaf_category
    for a in range(instance.n_categories):
        master.add_column(np.full(len(depth), a), leaf)
        for b in range(instance.n_categories):
            for steps in (1, 2) if a != b else ():
                master.add_column(np.where(depth < steps, a, b), leaf)


def close(master: Master, start: float) -> tuple[float, MasterSolution]:
    """Add policies until the fixed point of the master problem holds for all policies, nearly."""
    bound, solution = 0.0, master.solve(np.zeros(len(master.rows)))
    for _ in range(4):
        before = bound
        bound, solution = master.fixed_point(max(start, bound))
        if bound <= 0:
            break
        required = _required(master, solution, bound)
        tolerance = max(SEARCH_TOLERANCE * bound, MIN_TOLERANCE)
        for _ in range(MAX_COLUMNS):
            pricing = master.price(solution.multipliers, tolerance, SEARCH_EXPANSIONS)
            master.refresh(pricing.category)
            paid = master.claim.users * (pricing.value - master.optimum)
            if solution.value - (float(solution.multipliers @ required) - paid) <= CLOSED * bound:
                break
            if master.add_column(pricing.category, pricing.leaf_category) is None:
                break
            solution = master.solve(required)
        if abs(bound - before) <= CLOSED * bound:
            break
    return bound, solution


def _required(master: Master, solution: MasterSolution, bound: float) -> Floats:
    """Nats of the rows that a solution was computed with; for a share of the runs, of those up to its last one."""
    if master.claim.share is None:
        return master.required(bound)
    used = zip(master.rows, solution.multipliers, strict=True)
    return master.required(min([master.claim.threshold(row.separations) for row, m in used if m > 0], default=bound))
