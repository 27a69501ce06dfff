"""Planning with sure departure: the best sequence of categories, by A* search of the lattice of click counts."""

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import lattice as kernels
from departing.kernels.planning.lattice import BEST, BEST_THEN, DEPTH, FULL, NODES, OPEN
from departing.planning.certificate import LatticeCertificate
from departing.planning.memory import MAX_BYTES, allocate, grown, key_table, nbytes
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.policy.schedule import Schedule, simplest_schedule

# Nodes between two deadline checks: at least CHUNK, then a quarter of the nodes, so that the overhead of calls
# stays small and the deadline is overrun by little.
CHUNK, CHUNK_FRACTION = 256, 4


class LatticeSearch:
    """State of an A* search for the best walk. `run` narrows the bounds and can be called again."""

    def __init__(self, problem: PlanningProblem, progress: BoundsProgress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        optimistic = problem.reward + problem.click_stay * problem.type_values
        self._model = (problem.reward, problem.click_stay, problem.fixed_values, optimistic)
        n, n_types, k = 1024, problem.instance.n_types, len(problem.categories)
        self.counters = np.zeros(kernels.N_COUNTERS, np.int64)
        self.nodes = nodes = allocate(kernels.LatticeNodes, {"N": n, "M": n_types, "K": k})
        nodes.weights[0], nodes.reward[0], nodes.key[0], nodes.depth[0] = problem.prior, 0.0, 0, 0
        nodes.parent[0] = nodes.category[0] = -1
        given = {"table": key_table(n), "step_key": key_multipliers(k), "merge_loss": np.zeros(1)}
        self._queue = allocate(kernels.Queue, {"N": n}, **given)
        insert_keys(self._queue.table, self.nodes.key, 1)
        self.lower = -np.inf

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return int(self.counters[NODES])

    @property
    def rounding_error(self) -> float:
        """Bound on the rounding error of the upper bound; d is the depth and M the number of types.

        Every term of the bound is positive, so each rounding changes it by a factor of at most 1 + 2^-53. A term
        passes through at most

        - M roundings of the prior: M - 1 additions and a quotient;
        - 3 d of its weight: a product at each step, with a probability of 2 roundings;
        - 4 d for the categories that were dropped: two probabilities of 2 roundings were compared;
        - (d + 1) M + 1 additions, M for the expected reward of each step and M for the last bound;
        - 10 of the optimistic value (5 in the value of a type), and 1 of its product with the weight.

        The rest, up to 64 + (d + 4) M + 8 d, covers products of roundings. Where several paths led to a node, the
        first was kept, which had up to `merge_loss` less reward; this may happen at every step. Results below the
        normal range lose up to 2^-1074 each, times the value of a type.
        """
        types, depth = self.problem.instance.n_types, int(self.counters[DEPTH])
        most = 1 + float(self.problem.type_values.max())
        relative = ROUNDING * (64 + (depth + 4) * types + 8 * depth)
        underflow = UNDERFLOW * 2 * types * (depth + 1) * most
        return relative * max(self._top, 0.0) + (depth + 1) * float(self._queue.merge_loss[0]) + underflow

    @property
    def _top(self) -> float:
        """Upper bound of every sequence of categories, without allowance for rounding."""
        return max(float(self._queue.upper[0]) if self.counters[OPEN] else -np.inf, self.lower)

    @property
    def upper(self) -> float:
        """Upper bound of every sequence of categories."""
        return self._top + self.rounding_error

    def _wanted(self, gap: float) -> float:
        """Difference of the bounds, without rounding, at which the gap is reached or the digits are used up.

        Of the four rounding errors, one is that of `upper`; the others cover the value of the policy. The search
        cannot reach a difference below 1e-13 of the value, which a longer walk must gain.
        """
        return max(gap - 4 * self.rounding_error, 1.1e-13 * max(self.lower, 0.0))

    def run(self, gap: float, deadline: Deadline, max_nodes: int | None = None) -> None:
        """Search until the gap is reached, or until the time, the nodes, the memory or the digits are used up."""
        while True:
            chunk = CHUNK + self.n_nodes // CHUNK_FRACTION
            limit = chunk if max_nodes is None else min(chunk, max_nodes)
            state = (self.nodes, self._queue, self.counters, self.lower)
            self.lower = kernels.expand_lattice(*self._model, *state, self._wanted(gap), limit)
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            enough = max_nodes is not None and self.n_nodes >= max_nodes
            if self._top <= self.lower + self._wanted(gap) or deadline.expired or enough:
                return
            if self.counters[FULL]:
                if nbytes(self.nodes, self._queue) > MAX_BYTES / 2:
                    return
                n = 2 * len(self.nodes.reward)
                self.nodes = grown(self.nodes, N=n)
                self._queue = grown(self._queue, N=n)._replace(table=key_table(n))
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
        parent, category, depth, reward = (
            array[: self.n_nodes].copy()
            for array in (self.nodes.parent, self.nodes.category, self.nodes.depth, self.nodes.reward)
        )
        return LatticeCertificate(self.problem, parent, category, depth, reward, self.rounding_error)


def solve_lattice(problem: PlanningProblem, limits: Limits) -> Solution:
    """Plan by `LatticeSearch`: the best walk found, evaluated in closed form, is the policy and the lower bound."""
    lattice = LatticeSearch(problem, limits.progress)
    lattice.run(limits.gap, limits.deadline, limits.max_nodes)
    policy = lattice.policy()
    value = evaluate(problem.instance, policy)
    upper = max(lattice.upper, value.upper)
    reason = f"A* search created {format_count(lattice.n_nodes, 'lattice node')}."
    return Solution(policy, policy, value.lower, upper, reason, lattice.certificate())
