"""Certificate of a plan with a horizon: claims about known types, pairs of types, nodes and alpha vectors."""

from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np

from departing.model.instance import Floats
from departing.planning.certificate import (
    TINY_MASS,
    Certificate,
    CertificateCheck,
    Verification,
    check_claims,
    check_dropped,
    check_schedule,
    chunks,
)
from departing.planning.horizon_bounds import HorizonBounds
from departing.planning.horizon_controller import FixedValues, HorizonController
from departing.planning.problem import PlanningProblem, values_by_steps
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

GraphClaims = namedtuple("GraphClaims", "weights upper depth q_upper child")


@dataclass(frozen=True, eq=False)
class HorizonCertificate(Certificate):
    """Certificate of a search with a horizon from the root `root` of several priors `[R, M]`."""

    problem: PlanningProblem = field(repr=False)
    priors: Floats = field(repr=False)
    bounds: HorizonBounds = field(repr=False)
    nodes: GraphClaims = field(repr=False)
    controller: HorizonController = field(repr=False)
    root: int = 0

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return int(self.nodes.depth.max())

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check every bound, node and alpha vector."""
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
                self._check_known(unit),
                self._check_pairs(unit),
                *self._check_nodes(unit),
            )

    def own_checks(self, policy: Policy, lower: float, upper: float) -> tuple[CertificateCheck, ...]:
        """Checks of the policy and of the bounds from this root."""
        unit = self.problem.rounding(self.depth)
        with np.errstate(all="ignore"):  # as in `shared_checks`
            vectors = self._check_vectors(unit)
        return vectors, self._check_policy(policy, lower, unit), self._check_root(policy, lower, upper)

    def _check_known(self, unit: float) -> CertificateCheck:
        """Known types have at most the claimed values for every number of steps."""
        problem, bounds = self.problem, self.bounds
        known, tail = values_by_steps(problem.reward, problem.click_stay + problem.stay, problem.horizon)
        same = known.shape == bounds.known.shape
        return check_claims("known types", [known - bounds.known, tail - bounds.tail] if same else [np.inf], unit)

    def _check_pairs(self, unit: float) -> CertificateCheck:
        """A Bellman backup of a pair of types, interpolated on the grid, does not exceed the claims."""
        problem, grid, excess = self.problem, self.bounds.grid, list[Floats]()
        occurring = np.flatnonzero(self.priors.max(axis=0) > 0)
        pairs = [(x, y) for x in occurring for y in occurring if x < y] if self.bounds.pairs.shape[1] else []
        beliefs = np.stack([grid, 1 - grid], axis=1)
        for x, y in pairs:
            values = self.bounds.pairs[:, self.bounds.pair[x, y]]
            steps = beliefs @ problem.reward[:, [x, y]].T
            for step in range(1, len(values)):
                ahead = steps.copy()
                for transition in (problem.click_stay, problem.stay):
                    moved = beliefs[:, None, :] * transition[:, [x, y]]
                    mass = moved.sum(axis=2)
                    share = np.divide(moved[:, :, 0], mass, out=np.zeros_like(mass), where=mass > 0)
                    ahead += mass * np.interp(share, grid, values[step - 1])
                excess.append((ahead.max(axis=1) - values[step])[1:-1])
            excess += [self.bounds.known[:, y] - values[:, 0], self.bounds.known[:, x] - values[:, -1]]
            excess.append(-values[0])
        return check_claims("pairs of types", excess, unit)

    def _check_nodes(self, unit: float) -> tuple[CertificateCheck, ...]:
        """Each category of a node claims no less than its children or the bounds of types."""
        problem, nodes, horizon = self.problem, self.nodes, self.problem.horizon
        categories, tops, weights = ([np.zeros(0)] for _ in range(3))
        for part in chunks(len(nodes.depth)):
            here, depth, child = nodes.weights[part], nodes.depth[part], nodes.child[part]
            mass = np.maximum(here.sum(axis=1), TINY_MASS)
            has_children = (child >= 0).all(axis=2)
            steps, ahead = here @ problem.reward.T, here @ problem.reward.T
            for o, transition in enumerate((problem.click_stay, problem.stay)):
                to = np.where(has_children, child[:, :, o], 0)
                ahead = ahead + nodes.upper[to]
                off = np.abs(nodes.weights[to] - here[:, None, :] * transition) @ (1 + problem.type_values)
                off[nodes.depth[to] != depth[:, None] + 1] = np.inf
                weights.append((off / mass[:, None])[has_children])
            short = np.where(has_children, ahead, np.inf) - nodes.q_upper[part]
            open_claims = np.nonzero(short > 0)  # the bounds of types take longer: for these claims only
            rows, a = open_claims
            bound, left = steps[open_claims], horizon - depth[rows] - 1
            for transition in (problem.click_stay, problem.stay):
                bound = bound + self.bounds.upper(here[rows] * transition[a], left)
            short[open_claims] = np.minimum(short[open_claims], bound - nodes.q_upper[part][open_claims])
            categories.append(short / mass[:, None])
            tops.append((nodes.q_upper[part].max(axis=1) - nodes.upper[part]) / mass)
        tops.append(np.where(nodes.depth >= horizon, np.inf, 0.0))
        return (
            check_claims("categories of nodes", categories, unit),
            check_claims("nodes", tops, unit),
            check_claims("weights of children", weights, unit),
        )

    def _check_vectors(self, unit: float) -> CertificateCheck:
        """Every alpha vector is at most one step of its category followed by vectors that cover one step less."""
        controller, instance = self.controller, self.problem.instance
        fixed, excess = FixedValues(instance), list[Floats]()
        for rows in controller.by_steps() if len(controller.steps) else ():
            backed_up = controller.backups(instance, controller.vectors, fixed, rows)
            excess.append((controller.vectors[rows] - backed_up)[:, self.problem.occurring])
        after, own = controller.successor, controller.steps[:, None]
        wrong = (
            np.where(after >= 0, controller.steps[np.maximum(after, 0)] != own - 1, False) if len(after) else after
        )
        used = np.concatenate([controller.categories, -1 - after[after < 0]])
        excess.append(np.where(np.isin(used, self.problem.allowed), 0.0, np.inf))
        excess.append(np.where(wrong | (own < 1), np.inf, 0.0))
        return check_claims("alpha vectors", excess, unit)

    def _check_policy(self, policy: Policy, lower: float, unit: float) -> CertificateCheck:
        """The policy uses the controller's vectors, or is a schedule of at least the value."""
        controller = self.controller
        if isinstance(policy, Schedule):
            return check_schedule(self.problem, policy, lower, unit)
        same = isinstance(policy, Alpha) and all(
            np.array_equal(np.asarray(own), theirs)
            for own, theirs in (
                (policy.vectors, controller.vectors),
                (policy.categories, controller.categories),
                (policy.steps, controller.steps),
            )
        )
        return CertificateCheck("vectors of the policy", len(controller.vectors), 0.0 if same else np.inf)

    def _check_root(self, policy: Policy, lower: float, upper: float) -> CertificateCheck:
        """The bounds are those of the root and the controller with the tolerance, or simpler ones."""
        problem, tolerance = self.problem, self.problem.tolerance(self.depth)
        prior, controller = problem.prior, self.controller
        attained = max(controller.best_value(problem.instance, prior, problem.horizon) - tolerance, 0.0)
        if isinstance(policy, Schedule):
            attained = lower  # checked with the policy
        bound = min(float(self.nodes.upper[self.root]) + tolerance, problem.known_type_bound)
        off = float(np.abs(self.nodes.weights[self.root] - prior).max()) + float(self.nodes.depth[self.root])
        excess = [bound - upper, lower - attained, off * upper]
        return check_claims("bounds of the root", excess, 1e-15 * max(1.0, upper))
