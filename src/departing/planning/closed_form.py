"""Closed forms: one type, one category that suits all types, and the paper's two by two under sure departure."""

import math
from dataclasses import dataclass

from departing.evaluation.evaluate import Evaluation, evaluate
from departing.model.errors import InputError
from departing.model.instance import Instance, two_by_two_structure
from departing.planning.problem import Problem
from departing.policy.schedule import Fixed, Schedule, Threshold

LONGEST = 2**62 - 1


@dataclass(frozen=True)
class TwoByTwo:
    """The paper's answer for two types, two categories and sure departure.

    `structure` is row, column or diagonal. `first` and `second` are the paper's categories 1 and 2: the largest
    chance of a click is that of `first`. With a dominant column the best policy recommends `second` for a number of
    steps and then `first`; `n_star` is where that number's value has its only stationary point, as a real number, and
    None for other structures. `candidates` are the policies one of which is optimal, with their values.
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
    """Solve an instance of two types, two categories and sure departure as the paper does.

    >>> found = two_by_two(Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]]))
    >>> found.structure, round(found.n_star, 3), found.best[0]
    ('column', 5.801, Threshold(first=1, steps=6, then=0))
    """
    if instance.structure is None:
        raise InputError("The closed form is for two types, two categories, depart 1 and no depart_on_click.")
    structure, a, x = two_by_two_structure(instance.click)
    policies: list[Schedule] = [Fixed(a)]
    n_star = None
    if structure != "row":
        policies.append(Fixed(1 - a))
    if structure == "column":
        n_star = switching_time(instance, a, x)
        if n_star < LONGEST - 2:
            # Rounding may put n_star on the wrong side of a whole number, so the neighbours compete too.
            around = range(max(math.floor(n_star) - 1, 1), math.ceil(n_star) + 2)
            policies += [Threshold(first=1 - a, steps=n, then=a) for n in around]
    return TwoByTwo(structure, a, 1 - a, n_star, tuple((policy, evaluate(instance, policy)) for policy in policies))


def switching_time(instance: Instance, first: int, x: int) -> float:
    """The paper's N* for a dominant column, where `first` is its category 1 and x its first type.

    The value of N steps of category 2 and then category 1 for ever is `c1 P2x^N + c2 P2y^N + c3` with c1 ≥ 0 ≥ c2;
    N* is where its derivative vanishes, or 0 if that is below, or infinity if category 2 only gains.
    """
    second, y = 1 - first, 1 - x
    p1x, p1y = instance.click[first, x], instance.click[first, y]
    p2x, p2y = instance.click[second, x], instance.click[second, y]
    later = instance.prior[x] * (p1x - p2x) / ((1 - p1x) * (1 - p2x))  # c1: what switching brings of type x
    now = instance.prior[y] * (p2y - p1y) / ((1 - p1y) * (1 - p2y))  # -c2: what it costs of type y
    if now == 0:
        return 0.0
    if later == 0:
        return math.inf
    ratio = (math.log(now) - math.log(later)) + (math.log(-math.log(p2y)) - math.log(-math.log(p2x)))
    if p2x == p2y:  # switching brings a constant times the same power: always or never
        return math.inf if ratio > 0 else 0.0
    apart = math.log1p((p2x - p2y) / p2y) if p2x < 2 * p2y else math.log(p2x) - math.log(p2y)
    return max(0.0, ratio / apart)


def best_for_all(problem: Problem) -> int | None:
    """A category that is the best fixed one for every type in the prior at once, if there is one.

    Knowing the type would then not help, so it is optimal for any departure: with one type always, and where one
    category dominates.
    """
    here = problem.prior > 0
    suits = (problem.fixed[:, here] >= problem.best[here]).all(axis=1)
    return int(problem.categories[suits.argmax()]) if suits.any() else None
