"""What a plan keeps to prove its bracket, and the check of it, which does not search.

The section Why the bracket can be trusted of docs/theory/model-and-planning.md tells why these checks are enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.kernels.planning.sizes import DEEPEST, NODES, POINTS
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats
from departing.planning.controller import Controller
from departing.planning.lattice import Lattice
from departing.planning.problem import Clock, Problem
from departing.planning.search import Search, edge_grid
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy
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


class Certificate(ABC):
    """What is kept to prove a bracket."""

    @abstractmethod
    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check that `policy` guarantees `lower` and that `upper` bounds every policy."""


def _check(what: str, excess: Floats | float, unit: Floats | float = 1.0) -> Check:
    """Excesses over claims, relative to the unit of tolerance of each."""
    relative = np.atleast_1d(np.asarray(excess) / np.asarray(unit))
    worst = float(relative.max(initial=0.0)) if not np.isnan(relative).any() else np.inf
    return Check(what, relative.size, max(worst, 0.0))


def _dropped(problem: Problem) -> Check:
    """Every allowed category that was left out is dominated by one that was not."""
    chances, leave = problem.instance.outcome_probabilities, problem.instance.departure_probabilities
    kept, missing = problem.categories, [a for a in problem.allowed if a not in problem.categories]
    excess = [
        min(
            max(
                (problem.instance.click[a] - problem.instance.click[b]).max(),
                (chances[a, [CLICK, STAY]] - chances[b, [CLICK, STAY]]).max(),
                (leave[b] - leave[a]).max(),
            )
            for b in kept
        )
        for a in missing
    ]
    return _check("dominated categories", np.array(excess), 1e-300)


def _schedule_value(problem: Problem, policy: Policy, lower: float, unit: float) -> Check:
    """The schedule shows allowed categories only, and brings what is claimed."""
    shown = policy.phase_categories if isinstance(policy, Schedule) else np.array([-1])
    if not np.isin(shown, problem.allowed).all():
        return Check("value of the policy", 1, np.inf)
    return _check("value of the policy", lower - evaluate(problem.instance, policy).upper, unit)


@dataclass(frozen=True)
class ClosedFormCertificate(Certificate):
    """A closed form: the policy is evaluated again, and the bound confirmed by another method."""

    problem: Problem

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the value of the policy, and the bound by another method."""
        problem = self.problem
        unit = 1e-12 * max(1.0, upper)
        known = float(problem.prior @ problem.best)
        bound = known
        if problem.instance.sure_departure and known > upper:
            lattice = Lattice(problem)
            lattice.run(1e-9 * max(1.0, upper), Clock(10.0))
            bound = lattice.lower  # no policy found by another method may surpass the bound
        checks = (
            _schedule_value(problem, policy, lower, unit),
            _check("bound on every policy", bound - upper, unit),
        )
        return Verification(checks, upper - lower)


@dataclass(frozen=True)
class LatticeCertificate(Certificate):
    """The counts of clicks that were looked at: every continuation is among them or cannot surpass the bound."""

    lattice: Lattice = field(repr=False)

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the value of the walk, and every step that was not taken."""
        problem, steps, n = self.lattice.problem, self.lattice.steps, self.lattice.made
        parent, category, depth = steps.parent[:n], steps.category[:n], steps.depth[:n]
        counts = np.zeros((n, len(problem.categories)), np.int32)
        weights = np.empty((n, problem.instance.n_types))
        weights[0] = problem.prior
        order = np.argsort(depth, kind="stable")
        ends = np.cumsum(np.bincount(depth))
        for start, stop in pairwise(ends):  # one depth after the other, below the root
            level = order[start:stop]
            counts[level] = counts[parent[level]]
            counts[level, category[level]] += 1
            weights[level] = weights[parent[level]] * problem.click[category[level]]
        gains = weights @ problem.reward.T
        ceilings = gains + weights @ (problem.click * problem.best).T + steps.gained[:n, None]
        unit = self.lattice.slack * max(1.0, upper)
        found = {row.tobytes(): i for i, row in enumerate(counts)}
        short = [-float(steps.gained[0])]
        for i, a in np.argwhere(ceilings > upper):
            after = counts[i].copy()
            after[a] += 1
            child = found.get(after.tobytes())
            lost = np.inf if child is None else steps.gained[i] + gains[i, a] - steps.gained[child]
            short.append(lost * (depth[i] + 1))  # each step of a walk may lose as much
        checks = (
            _dropped(problem),
            _check("counts are different", float(n - len(found))),
            _check("steps that were not taken", np.array(short), unit),
            _schedule_value(problem, policy, lower, unit),
        )
        return Verification(checks, 2 * unit)


@dataclass(frozen=True)
class SearchCertificate(Certificate):
    """Nodes with their covers, points, edges and the controller: every claim is justified by others."""

    search: Search = field(repr=False)
    controller: Controller = field(repr=False)

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check every node, cover, point, edge and alpha vector."""
        with np.errstate(all="ignore"):  # what a wrong claim comes to is not a number, and found out
            return self._verify(policy, lower, upper)

    def _verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        search, problem = self.search, self.search.problem
        unit = problem.rounding(int(search.size[DEEPEST]))
        checks = (
            _dropped(problem),
            _corners(search, unit),
            *_edges(search, unit),
            *_covers(search, unit),
            *_expanded(search, unit),
            _vectors(problem, self.controller, unit),
            _follows(policy, self.controller),
            _root(search, self.controller, lower, upper),
        )
        return Verification(checks, search.tolerance)


def _follows(policy: Policy, controller: Controller) -> Check:
    """The policy goes by the controller's vectors."""
    if isinstance(policy, Alpha):
        same = np.array_equal(policy.vectors, controller.vectors)
        same &= np.array_equal(policy.categories, controller.categories)
    else:
        same = len(controller.vectors) == 1 and policy == Fixed(int(controller.categories[0]))
    return Check("vectors of the policy", len(controller.vectors), 0.0 if same else np.inf)


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
    chances = problem.instance.outcome_probabilities[allowed]
    after = problem.instance.click[allowed] + (chances[:, CLICK] + chances[:, STAY]) * value
    by_category = search.points.by_category[: len(value)].T
    kept = problem.reward + (problem.click + problem.stay) * value
    at = np.where(search.points.at[: len(value)] == np.eye(len(value)), 0.0, np.inf)
    here = problem.prior > 0  # nothing leans on types that do not occur
    excess = np.concatenate([(after - value)[:, here].ravel(), (kept - by_category)[:, here].ravel(), at.ravel()])
    return _check("types that are known", excess, unit)


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
    wrong = ((multiplier < 0) | (chosen < 0) | (chosen >= search.size[POINTS])).any(axis=1)
    return np.where(wrong, np.inf, values), np.where(wrong[:, None], np.inf, by_category), uncovered


def _covers(search: Search, unit: float) -> tuple[Check, Check]:
    """Covers reach what they cover, and nodes that are not expanded claim no less than their covers."""
    nodes = search.nodes
    reach, claim = [np.zeros(0)], [np.zeros(0)]
    for part in _chunks(int(search.size[NODES])):
        rows = np.arange(part.start, part.stop)
        light = nodes.mass[rows] <= TINY
        reach.append(np.where(nodes.weights[rows[light]].sum(axis=1) > 2 * TINY, np.inf, 0.0))
        rows = rows[~light]
        values, _, uncovered = _cover_values(search, rows)
        reach.append(uncovered - nodes.slack[rows])
        total = nodes.weights[rows].sum(axis=1)
        reach.append(np.where(np.abs(total - nodes.mass[rows]) > 1e-12 * total, np.inf, 0.0))
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
    owned = sum(int(keep.sum()) for *_, keep in search.edges) + problem.instance.n_types
    made = np.sort(nodes.point[nodes.opened[order]])
    strange = not np.array_equal(made, np.arange(owned, int(search.size[POINTS])))  # a point that nothing stands for
    return (
        _check("categories of expanded nodes", np.concatenate(categories) * _longest_chain(search, order), unit),
        _check("expanded nodes", np.concatenate(tops), unit),
        _check("weights of children", np.concatenate(weights), unit),
        _check("points made of nodes", np.append(np.concatenate(places), np.inf if strange else 0.0), unit),
    )


def _longest_chain(search: Search, order: Integers) -> int:
    """How many claims by category may lean on each other one after the other; each adds its own rounding."""
    nodes = search.nodes
    leaning = order[(nodes.child[nodes.opened[order], :, 1] < 0).any(axis=1)]
    used = np.arange(nodes.cover.shape[1]) < nodes.n_cover[leaning][:, None]
    cover = np.where(used, nodes.cover[leaning], 0)
    point = nodes.point[nodes.opened[leaning]]
    chain = np.ones(len(search.points.value), np.int64)
    while True:
        longer = 1 + chain[np.minimum(cover, len(chain) - 1)].max(axis=1, initial=0)
        if (longer <= chain[point]).all() or chain.max() > len(chain):
            return int(chain.max())
        chain[point] = np.maximum(chain[point], longer)


def _vectors(problem: Problem, controller: Controller, unit: float) -> Check:
    """Every alpha vector brings no more than one step of its category and the vectors it goes on with."""
    reward, click, stay, _ = controller.rates(problem.instance)
    one, two = controller.vectors[controller.after[:, 0]], controller.vectors[controller.after[:, 1]]
    excess = controller.vectors - (reward + click * one + stay * two)
    forbidden = ~np.isin(controller.categories, problem.allowed)
    return _check(
        "alpha vectors", np.append(excess[:, problem.prior > 0].ravel(), np.where(forbidden, np.inf, 0)), unit
    )
