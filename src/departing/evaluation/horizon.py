"""Values within a horizon: of one category from some step on, and limits of those of any policy."""

from functools import cached_property

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.model.instance import CLICK, STAY, Floats, Instance

# Steps of the exact limits: more than the stays at most sites. Beyond them looser limits hold, which widens only the
# bounds of very long stays.
MAX_LIMIT_STEPS = 4096


def log_stay_probabilities(instance: Instance) -> Floats:
    """Logarithm of the probability not to depart at one step, `[K, M]`, accurate near 0 and near 1."""
    departing = instance.departure_probabilities
    staying = instance.outcome_probabilities[:, CLICK] + instance.outcome_probabilities[:, STAY]
    with np.errstate(divide="ignore"):
        return np.where(departing < 0.5, np.log1p(-np.minimum(departing, 0.5)), np.log(staying))


def endless_values(instance: Instance) -> Floats:
    """Values of the fixed policies by type without the horizon, `[K, M]`."""
    if instance.horizon is None:
        return instance.fixed_values
    return np.asarray(instance.expected_reward / instance.departure_probabilities)


class RemainingValues:
    """Values by type from a step on, of the steps that are left until the horizon."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.horizon = instance, instance.horizon
        self.endless = endless_values(instance)
        self._endless_limits = np.stack([self.endless.min(axis=0), self.endless.max(axis=0)])

    def fixed(self, step: int) -> Floats:
        """Values of always recommending one category, `[K, M]`."""
        if self.horizon is None:
            return self.endless
        left = max(self.horizon - step, 0)
        if not left:
            return np.zeros_like(self.endless)
        return np.asarray(self.endless * -np.expm1(left * self._log_stay))

    def limits(self, step: int) -> Floats:
        """Smallest and largest values `[2, M]` of any policy for a user of known type.

        Without a horizon they are those of fixed policies. With one, a category with a large reward that drives
        users away may be best at the last steps only, so they are computed step by step.
        """
        if self.horizon is None:
            return self._endless_limits
        left = max(self.horizon - step, 0)
        worst, best = self._stepwise
        return np.stack(
            [worst[min(left, len(worst) - 1)], best[left] if left < len(best) else self._endless_limits[1]]
        )

    @cached_property
    def _log_stay(self) -> Floats:
        return log_stay_probabilities(self.instance)

    @cached_property
    def _stepwise(self) -> tuple[Floats, Floats]:
        """Limits `[n + 1, M]` for 0 to n steps, widened by their rounding errors (below 8 operations a step)."""
        n = min(self.horizon or 0, MAX_LIMIT_STEPS)
        gain = self.instance.expected_reward
        stay = self.instance.outcome_probabilities[:, CLICK] + self.instance.outcome_probabilities[:, STAY]
        worst, best = np.zeros((n + 1, gain.shape[1])), np.zeros((n + 1, gain.shape[1]))
        for step in range(n):
            worst[step + 1] = (gain + stay * worst[step]).min(axis=0)
            best[step + 1] = (gain + stay * best[step]).max(axis=0)
        error = 8 * ROUNDING * np.arange(1, n + 2)[:, None]
        return worst * (1 - error), best * (1 + error)
