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

STRICTER = 0.7  # factor on the mean gap while the widest gap of a root is above the one wanted


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
    """State of a search from `priors[R, M]`, at least two. `run` narrows the bounds of all."""

    def __init__(
        self, problem: PlanningProblem, priors: Floats, deadline: Deadline, progress: BoundsProgress | None = None
    ) -> None:
        self.priors, self.n_inner = priors, len(priors) - 1
        super().__init__(problem, deadline, progress)

    def _add_root(self) -> None:
        """Add the inner nodes, then the roots, each covered by the corners."""
        nodes, points, problem, inner = self.nodes, self.points, self.problem, self.n_inner
        n = inner + len(self.priors)
        mass = 2.0 ** -int(np.ceil(np.log2(len(self.priors))))  # of a root: exact, and the sum is at most 1
        roots = slice(inner, n)
        nodes.weights[roots] = self.priors * mass
        values = nodes.weights[roots] @ problem.fixed_values.T
        nodes.multiplier[roots], nodes.cover[roots] = self.priors, range(self.priors.shape[1])
        nodes.mass[roots], nodes.n_cover[roots], nodes.uncovered_value[:n] = mass, self.priors.shape[1], 0.0
        nodes.upper[roots], nodes.lower[roots] = nodes.weights[roots] @ problem.type_values, values.max(axis=1)
        nodes.vector[roots], nodes.vector_column[:n] = values.argmax(axis=1), -1
        nodes.expanded[roots], nodes.n_cover[:inner], nodes.vector[:inner] = -1, 0, 0
        nodes.depth[:n] = np.floor(np.log2(np.arange(n) + 1))
        nodes.key[:n] = key_multipliers(2 * len(problem.categories) + n)[-n:]
        for i in range(inner - 1, -1, -1):
            below = [2 * i + 1, 2 * i + 2]
            for name in ("weights", "mass", "upper", "lower"):
                getattr(nodes, name)[i] = getattr(nodes, name)[below].sum(axis=0)
        first, e = int(self.counters[at.POINTS]), np.arange(inner)
        nodes.expanded[:inner], nodes.point[:inner] = e, first + e
        nodes.child[:inner], nodes.reward[:inner], nodes.backed_up[:inner] = -1, 0.0, 0
        nodes.child[:inner, 0] = np.stack([2 * e + 1, 2 * e + 2], axis=1)
        nodes.q_upper[:inner], nodes.q_upper[:inner, 0] = -np.inf, nodes.upper[:inner]
        own = slice(first, first + inner)
        points.belief[own] = nodes.weights[:inner] / nodes.mass[:inner, None]
        points.value[own], points.q_upper[own] = np.inf, np.inf
        points.node[own], points.column[own] = e, -1
        self.counters[at.NODES], self.counters[at.EXPANDED], self.counters[at.POINTS] = n, inner, first + inner
        self.counters[at.DEPTH] = nodes.depth[n - 1]
        insert_keys(self._workspace.table, nodes.key, n)

    @property
    def roots(self) -> slice:
        """Nodes of the priors."""
        return slice(self.n_inner, self.n_inner + len(self.priors))

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
        return self.n_inner + i, self.priors[i]

    def run_all(self, gap: float, deadline: Deadline, max_expanded: int | None = None) -> None:
        """Search until the gap of every root is reached, or until the time, nodes, memory or digits are used up."""
        total = gap * float(self.nodes.mass[0])
        while True:
            self.run(total, deadline, max_expanded)
            wanted = max(gap - 2 * self.tolerance, self.tolerance)
            if deadline.expired or self._stuck or (self.uppers - self.lowers).max() <= wanted:
                return
            total = STRICTER * min(total, self.upper - self.lower)

    def joint_controller(self, loss: float, deadline: Deadline) -> JointController:
        """A controller that attains about the lower bounds; pruning loses up to a part of `loss`."""
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
        """The claims about the roots and the nodes below them, numbered without the inner nodes."""
        nodes, points = super().claims()
        inner, first = self.n_inner, int(self.nodes.point[0])
        points = PointClaims(*(np.delete(array, slice(first, first + inner), axis=0) for array in points))

        def moved(array: Any, start: int) -> Any:
            return np.where(array >= start, array - inner, array)

        below = {name: getattr(nodes, name)[inner:] for name in NodeClaims._fields}
        below["cover"] = moved(below["cover"], first)
        below["expanded"] = moved(below["expanded"], 0)
        below["child"] = moved(below["child"], 0)
        below["point"] = moved(below["point"], first)
        return NodeClaims(**below), points


def solve_search_together(problems: Sequence[PlanningProblem], limits: Limits) -> list[Solution]:
    """Plan for problems that differ in the prior only by one `SharedSearch`, with alpha vectors that they share."""
    gap, deadline, aim = limits.gap, limits.deadline, AIM * limits.gap
    search_deadline = deadline.until(SEARCH_TIME * deadline.seconds)
    priors = np.array([problem.prior for problem in problems])
    search = SharedSearch(problems[0], priors, search_deadline, limits.progress)
    while True:
        search.run_all(aim, search_deadline, limits.max_nodes)
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
    for i, problem in enumerate(problems):
        upper = max(min(float(uppers[i]), problem.known_type_bound), float(lowers[i]))
        arrays = (controller.vectors, controller.categories, controller.successor)
        own = Controller(*arrays, int((controller.vectors @ problem.prior).argmax()))
        certificate = SearchCertificate(problem, nodes, points, search.edges, [], search.depth, own, i)
        policy = Alpha(problem.instance, *arrays, upper)
        solutions.append(Solution(policy, own, float(lowers[i]), upper, reason, certificate))
    return solutions
