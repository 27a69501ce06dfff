"""How a plan stands if the instance is not quite what was thought."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.validation import check_fraction
from departing.planning.certificate import SearchCertificate
from departing.policy.protocol import recommended
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from departing.planning.plan import Plan

FIELDS = ("click", "depart", "prior")
DRAWS = 8  # instances with all entries of a field changed at random


@dataclass(frozen=True)
class Shift:
    """What happens under one changed instance: `value` of its own best policy, what the plan `keeps` of it, and the
    first choices of its best policy: at the start, after a click, and after a stay."""

    field: str
    how: str
    value: float
    keeps: float
    first: tuple[int, int, int]

    @property
    def loss(self) -> float:
        """What is lost by keeping to the plan, as far as the bounds of the new plan tell."""
        return max(self.value - self.keeps, 0.0)


@dataclass(frozen=True)
class Sensitivity:
    """The changes that were tried, each entry off by up to a share `by` of itself.

    For every field there is a shift with all entries higher, one with all lower (for the prior: towards each type),
    and some with every entry off at random.
    """

    by: float
    first: tuple[int, int, int]
    shifts: tuple[Shift, ...]

    def of(self, field: str) -> tuple[Shift, ...]:
        """The shifts of one field: click, depart or prior."""
        if field not in FIELDS:
            raise InputError(f"field is {field!r}; allowed are {', '.join(FIELDS)}.")
        return tuple(shift for shift in self.shifts if shift.field == field)


def sensitivity(plan: "Plan", by: float = 0.05, gap: float | None = None) -> Sensitivity:
    """Plan again under changed instances, and tell what keeping to `plan` would lose.

    `gap` is how closely to plan again: a thousandth of the value unless told.
    """
    from departing.planning.plan import plan as plan_again

    by, rng = check_fraction("by", by), np.random.default_rng(0)
    gap = max(plan.gap, 1e-3 * plan.upper, 1e-300) if gap is None else gap
    shifts = []
    for field in FIELDS:
        for how, changed in _changes(plan.instance, field, by, rng):
            again = plan_again(changed, gap, min(max(plan.seconds, 0.5), 2.0), allowed=plan.allowed)
            shifts.append(Shift(field, how, again.value, worth(plan, changed), first_choices(again)))
    return Sensitivity(by, first_choices(plan), tuple(shifts))


def worth(plan: "Plan", instance: Instance) -> float:
    """What the plan brings if users behave as `instance` says; of vectors, what they were built to do."""
    if isinstance(plan.policy, Schedule):
        return evaluate(instance, plan.policy).value
    assert isinstance(plan.proof, SearchCertificate)
    prior = instance.normalised_prior
    return float(plan.proof.controller.solve(instance).vectors[plan.proof.controller.start] @ prior)


def first_choices(plan: "Plan") -> tuple[int, int, int]:
    """The categories recommended at the start, after one click and after one stay."""
    start = np.zeros((1, plan.instance.n_categories, 4), np.int64)
    first = int(recommended(plan.policy, start)[0])
    after: Integers = np.repeat(start, 2, axis=0)
    after[0, first, CLICK] = after[1, first, STAY] = 1
    click, stay = recommended(plan.policy, after)
    return first, int(click), int(stay)


def _changes(instance: Instance, field: str, by: float, rng: np.random.Generator) -> list[tuple[str, Instance]]:
    """Changed instances with a word on how."""
    shape = getattr(instance, field).shape
    if field == "prior":
        one = [(f"more of {name}", np.eye(instance.n_types)[x]) for x, name in enumerate(instance.types)]
    else:
        one = [("all higher", np.ones(shape)), ("all lower", -np.ones(shape))]
    drawn = [(f"at random {i + 1}", rng.uniform(-1, 1, shape)) for i in range(DRAWS)]
    return [(how, _changed(instance, field, direction * by)) for how, direction in one + drawn]


def _changed(instance: Instance, field: str, shares: Floats) -> Instance:
    """The instance with every entry of a field off by a share of itself, but still a chance."""
    moved = np.clip(getattr(instance, field) * (1 + shares), 0.0, 1.0)
    if field == "prior":
        moved = moved / moved.sum()
    if field == "click":  # a no-click stays at least half as likely as it was
        moved = np.minimum(moved, 1 - (1 - instance.click) / 2)
    return instance.replace(**{field: moved})
