"""Objective: rewards and horizon, which a learner is given and does not infer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import CLICKS, Floats, Instance
from departing.model.instance_fields import check_horizon, check_rewards, check_unit


@dataclass(frozen=True)
class Objective:
    """The value that a learner maximises: the expected reward of a user, of at most `horizon` recommendations.

    Examples
    --------
    >>> Objective((1.0, 10.0), "euro").apply(Instance([1.0], [[0.5], [0.4]])).expected_reward[:, 0]
    array([0.5, 4. ])
    """

    reward: tuple[float, ...] | None = None
    unit: str = CLICKS
    horizon: int | None = None

    @classmethod
    def checked(cls, reward: Sequence[float] | None, unit: str, horizon: int | None, n_categories: int) -> Self:
        """Return the objective of a learner of `n_categories` categories, from checked arguments."""
        rewards = None if reward is None else tuple(check_rewards(reward, n_categories).tolist())
        return cls(rewards, check_unit(unit), check_horizon(horizon))

    @property
    def is_default(self) -> bool:
        """True for clicks without a horizon."""
        return self == Objective()

    @cached_property
    def scale(self) -> float:
        """Mean reward of a click over the categories: the size of one click where a constant is in clicks."""
        return 1.0 if self.reward is None else float(np.mean(self.reward))

    def apply(self, instance: Instance) -> Instance:
        """Return `instance` with the rewards and the horizon."""
        if self.is_default:
            return instance
        return instance.replace(reward=self.reward, unit=self.unit, horizon=self.horizon)

    def gain(self, click: Floats, category: int) -> Floats:
        """Return the expected reward of recommending a category with these click probabilities."""
        return click if self.reward is None else self.reward[category] * click

    def check(self, instance: Instance) -> None:
        """Raise `InputError` if the learner has rewards, a unit or a horizon other than those of `instance`."""
        if self.reward is not None and self.reward != tuple(instance.reward.tolist()):
            raise InputError(
                f"reward of the learner is {list(self.reward)}, but {instance.reward.tolist()} in the instance; "
                "create the learner with the rewards of the instance.",
                "reward",
            )
        if self.unit not in (CLICKS, instance.unit):  # clicks are the default
            raise InputError(
                f"unit of the learner is {self.unit!r}, but {instance.unit!r} in the instance; create the learner "
                "with the unit of the instance.",
                "unit",
            )
        if self.horizon is not None and self.horizon != instance.horizon:
            raise InputError(
                f"horizon of the learner is {self.horizon}, but {instance.horizon} in the instance; create the "
                "learner with the horizon of the instance.",
                "horizon",
            )


def objective_options(instance: Instance) -> dict[str, Any]:
    """Return the arguments `reward`, `unit` and `horizon` of a learner for `instance`."""
    reward = instance.reward.tolist() if "reward" in instance.extensions else None
    return {"reward": reward, "unit": instance.unit, "horizon": instance.horizon}
