"""Search from several priors at once: the segments of an instance share belief points, alpha vectors and edges.

A belief point or an alpha vector holds whatever the prior. The priors are the leaves of a binary tree whose inner
nodes stand for the sum of the values below them, so that one search expands the nodes that matter most to all. The
sum of values at two weights is at least the value at their sum, so bounds that the search derives at inner nodes are
valid; their belief points are never part of a cover.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from departing.formatting import format_count
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import counters as at
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.planning.certificate import NodeClaims, PointClaims, SearchCertificate
from departing.planning.controller import Controller
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.planning.search import PRUNING_LOSSES, Search
from departing.planning.solve_search import AIM, SEARCH_TIME, TIGHTEN, UNREACHED_GAP
from departing.policy.alpha import Alpha

STRICTER = 0.7  # factor on the total gap of the roots that are waiting, from one run of the search to the next


@dataclass(frozen=True, eq=False)
class JointController(Controller):
    """Controller whose users start in one of several states, `starts[R]`, with `priors[R, M]`."""

    starts: Integers = None  # type: ignore[assignment]  # defaults, because the last field of the base has one
    priors: Floats = None  # type: ignore[assignment]

    @property
    def _starts(self) -> Integers:
        return np.unique(self.starts)

    def _renumbered(self, number: Integers) -> Self:
        return replace(self, start=int(number[self.start]), starts=number[self.starts])

    def _entering(self, instance: Instance) -> Floats:
        entering = np.zeros(self.vectors.shape)
        np.add.at(entering, self.starts, self.priors)
        return entering

    def values(self) -> Floats:
        """Values from the priors, `[R]`."""
        return np.asarray((self.vectors[self.starts] * self.priors).sum(axis=1))


class SharedSearch(Search):
    """State of a search from `priors[R, M]`. `run_all` narrows the bounds of all.

    Nodes below `n_inner` are inner nodes of the tree; then follow a node without users and the roots.
    """

    def __init__(
        self, problem: PlanningProblem, priors: Floats, deadline: Deadline, progress: BoundsProgress | None = None
    ) -> None:
        self.priors, self.n_inner = priors, max(len(priors) - 1, 1)
        super().__init__(problem, deadline, progress)
        self._trials_at *= len(priors)  # they pay after so many nodes for one prior

    def _add_root(self) -> None:
        """Add the nodes of the tree; each root is covered by the corners."""
        nodes, points, problem, inner, roots = self.nodes, self.points, self.problem, self.n_inner, self.roots
        n, first = roots.stop, int(self.counters[at.POINTS])
        mass = 2.0 ** -int(np.ceil(np.log2(len(self.priors))))  # of a root: exact, and the sum is at most 1
        nodes.weights[inner], nodes.mass[inner], nodes.upper[inner], nodes.lower[inner] = 0.0, 0.0, 0.0, 0.0
        nodes.n_cover[: roots.start], nodes.vector[: roots.start] = 0, 0
        nodes.uncovered_value[:n], nodes.vector_column[:n], nodes.expanded[inner:n] = 0.0, -1, -1
        nodes.weights[roots] = self.priors * mass
        values = nodes.weights[roots] @ problem.fixed_values.T
        nodes.multiplier[roots], nodes.cover[roots] = self.priors, range(self.priors.shape[1])
        nodes.mass[roots], nodes.n_cover[roots] = mass, self.priors.shape[1]
        nodes.upper[roots], nodes.lower[roots] = nodes.weights[roots] @ problem.type_values, values.max(axis=1)
        nodes.vector[roots] = values.argmax(axis=1)
        nodes.depth[:n] = np.floor(np.log2(np.arange(n) + 1))
        nodes.depth[inner:n] = nodes.depth[inner - 1] + 1
        nodes.key[:n] = key_multipliers(2 * len(problem.categories) + n)[-n:]
        nodes.expanded[:inner], nodes.point[:inner] = range(inner), range(first, first + inner)
        nodes.child[:inner], nodes.reward[:inner], nodes.backed_up[:inner] = -1, 0.0, 0
        own = slice(first, first + inner)
        points.q_upper[own], points.node[own], points.column[own] = np.inf, range(inner), -1
        self.counters[at.NODES], self.counters[at.EXPANDED], self.counters[at.POINTS] = n, inner, own.stop
        self.counters[at.DEPTH] = nodes.depth[n - 1]
        insert_keys(self._workspace.table, nodes.key, n)
        self._build_tree(np.arange(len(self.priors)))

    def _build_tree(self, chosen: Integers) -> None:
        """Let the search start from the `chosen` priors, at least one."""
        nodes, inner = self.nodes, max(len(chosen) - 1, 1)
        first = int(nodes.point[0])
        places = [*range(inner), *(self.roots.start + chosen).tolist(), self.n_inner]
        for i in range(inner - 1, -1, -1):
            below = [places[2 * i + 1], places[2 * i + 2]]
            nodes.child[i, 0] = below
            for name in ("weights", "mass", "upper", "lower"):
                getattr(nodes, name)[i] = getattr(nodes, name)[below].sum(axis=0)
            nodes.vector[i] = nodes.vector[below[0]]
            nodes.q_upper[i], nodes.q_upper[i, 0] = -np.inf, nodes.upper[i]
            self.points.belief[first + i], self.points.value[first + i] = nodes.weights[i] / nodes.mass[i], np.inf

    @property
    def roots(self) -> slice:
        """Nodes of the priors."""
        return slice(self.n_inner + 1, self.n_inner + 1 + len(self.priors))

    @property
    def lowers(self) -> Floats:
        """Lower bounds of the roots, without allowance for rounding."""
        return np.asarray(self.nodes.lower[self.roots] / self.nodes.mass[self.roots])

    @property
    def uppers(self) -> Floats:
        """Upper bounds of the roots, without allowance for rounding."""
        return np.asarray(self.nodes.upper[self.roots] / self.nodes.mass[self.roots])

    def _trial_root(self) -> tuple[int, Floats]:
        """The root with the widest gap."""
        i = int((self.uppers - self.lowers).argmax())
        return self.roots.start + i, self.priors[i]

    def run_all(self, gap: float, deadline: Deadline) -> None:
        """Search until the gap of every root is reached, or until the time, the memory or the digits are used up."""
        mass, total = float(self.nodes.mass[self.roots.start]), np.inf
        while True:
            wanted = max(gap - 2 * self.tolerance, self.tolerance)
            waiting = np.flatnonzero(self.uppers - self.lowers > wanted)
            if not len(waiting) or self._stuck or deadline.expired:
                return
            self._build_tree(waiting)
            total = min(len(waiting) * mass * wanted, STRICTER * min(total, self.upper - self.lower))
            self.run(total, deadline)

    def joint_controller(self, loss: float, deadline: Deadline) -> JointController:
        """A controller that attains about the lower bounds; pruning loses up to a part of `loss`."""
        self._build_tree(np.arange(len(self.priors)))
        start = self._extract_vectors()
        own, latest = self._controllers(start)
        starts, lowers = self.nodes.vector[self.roots].astype(np.int64), self.lowers
        fields = (latest.vectors, latest.categories)
        compact = JointController(*fields, latest.successor, int(starts[0]), True, starts, self.priors)
        compact = compact.reachable().solve(self.problem.instance, deadline)
        allowed = lowers - PRUNING_LOSSES[0] * loss
        if not compact.solved or (compact.values() < allowed).any():
            full = JointController(*fields, own.successor, int(starts[0]), True, starts, self.priors)
            return full.reachable().solve(self.problem.instance, deadline)
        for part in PRUNING_LOSSES:
            if deadline.expired:
                break
            pruned = compact.pruned(self.problem.instance, part * loss, deadline)
            if pruned.solved and (pruned.values() >= allowed).all():
                return pruned
        return compact

    def claims(self) -> tuple[NodeClaims, PointClaims]:
        """The claims about the roots and the nodes below them, numbered without the other nodes of the tree."""
        nodes, points = super().claims()
        inner, roots, first = self.n_inner, self.roots.start, int(self.nodes.point[0])
        points = PointClaims(*(np.delete(array, slice(first, first + inner), axis=0) for array in points))

        def moved(array: Any, start: int, by: int) -> Any:
            return np.where(array >= start, array - by, array)

        below = {name: getattr(nodes, name)[roots:] for name in NodeClaims._fields}
        for name in ("child", "q_upper", "point"):  # of expanded nodes
            below[name] = getattr(nodes, name)[inner:]
        below["cover"], below["expanded"] = moved(below["cover"], first, inner), moved(below["expanded"], 0, inner)
        below["child"], below["point"] = moved(below["child"], 0, roots), moved(below["point"], first, inner)
        return NodeClaims(**below), points


def solve_search_together(problems: Sequence[PlanningProblem], limits: Limits) -> list[Solution]:
    """Plan for problems that differ in the prior only by one `SharedSearch`, with alpha vectors that they share."""
    gap, deadline, aim = limits.gap, limits.deadline, AIM * limits.gap
    search_deadline = deadline.until(SEARCH_TIME * deadline.seconds)
    priors = np.array([problem.prior for problem in problems])
    search = SharedSearch(problems[0], priors, search_deadline, limits.progress)
    while True:
        search.run_all(aim, search_deadline)
        done = search_deadline.expired or not search.can_continue(aim)
        reached = float((search.uppers - search.lowers).max())
        loss = gap if reached <= aim else UNREACHED_GAP * reached
        controller = search.joint_controller(loss, deadline)
        values = (controller.vectors @ priors.T).max(axis=0)
        tolerances = np.array([problem.tolerance(search.depth) for problem in problems])
        lowers, uppers = np.maximum(values - tolerances, 0.0), search.uppers + tolerances
        if done or (uppers - lowers).max() <= gap:
            break
        aim *= TIGHTEN
    nodes, points = search.claims()
    expanded, kept = format_count(search.n_expanded, "node"), format_count(len(controller.vectors), "alpha vector")
    reason = f"Heuristic search from all segments expanded {expanded}; the policy has {kept}."
    solutions = []
    arrays = (controller.vectors, controller.categories, controller.successor)
    first = Alpha(problems[0].instance, *arrays)
    for i, problem in enumerate(problems):
        upper = max(min(float(uppers[i]), problem.known_type_bound), float(lowers[i]))
        own = Controller(*arrays, int((controller.vectors @ problem.prior).argmax()))
        certificate = SearchCertificate(problem, nodes, points, search.edges, [], search.depth, own, i)
        policy = first.with_prior(problem.instance, upper)
        solutions.append(Solution(policy, own, float(lowers[i]), upper, reason, certificate))
    return solutions
