"""Scaling: plans in a unit in which the largest reward is between 1 and 2, for constants that are absolute numbers.

The scale is a power of two, so the arithmetic is exact: rewards of 1, 2 and 4 have the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from departing.planning.certificate import Certificate, Verification
from departing.planning.controller import Controller
from departing.planning.problem import BoundsProgress, Limits, PlanningProblem, Solution
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy


def largest_reward(problem: PlanningProblem) -> float:
    """Largest reward of the allowed categories; 1 if all are 0."""
    return float(problem.instance.reward[list(problem.allowed)].max()) or 1.0


def solve_scaled(
    solve: Callable[[PlanningProblem, Limits], Solution], problem: PlanningProblem, limits: Limits
) -> Solution:
    """Solve a problem in scaled rewards, and return the solution in the unit of the instance."""
    exponent = int(np.frexp(largest_reward(problem))[1]) - 1
    if exponent == 0:
        return solve(problem, limits)
    scaled = PlanningProblem(
        problem.instance.replace(reward=np.ldexp(problem.instance.reward, -exponent)), list(problem.allowed)
    )
    gap = float(np.ldexp(limits.gap, -exponent))
    solution = solve(scaled, replace(limits, gap=gap, progress=_scaled_progress(limits.progress, exponent)))
    controller = solution.controller
    if isinstance(controller, Controller):
        controller = replace(controller, vectors=np.ldexp(controller.vectors, exponent))
    return Solution(
        _scaled_policy(solution.policy, problem, exponent),
        controller,
        float(np.ldexp(solution.lower, exponent)),
        float(np.ldexp(solution.upper, exponent)),
        solution.reason,
        ScaledCertificate(solution.certificate, scaled, exponent),
    )


def _scaled_policy(policy: Policy, problem: PlanningProblem, exponent: int) -> Policy:
    """The policy for another problem, with values multiplied by a power of two."""
    if not isinstance(policy, Alpha):
        return policy
    upper = None if policy.upper is None else float(np.ldexp(policy.upper, exponent))
    rest = (policy.categories, policy.successors, upper, policy.steps)
    return Alpha(problem.instance, np.ldexp(policy.vectors, exponent), *rest)


def _scaled_progress(progress: BoundsProgress | None, exponent: int) -> BoundsProgress | None:
    """Report bounds in the unit of the instance."""
    if progress is None:
        return None
    return lambda lower, upper: progress(float(np.ldexp(lower, exponent)), float(np.ldexp(upper, exponent)))


@dataclass(frozen=True)
class ScaledCertificate(Certificate):
    """Certificate of the same plan with rewards divided by a power of two."""

    certificate: Certificate
    problem: PlanningProblem = field(repr=False)
    exponent: int

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the claims in scaled rewards."""
        own = _scaled_policy(policy, self.problem, -self.exponent)
        bounds = (float(np.ldexp(each, -self.exponent)) for each in (lower, upper))
        verification = self.certificate.verify(own, *bounds)
        return replace(verification, tolerance=float(np.ldexp(verification.tolerance, self.exponent)))
