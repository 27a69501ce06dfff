"""`plan_segments`: one policy for the users of all segments, with bounds for each segment and for all users.

Types, probabilities and rewards are the same in all segments, so belief points and alpha vectors found for one of
them hold for all. The common prior is planned for as well: it serves users of unknown segment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.model.instance import Floats, Instance
from departing.model.segments import Segments
from departing.planning.certificate import Certificate, CertificateCheck, Verification, check_claims, merged_checks
from departing.planning.plan import Plan, choose_method, compile_method, solve_by
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.planning.scaling import scale_exponent, scaled_limits, scaled_problem, unscaled
from departing.policy.alpha import Alpha
from departing.policy.by_segment import BySegment
from departing.policy.protocol import Policy, policy_in_segment, resolve_policy


def plan_segments(
    instance: Instance,
    problem: PlanningProblem,
    method: str,
    gap: float,
    seconds: float,
    progress: BoundsProgress | None,
) -> Plan:
    """Plan for all segments of an instance; `problem` is that of the common prior."""
    segments = instance.segments
    assert segments is not None
    problem.occurring = problem.occurring | (segments.prior > 0).any(axis=0)
    problems = [problem, *(problem.from_prior(instance.in_segment(name)) for name in segments.names)]
    method = choose_method(problem, method)
    compile_method(method)
    limits = Limits(gap, Deadline(seconds), progress=progress)
    exponent = scale_exponent(problem)
    first = scaled_problem(problem, exponent)
    scaled = [first.from_prior(_scaled(each.instance, first.instance)) for each in problems]
    solved = _solve(method, scaled, scaled_limits(limits, exponent))
    solutions = [unscaled(*each, exponent) for each in zip(solved, problems, scaled, strict=True)]
    elapsed = limits.deadline.elapsed
    common, *plans = (
        _plan(solution, each, method, elapsed, gap) for solution, each in zip(solutions, problems, strict=True)
    )
    by_segment = dict(zip(segments.names, plans, strict=True))
    lower, upper = _mix(segments, by_segment)
    policy = _policy(instance, common, by_segment)
    certificate = SegmentsCertificate(segments, by_segment, common)
    own = (policy, method, common.reason, elapsed, instance, problem.allowed, certificate, common.controller)
    return Plan(lower, upper, *own, gap, by_segment, common)


def _scaled(instance: Instance, first: Instance) -> Instance:
    """An instance with the rewards of another one."""
    return instance if instance.reward is first.reward else instance.replace(reward=first.reward)


def _solve(method: str, problems: list[PlanningProblem], limits: Limits) -> list[Solution]:
    """Solve all problems, together where the method can share work."""
    if method == "search":
        from departing.planning.shared_search import solve_search_together

        return solve_search_together(problems, limits)
    if method == "finite-horizon":
        from departing.planning.finite_horizon import solve_finite_horizon

        return solve_finite_horizon(problems, limits)
    return [solve_by(method, each, limits) for each in problems]


def _plan(solution: Solution, problem: PlanningProblem, method: str, seconds: float, gap: float) -> Plan:
    """The plan of one segment."""
    policy, controller, lower, upper, reason, certificate = solution
    policy = resolve_policy(policy, problem.instance.categories)
    own = (policy, method, reason, seconds, problem.instance, problem.allowed, certificate, controller)
    return Plan(lower, upper, *own, gap)


def _policy(instance: Instance, common: Plan, by_segment: Mapping[str, Plan]) -> Policy:
    """One set of alpha vectors if all segments use the same, otherwise the policy of each segment."""
    shared = common.policy
    if isinstance(shared, Alpha) and all(
        isinstance(each.policy, Alpha) and np.array_equal(each.policy.vectors, shared.vectors)
        for each in by_segment.values()
    ):
        arrays = (shared.vectors, shared.categories, shared.successors, common.upper, shared.steps)
        return Alpha(instance, *arrays, [each.upper for each in by_segment.values()])
    return cast(Policy, BySegment({name: each.policy for name, each in by_segment.items()}, common.policy))


def _mix(segments: Segments, by_segment: Mapping[str, Plan]) -> tuple[float, float]:
    """Bounds for all users, rounding included: the means of the bounds by segment, by share."""
    share: Floats = segments.share / segments.share.sum()
    lower, upper = (float(share @ [getattr(each, end) for each in by_segment.values()]) for end in ("lower", "upper"))
    rounding = ROUNDING * (8 + 2 * len(share))
    return lower * (1 - rounding), upper * (1 + rounding)


@dataclass(frozen=True, eq=False)
class SegmentsCertificate(Certificate):
    """Certificates of all segments, whose shared claims are checked once, and the bounds of the mix."""

    segments: Segments = field(repr=False)
    by_segment: Mapping[str, Plan] = field(repr=False)
    common: Plan = field(repr=False)

    def verify(self, policy: Policy, lower: float, upper: float) -> Verification:
        """Check the plan of every segment, and the policy and the bounds for all users."""
        groups: list[tuple[CertificateCheck, ...]] = [self.common.certificate.shared_checks()]
        followed = []
        for name, plan in (*self.by_segment.items(), (None, self.common)):
            own = policy_in_segment(policy, name)
            followed.append(0.0 if own == plan.policy else np.inf)
            groups.append(plan.certificate.own_checks(own, plan.lower, plan.upper))
        kinds: dict[str, list[CertificateCheck]] = {}
        for check in (check for group in groups for check in group):
            kinds.setdefault(check.claim, []).append(check)
        bounds = _mix(self.segments, self.by_segment)
        mix = check_claims("bounds of the mix", [lower - bounds[0], bounds[1] - upper], 1e-15 * max(1.0, upper))
        policies = check_claims("policies of segments", followed)
        tolerance = max(plan.certificate.tolerance for plan in (self.common, *self.by_segment.values()))
        return Verification((*map(merged_checks, kinds.values()), policies, mix), tolerance)
