"""Planning with a horizon: heuristic search of the count graph by steps left, and alpha vectors for each number."""

from collections.abc import Sequence

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import finite_horizon as kernels
from departing.model.counts import Booleans, Integers
from departing.model.instance import CLICK, Floats
from departing.planning.horizon_bounds import HorizonBounds
from departing.planning.horizon_certificate import GraphClaims, HorizonCertificate
from departing.planning.horizon_controller import FixedValues, HorizonController, continuation
from departing.planning.memory import MAX_BYTES, allocate, grown, key_table, nbytes
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.policy.alpha import Alpha
from departing.policy.schedule import Schedule, simplest_schedule

# The search aims at 85 % of the gap, because leaving out alpha vectors loses up to a tenth of it.
AIM, LOSS = 0.85, 0.1
SEARCH_TIME = 0.75  # fraction of the time limit after which the search ends, for the alpha vectors
UNREACHED_LOSS = 0.02  # fraction of the gap reached that leaving out vectors may lose if the gap is out of reach
FIRST_DEPTHS = 64  # levels of the count graph with values of fixed policies; their number doubles
CHUNK, CHUNK_FRACTION = 64, 4  # nodes expanded between two deadline checks: at least CHUNK, then a quarter


class HorizonSearch:
    """State of a search from one or more priors. `run` narrows the bounds and can be called again."""

    def __init__(self, problem: PlanningProblem, priors: Floats, progress: BoundsProgress | None = None) -> None:
        self.problem, self.priors, self._progress = problem, priors, progress
        self.horizon, self.stuck = problem.horizon, False
        self.bounds = HorizonBounds.of(problem, priors.max(axis=0), pairs=not problem.instance.sure_departure)
        self.fixed = FixedValues(problem.instance)
        k, n_types, n_roots = len(problem.categories), problem.instance.n_types, len(priors)
        self._model = kernels.HorizonModel(
            problem.reward,
            problem.click_stay,
            problem.stay,
            self._fixed_by_depth(min(FIRST_DEPTHS, self.horizon)),
            *(self.bounds.known, self.bounds.tail, self.bounds.pairs, self.bounds.pair, self.bounds.grid),
        )
        n = max(1024, 2 * n_roots)
        lengths = {"N": n, "M": n_types, "K": k, "2": 2, "S": self.horizon + 2}
        self.nodes = allocate(kernels.HorizonNodes, lengths)
        step_key = key_multipliers(2 * k + n_roots)
        table, paths = key_table(n), np.zeros(n)
        own = {"table": table, "paths": paths, "step_key": step_key[: 2 * k].reshape(k, 2)}
        self._space = allocate(kernels.HorizonSpace, lengths, **own)
        self.counters = np.zeros(kernels.N_COUNTERS, np.int64)
        self.counters[kernels.ROOTS], self.counters[kernels.STAMP] = n_roots, 1
        self.nodes.weights[:n_roots], self.nodes.depth[:n_roots] = priors, 0
        self.nodes.key[:n_roots] = step_key[2 * k :]
        kernels.add_roots(self._model, self.nodes, self._space, self.counters, self.horizon)

    def _fixed_by_depth(self, n: int) -> Floats:
        """Values of the fixed policies at depths below n, `[n, k, M]`."""
        return np.array([self.fixed.within(self.horizon - t)[self.problem.categories] for t in range(n)])

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return int(self.counters[kernels.NODES])

    @property
    def tolerance(self) -> float:
        """Bound on the rounding error of either bound."""
        return self.problem.tolerance(self.depth)

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return int(self.counters[kernels.DEPTH])

    @property
    def lower(self) -> Floats:
        """Lower bounds of the roots, without allowance for rounding."""
        return self.nodes.lower[: len(self.priors)]

    @property
    def upper(self) -> Floats:
        """Upper bounds of the roots, without allowance for rounding."""
        return self.nodes.upper[: len(self.priors)]

    def run(self, gap: float, deadline: Deadline, max_expanded: int | None = None) -> None:
        """Search until every root reaches the gap, or until time, nodes, memory or digits are used up."""
        while not deadline.expired and not self.stuck:
            wanted, expanded = max(gap - 2 * self.tolerance, self.tolerance), int(self.counters[kernels.EXPANDED])
            if (self.upper - self.lower).max() <= wanted:
                return
            most = CHUNK + expanded // CHUNK_FRACTION
            if max_expanded is not None:
                most = min(most, max_expanded - expanded)
            if most <= 0:
                self.stuck = True
                return
            arrays = (self._model, self.nodes, self._space, self.counters)
            going = kernels.expand_horizon(*arrays, wanted, self.horizon, most)
            if self._progress is not None:
                self._progress(float(self.lower.mean()), float(self.upper.mean()))
            if self.counters[kernels.FULL]:
                self.stuck = nbytes(self.nodes, self._space, self._model) > MAX_BYTES / 2
                self._grow()
            elif not going:
                self.stuck = True

    def _grow(self) -> None:
        """Double the arrays that are more than half full."""
        if self.counters[kernels.NODES] * 2 > len(self.nodes.upper):
            n = 2 * len(self.nodes.upper)
            self.nodes = grown(self.nodes, N=n)
            self._space = grown(self._space, N=n)._replace(table=key_table(n))
            insert_keys(self._space.table, self.nodes.key, self.n_nodes)
        depths = len(self._model.fixed)
        if self.counters[kernels.DEPTH] + 2 > depths:
            self._model = self._model._replace(fixed=self._fixed_by_depth(min(2 * depths, self.horizon)))
        self.counters[kernels.FULL] = 0

    def controllers(self, loss: float) -> list[HorizonController]:
        """A controller for each root that attains its lower bound, but for at most `loss`."""
        extraction = _Extraction(self)
        return [extraction.controller(root, loss) for root in range(len(self.priors))]

    def claims(self) -> GraphClaims:
        """The claims that justify the upper bounds, without the arrays that only the search needs."""
        n = self.n_nodes
        fields = (getattr(self.nodes, name)[:n].copy() for name in GraphClaims._fields)
        return GraphClaims(*fields)


class _Extraction:
    """Backup of alpha vectors from the deepest nodes that users reach under the lower bounds to a root."""

    def __init__(self, search: HorizonSearch) -> None:
        self.search, nodes, problem = search, search.nodes, search.problem
        n = search.n_nodes
        self.weights, self.child, self.depth = nodes.weights[:n], nodes.child[:n], nodes.depth[:n]
        lower, expanded = nodes.lower[:n], self.child[:, :, 1] >= 0
        later = np.where(expanded, lower[self.child[:, :, 0]] + lower[self.child[:, :, 1]], -np.inf)
        values = self.weights @ problem.reward.T + later
        self.best = values.argmax(axis=1)
        fixed = self._fixed_values(np.arange(n))
        self.expanded: Booleans = values.max(axis=1) > fixed.max(axis=1)
        self.always = fixed.argmax(axis=1)
        self.paths = np.zeros(n)

    def _fixed_values(self, rows: Integers) -> Floats:
        """Values `[n, k]` of the fixed policies at nodes."""
        search, weights = self.search, self.weights[rows]
        values = np.empty((len(rows), len(search.problem.categories)))
        for depth in np.unique(self.depth[rows]):
            at = self.depth[rows] == depth
            fixed = search.fixed.within(search.horizon - int(depth))[search.problem.categories]
            values[at] = weights[at] @ fixed.T
        return values

    def _levels(self, root: int) -> list[Integers]:
        """Expanded nodes that users reach from a root, by depth; counts the paths to them."""
        rows: Integers = np.array([root])
        self.paths[rows] = 1.0
        levels = []
        while len(rows := rows[self.expanded[rows]]):
            levels.append(rows)
            after = self.child[rows, self.best[rows]]
            np.add.at(self.paths, after, self.paths[rows][:, None])
            rows = np.unique(after)
        return levels

    def controller(self, root: int, loss: float) -> HorizonController:
        """Controller for the users of a root: vectors of all levels, without those that others can replace."""
        problem, levels = self.search.problem, self._levels(root)
        parts: list[tuple[Floats, Integers, Integers, int]] = []  # vectors, categories, successors, steps
        chosen = np.full(len(self.weights), -1)  # vector of each node of the level below, or -1 - category
        values = np.zeros((0, self.weights.shape[1]))
        start = 0
        for rows in reversed(levels):
            left, a = self.search.horizon - int(self.depth[rows[0]]), self.best[rows]
            after = self.child[rows, a]
            below = np.setdiff1d(after, rows)
            leaves = below[~self.expanded[below]]
            chosen[leaves] = -1 - problem.categories[self.always[leaves]]
            always = self.search.fixed.within(left - 1)
            successor = chosen[after]
            own = problem.reward[a].copy()
            for o, transition in enumerate((problem.click_stay, problem.stay)):
                to = np.where(successor[:, o] < 0, successor[:, o], successor[:, o] - start)
                own += transition[a] * continuation(to, values, always)
            kept, use = self._select(rows, own, left, loss / len(levels))
            first = start + len(values)
            chosen[rows] = np.where(use >= 0, first + use, use)
            parts.append((own[kept], problem.categories[a[kept]], successor[kept], left))
            start, values = first, own[kept]
        if not self.expanded[root]:
            chosen[root] = -1 - problem.categories[self.always[root]]
        return _assembled(parts, self.weights.shape[1], int(chosen[root]))

    def _select(self, rows: Integers, own: Floats, left: int, loss: float) -> tuple[Integers, Integers]:
        """Vectors to keep, and the one that each node uses: an index into them, or -1 - category.

        The vector that gains most at its node is added until all others together gain at most `loss`.
        """
        weights, problem = self.weights[rows] * self.paths[rows][:, None], self.search.problem
        fixed = weights @ self.search.fixed.within(left)[problem.categories].T
        best, use = fixed.max(axis=1), -1 - problem.categories[fixed.argmax(axis=1)]
        target, kept = (weights * own).sum(axis=1), list[int]()
        gain = np.maximum(target - best, 0.0)
        while gain.sum() > loss:
            i = int(gain.argmax())
            value = weights @ own[i]
            better = value > best
            better[i] = True
            best[better], use[better] = value[better], len(kept)
            kept.append(i)
            gain = np.maximum(target - best, 0.0)
            gain[kept] = 0.0
        return np.array(kept, np.int64), use


def _assembled(
    parts: Sequence[tuple[Floats, Integers, Integers, int]], n_types: int, start: int
) -> HorizonController:
    """Controller of the vectors of all levels, from the fewest steps left to the most."""
    vectors = [part[0] for part in parts]
    steps = [np.full(len(part[0]), part[3]) for part in parts]
    return HorizonController(
        np.concatenate([np.zeros((0, n_types)), *vectors]),
        np.concatenate([np.zeros(0, np.int64), *(part[1] for part in parts)]),
        np.concatenate([np.zeros((0, 2), np.int64), *(part[2] for part in parts)]),
        start,
        True,
        np.concatenate([np.zeros(0, np.int64), *steps]),
    )


def solve_finite_horizon(problems: Sequence[PlanningProblem], limits: Limits) -> list[Solution]:
    """Plan for problems that differ in the prior only by one `HorizonSearch`."""
    problem, priors = problems[0], np.array([each.prior for each in problems])
    search = HorizonSearch(problem, priors, limits.progress)
    search_deadline = limits.deadline.until(SEARCH_TIME * limits.deadline.seconds)
    search.run(AIM * limits.gap, search_deadline, limits.max_nodes)
    reached = float((search.upper - search.lower).max())
    loss = LOSS * limits.gap if reached <= AIM * limits.gap else UNREACHED_LOSS * reached
    controllers = search.controllers(loss)
    steps, nodes = format_count(search.horizon, "step"), format_count(search.n_nodes, "node")
    reason, claims = f"Search within a horizon of {steps} created {nodes}", search.claims()
    solutions = []
    for i, (each, own) in enumerate(zip(problems, controllers, strict=True)):
        lower = max(own.best_value(problem.instance, each.prior, search.horizon) - each.tolerance(search.depth), 0.0)
        upper = min(float(search.upper[i]) + each.tolerance(search.depth), each.known_type_bound)
        certificate = HorizonCertificate(each, priors, search.bounds, claims, own, i)
        schedule = _schedule(own, each)
        if schedule is not None:
            lower = evaluate(each.instance, schedule).lower
            solutions.append(Solution(schedule, schedule, lower, max(upper, lower), f"{reason}.", certificate))
            continue
        upper = max(upper, lower)
        arrays = (own.vectors, own.categories, own.successor)
        policy = Alpha(each.instance, *arrays, upper, own.steps)
        text = f"{reason}; the policy has {format_count(len(own.vectors), 'alpha vector')}."
        solutions.append(Solution(policy, own, lower, upper, text, certificate))
    return solutions


def _schedule(controller: HorizonController, problem: PlanningProblem) -> Schedule | None:
    """The controller as a schedule, if it is one: a fixed policy, or a walk with sure departure."""
    state, walk = controller.start, list[int]()
    if state >= 0 and not problem.instance.sure_departure:
        return None
    while state >= 0:
        walk.append(int(controller.categories[state]))
        state = int(controller.successor[state, CLICK])
    return simplest_schedule(walk, -1 - state)
