"""General planner: heuristic search of the count graph, for any instance."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.evaluation.evaluate import evaluate
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import search as kernels
from departing.kernels.planning.alpha_vectors import ALWAYS, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, AlphaVectors
from departing.kernels.planning.counters import (
    DEPTH,
    EXPANDED,
    FULL,
    N_COUNTERS,
    NODES,
    POINT_COLUMNS,
    POINTS,
    VECTOR_COLUMNS,
    VECTORS,
)
from departing.kernels.planning.trial_backups import run_trials
from departing.kernels.planning.upper_bound import RANGES, SHORTLIST, BeliefPoints, LPWorkspace, solve_edge
from departing.model.counts import Integers
from departing.planning.certificate import Edge, NodeClaims, PointClaims, SearchCertificate, Solution, edge_grid
from departing.planning.controller import Controller
from departing.planning.memory import MAX_BYTES, grown, key_table, nbytes
from departing.planning.problem import BoundsProgress, Deadline, PlanningProblem
from departing.policy.alpha import Alpha
from departing.policy.schedule import Fixed

Array = npt.NDArray[Any]
# None of these constants affects the validity of a bound; they trade the time of one kind of work against another.
EDGE_TOLERANCE = 1e-4  # of the value: error of an edge between the points kept of it; more points slow every cover
MAX_EDGE_TYPES = 32  # there are M (M - 1) / 2 edges, so beyond this they would take longer than the search
EDGE_TIME = 0.5  # fraction of the time limit for edges
POOL = 4096  # candidate points of one cover, far more than the covers of a node's relatives have
# Trials start when the search near the root has a sensible policy: after so many expanded nodes, or a fraction of the
# time limit. The next trials come after a growth of the expanded nodes that depends on whether the last ones paid.
FIRST_TRIALS, FIRST_TRIALS_TIME = 1500, 0.2
GROWTH_IF_USEFUL, GROWTH_IF_USELESS = 1.2, 2.0
TRIALS, TRIAL_STEPS = 20, 200  # per call: enough to average over users, short enough to look at the deadline
USEFUL_TRIALS = 0.01  # fraction of the gap that a call must close for another one
TRIAL_GAIN = 1e-3  # fraction of the gap that a new vector must gain at its belief
PRUNING_LOSSES = (0.1, 0.03, 0.01)  # fractions of the gap to give up for a smaller controller; the first that is met
LOOK = 0.1  # seconds between two looks at the deadline
INITIAL_PACE = 5e-3  # seconds per node until measured: slow, so that the first look comes early
# The search aims at 85 % of the gap, because pruning the controller loses up to a tenth of it. Where that is not
# enough, it aims lower by TIGHTEN and goes on.
AIM, TIGHTEN = 0.85, 0.7
# If the gap is out of reach, the controller may be pruned to a gap wider by this factor than the one reached.
UNREACHED = 1.05


class Search:
    """State of a heuristic search. `run` narrows the bounds and can be called again."""

    def __init__(self, problem: PlanningProblem, deadline: Deadline, progress: BoundsProgress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        self._stuck = False
        self._trials_at = FIRST_TRIALS
        self._pace = INITIAL_PACE
        n_types, n_categories = problem.instance.n_types, len(problem.categories)
        self.model = kernels.SearchModel(problem.reward, problem.click, problem.stay, problem.depart)
        self.edges = _solve_edges(problem, deadline) if n_types <= MAX_EDGE_TYPES else []
        n_edge_points = sum(int(edge.keep.sum()) for edge in self.edges)
        self.counters = np.zeros(N_COUNTERS, np.int64)
        n = 1024
        self.nodes = _nodes(n, n // 2, n_types, n_categories)
        self.points = _points(n_types + n_edge_points + n // 2, n_types, n_categories)
        self.vectors = _vectors(n_categories + n, n_types)
        self._lp = _lp(n_types, len(self.points.value), len(self.vectors.category))
        self._workspace = _workspace(n, n_types, key_multipliers(2 * n_categories).reshape(n_categories, 2))
        self._add_corners_and_edges()
        self._add_root()

    def _add_corners_and_edges(self) -> None:
        problem, grid = self.problem, edge_grid()
        n_types = problem.instance.n_types
        points = self.points
        optimistic = problem.reward + (problem.click + problem.stay) * problem.type_values
        n = n_types
        points.belief[:n], points.value[:n], points.q_upper[:n] = np.eye(n_types), problem.type_values, optimistic.T
        for edge in self.edges:
            rows, keep = slice(n, n + int(edge.keep.sum())), edge.keep
            points.belief[rows] = 0.0
            points.belief[rows, edge.x], points.belief[rows, edge.y] = grid[keep], 1 - grid[keep]
            points.value[rows], points.q_upper[rows] = edge.value[keep], edge.q_upper[keep]
            n = rows.stop
        points.node[:n], points.column[:n_types] = -1, -1
        active = n - n_types
        points.column[n_types:n], points.column_point[:active] = np.arange(active), np.arange(n_types, n)
        points.columns[:, :active], points.column_value[:active] = points.belief[n_types:n].T, points.value[n_types:n]
        self.counters[POINTS], self.counters[POINT_COLUMNS] = n, active
        k = len(problem.categories)
        vectors = self.vectors
        vectors.value[:k], vectors.columns[:, :k] = problem.fixed_values, problem.fixed_values.T
        vectors.category[:k], vectors.column_vector[:k] = range(k), range(k)
        vectors.form[:k], vectors.successor[:k] = ALWAYS, -1
        self.counters[VECTORS] = self.counters[VECTOR_COLUMNS] = k

    def _add_root(self) -> None:
        """Add the root, covered by the corners."""
        nodes, prior = self.nodes, self.problem.prior
        values = self.problem.fixed_values @ prior
        nodes.weights[0], nodes.multiplier[0], nodes.cover[0] = prior, prior, range(len(prior))
        nodes.mass[0], nodes.n_cover[0], nodes.slack[0] = 1.0, len(prior), 0.0
        nodes.upper[0], nodes.lower[0] = prior @ self.problem.type_values, values.max()
        nodes.vector[0], nodes.vector_column[0] = values.argmax(), -1
        nodes.depth[0], nodes.key[0], nodes.expanded[0] = 0, 0, -1
        self.counters[NODES] = 1
        insert_keys(self._workspace.table, nodes.key, 1)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        """The first arguments of the kernels."""
        return self.model, self.nodes, self.points, self.vectors, self._workspace, self._lp, self.counters

    @property
    def tolerance(self) -> float:
        """Bound on the rounding error of either bound."""
        return self.problem.tolerance(int(self.counters[DEPTH]))

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
        return int(self.counters[EXPANDED])

    def run(self, gap: float, deadline: Deadline, max_expanded: int | None = None) -> None:
        """Search until the gap is reached, or until the time, the nodes, the memory or the digits are used up."""
        while not deadline.expired:
            wanted = max(gap - 2 * self.tolerance, self.tolerance)
            if self.upper - self.lower <= wanted:
                return
            if max_expanded is not None and self.n_expanded >= max_expanded:
                self._stuck = True
                return
            before = (self.n_expanded, self.upper, self.lower)
            most = max(min(int(LOOK / self._pace), self._trials_at - self.n_expanded), 1)
            if max_expanded is not None:
                most = min(most, max_expanded - self.n_expanded)
            started = deadline.elapsed
            kernels.search_rounds(*self._arrays, wanted, most)
            self._pace = max((deadline.elapsed - started) / max(self.n_expanded - before[0], 1), 1e-6)
            late = self._trials_at == FIRST_TRIALS and deadline.elapsed > FIRST_TRIALS_TIME * deadline.seconds
            if (late or self.n_expanded >= self._trials_at) and not self.counters[FULL]:
                growth = GROWTH_IF_USEFUL if self.run_trials(deadline) else GROWTH_IF_USELESS
                self._trials_at = int(self.n_expanded * growth) + 1
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            if self.counters[FULL]:
                if nbytes(self.nodes, self.points, self.vectors, self._lp, self._workspace) > MAX_BYTES / 2:
                    self._stuck = True
                    return
                self._grow()
            elif before == (self.n_expanded, self.upper, self.lower):
                self._stuck = True
                return

    def run_trials(self, deadline: Deadline) -> bool:
        """Raise the lower bound by trials while each call closes a fraction of the gap; return True if one did."""
        useful = False
        prior = self.problem.prior
        beliefs = np.empty((TRIAL_STEPS, len(prior)))
        while not deadline.expired and not self.counters[FULL]:
            gap = self.upper - self.lower
            vector = run_trials(*self._arrays, beliefs, TRIAL_GAIN * gap, TRIALS)
            value = float(self.vectors.value[vector] @ prior)
            gained = value - self.lower
            if gained > 0:
                self.nodes.vector[0], self.nodes.lower[0] = vector, value
            if gained < USEFUL_TRIALS * gap:
                break
            useful = True
        return useful

    def can_continue(self, gap: float) -> bool:
        """True if a run for half this gap can still make progress."""
        return not self._stuck and gap / 2 > 2 * self.tolerance

    def controller(self, gap: float) -> Controller:
        """A controller with the value of the root's lower bound, as small as `gap` allows.

        A vector may have successors that have been replaced since. With the replacements, where they are as good for
        the arriving users, there are far fewer states, of about the same value or more.
        """
        counters = self.counters
        if counters[VECTORS] + counters[NODES] > len(self.vectors.category):
            self.vectors = grown(self.vectors, 2 * int(counters[VECTORS] + counters[NODES]))
            self._lp = self._new_lp()
        root = int(kernels.extract_vectors(*self._arrays))
        n, vectors, problem = int(counters[VECTORS]), self.vectors, self.problem
        own, form = np.arange(n), vectors.form[:n]
        successor = np.where(vectors.successor[:n] < 0, own[:, None], vectors.successor[:n])
        renewed = self._renewed(successor)
        for o, repeating in enumerate((REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY)):
            repeats = (form == ALWAYS) | (form == repeating)
            successor[repeats, o] = renewed[repeats, o] = own[repeats]
        categories, instance, prior = problem.categories[vectors.category[:n]], problem.instance, problem.prior
        short = Controller(vectors.value[:n], categories, renewed, root).reachable().solve(instance)
        least = self.upper + 2 * self.tolerance - gap
        if not short.solved or short.value(prior) < min(least, self.lower):
            long = Controller(vectors.value[:n], categories, successor, root).reachable().solve(instance)
            if not short.solved or long.value(prior) > short.value(prior) + PRUNING_LOSSES[0] * gap:
                return long
        for loss in PRUNING_LOSSES:
            shorter = short.pruned(instance, loss * gap)
            if shorter.solved and shorter.value(prior) >= least:
                return shorter
        return short

    def _renewed(self, successor: Integers) -> Integers:
        """`successor[n, 2]` with each vector's latest replacement where that is as good for the arriving users."""
        vectors, n = self.vectors, len(successor)
        latest = np.where(vectors.replaced_by[:n] < 0, np.arange(n), vectors.replaced_by[:n])
        while (latest[latest] != latest).any():
            latest = latest[latest]
        weights = self.nodes.weights[np.maximum(vectors.node[:n], 0)]
        renewed = successor.copy()
        for o, transition in enumerate((self.model.click, self.model.stay)):
            arriving = weights * transition[vectors.category[:n]]
            new = latest[successor[:, o]]
            gained = ((vectors.value[new] - vectors.value[successor[:, o]]) * arriving).sum(axis=1)
            rounding = 1e-12 * (vectors.value[new] * arriving).sum(axis=1)
            as_good = (gained >= -rounding) & (vectors.node[:n] >= 0)
            renewed[as_good, o] = new[as_good]
        return renewed

    def _new_lp(self) -> LPWorkspace:
        n_types = self.problem.instance.n_types
        lp = _lp(n_types, len(self.points.value), len(self.vectors.category))
        lp.pool_stamp[: len(self._lp.pool_stamp)] = self._lp.pool_stamp
        return lp

    def _grow(self) -> None:
        """Double the arrays that are more than half full."""
        counters, nodes, points, vectors = self.counters, self.nodes, self.points, self.vectors
        if counters[NODES] * 2 > len(nodes.mass):
            n, old = 2 * len(nodes.mass), self._workspace
            self._workspace = _workspace(n, len(old.belief), old.step_key)
            self.nodes = nodes = grown(nodes, n, skip=_BY_EXPANDED)
            insert_keys(self._workspace.table, nodes.key, counters[NODES])
        if counters[EXPANDED] * 2 > len(nodes.point):
            self.nodes = grown(nodes, 2 * len(nodes.point), only=_BY_EXPANDED)
        if counters[POINTS] * 2 > len(points.value):
            self.points = grown(points, 2 * len(points.value))
        if counters[VECTORS] * 2 > len(vectors.category):
            self.vectors = grown(vectors, 2 * len(vectors.category))
        self._lp = self._new_lp()
        counters[FULL] = 0

    def certificate(self, controller: Controller) -> SearchCertificate:
        """The claims that justify the bounds, without the arrays that only the search needs."""
        n_nodes, n_points, n_expanded = (int(self.counters[i]) for i in (NODES, POINTS, EXPANDED))
        rows = {name: n_expanded if name in _BY_EXPANDED else n_nodes for name in NodeClaims._fields}
        nodes = NodeClaims(**{name: getattr(self.nodes, name)[:n].copy() for name, n in rows.items()})
        points = PointClaims(**{name: getattr(self.points, name)[:n_points].copy() for name in PointClaims._fields})
        return SearchCertificate(self.problem, nodes, points, self.edges, int(self.counters[DEPTH]), controller)


_BY_EXPANDED = {"child", "reward", "q_upper", "backed_up", "point"}


@cache
def _fields(names: str) -> list[list[str]]:
    return [field.split(" ") for field in names.split(", ")]


def _allocate(letters: dict[str, int], **names: str) -> dict[str, Any]:
    """Uninitialised arrays by data type, given as "name shape" with a letter for each axis."""
    return {
        name: np.empty([letters[axis] for axis in shape], dtype)
        for dtype, fields in names.items()
        for name, shape in _fields(fields)
    }


def _nodes(n: int, expanded: int, n_types: int, n_categories: int) -> kernels.Nodes:
    letters = {"N": n, "E": expanded, "M": n_types, "K": n_categories, "2": 2}
    floats = "weights NM, mass N, upper N, lower N, multiplier NM, slack N, paths N, reward EK, q_upper EK"
    ints = "depth N, expanded N, vector N, vector_column N, n_cover N, cover NM, child EK2, point E"
    nodes = kernels.Nodes(**_allocate(letters, float64=floats, int32=ints, uint64="key N", int64="backed_up EK"))
    nodes.paths[:] = 0
    return nodes


def _points(n: int, n_types: int, n_categories: int) -> BeliefPoints:
    letters = {"P": n, "M": n_types, "K": n_categories}
    floats = "belief PM, value P, q_upper PK, columns MP, column_value P"
    return BeliefPoints(**_allocate(letters, float64=floats, int32="node P, column P, column_point P"))


def _vectors(n: int, n_types: int) -> AlphaVectors:
    letters = {"A": n, "M": n_types, "2": 2}
    ints = "category A, successor A2, replaced_by A, node A, column_vector A"
    arrays = _allocate(letters, float64="value AM, columns MA, zeros A", int32=ints, int8="form A")
    vectors = AlphaVectors(**arrays)
    vectors.replaced_by[:], vectors.node[:], vectors.zeros[:] = -1, -1, 0
    return vectors


def _workspace(n: int, n_types: int, step_key: Array) -> kernels.SearchWorkspace:
    letters = {"N": n, "S": n + 2, "M": n_types}
    arrays = _allocate(
        letters, float64="heap_key N, weights M, belief M", int32="reached N, heap_node N", int64="starts S"
    )
    return kernels.SearchWorkspace(table=key_table(n), step_key=step_key, **arrays)


def _lp(n_types: int, n_points: int, n_vectors: int) -> LPWorkspace:
    buffer = max(n_points, n_vectors, POOL)
    letters = {"M": n_types, "P": n_points, "F": buffer, "R": RANGES, "S": SHORTLIST, "B": POOL}
    floats = "inverse MM, price M, level M, direction M, cost M, multiplier M, row M, buffer F, found_cost R"
    ints = "basis M, support M, chosen M, found_column R, shortlist S, pool B, pool_stamp P"
    arrays = _allocate(letters, float64=f"{floats}, pool_columns MB, pool_values B", int64=ints)
    lp = LPWorkspace(**arrays)
    lp.pool_stamp[:] = 0
    return lp


def _solve_edges(problem: PlanningProblem, deadline: Deadline) -> list[Edge]:
    """Upper bounds on the edges of the belief simplex, the most likely pairs of types first."""
    grid, edges = edge_grid(), []
    probabilities = (problem.reward, problem.click, problem.stay, problem.type_values)
    likely = [x for x in np.argsort(-problem.prior, kind="stable").tolist() if problem.prior[x] > 0]
    for x, y in (sorted((x, y)) for j, y in enumerate(likely) for x in likely[:j]):
        value, q_upper = np.empty(len(grid)), np.empty((len(grid), len(problem.categories)))
        keep = np.empty(len(grid), np.bool_)
        solve_edge(*probabilities, x, y, grid, EDGE_TOLERANCE * problem.known_type_bound, value, q_upper, keep)
        edges.append(Edge(x, y, value, q_upper, keep))
        if deadline.elapsed > EDGE_TIME * deadline.seconds:
            break
    return edges


def solve_search(
    problem: PlanningProblem,
    gap: float,
    deadline: Deadline,
    progress: BoundsProgress | None = None,
    max_expanded: int | None = None,
) -> Solution:
    """Plan by `Search`."""
    search = Search(problem, deadline, progress)
    aim = AIM * gap
    while True:
        search.run(aim, deadline, max_expanded)
        done = deadline.expired or not search.can_continue(aim)
        reached = max(gap, UNREACHED * (search.upper - search.lower)) if done else gap
        controller = search.controller(reached)
        lower = max(controller.value(problem.prior) - search.tolerance, 0.0)
        upper = min(search.upper + search.tolerance, problem.known_type_bound)
        if upper - lower <= gap or done:
            break
        aim *= TIGHTEN
    category, _ = problem.best_fixed
    fixed = evaluate(problem.instance, Fixed(category)).lower
    if fixed >= lower:  # also where the allowance for rounding exceeds the gain of the controller
        vectors = problem.instance.fixed_values[[category]]
        controller, lower = Controller(vectors, np.array([category]), np.zeros((1, 2), np.int64), 0), fixed
    n = len(controller.vectors)
    reason = f"Nodes expanded: {search.n_expanded:,}; alpha vectors: {n:,}."
    rest = (lower, max(upper, lower), reason, search.certificate(controller))
    if n == 1:
        fixed_policy = Fixed(int(controller.categories[0]))
        return Solution(fixed_policy, fixed_policy, *rest)
    return Solution(Alpha(problem.instance, controller.vectors, controller.categories), controller, *rest)
