"""`plan`: the best policy for an instance, with a bracket around its value."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import evaluate
from departing.kernels.compiling import is_compiled, log_compilation
from departing.kernels.planning.lattice import walk
from departing.kernels.planning.search import rounds
from departing.model.errors import InputError
from departing.model.files import write_document
from departing.model.instance import Instance
from departing.model.validation import check_instance, check_positive
from departing.planning.certificate import (
    Certificate,
    ClosedFormCertificate,
    LatticeCertificate,
    SearchCertificate,
    Verification,
)
from departing.planning.closed_form import best_for_all, two_by_two
from departing.planning.controller import Controller
from departing.planning.lattice import Lattice
from departing.planning.problem import Clock, Problem, Progress
from departing.planning.search import Search
from departing.policy.alpha import Alpha
from departing.policy.files import policy_to_dict
from departing.policy.library import describe
from departing.policy.protocol import Allowed, Policy, resolve_policy
from departing.policy.schedule import Fixed

if TYPE_CHECKING:
    from departing.planning.sensitivity import Sensitivity

METHODS = ("auto", "closed-form", "lattice", "search")
NARROWER = 0.85  # of the gap is searched for, so that a short policy may lose a little
WIDER = 1.05  # times the gap there is: what a short policy may make of it, if the one asked for is out of reach


@dataclass(frozen=True, eq=False)
class Plan(Bounds):
    """A policy with a proof of how good it is.

    `lower` is what this policy guarantees, `upper` what no policy can surpass: expected clicks of one user, rounding
    included. `method` is how it was found, `reason` a sentence about it, `seconds` how long it took.
    """

    policy: Policy
    method: str
    reason: str
    seconds: float
    instance: Instance = field(repr=False)
    allowed: tuple[int, ...] = field(repr=False)
    proof: Certificate = field(repr=False)

    def verify(self) -> Verification:
        """Check the bracket again, from what was kept of the search and without searching."""
        return self.proof.verify(self.policy, self.lower, self.upper)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy, with the names of the categories, to a TOML or JSON file; `load_policy` reads it."""
        write_document(path, "policy", policy_to_dict(self.policy) | {"names": list(self.instance.categories)})

    def words(self) -> str:
        """The policy in words, with the instance's names."""
        return describe(self.policy, self.instance)

    def sensitivity(self, by: float = 0.05, gap: float | None = None) -> "Sensitivity":
        """How value and first choices change when click, depart or prior are off by a share `by` of themselves."""
        from departing.planning.sensitivity import sensitivity

        return sensitivity(self, by, gap)

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the plan to a file (.svg, .png or .pdf): its first steps, and for two or three types the beliefs."""
        from departing.planning.plot.plan_plot import write_plot

        write_plot(self, path)


def plan(
    instance: Instance,
    gap: float = 1e-6,
    seconds: float = 60.0,
    method: str = "auto",
    *,
    allowed: Allowed = None,
    progress: Progress | None = None,
) -> Plan:
    """The best policy for `instance`: its value and that of every other are within `gap` of each other.

    Stops when the bracket is as narrow as `gap` or after about `seconds`, and returns the best bracket so far; the
    time to compile, once, does not count. Methods:

    - `closed-form`: one category that is best for every type (always so with one type), or the paper's formulas for
      two types, two categories and sure departure;
    - `lattice`: sure departure, any number of types and categories; the policy is a walk;
    - `search`: any instance;
    - `auto`: the first of these that applies.

    With `allowed` only these categories are ever recommended: names or indices, or True and False for each.
    `progress` is called now and then with the lower and the upper bound.

    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> found = plan(blog)
    >>> found.policy, round(found.value, 10), found.method
    (Threshold(first=1, steps=6, then=0), 0.6502905844, 'closed-form')
    """
    check_instance(instance)
    gap, seconds = check_positive("gap", gap), check_positive("seconds", seconds)
    problem = Problem.of(instance, allowed)
    if method not in METHODS:
        raise InputError(f"method is {method!r}; allowed are {', '.join(METHODS)}.", "method")
    unfit = _unfit(problem)
    if method in unfit:
        fit = [name for name in METHODS[1:] if name not in unfit]
        raise InputError(f"method {method!r} does not fit: {unfit[method]}. Fit are auto, {', '.join(fit)}.")
    if method == "auto":
        method = next(name for name in METHODS[1:] if name not in unfit)
    _compile(method)
    clock = Clock(seconds)
    policy, lower, upper, reason, proof = _solve(method, problem, gap, clock, progress)
    policy = resolve_policy(policy, instance.categories)
    return Plan(lower, upper, policy, method, reason, clock.passed, instance, problem.allowed, proof)


Solution = tuple[Policy, float, float, str, Certificate]


def _solve(method: str, problem: Problem, gap: float, clock: Clock, progress: Progress | None) -> Solution:
    solve = {"closed-form": _closed_form, "lattice": _lattice, "search": _search}[method]
    return solve(problem, gap, clock, progress)


@cache
def _compile(method: str) -> None:
    """Have a method's kernels compiled, by solving something small."""
    if method == "lattice":
        log_compilation(walk, "the planner for sure departure", 5)
    if method == "search":
        log_compilation(rounds, "the planner", 30)
    small = Problem.of(Instance([0.5, 0.5], [[0.6, 0.3], [0.3, 0.6]], 1.0 if method == "lattice" else 0.5))
    if method != "closed-form":
        _solve(method, small, 1e-3, Clock(60.0), None)
    if method == "search":
        Search(small, Clock(60.0)).practise(Clock(60.0))


@contextmanager
def compiled_meanwhile() -> Iterator[None]:
    """Have another process compile the planner for uncertain departure meanwhile, if it has not been."""
    if is_compiled(rounds):
        yield
        return
    log_compilation(rounds, "the planner", 30)
    code = "from departing.planning.plan import _compile; _compile('search')"
    helper = Popen([sys.executable, "-c", code], stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield
        helper.wait()
    finally:
        helper.kill()


def _unfit(problem: Problem) -> dict[str, str]:
    """Why methods do not fit the problem."""
    unfit = {}
    instance = problem.instance
    whole = len(problem.allowed) == instance.n_categories
    if best_for_all(problem) is None and not (whole and instance.structure):
        unfit["closed-form"] = (
            "it is for one type, a category that is best for every type, "
            "or two types and two categories with sure departure"
        )
    if not instance.sure_departure:
        unfit["lattice"] = "it is for sure departure (depart 1 throughout)"
    return unfit


def _closed_form(problem: Problem, gap: float, clock: Clock, progress: Progress | None) -> Solution:
    instance = problem.instance
    category = best_for_all(problem)
    if category is not None:
        found = evaluate(instance, Fixed(category))
        name = instance.categories[category]
        reason = f"{name} for ever is the best for every type, so knowing the type would not help."
        return Fixed(category), found.lower, found.upper, reason, ClosedFormCertificate(problem)
    solved = two_by_two(instance)
    policy, value = solved.best
    reason = f"The chances have a dominant {solved.structure}"
    if solved.n_star is not None:
        reason += f" with N* = {solved.n_star:.4g}"
    reason += f"; {len(solved.candidates)} candidates were compared."
    upper = max(candidate.upper for _, candidate in solved.candidates)
    return policy, value.lower, upper, reason, ClosedFormCertificate(problem)


def _lattice(problem: Problem, gap: float, clock: Clock, progress: Progress | None) -> Solution:
    lattice = Lattice(problem, progress)
    lattice.run(gap, clock)
    policy = lattice.policy()
    found = evaluate(problem.instance, policy)
    upper = max(lattice.upper, found.upper)
    reason = f"Counts of clicks looked at: {lattice.made:,}."
    return policy, found.lower, upper, reason, LatticeCertificate(lattice)


def _search(problem: Problem, gap: float, clock: Clock, progress: Progress | None) -> Solution:
    search = Search(problem, clock, progress)
    wanted = NARROWER * gap
    while True:
        search.run(wanted, clock)
        done = clock.over or not search.can_go_on(wanted)
        reached = max(gap, WIDER * (search.upper - search.lower)) if done else gap
        controller = search.controller(reached)
        lower = max(controller.promise(problem) - search.tolerance, 0.0)
        upper = min(search.upper + search.tolerance, problem.known)
        if upper - lower <= gap or done:
            break
        wanted *= 0.7
    best = Fixed(int(problem.categories[(problem.fixed @ problem.prior).argmax()]))
    fixed = evaluate(problem.instance, best).lower
    if fixed >= lower:  # also where rounding would take more from the promise than it is worth
        controller, lower = Controller.of(best.final_category, problem.instance), fixed
    n = len(controller.vectors)
    if n == 1:
        policy: Policy = Fixed(int(controller.categories[0]))
    else:
        policy = Alpha(problem.instance, controller.vectors, controller.categories)
    reason = f"Counts expanded: {search.expanded:,}; ways of going on kept: {n:,}."
    return policy, lower, max(upper, lower), reason, SearchCertificate(search, controller)
