"""Certificates: the claims that justify the bounds of a plan, and their verification without a search.

The section Certificate of docs/theory/model-and-planning.md shows why these checks are sufficient.
"""

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from departing.evaluation.evaluate import evaluate
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats
from departing.planning.controller import Controller
from departing.planning.problem import Deadline, PlanningProblem, dominance_table
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule

TINY_MASS = 1e-290  # claims about lighter nodes are not checked relative to their mass: the quotients lose digits
EDGE_POINTS = 256  # grid of an edge; the error of interpolation falls with its square
# Confirming a closed form by the lattice: a relative gap far below any difference of candidates, and a time limit.
CONFIRMATION_GAP, CONFIRMATION_SECONDS = 1e-9, 10.0


@dataclass(frozen=True)
class CertificateCheck:
    """Check of one kind of claim.

    Attributes
    ----------
    claim : str
        Kind of claim.
    count : int
        Number of claims checked.
    worst : float
        Largest violation, in units of the tolerance for rounding; the claims hold if it is at most 1.
    """

    claim: str
    count: int
    worst: float

    @property
    def holds(self) -> bool:
        """True if all claims hold within the tolerance."""
        return bool(self.worst <= 1.0)


@dataclass(frozen=True)
class Verification:
    """Result of `Plan.verify`: true if every check holds.

    Attributes
    ----------
    checks : tuple of CertificateCheck
        One for each kind of claim.
    tolerance : float
        Allowance for rounding that the bounds include, in the unit of the value.
    """

    checks: tuple[CertificateCheck, ...]
    tolerance: float

    @property
    def holds(self) -> bool:
        """True if every check holds."""
        return all(check.holds for check in self.checks)

    def __bool__(self) -> bool:
        return self.holds


class Certificate(ABC):
    """Claims that justify the bounds of a plan."""

    @abstractmethod
    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check that the value of `policy` is at least `lower` and that of every policy at most `upper`."""

    @property
    def tolerance(self) -> float:
        """Allowance for rounding that the bounds include, as far as it is known without a verification."""
        return 0.0

    def shared_checks(self) -> tuple[CertificateCheck, ...]:
        """Checks of the claims that certificates of several segments share: none."""
        return ()

    def own_checks(self, policy: Policy, lower: float, upper: float) -> tuple[CertificateCheck, ...]:
        """All other checks."""
        return self.verify(policy, lower, upper).checks


def check_claims(claim: str, excess: Sequence[npt.ArrayLike], unit: float = 1.0) -> CertificateCheck:
    """Check of claims that are violated by `excess`, numbers and arrays, in units of tolerance."""
    relative = np.concatenate([np.zeros(0), *map(np.ravel, excess)]) / unit
    worst = float(relative.max(initial=0.0)) if not np.isnan(relative).any() else np.inf
    return CertificateCheck(claim, relative.size, max(worst, 0.0))


def check_dropped(problem: PlanningProblem) -> CertificateCheck:
    """Every allowed category that was dropped is dominated by one that was kept."""
    table, kept = dominance_table(problem.instance), problem.categories
    dropped = [a for a in problem.allowed if a not in kept]
    excess = [(table[a] - table[kept]).max(axis=(1, 2)).min() for a in dropped]
    return check_claims("dominated categories", excess, 1e-300)


def check_schedule(problem: PlanningProblem, policy: Policy, lower: float, unit: float) -> CertificateCheck:
    """The schedule recommends allowed categories only, and its value is at least `lower`."""
    categories = policy.phase_categories if isinstance(policy, Schedule) else np.array([-1])
    if not np.isin(categories, problem.allowed).all():
        return CertificateCheck("value of the policy", 1, np.inf)
    return check_claims("value of the policy", [lower - evaluate(problem.instance, policy).upper], unit)


@dataclass(frozen=True)
class ClosedFormCertificate(Certificate):
    """Certificate of a closed form: the policy is evaluated again, and the bound confirmed by another method."""

    problem: PlanningProblem

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the value of the policy, and the upper bound by another method."""
        problem = self.problem
        unit = 1e-12 * max(1.0, upper)
        bound = float(problem.prior @ problem.type_values)
        if problem.instance.sure_departure and bound > upper:
            from departing.planning.lattice import LatticeSearch

            lattice = LatticeSearch(problem)
            lattice.run(CONFIRMATION_GAP * max(1.0, upper), Deadline(CONFIRMATION_SECONDS))
            bound = lattice.lower  # no policy of another method may exceed the upper bound
        checks = (
            check_schedule(problem, policy, lower, unit),
            check_claims("upper bound of every policy", [bound - upper], unit),
        )
        return Verification(checks, upper - lower)


@dataclass(frozen=True, eq=False)
class LatticeCertificate(Certificate):
    """Certificate of a lattice search: every child of a node is a node or cannot exceed the upper bound.

    `parent`, `category`, `depth` and `reward` are those of the nodes, `[N]`; `rounding_error` bounds the
    rounding error of the upper bound.
    """

    problem: PlanningProblem = field(repr=False)
    parent: Integers = field(repr=False)
    category: Integers = field(repr=False)
    depth: Integers = field(repr=False)
    reward: Floats = field(repr=False)
    rounding_error: float

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the value of the walk, and every child that was not created."""
        problem, n = self.problem, len(self.reward)
        counts = np.zeros((n, len(problem.categories)), np.int32)
        weights = np.empty((n, problem.instance.n_types))
        weights[0] = problem.prior
        order = np.argsort(self.depth, kind="stable")
        for start, stop in pairwise(np.cumsum(np.bincount(self.depth))):  # one depth after the other, below the root
            level = order[start:stop]
            counts[level] = counts[self.parent[level]]
            counts[level, self.category[level]] += 1
            weights[level] = weights[self.parent[level]] * problem.click_stay[self.category[level]]
        steps = weights @ problem.reward.T
        child_upper = steps + weights @ (problem.click_stay * problem.type_values).T + self.reward[:, None]
        unit = max(2 * self.rounding_error, 1e-300)  # as much again for these checks
        index = {row.tobytes(): i for i, row in enumerate(counts)}
        short = [-float(self.reward[0])]
        for i, a in np.argwhere(child_upper > upper):
            after = counts[i].copy()
            after[a] += 1
            child = index.get(after.tobytes())
            lost = np.inf if child is None else self.reward[i] + steps[i, a] - self.reward[child]
            short.append(lost * (self.depth[i] + 1))  # each step of a walk may lose as much
        checks = (
            check_dropped(problem),
            check_claims("distinct counts", [n - len(index)]),
            check_claims("children not created", short, unit),
            check_schedule(problem, policy, lower, unit),
        )
        return Verification(checks, unit)


def edge_grid() -> Floats:
    """Beliefs on an edge, closer together at the ends."""
    grid = 0.5 * (1 - np.cos(np.pi * np.arange(EDGE_POINTS + 1) / EDGE_POINTS))
    grid[-1] = 1.0
    return np.asarray(grid)


class Edge(NamedTuple):
    """Upper bounds at beliefs in types x and y only, on `edge_grid()`."""

    x: int
    y: int
    value: Floats
    q_upper: Floats  # [grid, k] for each first category
    keep: npt.NDArray[np.bool_]  # points that the search uses


# Claims about nodes and belief points: the fields of the search's `Nodes` and `BeliefPoints` that justify upper
# bounds.
NodeClaims = namedtuple(
    "NodeClaims", "weights mass upper expanded n_cover cover multiplier uncovered_value child q_upper point"
)
PointClaims = namedtuple("PointClaims", "belief value q_upper")


@dataclass(frozen=True, eq=False)
class _Graph:
    """Nodes and belief points of one search, of all types or of a face."""

    problem: PlanningProblem
    nodes: NodeClaims
    points: PointClaims

    def has_points(self, given: PointClaims, start: int) -> bool:
        """True if the points from `start` on are the given ones."""
        return _equal(given, PointClaims(*(array[start : start + len(given.value)] for array in self.points)))

    def checks(self, unit: float, chains: Integers, n_given: int) -> tuple[CertificateCheck, ...]:
        """Check corners, covers, leaves and expanded nodes; `chains` are those of all points."""
        return (
            self._check_corners(unit),
            *self._check_covers(unit),
            *self._check_expanded(unit, int(chains.max()), n_given),
        )

    def chains(self, given: Integers) -> Integers:
        """Length of the longest chain of covers that each point depends on; each adds its own rounding.

        `given` are those of the points after the corners.
        """
        nodes, n_types = self.nodes, self.problem.instance.n_types
        order = np.flatnonzero(nodes.expanded >= 0)
        used = np.arange(nodes.cover.shape[1]) < nodes.n_cover[order][:, None]
        cover, point = np.where(used, nodes.cover[order], 0), nodes.point[nodes.expanded[order]]
        chain = np.ones(max(len(self.points.value), n_types + len(given)), np.int64)
        chain[n_types : n_types + len(given)] = given
        limit = len(chain) + int(chain.max())
        while True:
            longer = 1 + chain[np.clip(cover, 0, len(chain) - 1)].max(axis=1, initial=0)
            if (longer <= chain[point]).all() or chain.max() > limit:
                return chain
            chain[point] = np.maximum(chain[point], longer)

    def _check_corners(self, unit: float) -> CertificateCheck:
        """The value of a known type is at most that of its corner, for every first category."""
        problem, n = self.problem, self.problem.instance.n_types
        value, q_upper = self.points.value[:n], self.points.q_upper[:n].T
        allowed = np.array(problem.allowed)
        outcomes = problem.instance.outcome_probabilities[allowed]
        after = problem.instance.expected_reward[allowed] + (outcomes[:, CLICK] + outcomes[:, STAY]) * value
        kept = problem.reward + (problem.click_stay + problem.stay) * value
        at = np.where((self.points.belief[:n] != np.eye(n)).any(axis=1), np.inf, 0.0)
        occurring = problem.occurring  # no claim depends on types that do not occur
        return check_claims("known types", [(after - value)[:, occurring], (kept - q_upper)[:, occurring], at], unit)

    def _cover_values(self, rows: Integers) -> tuple[Floats, Floats, Floats]:
        """Of the covers of nodes: values, values by category, and the value of what they leave uncovered."""
        nodes, points = self.nodes, self.points
        used = np.arange(nodes.cover.shape[1]) < nodes.n_cover[rows][:, None]
        chosen = np.where(used, nodes.cover[rows], 0)
        multiplier = np.where(used, nodes.multiplier[rows], 0.0)
        wrong = np.asarray(((multiplier < 0) | (chosen < 0) | (chosen >= len(points.value))).any(axis=1))
        chosen = np.where(wrong[:, None], 0, chosen)
        beliefs = nodes.weights[rows] / nodes.mass[rows][:, None]
        rest = beliefs - np.einsum("nj,njx->nx", multiplier, points.belief[chosen])
        uncovered = np.maximum(rest, 0.0) @ self.problem.type_values
        values = (multiplier * points.value[chosen]).sum(axis=1)
        by_category = np.einsum("nj,nja->na", multiplier, points.q_upper[chosen])
        return np.where(wrong, np.inf, values), np.where(wrong[:, None], np.inf, by_category), uncovered

    def _check_covers(self, unit: float) -> tuple[CertificateCheck, CertificateCheck]:
        """Covers cover the belief up to their uncovered value, and leaves claim no less than their covers."""
        nodes = self.nodes
        reach, claim = [np.zeros(0)], [np.zeros(0)]
        for part in chunks(len(nodes.mass)):
            rows = np.arange(part.start, part.stop)
            light = nodes.mass[rows] <= TINY_MASS
            reach.append(np.where(nodes.weights[rows[light]].sum(axis=1) > 2 * TINY_MASS, np.inf, 0.0))
            rows = rows[~light]
            values, _, uncovered = self._cover_values(rows)
            reach.append(uncovered - nodes.uncovered_value[rows])
            total = nodes.weights[rows].sum(axis=1)
            reach.append(np.where(np.abs(total - nodes.mass[rows]) > 1e-12 * total, np.inf, 0.0))
            leaf = nodes.expanded[rows] < 0
            claimed = nodes.upper[rows] / nodes.mass[rows]
            claim.append((values + nodes.uncovered_value[rows] - claimed)[leaf])
        return check_claims("covers", reach, unit), check_claims("leaves", claim, unit)

    def _check_expanded(self, unit: float, chain: int, n_given: int) -> tuple[CertificateCheck, ...]:
        """Bellman backups of expanded nodes: each category claims no less than its children or its cover, the node no
        less than the best category or its cover, its point no less than the node; children have the right weights."""
        problem, nodes, points = self.problem, self.nodes, self.points
        order: Integers = np.flatnonzero(nodes.expanded >= 0)
        categories, tops, weights, places = ([np.zeros(0)] for _ in range(4))
        for part in chunks(len(order)):
            rows = order[part]
            e, mass = nodes.expanded[rows], nodes.mass[rows]
            beliefs = nodes.weights[rows] / mass[:, None]
            values, by_category, _ = self._cover_values(rows)
            child = nodes.child[e]
            has_children = child[:, :, 1] >= 0
            steps = beliefs @ problem.reward.T
            for o, transition in enumerate((problem.click_stay, problem.stay)):
                reached = np.where(has_children, child[:, :, o], 0)
                steps += nodes.upper[reached] / mass[:, None]
                moved = nodes.weights[rows][:, None, :] * transition
                off = np.abs(nodes.weights[reached] - moved) @ (1 + problem.type_values)
                weights.append((off / mass[:, None])[has_children])
            claims = nodes.q_upper[e] / mass[:, None]
            justified = np.minimum(
                np.where(has_children, steps, np.inf), by_category + nodes.uncovered_value[rows][:, None]
            )
            categories.append(justified - claims)
            claimed = nodes.upper[rows] / mass
            tops.append(np.minimum(claims.max(axis=1), values + nodes.uncovered_value[rows]) - claimed)
            p = nodes.point[e]
            off = np.abs(points.belief[p] - beliefs) @ (1 + problem.type_values)
            places += [claimed - points.value[p], claims - points.q_upper[p], off]
            used = np.arange(nodes.cover.shape[1]) < nodes.n_cover[rows][:, None]
            later = (np.where(used, nodes.cover[rows], -1) >= p[:, None]).any(axis=1)
            places.append(np.where(later, np.inf, 0.0))  # a cover may depend on earlier points only
        owned = np.sort(nodes.point[nodes.expanded[order]])
        first = len(points.value) - len(owned)
        unjustified = not np.array_equal(owned, np.arange(first, len(points.value)))  # a point without a node
        places.append(np.array([np.inf if unjustified or first != n_given else 0.0]))
        return (
            check_claims("categories of expanded nodes", [excess * chain for excess in categories], unit),
            check_claims("expanded nodes", [excess * chain for excess in tops], unit),
            check_claims("weights of children", weights, unit),
            check_claims("points of nodes", [excess * chain for excess in places], unit),
        )


def _equal(left: PointClaims, right: PointClaims) -> bool:
    """True if both make the same claims."""
    return all(map(np.array_equal, left, right))


def merged_checks(checks: Sequence[CertificateCheck]) -> CertificateCheck:
    """One check of the claims of several."""
    return CertificateCheck(checks[0].claim, sum(each.count for each in checks), max(each.worst for each in checks))


@dataclass(frozen=True, eq=False)
class FaceClaims:
    """Claims of a search from the prior restricted to some types, or of an earlier search of all types.

    Its points are the corners, then `known` points of edges and earlier faces, numbered from the first edge point on,
    then those of its nodes. The points `kept` are known to later faces and to the search of all types.
    """

    types: Integers
    nodes: NodeClaims = field(repr=False)
    points: PointClaims = field(repr=False)
    known: Integers = field(repr=False)
    kept: Integers = field(repr=False)
    depth: int

    def kept_points(self, n_types: int) -> PointClaims:
        """The points that are kept, as beliefs in all types."""
        belief = np.zeros((len(self.kept), n_types))
        belief[:, self.types] = self.points.belief[self.kept]
        return PointClaims(belief, self.points.value[self.kept], self.points.q_upper[self.kept])


@dataclass(frozen=True, eq=False)
class SearchCertificate(Certificate):
    """Certificate of a search: claims on nodes, belief points, edges, faces and vectors that justify each other."""

    problem: PlanningProblem = field(repr=False)
    nodes: NodeClaims = field(repr=False)
    points: PointClaims = field(repr=False)
    edges: list[Edge] = field(repr=False)
    faces: list[FaceClaims] = field(repr=False)
    depth: int
    controller: Controller = field(repr=False)
    root: int = 0

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check every node, cover, point, edge, face and alpha vector."""
        checks = (*self.shared_checks(), *self.own_checks(policy, lower, upper))
        return Verification(checks, self.tolerance)

    @property
    def tolerance(self) -> float:
        """Allowance for rounding that the bounds include."""
        return self.problem.tolerance(self.depth)

    def shared_checks(self) -> tuple[CertificateCheck, ...]:
        """Checks of the claims that several roots share."""
        with np.errstate(all="ignore"):  # wrong claims may lead to nan, which a check reports
            unit = self.problem.rounding(self.depth)
            return (
                check_dropped(self.problem),
                *self._check_edges(unit),
                *self._check_graphs(unit),
                self._check_vectors(unit),
            )

    def own_checks(self, policy: Policy, lower: float, upper: float) -> tuple[CertificateCheck, ...]:
        """Checks of the policy and of the bounds from this root."""
        with np.errstate(all="ignore"):
            return self._check_policy(policy), self._check_root(lower, upper)

    def _check_graphs(self, unit: float) -> tuple[CertificateCheck, ...]:
        """Check faces, one after the other, and the search of all types, whose first points they justify."""
        problem, points, n_types = self.problem, self.points, self.problem.instance.n_types
        n = n_types + sum(int(edge.keep.sum()) for edge in self.edges)
        chain, graphs, same = np.ones(n, np.int64), list[tuple[CertificateCheck, ...]](), list[bool]()
        for face in self.faces:
            graph, known = _Graph(problem.face(face.types), face.nodes, face.points), n_types + face.known
            others = np.setdiff1d(np.arange(n_types), face.types)
            belief, value, q_upper = (array[known] for array in points)
            given = PointClaims(belief[:, face.types], value, q_upper)
            kept = PointClaims(*(array[n : n + len(face.kept)] for array in points))
            n += len(face.kept)
            same += [
                graph.has_points(given, len(face.types)),
                _equal(kept, face.kept_points(n_types)),
                not belief[:, others].any(),
                bool((known < len(chain)).all()),  # earlier points
                len(face.types) + len(others) == n_types,
                bool((problem.prior[face.types] > 0).all()),
                face.depth <= self.depth,
            ]
            links = graph.chains(chain[np.minimum(known, len(chain) - 1)])
            graphs.append(graph.checks(unit, links, len(face.types) + len(known)))
            chain = np.concatenate([chain, links[face.kept]])
        graph = _Graph(problem, self.nodes, points)
        graphs.append(graph.checks(unit, graph.chains(chain[n_types:]), n))
        merged = (merged_checks(same_kind) for same_kind in zip(*graphs, strict=True))
        return *merged, check_claims("points on faces", [0.0 if each else np.inf for each in same])

    def _check_policy(self, policy: Policy) -> CertificateCheck:
        """The policy uses the controller's vectors."""
        controller = self.controller
        if isinstance(policy, Alpha):
            same = np.array_equal(policy.vectors, controller.vectors)
            same &= np.array_equal(policy.categories, controller.categories)
        else:
            same = len(controller.vectors) == 1 and policy == Fixed(int(controller.categories[0]))
        return CertificateCheck("vectors of the policy", len(controller.vectors), 0.0 if same else np.inf)

    def _check_root(self, lower: float, upper: float) -> CertificateCheck:
        """The bounds are those of the root and the controller with the tolerance, or simpler ones."""
        problem, controller = self.problem, self.controller
        tolerance = problem.tolerance(self.depth)
        attained = controller.value(problem.prior) - tolerance
        if len(controller.vectors) == 1:
            attained = max(attained, evaluate(problem.instance, Fixed(int(controller.categories[0]))).lower)
        mass = float(self.nodes.mass[self.root])  # a power of two
        bound = min(float(self.nodes.upper[self.root]) / mass + tolerance, problem.known_type_bound)
        off = float(np.abs(self.nodes.weights[self.root] / mass - problem.prior).max())
        excess = [bound - upper, lower - max(attained, 0.0), off * upper]
        return check_claims("bounds of the root", excess, 1e-15 * max(1.0, upper))

    def _check_edges(self, unit: float) -> tuple[CertificateCheck, CertificateCheck]:
        """On each edge a Bellman backup, interpolated on the grid, does not exceed the claims."""
        problem, points, grid = self.problem, self.points, edge_grid()
        n = problem.instance.n_types
        excess: list[Floats] = []
        kept: list[Floats] = []
        for x, y, value, q_upper, keep in self.edges:
            beliefs = np.stack([grid, 1 - grid], axis=1)
            steps = beliefs @ problem.reward[:, [x, y]].T
            for transition in (problem.click_stay, problem.stay):
                moved = beliefs[:, None, :] * transition[:, [x, y]]
                mass = moved.sum(axis=2)
                share = np.divide(moved[:, :, 0], mass, out=np.zeros_like(mass), where=mass > 0)
                steps += mass * np.interp(share, grid, value)
            excess += [(steps - q_upper)[1:-1], (q_upper.max(axis=1) - value)[1:-1]]
            excess.append(problem.type_values[[x, y]] - value[[-1, 0]])
            rows = slice(n, n + int(keep.sum()))
            at = np.zeros((int(keep.sum()), problem.instance.n_types))
            at[:, x], at[:, y] = grid[keep], 1 - grid[keep]
            kept += [value[keep] - points.value[rows], q_upper[keep] - points.q_upper[rows]]
            kept.append(np.where((points.belief[rows] != at).any(axis=1), np.inf, 0.0))
            n = rows.stop
        return check_claims("edges", excess, unit), check_claims("points on edges", kept, unit)

    def _check_vectors(self, unit: float) -> CertificateCheck:
        """Every alpha vector is at most one step of its category followed by its successors."""
        controller = self.controller
        reward, click_stay, stay, _ = controller.probabilities(self.problem.instance)
        after_click, after_stay = (controller.vectors[controller.successor[:, o]] for o in range(2))
        excess = controller.vectors - (reward + click_stay * after_click + stay * after_stay)
        forbidden = ~np.isin(controller.categories, self.problem.allowed)
        parts = [excess[:, self.problem.occurring], np.where(forbidden, np.inf, 0)]
        return check_claims("alpha vectors", parts, unit)


def chunks(n: int, size: int = 20_000) -> Sequence[slice]:
    """Slices of n rows that keep temporary arrays small."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
