"""What all planning methods share: the quantities of an instance, the time limit, and the form of a result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.model.names import list_names
from departing.planning.controller import Controller
from departing.policy.protocol import Allowed, Policy, allowed_mask
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from departing.planning.certificate import Certificate

BoundsProgress = Callable[[float, float], None]
"""Called from time to time with the lower and the upper bound."""


# Steps whose values are computed one by one with a horizon. Users stay longer with a probability below NEGLIGIBLE,
# unless they stay thousands of steps.
MAX_STEPS, NEGLIGIBLE = 4096, 1e-16


class PlanningProblem:
    """Instance with the categories that may be recommended, and quantities that the methods share.

    Attributes
    ----------
    instance : Instance
        Instance to plan for.
    allowed : tuple of int
        Allowed categories.
    categories : array [k]
        Allowed categories that no other allowed one dominates, in the order of the instance.
    prior : array [M]
        Prior that sums to 1.
    occurring : array of bool [M]
        Types of positive probability.
    reward : array [k, M]
        Expected reward of a recommendation of `categories`.
    click_stay, stay, depart : array [k, M]
        Probabilities of a click after which the user stays, of a no-click after which the user stays, of departure.
    fixed_values : array [k, M]
        Values of the fixed policies by type.
    type_values : array [M]
        Optimal value for each type if it is known.
    """

    def __init__(self, instance: Instance, allowed: Allowed = None) -> None:
        every = np.arange(instance.n_categories)
        if allowed is not None:
            every = every[allowed_mask(allowed, (instance.n_categories,), instance.categories)]
        if not instance.reward[every].any():
            names = list_names([instance.categories[a] for a in every])
            raise InputError(
                f"allowed has {names} only, whose reward is 0: no policy is worth anything; allow a category with a "
                "reward.",
                "allowed",
            )
        outcomes, depart = instance.outcome_probabilities, instance.departure_probabilities
        tables = (instance.expected_reward, outcomes[:, CLICK], outcomes[:, STAY], depart, instance.fixed_values)
        self.instance, self.allowed = instance, tuple(int(a) for a in every)
        self.categories = every[_undominated(dominance_table(instance)[every])]
        rows = (np.ascontiguousarray(table[self.categories]) for table in tables)
        self.reward, self.click_stay, self.stay, self.depart, self.fixed_values = rows
        self.type_values: Floats = np.asarray(instance.fixed_values[every].max(axis=0))
        if instance.horizon is not None:
            self.known_values, tail = values_by_steps(self.reward, self.click_stay + self.stay, instance.horizon)
            self.type_values = self.known_values[-1] + tail
        self.prior = instance.normalised_prior
        self.occurring = self.prior > 0

    @property
    def horizon(self) -> int:
        """The horizon of the instance; 0 if it has none."""
        return self.instance.horizon or 0

    def face(self, types: Integers) -> Self:
        """The problem of users of these types only, with the same categories."""
        face, instance = type(self).__new__(type(self)), self.instance
        prior = self.prior[types] / self.prior[types].sum()
        click, depart, last = (each[:, types] for each in (instance.click, instance.depart, instance.depart_on_click))
        face.instance, face.allowed = Instance(prior, click, depart, last, reward=instance.reward), self.allowed
        face.categories = self.categories
        arrays = (self.reward, self.click_stay, self.stay, self.depart, self.fixed_values)
        rows = (np.ascontiguousarray(array[:, types]) for array in arrays)
        face.reward, face.click_stay, face.stay, face.depart, face.fixed_values = rows
        face.type_values, face.prior, face.occurring = self.type_values[types], prior, prior > 0
        return face

    def from_prior(self, instance: Instance) -> Self:
        """The problem of an instance with another prior; the types that occur remain those of this problem."""
        other = copy(self)
        for name in ("best_fixed", "uniformly_best", "known_type_bound", "max_mean_steps"):
            other.__dict__.pop(name, None)
        other.instance, other.prior = instance, instance.normalised_prior
        return other

    @cached_property
    def best_fixed(self) -> tuple[int, float]:
        """Category of the best fixed policy, and its value."""
        values = self.fixed_values @ self.prior
        return int(self.categories[values.argmax()]), float(values.max())

    @cached_property
    def uniformly_best(self) -> int | None:
        """Category that is the best fixed one for every type of the prior, if there is one.

        It is then optimal whatever the belief: always so with one type, and where one category dominates. With a
        horizon, it must be the best for every number of steps left.
        """
        occurring = self.occurring
        if self.instance.horizon is not None:
            known = self.known_values
            if len(known) <= self.instance.horizon:
                return None
            values = self.reward + (self.click_stay + self.stay) * known[:-1, None]
            suits = (values >= known[1:, None])[:, :, occurring].all(axis=(0, 2))
            return int(self.categories[suits.argmax()]) if suits.any() else None
        suits = (self.fixed_values[:, occurring] >= self.type_values[occurring]).all(axis=1)
        return int(self.categories[suits.argmax()]) if suits.any() else None

    @cached_property
    def known_type_bound(self) -> float:
        """Upper bound of every policy: the value if types were known, rounding included.

        Roundings: at most 5 in the value of a type, 24 in the sum of the prior of up to 128 types (NumPy adds
        pairwise: one more whenever their number doubles), 1 in the quotient, M in the product, and 2 of this bound.
        With a horizon, 8 for every step.
        """
        types, steps = self.instance.n_types, 0 if self.instance.horizon is None else len(self.known_values)
        return float(self.prior @ self.type_values) * (1 + ROUNDING * (32 + types + types // 128 + 8 * steps))

    @cached_property
    def max_mean_steps(self) -> Floats:
        """Upper bound on the expected number of steps of each type under any policy, `[M]`."""
        steps = 1 / self.instance.departure_probabilities[np.array(self.allowed)].min(axis=0)
        return np.asarray(steps if self.instance.horizon is None else np.minimum(steps, self.instance.horizon))

    def rounding(self, depth: int) -> float:
        """Bound on the rounding error of one backup, for one user and graphs of this depth.

        Roundings of a cover: the belief (M), what the points leave uncovered (2 M), its value (2 M) and the value of
        the points (2 M). Weights of a node and of its child: for each step a product, and at most 3 in the
        probability (8 depth). The backup itself, type values and quotients: fewer than 64. The bound is at least
        twice the sum.
        """
        most = float(self.type_values[self.occurring].max())
        return ROUNDING * (512 + 16 * self.instance.n_types + 16 * depth) * (1 + most)

    def tolerance(self, depth: int) -> float:
        """Bound on the rounding error of a bound at the root: `rounding` at every step of a user."""
        with np.errstate(over="ignore"):
            return float(self.rounding(depth) * (self.prior @ self.max_mean_steps))


def values_by_steps(reward: Floats, stay: Floats, horizon: int) -> tuple[Floats, Floats]:
    """Largest values `[N + 1, M]` of users of known type by steps left, and a bound `[M]` on those of steps after N.

    The best category depends on the steps left: a large reward that drives users away may be best at the end.
    N is the horizon, or the number of steps after which hardly any user is active.
    """
    most = stay.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = np.where(most < 1, np.ceil(np.log(NEGLIGIBLE) / np.log(most)), np.inf).max(initial=1)
        endless = np.fmax.reduce(reward / (1 - stay))  # a probability to stay may round to 1
    n = int(min(horizon, max(enough, 1), MAX_STEPS))
    values = np.zeros((n + 1, reward.shape[1]))
    for step in range(n):
        values[step + 1] = (reward + stay * values[step]).max(axis=0)
    tail = most**n * np.fmin(endless, reward.max(axis=0) * (horizon - n)) * (1 + 1e-9)  # the margin covers rounding
    return values, tail if n < horizon else np.zeros_like(tail)


def restrict(instance: Instance, allowed: Sequence[int]) -> Instance:
    """The instance with the allowed categories only."""
    if len(allowed) == instance.n_categories:
        return instance
    rows = np.array(allowed)
    tables = {name: getattr(instance, name)[rows] for name in ("click", "depart", "depart_on_click", "reward")}
    return instance.replace(categories=[instance.categories[a] for a in allowed], **tables)


def dominance_table(instance: Instance) -> Floats:
    """Table `[K, 4, M]` by which a category dominates another: none of its entries is smaller.

    The departure probability distinguishes categories whose other probabilities round to 1.
    """
    outcomes = instance.outcome_probabilities
    return np.stack(
        [instance.expected_reward, outcomes[:, CLICK], outcomes[:, STAY], -instance.departure_probabilities], axis=1
    )


def _undominated(rows: Floats) -> list[int]:
    """Indices of the rows `[n, ...]` that no other row is at least equal to everywhere; of equal rows the first."""
    kept = []
    for k, row in enumerate(rows):
        dominating = (rows >= row).all(axis=(1, 2))
        equal = (rows == row).all(axis=(1, 2))
        if not (dominating & (~equal | (np.arange(len(rows)) < k))).any():
            kept.append(k)
    return kept


class Deadline:
    """Time limit that starts when the object is created."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = [perf_counter()]  # shared with the parts

    @property
    def elapsed(self) -> float:
        """Seconds since the start, except pauses."""
        return perf_counter() - self._started[0]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the body."""
        started = perf_counter()
        yield
        self._started[0] += perf_counter() - started

    @property
    def expired(self) -> bool:
        """True when the time is up."""
        return self.elapsed >= self.seconds

    def until(self, seconds: float) -> Self:
        """The deadline after so many seconds, with the same start."""
        part = copy(self)
        part.seconds = min(seconds, self.seconds)
        return part


@dataclass(frozen=True)
class Limits:
    """Conditions that end a planning method, whichever is met first; `progress` is called with the bounds so far.

    A search may use `faces` of the belief simplex where users stay long.
    """

    gap: float
    deadline: Deadline
    max_nodes: int | None = None
    faces: bool = True
    progress: BoundsProgress | None = None


class Solution(NamedTuple):
    """Result of a planning method. `lower` is the value of `controller`, which `policy` attains or exceeds."""

    policy: Policy
    controller: Schedule | Controller
    lower: float
    upper: float
    reason: str
    certificate: "Certificate"
