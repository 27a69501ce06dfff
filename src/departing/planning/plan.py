"""`plan`: the optimal policy of an instance within a gap, with certified bounds on its value."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count, format_limit
from departing.html_tables import html_repr
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Instance
from departing.model.validation import check_choice, check_instance, check_positive
from departing.planning.certificate import Certificate, Verification
from departing.planning.closed_form import solve_closed_form
from departing.planning.controller import Controller
from departing.planning.problem import BoundsProgress, Deadline, Limits, PlanningProblem, Solution
from departing.planning.scaling import largest_reward, solve_scaled
from departing.planning.segment_tables import segment_columns, segment_lines
from departing.policy.files import write_policy
from departing.policy.library import describe
from departing.policy.protocol import Allowed, Policy, resolve_policy
from departing.policy.schedule import Schedule
from departing.policy.starts import Start, describe_policies, group_starts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from departing.planning.baselines import Baseline
    from departing.planning.sensitivity import Sensitivity

# Extensions of the model for one prior; `plan` supports segments as well.
SUPPORTED = ("reward", "horizon")
DEFAULT_GAP = 1e-6  # of the largest reward
METHODS = ("auto", "closed-form", "lattice", "search", "finite-horizon")
# Limit of a reference plan. The instances of the bundled studies need at most 1,200 nodes. So many take the heuristic
# search 20 seconds to two minutes, about the default time limit of `plan`.
REFERENCE_NODES = 100_000


@dataclass(frozen=True, eq=False)
class Plan(Bounds):
    """Policy with certified bounds: `lower` ≤ value of the policy ≤ optimal value ≤ `upper`.

    Attributes
    ----------
    lower, upper : float
        Bounds in expected reward per user, rounding included.
    policy : Policy
        The policy.
    method : str
        'closed-form', 'lattice', 'search' or 'finite-horizon'.
    reason : str
        One sentence on how the policy was found.
    seconds : float
        Planning time.
    instance : Instance
        Instance that was planned for.
    allowed : tuple of int
        Indices of the categories that the policy may recommend.
    certificate : Certificate
        Claims that `verify` checks.
    controller : Schedule or Controller
        Schedule or finite-state controller whose value is at least `lower`; the value of the policy is at least that.
    target_gap : float
        Gap that was aimed at.
    by_segment : dict of str to Plan
        Plan of each segment, if the instance has segments; the bounds of this plan are then those of all users.
    common : Plan, optional
        Plan of a user of unknown segment, if the instance has segments.
    """

    policy: Policy
    method: str
    reason: str
    seconds: float
    instance: Instance = field(repr=False)
    allowed: tuple[int, ...] = field(repr=False)
    certificate: Certificate = field(repr=False)
    controller: Schedule | Controller = field(repr=False)
    target_gap: float = field(repr=False)
    by_segment: "dict[str, Plan]" = field(default_factory=dict, repr=False)
    common: "Plan | None" = field(default=None, repr=False)

    def verify(self) -> Verification:
        """Check the bounds against the certificate, without a search.

        Returns
        -------
        Verification
            True if every claim holds.
        """
        return self.certificate.verify(self.policy, self.lower, self.upper)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a TOML or JSON file, which `load_policy` reads.

        The file has the names of the categories and the horizon too; a service to which it is published limits the
        recommendations to a user to that horizon.
        """
        write_policy(path, self.policy, self.instance)

    def describe(self) -> str:
        """Describe the policy in one phrase, with the names of the categories."""
        if self.by_segment:
            return describe_policies((each.describe() for each in self.by_segment.values()), self.starts)
        return describe(self.policy, self.instance)

    @property
    def starts(self) -> tuple[Start, ...]:
        """Segments grouped by the category that is recommended first; () without segments."""
        columns = segment_columns(self) if self.by_segment else {"segment": [], "first": [], "share": []}
        return group_starts(dict(zip(columns["segment"], columns["first"], strict=True)), columns["share"])

    def summary(self) -> str:
        """Return a printed overview: policy, value, bounds, gap, method and baselines.

        Examples
        --------
        >>> from departing.model.examples import blog
        >>> print(plan(blog()).summary())
        Policy: sports × 6, then economics
        Expected clicks per user: 0.65029058 (optimal within 7.3e-15)
        Method: closed-form. The click probabilities have a dominant column with N* = 5.801; 6 candidate ...
        Loss compared with the optimal policy:
          greedy: 1.7e-05
          always sports: 1.7e-05
        """
        lines = [
            f"Policy: {self.describe()}",
            f"Expected {self.instance.unit} per user: {self.value:.8f} (optimal within {format_limit(self.gap)})",
            f"Method: {self.method}. {self.reason}",
            *segment_lines(self),
            "Loss compared with the optimal policy:",
        ]
        lines += [f"  {describe(each.policy, self.instance)}: {each.loss.value:.2g}" for each in self.baselines()]
        return "\n".join(lines)

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the plan and its baselines as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each policy: policy, lower, upper (bounds on the value), loss (at most, compared with the
            optimal policy). With segments one row for each segment: segment, share, first (category), policy, lower,
            upper, best_fixed (category), best_fixed_value.
        """
        if self.by_segment:
            return to_frame(segment_columns(self))
        rows = [(self.describe(), self.lower, self.upper, self.gap)]
        for each in self.baselines():
            value = each.evaluation
            rows.append((describe(each.policy, self.instance), value.lower, value.upper, each.loss.upper))
        return to_frame(dict(zip(("policy", "lower", "upper", "loss"), zip(*rows, strict=True), strict=True)))

    def _repr_html_(self) -> str:
        rows = [
            [f"expected {self.instance.unit} per user", f"{self.value:.6g}"],
            ["optimal within", format_limit(self.gap)],
            ["method", self.method],
            ["planning time", f"{self.seconds:.2g} s"],
        ]
        return html_repr(f"Plan: {self.describe()}", [], rows, [self.reason])

    def baselines(self) -> "tuple[Baseline, ...]":
        """Evaluate the greedy policy and the best fixed policy, and bound their losses against the optimal policy."""
        from departing.planning.baselines import evaluate_baselines

        return evaluate_baselines(self)

    def value_under(self, instance: Instance) -> float:
        """Return the expected reward per user of the plan's controller if users behave according to `instance`.

        Parameters
        ----------
        instance : Instance
            Instance with the same number of categories. Users of segments that the plan does not know get the policy
            for unknown segments.

        Raises
        ------
        InputError
            If the instance has another number of categories.
        """
        if instance.n_categories != self.instance.n_categories:
            raise InputError(
                f"instance has {format_count(instance.n_categories, 'category', 'categories')}; expected "
                f"{self.instance.n_categories}, as in the instance of the plan.",
                "instance",
            )
        if self.common is not None:
            if instance.segments is None:
                return self.common.value_under(instance)
            return sum(
                float(share) * self.by_segment.get(name, self.common).value_under(instance.in_segment(name))
                for name, share in zip(instance.segments.names, instance.segments.share, strict=True)
            )
        if isinstance(self.controller, Schedule) or instance.horizon != self.instance.horizon:
            return evaluate(instance, self.policy).value
        return self.controller.solve(instance).value(instance.normalised_prior)

    def sensitivity(self, by: float = 0.05, gap: float | None = None) -> "Sensitivity":
        """Plan again under perturbed instances, and compare with this plan.

        Parameters
        ----------
        by : float
            Relative size of the perturbations, between 0 and 1.
        gap : float, optional
            Gap of the new plans in expected reward per user [default: a thousandth of the value].

        Returns
        -------
        Sensitivity
        """
        from departing.planning.sensitivity import sensitivity

        return sensitivity(self, by, gap)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the first steps of the policy and, for two or three types, the best first category at every belief.

        With segments the values by segment are plotted; `by_segment[name].plot()` plots the policy of one segment.

        Parameters
        ----------
        path : path-like, optional
            File to write as well (.svg, .png or .pdf).

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.planning.plot.plan_plot import draw_plan
        from departing.planning.plot.segment_plot import draw_segments
        from departing.plotting.figures import save

        return save(draw_segments(self) if self.by_segment else draw_plan(self), path)


def plan(
    instance: Instance,
    gap: float | None = None,
    seconds: float = 60.0,
    method: str = "auto",
    *,
    allowed: Allowed = None,
    progress: BoundsProgress | None = None,
) -> Plan:
    """Compute a policy whose value is within `gap` of the optimum.

    Parameters
    ----------
    instance : Instance
        Instance to plan for.
    gap : float, optional
        Largest difference of the bounds, in expected reward per user [default: a millionth of the largest reward].
    seconds : float
        Time limit, of which a twentieth is kept for extracting the policy. Compilation, which happens once, does not
        count. When the time is up, the best bounds so far are returned, with a policy whose value is at most 0.1 %
        below the lower bound of the search.
    method : str
        'closed-form' (one category that is best for every type, or the paper's formulas for two types, two categories
        and sure departure), 'lattice' (sure departure; the policy is a walk), 'search' (any departure),
        'finite-horizon' (any instance with a horizon, to which lattice and search do not apply), or 'auto' (the first
        that applies).
    allowed : sequence of str or int, or of bool, optional
        Categories that may be recommended, by name or index, or True and False for each [default: all].
    progress : callable, optional
        Called from time to time with the lower and the upper bound.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        If an argument is invalid or the method does not apply.

    Examples
    --------
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> best = plan(blog)
    >>> best.policy, round(best.value, 10), best.method
    (Threshold(first=1, steps=6, then=0), 0.6502905844, 'closed-form')
    """
    check_instance(instance, (*SUPPORTED, "segments"))
    seconds = check_positive("seconds", seconds)
    problem = PlanningProblem(instance.in_segment(None), allowed)
    gap = DEFAULT_GAP * largest_reward(problem) if gap is None else check_positive("gap", gap)
    if instance.segments is not None:
        from departing.planning.segments import plan_segments

        return plan_segments(instance, problem, method, gap, seconds, progress)
    method = choose_method(problem, method)
    compile_method(method)
    return _run(problem, method, Limits(gap, Deadline(seconds), progress=progress))


def plan_within(problem: PlanningProblem, gap: float, max_nodes: int) -> Plan:
    """Plan as `plan` does, with a limit on nodes in the place of the time limit: the same result on every machine.

    Faces are left out: their nodes take less time than others, but count as much.
    """
    check_instance(problem.instance, SUPPORTED)
    method = choose_method(problem, "auto")
    compile_method(method)
    return _run(problem, method, Limits(gap, Deadline(float("inf")), max_nodes, faces=False))


def plan_reference(instance: Instance, gap: float) -> Plan:
    """Plan within REFERENCE_NODES: optima that regret refers to, and conditions on sampled instances.

    These must not depend on the speed of the machine, so there is no time limit.
    """
    return plan_within(PlanningProblem(instance), gap, REFERENCE_NODES)


def _run(problem: PlanningProblem, method: str, limits: Limits) -> Plan:
    """Run a compiled method and complete its solution to a plan."""
    solution = solve_scaled(partial(solve_by, method), problem, limits)
    policy, controller, lower, upper, reason, certificate = solution
    policy = resolve_policy(policy, problem.instance.categories)
    run = (policy, method, reason, limits.deadline.elapsed)
    return Plan(lower, upper, *run, problem.instance, problem.allowed, certificate, controller, limits.gap)


def solve_by(method: str, problem: PlanningProblem, limits: Limits) -> Solution:
    """Solve a problem by a method; the compiled ones are imported only when they are used."""
    if method == "closed-form":
        return solve_closed_form(problem)
    if method == "lattice":
        from departing.planning.lattice import solve_lattice

        return solve_lattice(problem, limits)
    if method == "finite-horizon":
        from departing.planning.finite_horizon import solve_finite_horizon

        return solve_finite_horizon([problem], limits)[0]
    from departing.planning.solve_search import solve_search

    return solve_search(problem, limits)


def choose_method(problem: PlanningProblem, method: str) -> str:
    """`method` if it applies; for 'auto' the first that does."""
    check_choice("method", method, METHODS)
    instance, required = problem.instance, {}
    unrestricted = len(problem.allowed) == instance.n_categories
    if problem.uniformly_best is None and not (unrestricted and instance.structure):
        required["closed-form"] = (
            "it requires one type, a category that is best for every type, "
            "or two types and two categories with sure departure"
        )
    if instance.horizon is not None:
        required["lattice"] = required["search"] = "the instance has a horizon"
    elif not instance.sure_departure:
        required["lattice"] = "it requires sure departure (depart is 1 everywhere)"
    if instance.horizon is None:
        required["finite-horizon"] = "it requires an instance with a horizon"
    applicable = [name for name in METHODS[1:] if name not in required]
    if method in required:
        raise InputError(
            f"method {method!r} does not apply: {required[method]}. "
            f"Applicable methods: auto, {', '.join(applicable)}."
        )
    return applicable[0] if method == "auto" else method


@cache
def compile_method(method: str) -> None:
    """Have the kernels of a method compiled, by solving a small problem."""
    if method == "closed-form":
        return
    from departing.kernels.compiling import log_compilation, without_garbage_collection

    instance = Instance([0.5, 0.5], [[0.6, 0.3], [0.3, 0.6]], 1.0 if method == "lattice" else 0.5)
    if method == "finite-horizon":
        instance = instance.replace(horizon=3)
    if method == "lattice":
        from departing.kernels.planning.lattice import expand_lattice

        log_compilation(expand_lattice, "the planner for sure departure", 5)
    elif method == "finite-horizon":
        from departing.kernels.planning.finite_horizon import expand_horizon

        log_compilation(expand_horizon, "the planner with a horizon", 5)
    else:
        from departing.kernels.planning.search import search

        log_compilation(search, "the planner", 10)
    with without_garbage_collection():
        solve_by(method, PlanningProblem(instance), Limits(1e-3, Deadline(float("inf"))))


@contextmanager
def compile_in_background() -> Iterator[None]:
    """Have another process compile the planner for uncertain departure while the body runs, unless it is compiled."""
    from departing.kernels.compiling import is_compiled, log_compilation
    from departing.kernels.planning.search import search

    if is_compiled(search):
        yield
        return
    log_compilation(search, "the planner", 10)
    code = "from departing.planning.plan import compile_method; compile_method('search')"
    process = Popen([sys.executable, "-c", code], stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield
        process.wait()
    finally:
        process.kill()
