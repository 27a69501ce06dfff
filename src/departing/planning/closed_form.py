"""Closed forms: a category that is best for every type, and the paper's 2 × 2 instances with sure departure."""

import math
from dataclasses import dataclass

from departing.evaluation.evaluate import Evaluation, evaluate
from departing.model.errors import InputError
from departing.model.instance import Instance, two_by_two_structure
from departing.planning.certificate import ClosedFormCertificate
from departing.planning.problem import PlanningProblem, Solution
from departing.policy.schedule import MAX_STEPS, Fixed, Schedule, Threshold


@dataclass(frozen=True)
class TwoByTwo:
    """Solution of an instance with two types, two categories and sure departure, as in the paper.

    Attributes
    ----------
    structure : str
        'row', 'column' or 'diagonal'.
    first, second : int
        The paper's categories 1 and 2: `first` has the largest click probability.
    n_star : float or None
        With a dominant column the optimal policy recommends `second` for a number of steps and then `first`; this is
        the stationary point of the value as a function of that number. None for other structures.
    candidates : tuple of (Schedule, Evaluation)
        Policies one of which is optimal, with their values.
    """

    structure: str
    first: int
    second: int
    n_star: float | None
    candidates: tuple[tuple[Schedule, Evaluation], ...]

    @property
    def best(self) -> tuple[Schedule, Evaluation]:
        """The best candidate; of equal ones the first."""
        return max(self.candidates, key=lambda candidate: candidate[1].lower)


def two_by_two(instance: Instance) -> TwoByTwo:
    """Solve an instance with two types, two categories and sure departure by the paper's formulas.

    Parameters
    ----------
    instance : Instance
        Instance with two types and two categories, `depart` 1 and `depart_on_click` 0.

    Returns
    -------
    TwoByTwo

    Raises
    ------
    InputError
        If the formulas do not apply.

    Examples
    --------
    >>> solution = two_by_two(Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]]))
    >>> solution.structure, round(solution.n_star, 3), solution.best[0]
    ('column', 5.801, Threshold(first=1, steps=6, then=0))
    """
    if instance.structure is None:
        raise InputError("The closed form requires two types, two categories, depart 1 and no depart_on_click.")
    structure, a, x = two_by_two_structure(instance.click)
    policies: list[Schedule] = [Fixed(a)]
    n_star = None
    if structure != "row":
        policies.append(Fixed(1 - a))
    if structure == "column":
        n_star = switching_time(instance, a, x)
        if n_star < MAX_STEPS - 2:
            # Rounding may put n_star on the wrong side of an integer, so the neighbours are candidates too.
            around = range(max(math.floor(n_star) - 1, 1), math.ceil(n_star) + 2)
            policies += [Threshold(first=1 - a, steps=n, then=a) for n in around]
    return TwoByTwo(structure, a, 1 - a, n_star, tuple((policy, evaluate(instance, policy)) for policy in policies))


def switching_time(instance: Instance, first: int, x: int) -> float:
    """The paper's N* for a dominant column, where `first` is its category 1 and x its first type.

    The value of N steps of category 2 followed by category 1 is `c1 P2x^N + c2 P2y^N + c3` with c1 ≥ 0 ≥ c2. N* is
    the zero of its derivative, at least 0, or infinity if the value only increases.
    """
    second, y = 1 - first, 1 - x
    p1x, p1y = instance.click[first, x], instance.click[first, y]
    p2x, p2y = instance.click[second, x], instance.click[second, y]
    gain = instance.prior[x] * (p1x - p2x) / ((1 - p1x) * (1 - p2x))  # c1: gain of switching for type x
    loss = instance.prior[y] * (p2y - p1y) / ((1 - p1y) * (1 - p2y))  # -c2: loss of switching for type y
    if loss == 0:
        return 0.0
    if gain == 0:
        return math.inf
    ratio = (math.log(loss) - math.log(gain)) + (math.log(-math.log(p2y)) - math.log(-math.log(p2x)))
    if p2x == p2y:  # gain and loss are constants times the same power: always or never
        return math.inf if ratio > 0 else 0.0
    apart = math.log1p((p2x - p2y) / p2y) if p2x < 2 * p2y else math.log(p2x) - math.log(p2y)
    return max(0.0, ratio / apart)


def solve_closed_form(problem: PlanningProblem) -> Solution:
    """Plan by the closed form that applies."""
    instance, category = problem.instance, problem.uniformly_best
    certificate = ClosedFormCertificate(problem)
    if category is not None:
        policy = Fixed(category)
        value = evaluate(instance, policy)
        reason = f"{instance.categories[category]} is the best category for every type, whatever the belief."
        return Solution(policy, policy, value.lower, value.upper, reason, certificate)
    solution = two_by_two(instance)
    best, value = solution.best
    n_star = "" if solution.n_star is None else f" with N* = {solution.n_star:.4g}"
    reason = (
        f"The click probabilities have a dominant {solution.structure}{n_star}; "
        f"{len(solution.candidates)} candidate policies were compared."
    )
    upper = max(candidate.upper for _, candidate in solution.candidates)
    return Solution(best, best, value.lower, upper, reason, certificate)
