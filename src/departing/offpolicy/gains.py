"""Gains of the optimal policy of a fit over simple policies and over the policy that produced the log."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.fitting.fit import Fit
from departing.formatting import format_clicks_per_user
from departing.model.instance import Floats, Instance
from departing.model.progress import Progress
from departing.planning.plan import Plan, plan
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed

# The sampling error of a fit is far above 1e-4 of the value, so that planning and evaluation to this gap, within
# 20 s and 200,000 nodes, do not widen the intervals visibly.
RELATIVE_GAP = 1e-4
PLANNING_SECONDS, EVALUATION_NODES = 20.0, 200_000


@dataclass(frozen=True)
class PolicyValue:
    """Clicks per user of a policy, or a difference of two, with a 95% bootstrap interval (NaN if unknown)."""

    name: str
    value: float
    lower: float
    upper: float

    @property
    def cells(self) -> list[str]:
        """Value and interval as text."""
        value, lower, upper = map(format_clicks_per_user, (self.value, self.lower, self.upper))
        return [value, "" if np.isnan(self.lower) else f"{lower} … {upper}"]


@dataclass(frozen=True)
class PolicyGains:
    """Values of the optimal policy and of its alternatives under a fit, and the `gains` of the optimal policy."""

    plan: Plan
    values: tuple[PolicyValue, ...]
    gains: tuple[PolicyValue, ...]

    def rows(self) -> list[list[str]]:
        """Rows of a table: policy, value and interval; gain of the optimal policy over it and interval."""
        gain_over = {gain.name: gain.cells for gain in self.gains}
        return [[value.name, *value.cells, *gain_over.get(value.name, ["", ""])] for value in self.values]


def policy_gains(
    fit: Fit, log_value: float | None, resamples: int, seed: int = 0, progress: Progress | None = None
) -> PolicyGains:
    """Compare the optimal policy of `fit` with greedy, the best fixed policy and the `log_value` of the log.

    Intervals come from evaluating each policy under `resamples` bootstrap instances.
    """
    instance = fit.instance
    gap = RELATIVE_GAP * float(instance.fixed_values.max())
    optimal = plan(instance, gap, PLANNING_SECONDS)
    fixed = instance.best_fixed[0]
    policies: dict[str, Policy] = {
        "optimal policy": optimal.policy,
        "greedy": Greedy(instance),
        f"always {instance.categories[fixed]}": Fixed(fixed),
    }
    instances = fit.bootstrap(resamples, "nonparametric", seed=seed, progress=progress)
    point = {name: evaluate(instance, policy, gap, EVALUATION_NODES).value for name, policy in policies.items()}
    bounds = {name: _bounds(policy, instances, gap) for name, policy in policies.items()}
    values = [PolicyValue(name, point[name], *_interval(*bounds[name])) for name in policies]
    best, *others = policies
    low, high = bounds[best]
    gains = [
        PolicyValue(name, point[best] - point[name], *_interval(low - bounds[name][1], high - bounds[name][0]))
        for name in others
    ]
    if log_value is not None:
        values.append(PolicyValue("policy of the log", log_value, np.nan, np.nan))
        gain = _interval(low - log_value, high - log_value)
        gains.append(PolicyValue("policy of the log", point[best] - log_value, *gain))
    return PolicyGains(optimal, tuple(values), tuple(gains))


def _bounds(policy: Policy, instances: Sequence[Instance], gap: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the value of a policy under each of the instances."""
    values = [evaluate(instance, policy, gap, EVALUATION_NODES) for instance in instances]
    return np.array([value.lower for value in values]), np.array([value.upper for value in values])


def _interval(lower: Floats, upper: Floats) -> tuple[float, float]:
    """95% interval of numbers that are known up to bounds."""
    return float(np.quantile(lower, 0.025)), float(np.quantile(upper, 0.975))
