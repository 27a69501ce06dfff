"""General planner: heuristic search of the count graph, for any instance."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import counters as at
from departing.kernels.planning import search as kernels
from departing.kernels.planning.alpha_vectors import ALWAYS, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, AlphaVectors
from departing.kernels.planning.trial_backups import run_trials
from departing.kernels.planning.upper_bound import (
    RANGES,
    SHORTLIST,
    BeliefPoints,
    EdgeWorkspace,
    LPWorkspace,
    solve_edge,
)
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.certificate import (
    Edge,
    FaceClaims,
    NodeClaims,
    PointClaims,
    SearchCertificate,
    edge_grid,
)
from departing.planning.controller import Controller
from departing.planning.memory import MAX_BYTES, allocate, grown, key_table, layout, nbytes
from departing.planning.problem import BoundsProgress, Deadline, PlanningProblem

# None of these constants affects the validity of a bound; they trade the time of one kind of work against another.
EDGE_TOLERANCE = 1e-4  # of the value: error of an edge between the points kept of it; more points slow every cover
MAX_EDGE_TYPES = 32  # there are M (M - 1) / 2 edges, so beyond this they would take longer than the search
EDGE_TIME = 0.5  # fraction of the time limit for edges
POOL = 4096  # candidate points of one cover, far more than the covers of a node's relatives have
# Trials start when the search near the root has a sensible policy: after FIRST_TRIALS expanded nodes, or a fraction
# FIRST_TRIALS_TIME of the time limit. The next trials come after a growth of the expanded nodes that depends on
# whether the last ones paid.
FIRST_TRIALS, FIRST_TRIALS_TIME = 1500, 0.2
GROWTH_IF_USEFUL, GROWTH_IF_USELESS = 1.2, 2.0
NEVER = 2**60  # more nodes than there are
TRIALS, TRIAL_STEPS = 20, 200  # in a batch: enough to average over users
USEFUL_TRIALS = 0.01  # fraction of the gap that a batch must close for another one
TRIAL_GAIN = 1e-3  # fraction of the gap that a new vector must gain at its belief
# After a restart, trials read only the vectors that are best at beliefs of earlier trials: as good, and far fewer.
# They are chosen again when their number has grown by this factor and this many.
MAX_BELIEFS, POOL_GROWTH, POOL_ROOM = 2000, 2, 500
COMPARED_BELIEFS = 250  # at a time, to keep their values at all vectors in the cache
PRUNING_LOSSES = (0.1, 0.03, 0.01)  # fractions of the gap to give up for a smaller controller; the first that is met
UNREACHED_VALUE = 5e-4  # fraction of the value that extracting the controller may lose if the gap is out of reach
COVER_TOLERANCE = 1e-7  # of the value: accuracy of covers that compare points
POLL_SECONDS = 0.1  # between two deadline checks
NO_POINTS, NO_GAINS = np.empty(0, np.int64), np.empty(0)
INITIAL_PACE = 5e-3  # seconds per node until measured: slow, so that the first deadline check comes early


class Search:
    """State of a heuristic search. `run` narrows the bounds and can be called again."""

    def __init__(
        self,
        problem: PlanningProblem,
        deadline: Deadline,
        progress: BoundsProgress | None = None,
        *,
        known: PointClaims | None = None,
        trials: bool = True,
    ) -> None:
        """Start with the `known` belief points, by default those of edges, which are then solved."""
        self.problem = problem
        self._progress = progress
        self._stuck = False
        self._trials_at = FIRST_TRIALS if trials else NEVER
        self._known_depth = 0
        self._pace = INITIAL_PACE
        self._beliefs = np.empty((0, problem.instance.n_types))
        n_types, n_categories = problem.instance.n_types, len(problem.categories)
        self.model = kernels.SearchModel(problem.reward, problem.click_stay, problem.stay, problem.depart)
        self.edges: list[Edge] = []
        if known is None and n_types <= MAX_EDGE_TYPES:
            self.edges = _solve_edges(problem, deadline)
        self.known = _edge_points(problem, self.edges) if known is None else known
        self.counters = np.zeros(at.N_COUNTERS, np.int64)
        n, n_points, n_vectors = 1024, n_types + len(self.known.value) + 512, n_categories + 1024
        lengths = {"N": n, "E": n // 2, "P": n_points, "A": n_vectors, "M": n_types, "K": n_categories, "2": 2}
        self.nodes = allocate(kernels.Nodes, lengths, paths=np.zeros(n))
        self.points = allocate(BeliefPoints, lengths)
        self.vectors = allocate(AlphaVectors, lengths, zeros=np.zeros(n_vectors))
        lengths |= {"S": n + 2, "L": SHORTLIST, "R": RANGES, "B": POOL, "F": max(n_points, n_vectors, POOL)}
        self._lp = allocate(LPWorkspace, lengths, pool_stamp=np.zeros(n_points, np.int64))
        step_key = key_multipliers(2 * n_categories).reshape(n_categories, 2)
        self._workspace = allocate(kernels.SearchWorkspace, lengths, table=key_table(n), step_key=step_key)
        self._add_known_points()
        self._add_root()

    def _add_known_points(self) -> None:
        problem, points, known = self.problem, self.points, self.known
        n_types = problem.instance.n_types
        optimistic = problem.reward + (problem.click_stay + problem.stay) * problem.type_values
        n = n_types + len(known.value)
        corners = PointClaims(np.eye(n_types), problem.type_values, optimistic.T)
        for name in PointClaims._fields:
            getattr(points, name)[:n_types] = getattr(corners, name)
            getattr(points, name)[n_types:n] = getattr(known, name)
        points.node[:n], points.column[:n_types] = -1, -1
        active = n - n_types
        points.column[n_types:n], points.column_point[:active] = np.arange(active), np.arange(n_types, n)
        points.columns[:, :active], points.column_value[:active] = points.belief[n_types:n].T, points.value[n_types:n]
        self.counters[at.POINTS], self.counters[at.POINT_COLUMNS] = n, active
        k = len(problem.categories)
        vectors = self.vectors
        vectors.value[:k], vectors.columns[:, :k] = problem.fixed_values, problem.fixed_values.T
        vectors.category[:k], vectors.column_vector[:k] = range(k), range(k)
        vectors.form[:k], vectors.successor[:k] = ALWAYS, -1
        vectors.replaced_by[:k] = vectors.node[:k] = -1
        self.counters[at.VECTORS] = self.counters[at.VECTOR_COLUMNS] = k

    def _add_root(self) -> None:
        """Add the root, covered by the corners."""
        nodes, prior = self.nodes, self.problem.prior
        values = self.problem.fixed_values @ prior
        nodes.weights[0], nodes.multiplier[0], nodes.cover[0] = prior, prior, range(len(prior))
        nodes.mass[0], nodes.n_cover[0], nodes.uncovered_value[0] = 1.0, len(prior), 0.0
        nodes.upper[0], nodes.lower[0] = prior @ self.problem.type_values, values.max()
        nodes.vector[0], nodes.vector_column[0] = values.argmax(), -1
        nodes.depth[0], nodes.key[0], nodes.expanded[0] = 0, 0, -1
        self.counters[at.NODES] = 1
        insert_keys(self._workspace.table, nodes.key, 1)

    def _call_kernel(
        self,
        task: int,
        gap: float = 0.0,
        max_expanded: int = 0,
        rows: Integers = NO_POINTS,
        gains: Floats = NO_GAINS,
    ) -> int:
        """Have the kernel do one of its tasks."""
        arrays = (self.model, self.nodes, self.points, self.vectors, self._workspace, self._lp, self.counters)
        tolerance = COVER_TOLERANCE * self.upper
        return int(kernels.search(task, *arrays, gap, max_expanded, tolerance, rows, gains))

    @property
    def tolerance(self) -> float:
        """Bound on the rounding error of either bound."""
        return self.problem.tolerance(self.depth)

    @property
    def depth(self) -> int:
        """Depth of the deepest node, also on faces."""
        return max(int(self.counters[at.DEPTH]), self._known_depth)

    @property
    def lower(self) -> float:
        """Lower bound of the root, without allowance for rounding."""
        return float(self.nodes.lower[0])

    @property
    def upper(self) -> float:
        """Upper bound of the root, without allowance for rounding."""
        return float(self.nodes.upper[0])

    @property
    def n_expanded(self) -> int:
        """Number of expanded nodes."""
        return int(self.counters[at.EXPANDED])

    def run(self, gap: float, deadline: Deadline, max_expanded: int | None = None) -> None:
        """Search until the gap is reached, or until the time, the nodes, the memory or the digits are used up."""
        self._stuck = False
        while not deadline.expired:
            wanted = max(gap - 2 * self.tolerance, self.tolerance)
            if self.upper - self.lower <= wanted:
                return
            if max_expanded is not None and self.n_expanded >= max_expanded:
                self._stuck = True
                return
            before = (self.n_expanded, self.upper, self.lower)
            most = max(self._trials_at - self.n_expanded, 1)
            if deadline.seconds < np.inf:  # without a time limit the clock decides nothing
                most = max(min(int(POLL_SECONDS / self._pace), most), 1)
            if max_expanded is not None:
                most = min(most, max_expanded - self.n_expanded)
            started = deadline.elapsed
            self._call_kernel(kernels.SEARCH, wanted, most)
            self._pace = max((deadline.elapsed - started) / max(self.n_expanded - before[0], 1), 1e-6)
            late = self._trials_at == FIRST_TRIALS and deadline.elapsed > FIRST_TRIALS_TIME * deadline.seconds
            if (late or self.n_expanded >= self._trials_at) and not self.counters[at.FULL]:
                growth = GROWTH_IF_USEFUL if self.run_trials(deadline) else GROWTH_IF_USELESS
                self._trials_at = int(self.n_expanded * growth) + 1
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            if self.counters[at.FULL]:
                if nbytes(self.nodes, self.points, self.vectors, self._lp, self._workspace) > MAX_BYTES / 2:
                    self._stuck = True
                    return
                self._grow()
            elif before == (self.n_expanded, self.upper, self.lower):
                self._stuck = True
                return

    def run_trials(self, deadline: Deadline) -> bool:
        """Raise the lower bound by trials while each batch closes a fraction of the gap; return True if one did."""
        useful, counters = False, self.counters.copy()
        root, prior = self._trial_root()
        mass = self.nodes.mass[root]
        shape, first_new = self.vectors.columns.shape, int(counters[at.VECTORS])
        pool = self.vectors._replace(columns=np.empty(shape), column_vector=np.empty(shape[1], np.int32))
        columns = self.vectors.column_vector[: counters[at.VECTOR_COLUMNS]]
        counters[at.VECTOR_COLUMNS] = size = self._fill_columns(pool, columns)
        beliefs = np.empty((TRIAL_STEPS, len(prior)))
        arrays = (self.model, pool, self._workspace, self._lp, counters, prior, beliefs)
        with deadline.paused():  # compilation, if these are the first trials: most plans do without
            run_trials(*arrays, 0.0, 0)
        while not deadline.expired and not counters[at.FULL]:
            lower = float(self.nodes.lower[root] / mass)
            gap, before = float(self.nodes.upper[root] / mass) - lower, lower
            for _ in range(TRIALS):
                drawn = counters[at.TRIALS]
                vector = run_trials(*arrays, TRIAL_GAIN * gap, 1)
                self._remember(beliefs[: counters[at.TRIALS] - drawn])
                if deadline.expired or counters[at.FULL]:
                    break
                if counters[at.VECTOR_COLUMNS] > POOL_GROWTH * size + POOL_ROOM:
                    columns = pool.column_vector[: counters[at.VECTOR_COLUMNS]]
                    counters[at.VECTOR_COLUMNS] = size = self._fill_columns(pool, columns)
            value = float(self.vectors.value[vector] @ prior)
            if value > before:
                self.nodes.vector[root], self.nodes.lower[root] = vector, value * mass
            if value - before <= USEFUL_TRIALS * gap:
                break
            useful = True
        size = self._fill_columns(pool, pool.column_vector[: counters[at.VECTOR_COLUMNS]])
        new = pool.column_vector[:size][pool.column_vector[:size] >= first_new]
        start = int(self.counters[at.VECTOR_COLUMNS])
        added = slice(start, start + len(new))
        self.vectors.columns[:, added], self.vectors.column_vector[added] = self.vectors.value[new].T, new
        self.counters[at.VECTOR_COLUMNS] = added.stop
        for each in (at.VECTORS, at.TRIALS, at.FULL):
            self.counters[each] = counters[each]
        return useful

    def _trial_root(self) -> tuple[int, Floats]:
        """Node and prior that trials start from."""
        return 0, self.problem.prior

    def _remember(self, beliefs: Floats) -> None:
        """Add beliefs of a trial, and drop every second one when there are too many."""
        self._beliefs = np.concatenate([self._beliefs, beliefs])
        if len(self._beliefs) > MAX_BELIEFS:
            self._beliefs = self._beliefs[::2]

    def _fill_columns(self, pool: AlphaVectors, candidates: Integers) -> int:
        """Let scans of `pool` read the candidates, or after a restart the best of them; return their number."""
        if self.counters[at.RESTARTED] and len(self._beliefs):
            columns = np.ascontiguousarray(self.vectors.value[candidates].T)
            rows = range(0, len(self._beliefs), COMPARED_BELIEFS)
            best = [(self._beliefs[i : i + COMPARED_BELIEFS] @ columns).argmax(axis=1) for i in rows]
            fixed = np.arange(len(self.problem.categories))
            candidates = np.unique(np.concatenate([fixed, self.nodes.vector[:1], candidates[np.concatenate(best)]]))
        n = len(candidates)
        pool.columns[:, :n], pool.column_vector[:n] = self.vectors.value[candidates].T, candidates
        return n

    def can_continue(self, gap: float) -> bool:
        """True if a run for half this gap can still make progress."""
        return not self._stuck and gap / 2 > 2 * self.tolerance

    def controller(self, gap: float, min_value: float, deadline: Deadline) -> Controller:
        """A controller of value at least `min_value` or that of the root's lower bound, if that is less.

        A vector may have successors that have been replaced since. With the replacements, where they are as good for
        the arriving users, there are far fewer states, of about the same value or more. Pruning then gives up a small
        fraction of `gap`. When the time is up, the controller is returned as it is.
        """
        root = self._extract_vectors()
        instance, prior = self.problem.instance, self.problem.prior
        own, latest = self._controllers(root)
        compact = latest.reachable()
        compact = compact.solve(instance, deadline)
        if not compact.solved or compact.value(prior) < min(min_value, self.lower):
            # The values of vectors with their own successors are known: only their roundings are left to one sweep.
            full = own.reachable().solve(instance, deadline)
            lost = min(PRUNING_LOSSES[0] * gap, UNREACHED_VALUE * self.lower)
            if not compact.solved or full.value(prior) > compact.value(prior) + lost:
                return full
        for loss in PRUNING_LOSSES:
            if deadline.expired:
                break
            pruned = compact.pruned(instance, loss * gap, deadline)
            if pruned.solved and pruned.value(prior) >= min_value:
                return pruned
        return compact

    def _controllers(self, root: int) -> tuple[Controller, Controller]:
        """All vectors with their own successors, and with the latest ones."""
        n, vectors = int(self.counters[at.VECTORS]), self.vectors
        own, form = np.arange(n), vectors.form[:n]
        successor = np.where(vectors.successor[:n] < 0, own[:, None], vectors.successor[:n])
        latest_successor = self._latest_successors(successor)
        for o, repeating in enumerate((REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY)):
            repeats = (form == ALWAYS) | (form == repeating)
            successor[repeats, o] = latest_successor[repeats, o] = own[repeats]
        categories = self.problem.categories[vectors.category[:n]]
        first, second = (
            Controller(vectors.value[:n], categories, each, root) for each in (successor, latest_successor)
        )
        return first, second

    def _extract_vectors(self) -> int:
        """Back up vectors until one attains the root's lower bound; return it."""
        counters = self.counters
        if counters[at.VECTORS] + counters[at.NODES] > len(self.vectors.category):
            self.vectors = grown(self.vectors, A=2 * int(counters[at.VECTORS] + counters[at.NODES]))
            self._resize_lp()
        return self._call_kernel(kernels.EXTRACT_VECTORS)

    def _latest_successors(self, successor: Integers) -> Integers:
        """`successor[n, 2]` with each vector's latest replacement where that is as good for the arriving users."""
        vectors, n = self.vectors, len(successor)
        latest = np.where(vectors.replaced_by[:n] < 0, np.arange(n), vectors.replaced_by[:n])
        while (latest[latest] != latest).any():
            latest = latest[latest]
        weights = self.nodes.weights[np.maximum(vectors.node[:n], 0)]
        latest_successor = successor.copy()
        for o, transition in enumerate((self.model.click_stay, self.model.stay)):
            arriving = weights * transition[vectors.category[:n]]
            new = latest[successor[:, o]]
            gained = ((vectors.value[new] - vectors.value[successor[:, o]]) * arriving).sum(axis=1)
            rounding = 1e-12 * (vectors.value[new] * arriving).sum(axis=1)
            as_good = (gained >= -rounding) & (vectors.node[:n] >= 0)
            latest_successor[as_good, o] = new[as_good]
        return latest_successor

    def _resize_lp(self) -> None:
        """Adapt the workspace to the numbers of points and vectors."""
        n_points = len(self.points.value)
        self._lp = grown(self._lp, P=n_points, F=max(n_points, len(self.vectors.category), POOL))

    def _grow(self) -> None:
        """Double the arrays that are more than half full."""
        counters, nodes, points, vectors = self.counters, self.nodes, self.points, self.vectors
        if counters[at.NODES] * 2 > len(nodes.mass):
            n = 2 * len(nodes.mass)
            self._workspace = grown(self._workspace, N=n, S=n + 2)._replace(table=key_table(n))
            self.nodes = nodes = grown(nodes, N=n)
            insert_keys(self._workspace.table, nodes.key, counters[at.NODES])
        if counters[at.EXPANDED] * 2 > len(nodes.point):
            self.nodes = grown(nodes, E=2 * len(nodes.point))
        if counters[at.POINTS] * 2 > len(points.value):
            self.points = grown(points, P=2 * len(points.value))
        if counters[at.VECTORS] * 2 > len(vectors.category):
            self.vectors = grown(vectors, A=2 * len(vectors.category))
        self._resize_lp()
        counters[at.FULL] = 0

    def root_cover(self) -> float:
        """Upper bound of the root from the known points, before the search is run."""
        n = int(self.counters[at.POINTS])
        self.points.belief[n], self.points.value[n] = self.problem.prior, 0.0
        return float(self._cover_gains(np.array([n]), np.inf)[0])

    def useful_points(self, min_gain: float) -> Integers:
        """The active points of nodes that are at least `min_gain` below the cover by known points and each other."""
        points, first, n_types = self.points, len(self.known.value), self.problem.instance.n_types
        rows = points.column_point[first : int(self.counters[at.POINT_COLUMNS])].astype(np.int64)
        self.counters[at.POINT_COLUMNS] = first
        points.column[n_types + first :] = -1
        gains = self._cover_gains(rows, np.inf)
        rows = rows[np.argsort(-gains, kind="stable")][: int((gains > min_gain).sum())]
        return rows[self._cover_gains(rows, min_gain) > min_gain]

    def _cover_gains(self, rows: Integers, min_gain: float) -> Floats:
        """Covers of these points in turn, minus their values; where it exceeds `min_gain`, a point becomes active."""
        gains = np.empty(len(rows))
        self._call_kernel(kernels.COVER_POINTS, min_gain, rows=rows, gains=gains)
        return gains

    def restarted(self, known: PointClaims, depth: int) -> "Search":
        """A search with these known points, from faces of this depth, and the best of the vectors found so far."""
        self._extract_vectors()
        other = Search(self.problem, Deadline(np.inf), self._progress, known=known)
        other.edges, other._known_depth, other.vectors = self.edges, depth, self.vectors
        other._beliefs, other.nodes.vector[0] = self._beliefs, self.nodes.vector[0]
        for each in (at.VECTORS, at.TRIALS):
            other.counters[each] = self.counters[each]
        other.vectors.node[:], other.counters[at.RESTARTED] = -1, 1
        columns = self.vectors.column_vector[: self.counters[at.VECTOR_COLUMNS]]
        other.counters[at.VECTOR_COLUMNS] = other._fill_columns(other.vectors, columns)
        other._resize_lp()
        vector = int((self.vectors.value[: self.counters[at.VECTORS]] @ self.problem.prior).argmax())
        other.nodes.vector[0], other.nodes.lower[0] = vector, self.vectors.value[vector] @ self.problem.prior
        other.run(0.0, Deadline(np.inf), 1)  # the root is covered by the known points
        return other

    def claims(self) -> tuple[NodeClaims, PointClaims]:
        """The claims about nodes and points, without the arrays that only the search needs."""
        n_rows = {"N": self.counters[at.NODES], "E": self.counters[at.EXPANDED], "P": self.counters[at.POINTS]}

        def used(kind: Any, group: Any) -> Any:
            """The fields of `kind`, without unused rows."""
            axes = {name: axes for name, (_, axes) in layout(group.__class__).items()}
            return kind(*(getattr(group, name)[: n_rows[axes[name][0]]].copy() for name in kind._fields))

        return used(NodeClaims, self.nodes), used(PointClaims, self.points)

    def certificate(self, controller: Controller, faces: Sequence[FaceClaims] = ()) -> SearchCertificate:
        """The claims that justify the bounds."""
        return SearchCertificate(self.problem, *self.claims(), self.edges, list(faces), self.depth, controller)


def _edge_points(problem: PlanningProblem, edges: Sequence[Edge]) -> PointClaims:
    """The points kept of all edges."""
    grid, n = edge_grid(), sum(int(edge.keep.sum()) for edge in edges)
    belief, start = np.zeros((n, problem.instance.n_types)), 0
    for edge in edges:
        rows = slice(start, start + int(edge.keep.sum()))
        belief[rows, edge.x], belief[rows, edge.y] = grid[edge.keep], 1 - grid[edge.keep]
        start = rows.stop
    value = np.concatenate([np.zeros(0), *(edge.value[edge.keep] for edge in edges)])
    q_upper = [np.zeros((0, len(problem.categories))), *(edge.q_upper[edge.keep] for edge in edges)]
    return PointClaims(belief, value, np.concatenate(q_upper))


def _solve_edges(problem: PlanningProblem, deadline: Deadline) -> list[Edge]:
    """Upper bounds on the edges of the belief simplex, the most likely pairs of types first."""
    grid, edges = edge_grid(), []
    workspace = allocate(EdgeWorkspace, {"G": len(grid), "S": len(grid) + 1, "K": len(problem.categories), "2": 2})
    probabilities = (problem.reward, problem.click_stay, problem.stay, problem.type_values)
    likely = [x for x in np.argsort(-problem.prior, kind="stable").tolist() if problem.prior[x] > 0]
    for x, y in (sorted((x, y)) for j, y in enumerate(likely) for x in likely[:j]):
        value, q_upper = np.empty(len(grid)), np.empty((len(grid), len(problem.categories)))
        keep = np.empty(len(grid), np.bool_)
        tolerance = EDGE_TOLERANCE * problem.known_type_bound
        solve_edge(*probabilities, x, y, grid, tolerance, workspace, value, q_upper, keep)
        edges.append(Edge(x, y, value, q_upper, keep))
        if deadline.elapsed > EDGE_TIME * deadline.seconds:
            break
    return edges
