"""General planner: heuristic search of the count graph, for any instance."""

from typing import Any

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import counters as at
from departing.kernels.planning import search as kernels
from departing.kernels.planning.alpha_vectors import ALWAYS, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, AlphaVectors
from departing.kernels.planning.trial_backups import run_trials
from departing.kernels.planning.upper_bound import RANGES, SHORTLIST, BeliefPoints, LPWorkspace, solve_edge
from departing.model.counts import Integers
from departing.planning.certificate import Edge, NodeClaims, PointClaims, SearchCertificate, edge_grid
from departing.planning.controller import Controller
from departing.planning.memory import MAX_BYTES, allocate, grown, key_table, layout, nbytes
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.policy.alpha import Alpha
from departing.policy.schedule import Fixed

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
TRIALS, TRIAL_STEPS = 20, 200  # in a batch: enough to average over users
USEFUL_TRIALS = 0.01  # fraction of the gap that a batch must close for another one
TRIAL_GAIN = 1e-3  # fraction of the gap that a new vector must gain at its belief
PRUNING_LOSSES = (0.1, 0.03, 0.01)  # fractions of the gap to give up for a smaller controller; the first that is met
POLL_SECONDS = 0.1  # between two deadline checks
INITIAL_PACE = 5e-3  # seconds per node until measured: slow, so that the first deadline check comes early
# The search aims at 85 % of the gap, because pruning the controller loses up to a tenth of it. Where that is not
# enough, it aims lower by TIGHTEN and goes on.
AIM, TIGHTEN = 0.85, 0.7
# If the gap is out of reach, pruning the controller may lose these fractions of the gap reached and of the value.
UNREACHED_GAP, UNREACHED_VALUE = 0.05, 5e-4
SEARCH_TIME = 0.95  # fraction of the time limit after which the search ends, for the controller


class Search:
    """State of a heuristic search. `run` narrows the bounds and can be called again."""

    def __init__(self, problem: PlanningProblem, deadline: Deadline, progress: BoundsProgress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        self._stuck = False
        self._trials_at = FIRST_TRIALS
        self._pace = INITIAL_PACE
        n_types, n_categories = problem.instance.n_types, len(problem.categories)
        self.model = kernels.SearchModel(problem.click, problem.click_stay, problem.stay, problem.depart)
        self.edges = _solve_edges(problem, deadline) if n_types <= MAX_EDGE_TYPES else []
        n_edge_points = sum(int(edge.keep.sum()) for edge in self.edges)
        self.counters = np.zeros(at.N_COUNTERS, np.int64)
        n, n_points, n_vectors = 1024, n_types + n_edge_points + 512, n_categories + 1024
        lengths = {"N": n, "E": n // 2, "P": n_points, "A": n_vectors, "M": n_types, "K": n_categories, "2": 2}
        self.nodes = allocate(kernels.Nodes, lengths, paths=np.zeros(n))
        self.points = allocate(BeliefPoints, lengths)
        self.vectors = allocate(AlphaVectors, lengths, zeros=np.zeros(n_vectors))
        lengths |= {"S": n + 2, "L": SHORTLIST, "R": RANGES, "B": POOL, "F": max(n_points, n_vectors, POOL)}
        self._lp = allocate(LPWorkspace, lengths, pool_stamp=np.zeros(n_points, np.int64))
        step_key = key_multipliers(2 * n_categories).reshape(n_categories, 2)
        self._workspace = allocate(kernels.SearchWorkspace, lengths, table=key_table(n), step_key=step_key)
        self._add_corners_and_edges()
        self._add_root()

    def _add_corners_and_edges(self) -> None:
        problem, grid = self.problem, edge_grid()
        n_types = problem.instance.n_types
        points = self.points
        optimistic = problem.click + (problem.click_stay + problem.stay) * problem.type_values
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

    @property
    def _arrays(self) -> tuple[Any, ...]:
        """The first arguments of the kernels."""
        return self.model, self.nodes, self.points, self.vectors, self._workspace, self._lp, self.counters

    @property
    def tolerance(self) -> float:
        """Bound on the rounding error of either bound."""
        return self.problem.tolerance(int(self.counters[at.DEPTH]))

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
            kernels.search_rounds(*self._arrays, wanted, most)
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
        useful, prior = False, self.problem.prior
        beliefs = np.empty((TRIAL_STEPS, len(prior)))
        arrays = (self.model, self.vectors, self._workspace, self._lp, self.counters, prior, beliefs)
        with deadline.paused():  # compilation, if these are the first trials: most plans do without
            run_trials(*arrays, 0.0, 0)
        while not deadline.expired and not self.counters[at.FULL]:
            gap, before = self.upper - self.lower, self.lower
            for _ in range(TRIALS):
                vector = run_trials(*arrays, TRIAL_GAIN * gap, 1)
                if deadline.expired or self.counters[at.FULL]:
                    break
            value = float(self.vectors.value[vector] @ prior)
            if value > before:
                self.nodes.vector[0], self.nodes.lower[0] = vector, value
            if value - before <= USEFUL_TRIALS * gap:
                break
            useful = True
        return useful

    def can_continue(self, gap: float) -> bool:
        """True if a run for half this gap can still make progress."""
        return not self._stuck and gap / 2 > 2 * self.tolerance

    def controller(self, gap: float, min_value: float, deadline: Deadline) -> Controller:
        """A controller of value at least `min_value` or that of the root's lower bound, if that is less.

        A vector may have successors that have been replaced since. With the replacements, where they are as good for
        the arriving users, there are far fewer states, of about the same value or more. Pruning then gives up a small
        fraction of `gap`. When the time is up, the controller is returned as it is.
        """
        counters = self.counters
        if counters[at.VECTORS] + counters[at.NODES] > len(self.vectors.category):
            self.vectors = grown(self.vectors, A=2 * int(counters[at.VECTORS] + counters[at.NODES]))
            self._resize_lp()
        root = int(kernels.extract_vectors(self.model, self.nodes, self.vectors, self._workspace, counters))
        n, vectors, problem = int(counters[at.VECTORS]), self.vectors, self.problem
        own, form = np.arange(n), vectors.form[:n]
        successor = np.where(vectors.successor[:n] < 0, own[:, None], vectors.successor[:n])
        latest_successor = self._latest_successors(successor)
        for o, repeating in enumerate((REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY)):
            repeats = (form == ALWAYS) | (form == repeating)
            successor[repeats, o] = latest_successor[repeats, o] = own[repeats]
        categories, instance, prior = problem.categories[vectors.category[:n]], problem.instance, problem.prior
        compact = Controller(vectors.value[:n], categories, latest_successor, root).reachable()
        compact = compact.solve(instance, deadline)
        if not compact.solved or compact.value(prior) < min(min_value, self.lower):
            # The values of vectors with their own successors are known: only their roundings are left to one sweep.
            full = Controller(vectors.value[:n], categories, successor, root).reachable().solve(instance, deadline)
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

    def certificate(self, controller: Controller) -> SearchCertificate:
        """The claims that justify the bounds, without the arrays that only the search needs."""
        n_rows = {"N": self.counters[at.NODES], "E": self.counters[at.EXPANDED], "P": self.counters[at.POINTS]}

        def used(kind: Any, group: Any) -> Any:
            """The fields of `kind`, without unused rows."""
            axes = {name: axes for name, (_, axes) in layout(group.__class__).items()}
            return kind(*(getattr(group, name)[: n_rows[axes[name][0]]].copy() for name in kind._fields))

        nodes, points = used(NodeClaims, self.nodes), used(PointClaims, self.points)
        return SearchCertificate(self.problem, nodes, points, self.edges, int(self.counters[at.DEPTH]), controller)


def _solve_edges(problem: PlanningProblem, deadline: Deadline) -> list[Edge]:
    """Upper bounds on the edges of the belief simplex, the most likely pairs of types first."""
    grid, edges = edge_grid(), []
    probabilities = (problem.click, problem.click_stay, problem.stay, problem.type_values)
    likely = [x for x in np.argsort(-problem.prior, kind="stable").tolist() if problem.prior[x] > 0]
    for x, y in (sorted((x, y)) for j, y in enumerate(likely) for x in likely[:j]):
        value, q_upper = np.empty(len(grid)), np.empty((len(grid), len(problem.categories)))
        keep = np.empty(len(grid), np.bool_)
        solve_edge(*probabilities, x, y, grid, EDGE_TOLERANCE * problem.known_type_bound, value, q_upper, keep)
        edges.append(Edge(x, y, value, q_upper, keep))
        if deadline.elapsed > EDGE_TIME * deadline.seconds:
            break
    return edges


def solve_search(problem: PlanningProblem, limits: Limits) -> Solution:
    """Plan by `Search`, until the controller extracted from it is within the gap of the upper bound.

    The search aims at a smaller gap, which pruning the controller may use up. The best fixed policy replaces the
    controller where its certified value is at least as large.
    """
    gap, deadline = limits.gap, limits.deadline
    search_deadline = deadline.part(SEARCH_TIME)
    search = Search(problem, search_deadline, limits.progress)
    aim = AIM * gap
    while True:
        search.run(aim, search_deadline, limits.max_nodes)
        done = search_deadline.expired or not search.can_continue(aim)
        reached, min_value = search.upper - search.lower, search.upper + 2 * search.tolerance - gap
        if done:
            unreached = search.lower - min(UNREACHED_GAP * reached, UNREACHED_VALUE * search.lower)
            min_value = min(min_value, unreached)
        controller = search.controller(max(gap, reached) if done else gap, min_value, deadline)
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
    expanded, kept = format_count(search.n_expanded, "node"), format_count(n, "alpha vector")
    reason = f"Heuristic search expanded {expanded}; the policy has {kept}."
    rest = (lower, max(upper, lower), reason, search.certificate(controller))
    if n == 1:
        fixed_policy = Fixed(int(controller.categories[0]))
        return Solution(fixed_policy, fixed_policy, *rest)
    policy = Alpha(problem.instance, controller.vectors, controller.categories, controller.successor, upper)
    return Solution(policy, controller, *rest)
