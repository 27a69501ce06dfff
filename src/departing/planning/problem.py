"""Planning problem: the quantities of an instance that all planning methods share, and the time limit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Allowed, allowed_mask

BoundsProgress = Callable[[float, float], None]
"""Called from time to time with the lower and the upper bound."""


@dataclass(frozen=True)
class PlanningProblem:
    """Instance with the categories that may be recommended.

    Arrays with a first axis of length k have a row for each of `categories`.
    """

    instance: Instance
    allowed: tuple[int, ...]

    @classmethod
    def of(cls, instance: Instance, allowed: Allowed = None) -> "PlanningProblem":
        """The problem with the `allowed` categories; None allows all."""
        every = np.arange(instance.n_categories)
        if allowed is not None:
            every = every[allowed_mask(allowed, (instance.n_categories,), instance.categories)]
        return cls(instance, tuple(int(a) for a in every))

    @cached_property
    def categories(self) -> Integers:
        """Allowed categories that no other allowed one dominates, `[k]`, in the order of the instance."""
        allowed = np.array(self.allowed)
        outcomes = self.instance.outcome_probabilities
        # The departure probability distinguishes categories whose other probabilities round to 1.
        compared = [
            self.instance.click,
            outcomes[:, CLICK],
            outcomes[:, STAY],
            -self.instance.departure_probabilities,
        ]
        rows = np.stack(compared, axis=1)[allowed]
        kept: list[int] = []
        for k, row in enumerate(rows):
            dominating = (rows >= row).all(axis=(1, 2))
            equal = (rows == row).all(axis=(1, 2))
            if not (dominating & (~equal | (np.arange(len(rows)) < k))).any():
                kept.append(k)
        return np.asarray(allowed[kept])

    def _rows(self, table: Floats) -> Floats:
        return np.ascontiguousarray(table[self.categories])

    @cached_property
    def reward(self) -> Floats:
        """Click probabilities, `[k, M]`."""
        return self._rows(self.instance.click)

    @cached_property
    def click(self) -> Floats:
        """Probabilities of a click after which the user stays, `[k, M]`."""
        return self._rows(self.instance.outcome_probabilities[:, CLICK])

    @cached_property
    def stay(self) -> Floats:
        """Probabilities of a no-click after which the user stays, `[k, M]`."""
        return self._rows(self.instance.outcome_probabilities[:, STAY])

    @cached_property
    def depart(self) -> Floats:
        """Departure probabilities, `[k, M]`."""
        return self._rows(self.instance.departure_probabilities)

    @cached_property
    def fixed_values(self) -> Floats:
        """Values of the fixed policies by type, `[k, M]`."""
        return self._rows(self.instance.fixed_values)

    @cached_property
    def type_values(self) -> Floats:
        """Optimal value for each type if it is known, `[M]`."""
        return np.asarray(self.instance.fixed_values[np.array(self.allowed)].max(axis=0))

    @cached_property
    def prior(self) -> Floats:
        """Prior that sums to 1, `[M]`."""
        return np.asarray(self.instance.normalised_prior)

    @cached_property
    def best_fixed(self) -> tuple[int, float]:
        """Category of the best fixed policy, and its value."""
        values = self.fixed_values @ self.prior
        return int(self.categories[values.argmax()]), float(values.max())

    @cached_property
    def uniformly_best(self) -> int | None:
        """Category that is the best fixed one for every type of the prior, if there is one.

        It is then optimal whatever the belief: always so with one type, and where one category dominates.
        """
        occurring = self.prior > 0
        suits = (self.fixed_values[:, occurring] >= self.type_values[occurring]).all(axis=1)
        return int(self.categories[suits.argmax()]) if suits.any() else None

    @cached_property
    def known_type_bound(self) -> float:
        """Upper bound of every policy: the value if types were known, rounding included."""
        return float(self.prior @ self.type_values) * (1 + ROUNDING * (32 + self.instance.n_types))

    @cached_property
    def max_mean_steps(self) -> Floats:
        """Upper bound on the expected number of steps of each type under any policy, `[M]`."""
        return np.asarray(1 / self.instance.departure_probabilities[np.array(self.allowed)].min(axis=0))

    def rounding(self, depth: int) -> float:
        """Bound on the rounding error of one backup, for one user and graphs of this depth."""
        most = float(self.type_values[self.prior > 0].max())
        return ROUNDING * (512 + 16 * self.instance.n_types + 16 * depth) * (1 + most)

    def tolerance(self, depth: int) -> float:
        """Bound on the rounding error of a bound at the root: `rounding` at every step of a user."""
        with np.errstate(over="ignore"):
            return float(self.rounding(depth) * (self.prior @ self.max_mean_steps))


@dataclass
class Deadline:
    """Time limit that starts when the object is created."""

    seconds: float

    def __post_init__(self) -> None:
        self._started = perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self._started

    @property
    def expired(self) -> bool:
        """True when the time is up."""
        return self.elapsed >= self.seconds
