"""What a plan keeps to prove its bracket, and the check of it, which does not search.

The section Why the bracket can be trusted of docs/theory.md tells why these checks are enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.kernels.search import DEEPEST, EXPANDED, NODES, POINTS
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats
from departing.planning.controller import Controller
from departing.planning.lattice import Lattice
from departing.planning.problem import Clock, Problem
from departing.planning.search import Search, edge_grid
from departing.policy.schedule import Fixed, Schedule

TINY = 1e-290  # mass below which claims are not checked relative to it


@dataclass(frozen=True)
class Check:
    """One kind of claim: how many were checked, and the worst excess over what is claimed, in units of tolerance.

    The claim holds where the excess is at most 1.
    """

    what: str
    count: int
    worst: float

    @property
    def holds(self) -> bool:
        """Whether all claims hold within the tolerance."""
        return bool(self.worst <= 1.0)


@dataclass(frozen=True)
class Verification:
    """The result of checking a plan: a check for every kind of claim, and the tolerance that the bracket includes."""

    checks: tuple[Check, ...]
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def __bool__(self) -> bool:
        return self.holds


class Proof(ABC):
    """What is kept to prove a bracket."""

    @abstractmethod
    def verify(self, lower: float, upper: float) -> Verification:
        """Check that `lower` is guaranteed and that `upper` bounds every policy."""


def _check(what: str, excess: Floats | float, unit: Floats | float = 1.0) -> Check:
    """Excesses over claims, relative to the unit of tolerance of each."""
    relative = np.atleast_1d(np.asarray(excess) / np.asarray(unit))
    worst = float(relative.max(initial=0.0)) if not np.isnan(relative).any() else np.inf
    return Check(what, relative.size, max(worst, 0.0))


def _dropped(problem: Problem) -> Check:
    """Every allowed category that was left out is dominated by one that was not."""
    chances = problem.instance.chances
    kept, missing = problem.categories, [a for a in problem.allowed if a not in problem.categories]
    excess = [
        min(
            max(
                (problem.instance.click[a] - problem.instance.click[b]).max(),
                (chances[a, [CLICK, STAY]] - chances[b, [CLICK, STAY]]).max(),
            )
            for b in kept
        )
        for a in missing
    ]
    return _check("dominated categories", np.array(excess), 1e-300)


@dataclass(frozen=True)
class TheoremProof(Proof):
    """A closed form: the policy is evaluated again, and the bound confirmed by another method."""

    problem: Problem
    policy: Schedule

    def verify(self, lower: float, upper: float) -> Verification:
        """Check the value of the policy, and the bound by another method."""
        problem = self.problem
        found = evaluate(problem.instance, self.policy)
        unit = 1e-12 * max(1.0, upper)
        known = float(problem.prior @ problem.best)
        bound = known
        if problem.instance.sure_departure and known > upper:
            lattice = Lattice(problem)
            lattice.run(1e-9 * max(1.0, upper), Clock(10.0))
            bound = lattice.lower  # no policy found by another method may surpass the bound
        checks = (
            _check("value of the policy", lower - found.upper, unit),
            _check("bound on every policy", bound - upper, unit),
        )
        return Verification(checks, upper - lower)


@dataclass(frozen=True)
class LatticeProof(Proof):
    """The counts of clicks that were looked at: every continuation is among them or cannot surpass the bound."""

    lattice: Lattice = field(repr=False)
    policy: Schedule

    def verify(self, lower: float, upper: float) -> Verification:
        """Check the value of the walk, and every step that was not taken."""
        problem, steps, n = self.lattice.problem, self.lattice.steps, self.lattice.made
        parent, category, depth = steps.parent[:n], steps.category[:n], steps.depth[:n]
        counts = np.zeros((n, len(problem.categories)), np.int64)
        weights = np.empty((n, problem.instance.n_types))
        weights[0] = problem.prior
        for d in range(1, int(depth.max(initial=0)) + 1):
            level = np.flatnonzero(depth == d)
            counts[level] = counts[parent[level]]
            counts[level, category[level]] += 1
            weights[level] = weights[parent[level]] * problem.click[category[level]]
        gains = weights @ problem.reward.T
        ceilings = gains + (weights[:, None, :] * problem.click) @ problem.best + steps.gained[:n, None]
        unit = self.lattice.slack * max(1.0, upper)
        open_steps = ceilings > upper
        found = {tuple(row): i for i, row in enumerate(counts.tolist())}
        short = [0.0]
        for i, a in np.argwhere(open_steps):
            after = counts[i].copy()
            after[a] += 1
            child = found.get(tuple(after.tolist()))
            short.append(np.inf if child is None else steps.gained[i] + gains[i, a] - steps.gained[child])
        value = evaluate(problem.instance, self.policy)
        checks = (
            _dropped(problem),
            _check("counts are different", float(n - len(found))),
            _check("steps that were not taken", np.array(short), unit),
            _check("value of the policy", lower - value.upper, unit),
        )
        return Verification(checks, 2 * unit)


@dataclass(frozen=True)
class SearchProof(Proof):
    """Nodes with their covers, points, edges and the controller: every claim is justified by others."""

    search: Search = field(repr=False)
    controller: Controller = field(repr=False)

    def verify(self, lower: float, upper: float) -> Verification:
        """Check every node, cover, point, edge and alpha vector."""
        search, problem = self.search, self.search.problem
        unit = problem.rounding(int(search.size[DEEPEST]))
        checks = (
            _dropped(problem),
            _corners(search, unit),
            *_edges(search, unit),
            *_covers(search, unit),
            *_expanded(search, unit),
            _vectors(problem, self.controller, unit),
            _root(search, self.controller, lower, upper),
        )
        return Verification(checks, search.tolerance)


def _root(search: Search, controller: Controller, lower: float, upper: float) -> Check:
    """The bracket is that of the root and of the controller's start, the tolerance included, or of simpler bounds."""
    problem = search.problem
    promise = float(controller.vectors[controller.start] @ problem.prior) - search.tolerance
    if len(controller.vectors) == 1:
        promise = max(promise, evaluate(problem.instance, Fixed(int(controller.categories[0]))).lower)
    ceiling = min(float(search.nodes.upper[0]) + search.tolerance, problem.known)
    off = float(np.abs(search.nodes.weights[0] - problem.prior).max())
    excess = np.array([ceiling - upper, lower - max(promise, 0.0), off * upper])
    return _check("bracket of the root", excess, 1e-15 * max(1.0, upper))


def _corners(search: Search, unit: float) -> Check:
    """A known type brings no more than claimed, whatever is recommended."""
    problem = search.problem
    value = search.points.value[: problem.instance.n_types]
    allowed = np.array(problem.allowed)
    chances = problem.instance.chances[allowed]
    after = problem.instance.click[allowed] + (chances[:, CLICK] + chances[:, STAY]) * value
    at = np.abs(search.points.at[: len(value)] - np.eye(len(value))).max()
    return _check("types that are known", np.append((after - value).ravel(), at), unit)


def _edges(search: Search, unit: float) -> tuple[Check, Check]:
    """On each edge one step of every category, interpolated between grid points, brings no more than claimed."""
    problem, grid = search.problem, edge_grid()
    points, n = search.points, problem.instance.n_types
    excess, kept = [np.zeros(0)], [np.zeros(0)]
    for x, y, value, by_category, keep in search.edges:
        beliefs = np.stack([grid, 1 - grid], axis=1)
        steps = beliefs @ problem.reward[:, [x, y]].T
        for go in (problem.click, problem.stay):
            moved = beliefs[:, None, :] * go[:, [x, y]]
            mass = moved.sum(axis=2)
            share = np.divide(moved[:, :, 0], mass, out=np.zeros_like(mass), where=mass > 0)
            steps += mass * np.interp(share, grid, value)
        excess += [(steps - by_category)[1:-1].ravel(), (by_category.max(axis=1) - value)[1:-1]]
        excess.append(problem.best[[x, y]] - value[[-1, 0]])
        rows = slice(n, n + int(keep.sum()))
        at = np.zeros((int(keep.sum()), problem.instance.n_types))
        at[:, x], at[:, y] = grid[keep], 1 - grid[keep]
        kept += [value[keep] - points.value[rows], (by_category[keep] - points.by_category[rows]).ravel()]
        kept.append(np.where((points.at[rows] != at).any(axis=1), np.inf, 0.0))
        n = rows.stop
    return (
        _check("beliefs on edges", np.concatenate(excess), unit),
        _check("points taken from edges", np.concatenate(kept), unit),
    )


def _chunks(n: int, size: int = 20_000) -> Sequence[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _cover_values(search: Search, rows: Integers) -> tuple[Floats, Floats, Floats]:
    """Of the covers of nodes: values, values by category, and what is left uncovered, at the corners' values."""
    nodes, points = search.nodes, search.points
    n_types = search.problem.instance.n_types
    used = np.arange(n_types) < nodes.n_cover[rows][:, None]
    chosen = np.where(used, nodes.cover[rows], 0)
    multiplier = np.where(used, nodes.multiplier[rows], 0.0)
    beliefs = nodes.weights[rows] / nodes.mass[rows][:, None]
    rest = beliefs - np.einsum("nj,njx->nx", multiplier, points.at[chosen])
    uncovered = np.maximum(rest, 0.0) @ search.problem.best
    values = (multiplier * points.value[chosen]).sum(axis=1)
    by_category = np.einsum("nj,nja->na", multiplier, points.by_category[chosen])
    negative = (multiplier < 0).any(axis=1)
    return np.where(negative, np.inf, values), by_category, uncovered


def _covers(search: Search, unit: float) -> tuple[Check, Check]:
    """Covers reach what they cover, and nodes that are not expanded claim no less than their covers."""
    nodes = search.nodes
    reach, claim = [np.zeros(0)], [np.zeros(0)]
    for part in _chunks(int(search.size[NODES])):
        rows = np.arange(part.start, part.stop)
        rows = rows[nodes.mass[rows] > TINY]
        values, _, uncovered = _cover_values(search, rows)
        reach.append(uncovered - nodes.slack[rows])
        leaf = nodes.opened[rows] < 0
        shown = nodes.upper[rows] / nodes.mass[rows]
        claim.append((values + nodes.slack[rows] - shown)[leaf])
    return _check("covers", np.concatenate(reach), unit), _check("leaves", np.concatenate(claim), unit)


def _expanded(search: Search, unit: float) -> tuple[Check, ...]:
    """Expanded nodes: each category claims what its children or its cover do, the node the best of them or its cover,
    its point no less than the node, and children have the weights of their parents' steps."""
    problem, nodes, points = search.problem, search.nodes, search.points
    order = np.flatnonzero(nodes.opened[: int(search.size[NODES])] >= 0)
    categories, tops, weights, places = ([np.zeros(0)] for _ in range(4))
    for part in _chunks(len(order)):
        rows = order[part]
        e, mass = nodes.opened[rows], nodes.mass[rows]
        beliefs = nodes.weights[rows] / mass[:, None]
        values, by_category, _ = _cover_values(search, rows)
        child = nodes.child[e]
        asked = child[:, :, 1] >= 0
        steps = beliefs @ problem.reward.T
        for o, go in enumerate((problem.click, problem.stay)):
            reached = np.where(asked, child[:, :, o], 0)
            steps += nodes.upper[reached] / mass[:, None]
            moved = nodes.weights[rows][:, None, :] * go
            off = np.abs(nodes.weights[reached] - moved) @ (1 + problem.best)
            weights.append((off / mass[:, None])[asked])
        claims = nodes.bound[e] / mass[:, None]
        justified = np.minimum(np.where(asked, steps, np.inf), by_category + nodes.slack[rows][:, None])
        categories.append((justified - claims).ravel())
        shown = nodes.upper[rows] / mass
        tops.append(np.minimum(claims.max(axis=1), values + nodes.slack[rows]) - shown)
        p = nodes.point[e]
        places.append(shown - points.value[p])
        places.append((claims - points.by_category[p]).ravel())
        places.append(np.abs(points.at[p] - beliefs) @ (1 + problem.best))
        used = np.arange(nodes.cover.shape[1]) < nodes.n_cover[rows][:, None]
        later = (np.where(used, nodes.cover[rows], -1) >= p[:, None]).any(axis=1)
        places.append(np.where(later, np.inf, 0.0))  # a cover may lean on earlier points only
    in_range = float(search.size[POINTS] > len(points.value) or search.size[EXPANDED] > len(nodes.point))
    return (
        _check("categories of expanded nodes", np.concatenate(categories), unit),
        _check("expanded nodes", np.concatenate(tops), unit),
        _check("weights of children", np.concatenate(weights), unit),
        _check("points made of nodes", np.append(np.concatenate(places), in_range), unit),
    )


def _vectors(problem: Problem, controller: Controller, unit: float) -> Check:
    """Every alpha vector brings no more than one step of its category and the vectors it goes on with."""
    reward, click, stay = controller.rates(problem.instance)
    one, two = controller.vectors[controller.after[:, 0]], controller.vectors[controller.after[:, 1]]
    excess = controller.vectors - (reward + click * one + stay * two)
    forbidden = ~np.isin(controller.categories, problem.allowed)
    return _check("alpha vectors", np.append(excess.ravel(), np.where(forbidden, np.inf, 0)), unit)
