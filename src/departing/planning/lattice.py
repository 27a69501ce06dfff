"""Planning with sure departure: the best sequence of categories, by A* search of the lattice of click counts."""

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.evaluation.evaluate import evaluate
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import lattice as kernels
from departing.kernels.planning.lattice import BEST, BEST_THEN, DEPTH, FULL, NODES, OPEN
from departing.planning.certificate import LatticeCertificate, Solution
from departing.planning.memory import MAX_BYTES, grown, key_table, nbytes
from departing.planning.problem import BoundsProgress, Deadline, PlanningProblem
from departing.policy.schedule import Schedule, simplest_schedule

# Nodes between two looks at the deadline: at least CHUNK, then a quarter of the nodes, so that the overhead of calls
# stays small and the deadline is overrun by little.
CHUNK, CHUNK_FRACTION = 256, 4


class LatticeSearch:
    """State of an A* search for the best walk. `run` narrows the bounds and can be called again."""

    def __init__(self, problem: PlanningProblem, progress: BoundsProgress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        optimistic = problem.reward + problem.click * problem.type_values
        self._model = (problem.reward, problem.click, problem.fixed_values, optimistic)
        n, n_types, k = 1024, problem.instance.n_types, len(problem.categories)
        self.counters = np.zeros(kernels.N_COUNTERS, np.int64)
        self.nodes = kernels.LatticeNodes(
            weights=np.zeros((n, n_types)),
            clicks=np.zeros(n),
            parent=np.full(n, -1, np.int32),
            category=np.full(n, -1, np.int32),
            depth=np.zeros(n, np.int32),
            key=np.zeros(n, np.uint64),
            child_upper=np.empty((n, k)),
        )
        self.nodes.weights[0] = problem.prior
        self._queue = kernels.Queue(np.empty(n), np.empty(n, np.int32), key_table(n), key_multipliers(k))
        insert_keys(self._queue.table, self.nodes.key, 1)
        self.lower = -np.inf

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return int(self.counters[NODES])

    @property
    def slack(self) -> float:
        """Bound on the relative rounding error of the upper bound: sums of products of as many factors as steps."""
        return ROUNDING * (64 + 4 * self.problem.instance.n_types + 8 * int(self.counters[DEPTH]))

    @property
    def upper(self) -> float:
        """Upper bound of every sequence of categories."""
        top = float(self._queue.upper[0]) if self.counters[OPEN] else self.lower
        return max(top, self.lower) * (1 + self.slack)

    def run(self, gap: float, deadline: Deadline, max_nodes: int | None = None) -> None:
        """Search until the gap is reached, or until the time, the nodes, the memory or the digits are used up."""
        while True:
            wanted = max(gap - 4 * self.slack * max(self.lower, 0.0), 0.0)
            chunk = CHUNK + self.n_nodes // CHUNK_FRACTION
            limit = chunk if max_nodes is None else min(chunk, max_nodes)
            state = (self.nodes, self._queue, self.counters, self.lower)
            self.lower = kernels.expand_lattice(*self._model, *state, wanted, limit)
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            top = self._queue.upper[0] if self.counters[OPEN] else -np.inf
            enough = max_nodes is not None and self.n_nodes >= max_nodes
            if top <= self.lower + wanted or deadline.expired or enough:
                return
            if self.counters[FULL]:
                if nbytes(self.nodes, self._queue) > MAX_BYTES / 2:
                    return
                n = 2 * len(self.nodes.clicks)
                self.nodes = grown(self.nodes, n)
                self._queue = grown(self._queue, n, only={"upper", "node"})._replace(table=key_table(n))
                insert_keys(self._queue.table, self.nodes.key, self.n_nodes)
                self.counters[FULL] = 0

    def policy(self) -> Schedule:
        """The best walk so far, as the simplest schedule."""
        categories: list[int] = []
        node, then = int(self.counters[BEST]), int(self.problem.categories[self.counters[BEST_THEN]])
        while node > 0:
            categories.append(int(self.problem.categories[self.nodes.category[node]]))
            node = int(self.nodes.parent[node])
        return simplest_schedule(categories[::-1], then)

    def certificate(self) -> LatticeCertificate:
        """The nodes, without the arrays that only the search needs."""
        parent, category, depth, clicks = (
            array[: self.n_nodes].copy()
            for array in (self.nodes.parent, self.nodes.category, self.nodes.depth, self.nodes.clicks)
        )
        return LatticeCertificate(self.problem, parent, category, depth, clicks, self.slack)


def solve_lattice(
    problem: PlanningProblem,
    gap: float,
    deadline: Deadline,
    progress: BoundsProgress | None = None,
    max_nodes: int | None = None,
) -> Solution:
    """Plan by `LatticeSearch`."""
    lattice = LatticeSearch(problem, progress)
    lattice.run(gap, deadline, max_nodes)
    policy = lattice.policy()
    value = evaluate(problem.instance, policy)
    upper = max(lattice.upper, value.upper)
    reason = f"Lattice nodes: {lattice.n_nodes:,}."
    return Solution(policy, policy, value.lower, upper, reason, lattice.certificate())
