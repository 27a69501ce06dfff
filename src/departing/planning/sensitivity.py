"""Sensitivity: the value of a plan, and the best plan, if the instance differs from the assumed one."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.validation import check_choice, check_fraction
from departing.policy.protocol import recommended

if TYPE_CHECKING:
    from departing.planning.plan import Plan

FIELDS = ("click", "depart", "prior")
RANDOM_PERTURBATIONS = 8  # for each field: enough for a mean and a maximum at a few seconds of planning
# Gap of the new plans, as a fraction of the value: losses of less than this do not matter at perturbations of
# percents.
GAP_FRACTION = 1e-3
MIN_SECONDS, MAX_SECONDS = 0.5, 2.0  # time limit of a new plan: that of the plan, within these


@dataclass(frozen=True)
class Perturbation:
    """Result under one perturbed instance.

    Attributes
    ----------
    field : str
        Perturbed field: 'click', 'depart' or 'prior'.
    change : str
        Description of the perturbation.
    optimal_value : float
        Value of the optimal policy of the perturbed instance, in expected reward per user.
    plan_value : float
        Value of the original plan under the perturbed instance.
    first : tuple of int
        Categories of the new optimal policy at the start, after a click and after a stay. With segments, those for a
        user of unknown segment.
    by_segment : dict of str to tuple of int
        The same for the users of each segment, if the instance has segments.
    """

    field: str
    change: str
    optimal_value: float
    plan_value: float
    first: tuple[int, int, int]
    by_segment: dict[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Loss of the original plan compared with the optimal policy, within the gap of the new plan."""
        return max(self.optimal_value - self.plan_value, 0.0)


@dataclass(frozen=True)
class Sensitivity:
    """Perturbations of an instance, each entry by up to a fraction `by` of itself.

    For every field all entries are raised, all are lowered (the prior: shifted towards each type), and some
    perturbations are random. The priors of segments are not perturbed.
    `first` and `by_segment` are the first categories of the original plan, as in `Perturbation`.
    """

    by: float
    first: tuple[int, int, int]
    perturbations: tuple[Perturbation, ...]
    by_segment: dict[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)

    def of(self, field: str) -> tuple[Perturbation, ...]:
        """Return the perturbations of one field: 'click', 'depart' or 'prior'."""
        check_choice("field", field, FIELDS)
        return tuple(each for each in self.perturbations if each.field == field)

    def changed(self, perturbation: Perturbation) -> dict[str | None, int]:
        """Return the new first category of each segment in which it is another one; None stands for all users."""
        if not self.by_segment:
            return {None: perturbation.first[0]} if perturbation.first[0] != self.first[0] else {}
        starts = {name: first[0] for name, first in perturbation.by_segment.items()}
        return {name: start for name, start in starts.items() if start != self.by_segment[name][0]}


def sensitivity(plan: "Plan", by: float = 0.05, gap: float | None = None) -> Sensitivity:
    """Plan again under perturbed instances, and evaluate `plan` there; see `Plan.sensitivity`."""
    from departing.planning.plan import plan as plan_again

    by, rng = check_fraction("by", by), np.random.default_rng(0)
    gap = max(plan.gap, GAP_FRACTION * plan.upper, 1e-300) if gap is None else gap
    seconds = min(max(plan.seconds, MIN_SECONDS), MAX_SECONDS)
    rows = []
    fields = FIELDS if plan.instance.segments is None else FIELDS[:-1]  # segments have priors of their own
    for name in fields:
        for change, instance in _perturb(plan.instance, name, by, rng):
            best = plan_again(instance, gap, seconds, allowed=plan.allowed)
            first = first_categories(best), _by_segment(best)
            rows.append(Perturbation(name, change, best.value, plan.value_under(instance), *first))
    return Sensitivity(by, first_categories(plan), tuple(rows), _by_segment(plan))


def _by_segment(plan: "Plan") -> dict[str, tuple[int, int, int]]:
    return {name: first_categories(each) for name, each in plan.by_segment.items()}


def first_categories(plan: "Plan") -> tuple[int, int, int]:
    """Categories recommended at the start, after one click and after one stay."""
    start = np.zeros((1, plan.instance.n_categories, 4), np.int64)
    first = int(recommended(plan.policy, start)[0])
    after: Integers = np.repeat(start, 2, axis=0)
    after[0, first, CLICK] = after[1, first, STAY] = 1
    click, stay = recommended(plan.policy, after)
    return first, int(click), int(stay)


def _perturb(instance: Instance, field: str, by: float, rng: np.random.Generator) -> list[tuple[str, Instance]]:
    """Perturbed instances, each with a description."""
    shape = getattr(instance, field).shape
    if field == "prior":
        systematic = [(f"more of {name}", np.eye(instance.n_types)[x]) for x, name in enumerate(instance.types)]
    else:
        systematic = [("all higher", np.ones(shape)), ("all lower", -np.ones(shape))]
    random = [(f"random {i + 1}", rng.uniform(-1, 1, shape)) for i in range(RANDOM_PERTURBATIONS)]
    return [(change, _scaled(instance, field, direction * by)) for change, direction in systematic + random]


def _scaled(instance: Instance, field: str, relative: Floats) -> Instance:
    """The instance with every entry of a field changed by a fraction of itself, within [0, 1]."""
    changed = np.clip(getattr(instance, field) * (1 + relative), 0.0, 1.0)
    if field == "prior":
        changed = changed / changed.sum()
    if field == "click":  # at most half of the no-click probability may go, so that users still depart
        changed = np.minimum(changed, 1 - (1 - instance.click) / 2)
    return instance.replace(**{field: changed})
