"""What planning needs of an instance, and what all methods share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Allowed, allowed_mask

Progress = Callable[[float, float], None]  # told the lower and the upper bound now and then


@dataclass(frozen=True)
class Problem:
    """An instance with the categories that may be recommended, dominated ones left out.

    `categories[k]` are those worth considering, in the order of the instance; all arrays have a row for each.
    """

    instance: Instance
    allowed: tuple[int, ...]

    @classmethod
    def of(cls, instance: Instance, allowed: Allowed = None) -> "Problem":
        """The problem with `allowed` categories, all if that is None."""
        every = np.arange(instance.n_categories)
        if allowed is not None:
            every = every[allowed_mask(allowed, (instance.n_categories,), instance.categories)]
        return cls(instance, tuple(int(a) for a in every))

    @cached_property
    def categories(self) -> Integers:
        """The categories left when the dominated ones are dropped."""
        allowed = np.array(self.allowed)
        chances = self.instance.outcome_probabilities
        # The chance of leaving tells categories apart where the others round to 1.
        compared = [self.instance.click, chances[:, CLICK], chances[:, STAY], -self.instance.departure_probabilities]
        rates = np.stack(compared, axis=1)[allowed]
        kept: list[int] = []
        for k, row in enumerate(rates):
            beaten = (rates >= row).all(axis=(1, 2))
            equal = (rates == row).all(axis=(1, 2))
            if not (beaten & (~equal | (np.arange(len(rates)) < k))).any():
                kept.append(k)
        return np.asarray(allowed[kept])

    @cached_property
    def reward(self) -> Floats:
        """The chance of a click, `[k, M]`."""
        return np.ascontiguousarray(self.instance.click[self.categories])

    @cached_property
    def click(self) -> Floats:
        """The chance of going on after a click, `[k, M]`."""
        return np.ascontiguousarray(self.instance.outcome_probabilities[self.categories, CLICK])

    @cached_property
    def stay(self) -> Floats:
        """The chance of going on without a click, `[k, M]`."""
        return np.ascontiguousarray(self.instance.outcome_probabilities[self.categories, STAY])

    @cached_property
    def leave(self) -> Floats:
        """The chance of departing, `[k, M]`."""
        return np.ascontiguousarray(self.instance.departure_probabilities[self.categories])

    @cached_property
    def fixed(self) -> Floats:
        """Expected clicks of each category for ever, `[k, M]`."""
        return np.ascontiguousarray(self.instance.fixed_values[self.categories])

    @cached_property
    def best(self) -> Floats:
        """What each type would bring if it were known, `[M]`."""
        return np.asarray(self.instance.fixed_values[np.array(self.allowed)].max(axis=0))

    @cached_property
    def prior(self) -> Floats:
        """The prior, with sum 1."""
        return np.asarray(self.instance.normalised_prior)

    @cached_property
    def known(self) -> float:
        """What no policy can surpass: what the types would bring if they were known, rounding included."""
        return float(self.prior @ self.best) * (1 + ROUNDING * (32 + self.instance.n_types))

    @cached_property
    def stays(self) -> Floats:
        """A bound on the expected number of steps of each type under any policy, `[M]`."""
        return np.asarray(1 / self.instance.departure_probabilities[np.array(self.allowed)].min(axis=0))

    def rounding(self, depth: int) -> float:
        """What rounding can do to one step of a bound, for a user and graphs of this depth."""
        most = float(self.best[self.prior > 0].max())
        return ROUNDING * (512 + 16 * self.instance.n_types + 16 * depth) * (1 + most)

    def tolerance(self, depth: int) -> float:
        """What rounding can do to a bound in all: `rounding` at every step a user may stay."""
        with np.errstate(over="ignore"):
            return float(self.rounding(depth) * (self.prior @ self.stays))


@dataclass
class Clock:
    """How much time there is, and how much has passed."""

    seconds: float

    def __post_init__(self) -> None:
        self._started = perf_counter()

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self._started

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.passed >= self.seconds
