"""Scaling: plans in a unit in which the largest reward is between 1 and 2, for constants that are absolute numbers.

The scale is a power of two, so the arithmetic is exact: rewards of 1, 2 and 4 have the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from departing.planning.certificate import Certificate, CertificateCheck, Verification
from departing.planning.controller import Controller
from departing.planning.problem import BoundsProgress, Limits, PlanningProblem, Solution
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy


def largest_reward(problem: PlanningProblem) -> float:
    """Largest reward of the allowed categories; 1 if all are 0."""
    return float(problem.instance.reward[list(problem.allowed)].max()) or 1.0


def scale_exponent(problem: PlanningProblem) -> int:
    """Exponent of the power of two that rewards are divided by."""
    return int(np.frexp(largest_reward(problem))[1]) - 1


def scaled_problem(problem: PlanningProblem, exponent: int) -> PlanningProblem:
    """The problem with rewards divided by a power of two."""
    if exponent == 0:
        return problem
    instance = problem.instance.replace(reward=np.ldexp(problem.instance.reward, -exponent))
    scaled = PlanningProblem(instance, list(problem.allowed))
    scaled.occurring = problem.occurring
    return scaled


def scaled_limits(limits: Limits, exponent: int) -> Limits:
    """Limits for rewards divided by a power of two."""
    gap = float(np.ldexp(limits.gap, -exponent))
    return replace(limits, gap=gap, progress=_scaled_progress(limits.progress, exponent))


def solve_scaled(
    solve: Callable[[PlanningProblem, Limits], Solution], problem: PlanningProblem, limits: Limits
) -> Solution:
    """Solve a problem in scaled rewards, and return the solution in the unit of the instance."""
    exponent = scale_exponent(problem)
    if exponent == 0:
        return solve(problem, limits)
    scaled = scaled_problem(problem, exponent)
    return unscaled(solve(scaled, scaled_limits(limits, exponent)), problem, scaled, exponent)


def unscaled(solution: Solution, problem: PlanningProblem, scaled: PlanningProblem, exponent: int) -> Solution:
    """A solution of the scaled problem in the unit of the instance."""
    if exponent == 0:
        return solution
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
        verification = self.certificate.verify(*self._scaled(policy, lower, upper))
        return replace(verification, tolerance=float(np.ldexp(verification.tolerance, self.exponent)))

    @property
    def tolerance(self) -> float:
        """Allowance for rounding that the bounds include."""
        return float(np.ldexp(self.certificate.tolerance, self.exponent))

    def shared_checks(self) -> tuple[CertificateCheck, ...]:
        """Checks of the claims that several roots share."""
        return self.certificate.shared_checks()

    def own_checks(self, policy: Policy, lower: float, upper: float) -> tuple[CertificateCheck, ...]:
        """Checks of the policy and of the bounds from this root."""
        return self.certificate.own_checks(*self._scaled(policy, lower, upper))

    def _scaled(self, policy: Policy, lower: float, upper: float) -> tuple[Policy, float, float]:
        """The policy and the bounds in scaled rewards."""
        own = _scaled_policy(policy, self.problem, -self.exponent)
        return own, float(np.ldexp(lower, -self.exponent)), float(np.ldexp(upper, -self.exponent))
