"""Master problem: the users that each policy must get, and the multipliers of the alternatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from departing.learning.lower_bound.alternative import Alternative
from departing.learning.lower_bound.count_lattice import CountLattice, PolicyGraph, Pricing
from departing.learning.lower_bound.separation import Claim, Separation
from departing.model.counts import Integers
from departing.model.instance import Floats

# Cost, in clicks per nat and relative to the value of the optimal policy and the users, at which information can be
# bought without a policy: above every multiplier of interest, so that the linear programme is always feasible.
ARTIFICIAL_COST = 10.0
FIXED_POINT_ROUNDS = 12
RELATIVE_ERROR = 2e-3  # of the fixed point


@dataclass(eq=False)
class Row:
    """Alternative with its separations: a constraint of the linear programme."""

    alternative: Alternative
    separations: tuple[Separation, ...]


@dataclass(eq=False)
class Column:
    """Policy as a variable of the linear programme.

    Attributes
    ----------
    category : array [nodes]
        Category at the nodes that the lattice had when the policy was found.
    leaf_category : array [M]
        Category of each type from a leaf on, or empty; see `Pricing`.
    graph : PolicyGraph
    gap : float
        Loss compared with the lower bound of the optimum, in clicks per user, if types are known at leaves.
    nats : dict
        Divergence by key of the alternative.
    """

    category: Integers
    leaf_category: Integers
    graph: PolicyGraph = field(init=False)
    gap: float = field(init=False)
    nats: dict[tuple[bytes, ...], float] = field(init=False)

    def same_as(self, other: "Column") -> bool:
        """Return True if the other policy has the same categories wherever it is played."""
        pairs = (
            (self.graph.nodes, other.graph.nodes),
            (self.graph.category, other.graph.category),
            (self.leaf_category, other.leaf_category),
        )
        return all(np.array_equal(own, theirs) for own, theirs in pairs)


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """Solution of the linear programme: `value` in clicks, `users[C]` per column, `multipliers[J]` per row."""

    value: float
    users: Floats
    multipliers: Floats


class Master:
    """Linear programme: least regret on the instance with which the records differ as a claim requires.

    Minimise Σ users × gap over the policies, such that Σ users × divergence is at least the nats of every
    alternative, and Σ users = T.
    """

    def __init__(self, lattice: CountLattice, optimum: float, claim: Claim) -> None:
        self.lattice, self.optimum, self.claim = lattice, optimum, claim
        self.rows: list[Row] = []
        self.columns: list[Column] = []
        self._size = lattice.size

    def add_column(self, category: Integers, leaf_category: Integers, first: bool = False) -> Column | None:
        """Add a policy, as the last or the first one, unless it is there; return the new column."""
        column = Column(category, leaf_category)
        self.evaluate(column)
        if not first and any(column.same_as(other) for other in self.columns):
            return None
        self.columns.insert(0 if first else len(self.columns), column)
        return column

    def refresh(self, category: Integers) -> None:
        """Evaluate all columns again if the lattice has grown; at new nodes they follow `category`."""
        if self._size != self.lattice.size:
            self._size = self.lattice.size
            for column in self.columns:
                longer = category.copy()
                longer[: len(column.category)] = column.category
                column.category = longer
                self.evaluate(column)

    def evaluate(self, column: Column) -> None:
        """Compute the graph and the gap of a column on the lattice; its divergences follow when they are needed."""
        column.graph = self.lattice.graph(column.category)
        column.gap = self.optimum - self.lattice.clicks_of(column.graph, column.leaf_category)
        column.nats = {}

    def _matrix(self, rows: Sequence[Row], columns: Sequence[Column]) -> Floats:
        """Divergences `[J, C]`."""
        for column in columns:
            missing = [row.alternative for row in rows if row.alternative.key not in column.nats]
            nats = self.lattice.divergences(column.graph, column.leaf_category, missing)
            column.nats.update({each.key: n for each, n in zip(missing, nats.tolist(), strict=True)})
        return np.array([[column.nats[row.alternative.key] for column in columns] for row in rows])

    def information(self, row: Row, users: Floats) -> float:
        """Divergence of the records under an alternative if the columns have these users, in nats."""
        played = np.flatnonzero(users)
        return float(self._matrix([row], [self.columns[c] for c in played])[0] @ users[played])

    def solve(self, required: Floats) -> MasterSolution:
        """Solve the linear programme with these nats per row, `[J]`."""
        users, multipliers = np.zeros(len(self.columns)), np.zeros(len(self.rows))
        total, gaps = float(self.claim.users), np.array([column.gap for column in self.columns])
        users[0] = total
        active = np.flatnonzero(required > 0)
        if not len(active):
            return MasterSolution(total * float(gaps[0]), users, multipliers)
        nats = self._matrix([self.rows[j] for j in active], self.columns) * total
        artificial = ARTIFICIAL_COST * total * max(self.optimum, 1e-9)
        # In shares of the users, relative to the first column, and with one artificial column in nats.
        objective = np.append(total * (gaps[1:] - gaps[0]), artificial)
        unit = max(float(np.abs(objective[:-1]).max(initial=0.0)), 1.0) * 1e-3
        matrix = np.vstack([np.hstack([nats[:, :1] - nats[:, 1:], -np.ones((len(active), 1))]), np.ones(len(gaps))])
        matrix[-1, -1] = 0.0
        limit = np.append(nats[:, 0] - required[active], 1.0)
        solved = linprog(objective / unit, A_ub=matrix, b_ub=limit, bounds=(0, None), method="highs")
        if solved.status != 0:
            return MasterSolution(0.0, users, multipliers)
        users[1:] = solved.x[:-1] * total
        users[0] -= users[1:].sum()
        multipliers[active] = np.maximum(-solved.ineqlin.marginals[:-1] * unit, 0.0)
        return MasterSolution(float(solved.fun) * unit + total * float(gaps[0]), users, multipliers)

    def required(self, bound: float) -> Floats:
        """Nats of every row for a bound, `[J]`."""
        return np.array([self.claim.nats(row.separations, bound) for row in self.rows])

    def fixed_point(self, start: float) -> tuple[float, MasterSolution]:
        """Largest b with a value of at least b if b is claimed, and the solution that proves it, over the columns."""
        if not self.rows:
            return 0.0, self.solve(np.zeros(0))
        return self._largest_threshold() if self.claim.share is not None else self._newton(start)

    def _newton(self, start: float) -> tuple[float, MasterSolution]:
        """Fixed point for expected regret: every solution bounds it from below, so its root approaches it."""
        bound, best = start, None
        for _ in range(FIXED_POINT_ROUNDS):
            solution = self.solve(self.required(bound))
            fixed = float(solution.multipliers @ self.required(bound)) - solution.value
            root = self.root(solution.multipliers, fixed)
            if best is not None and root <= best[0] * (1 + RELATIVE_ERROR):
                return max((root, solution), best, key=lambda pair: pair[0])
            best = (root, solution)
            bound = root if root > 0 else bound / 10
        assert best is not None
        return best

    def _largest_threshold(self) -> tuple[float, MasterSolution]:
        """Fixed point for a share of the runs, where rows drop out one after the other as the bound grows."""
        limits = np.array([self.claim.threshold(row.separations) for row in self.rows])
        candidates = np.unique(limits[limits > 0])[::-1]
        if not len(candidates):
            return 0.0, self.solve(np.zeros(len(self.rows)))
        nats = self.claim.nats((Separation(0.5, np.inf),), 0.0)
        low, high = 0, len(candidates) - 1  # the value grows, and the threshold falls, along the candidates
        solutions: dict[int, MasterSolution] = {}

        def solution(i: int) -> MasterSolution:
            if i not in solutions:
                solutions[i] = self.solve(np.where(limits >= candidates[i], nats, 0.0))
            return solutions[i]

        while low < high:
            middle = (low + high) // 2
            if solution(middle).value >= candidates[middle]:
                high = middle
            else:
                low = middle + 1
        ends = [low] if low == 0 else [low - 1, low]
        best = max(ends, key=lambda i: min(candidates[i], solution(i).value))
        return max(min(float(candidates[best]), solution(best).value), 0.0), solution(best)

    def root(self, multipliers: Floats, fixed: float) -> float:
        """Largest b with Σ multiplier × nats(b) - fixed ≥ b."""
        used = [(row.separations, m) for row, m in zip(self.rows, multipliers.tolist(), strict=True) if m > 0]
        return largest_root(lambda b: sum(m * self.claim.nats(each, b) for each, m in used) - fixed)

    def price(self, multipliers: Floats, tolerance: float, expansions: int) -> Pricing:
        """Price all policies at multipliers `[J]`; `tolerance` in clicks of all users."""
        used = [(row.alternative, m) for row, m in zip(self.rows, multipliers.tolist(), strict=True) if m > 0]
        per_user = tolerance / self.claim.users
        return self.lattice.price([each for each, _ in used], np.array([m for _, m in used]), per_user, expansions)


def largest_root(value: Callable[[float], float]) -> float:
    """Largest b, up to 1e-6 of itself, with value(b) ≥ b for a function that does not increase; 0 if there is none.

    >>> round(largest_root(lambda b: 2.0 if b < 1.5 else 0.0), 4)
    1.5
    """
    low = 1e-9
    if value(low) < low:
        return 0.0
    high = max(value(low), low)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2 if low > high / 4 else (low * high) ** 0.5
        low, high = (middle, high) if value(middle) >= middle else (low, middle)
    return low
