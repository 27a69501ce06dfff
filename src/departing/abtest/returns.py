"""Distribution of the clicks of one user in one arm of an experiment, with its moments."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from departing.evaluation.evaluate import distribution
from departing.formatting import format_percent
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed

GAP = 1e-7  # users not followed; they change the variance by less than 0.01%, far below the error of a fit
MAX_REMAINING = 1e-4  # above it the moments are too uncertain for a sample size


@dataclass(frozen=True, eq=False)
class Returns:
    """Clicks of one user under one policy.

    Attributes
    ----------
    name : str
        Description of the policy.
    probabilities : array [C]
        Probability of every number of clicks.
    """

    name: str
    probabilities: Floats

    @cached_property
    def mean(self) -> float:
        """Expected clicks per user."""
        return float(self.probabilities @ self._clicks)

    @cached_property
    def variance(self) -> float:
        """Variance of the clicks of one user."""
        return self._moment(2)

    @cached_property
    def skewness(self) -> float:
        """Skewness of the clicks of one user; 0 if they do not vary."""
        return self.third_moment / self.variance**1.5 if self.variance > 0 else 0.0

    @cached_property
    def third_moment(self) -> float:
        """Third central moment of the clicks of one user."""
        return self._moment(3)

    @property
    def _clicks(self) -> Floats:
        return np.arange(len(self.probabilities), dtype=np.float64)

    def _moment(self, order: int) -> float:
        return float(self.probabilities @ (self._clicks - self.mean) ** order)


def policy_returns(name: str, instance: Instance, policy: Policy, max_nodes: int | None) -> Returns:
    """Exact distribution of clicks under a policy that is resolved for the categories of `instance`."""
    found = distribution(instance, policy, GAP, max_nodes)
    if found.remaining > MAX_REMAINING:
        raise InputError(
            f"The distribution of clicks under {name} is incomplete: {format_percent(found.remaining)} of the users "
            "were not followed to their departure; raise `max_nodes`."
        )
    return Returns(name, found.returns / found.returns.sum())


def mixture_returns(name: str, instance: Instance, shown: Floats) -> Returns:
    """Exact distribution of clicks if every step shows a random category, with probabilities `shown[K]`.

    For a user of each type such steps are those of one category with the mean probabilities.

    >>> site = Instance([0.5, 0.5], [[0.8, 0.2], [0.1, 0.6]], depart=0.5)
    >>> mixed = mixture_returns("log", site, np.array([0.0, 1.0]))
    >>> round(mixed.mean, 3), round(float(site.fixed_values[1].mean()), 3)
    (1.611, 1.611)
    """
    click = shown @ instance.click
    no_click = shown @ (1 - instance.click)
    departing, clicking = (shown @ instance.outcome_probabilities[:, outcome] for outcome in (2, 3))
    depart = np.divide(departing, no_click, out=np.ones_like(click), where=no_click > 0)
    on_click = np.divide(clicking, click, out=np.zeros_like(click), where=click > 0)
    click, depart, on_click = (np.clip(each, 0.0, 1.0)[None] for each in (click, depart, on_click))
    return policy_returns(
        name, Instance(instance.prior, click, depart, on_click, horizon=instance.horizon), Fixed(0), None
    )
