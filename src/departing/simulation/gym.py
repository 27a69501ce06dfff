"""One user as a Gymnasium environment, and many at once.

Importing this module registers `departing/User-v0`; the observation is the user's counts and nothing else.

>>> import gymnasium, departing.simulation.gym
>>> from departing.model.instance import Instance
>>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
>>> env = gymnasium.make("departing/User-v0", instance=blog)
>>> counts, info = env.reset(seed=1)
>>> counts, reward, terminated, truncated, info = env.step(1)
>>> reward, terminated, truncated
(0.0, True, False)
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, steps
from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Floats, Instance
from departing.model.validation import check_int
from departing.simulation.reference import draw_outcomes, draw_types

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:  # pragma: no cover - the tests install the extra
    raise MissingExtraError(
        "Environments need Gymnasium; install it with: pip install 'departing-bandits[gym]'"
    ) from error

ID = "departing/User-v0"
Booleans = npt.NDArray[np.bool_]


class _Crowd:
    """Users in step with each other: the part both environments share."""

    def __init__(self, instance: Instance | str | os.PathLike[str], max_steps: int | None, n: int) -> None:
        self.instance = instance if isinstance(instance, Instance) else Instance.load(instance)
        self.max_steps = None if max_steps is None else check_int("max_steps", max_steps)
        self.cumulative = self.instance.outcome_probabilities.cumsum(axis=1)[:, :3]
        self.types = np.zeros(n, np.int64)
        self.counts = np.zeros((n, self.instance.n_categories, 4), np.int64)

    def spaces(self) -> tuple["gymnasium.Space[Any]", "gymnasium.Space[Any]"]:
        """The spaces of one user: counts to see, categories to recommend."""
        most = np.iinfo(np.int64).max
        box = gymnasium.spaces.Box(0, most, self.counts.shape[1:], np.int64)
        return box, gymnasium.spaces.Discrete(self.instance.n_categories)

    def arrive(self, rows: Booleans, rng: np.random.Generator) -> None:
        """New users in `rows`."""
        self.types[rows] = draw_types(self.instance, int(rows.sum()), rng)
        self.counts[rows] = 0

    def step(self, rows: Booleans, actions: Integers, rng: np.random.Generator) -> tuple[Floats, Booleans, Booleans]:
        """Recommend `actions[n]` to the users in `rows`: rewards, who departed, who is no longer looked at."""
        if actions.shape != rows.shape:
            raise InputError(f"actions have shape {actions.shape}; expected {rows.shape}, one for every user.")
        if actions.dtype.kind not in "iu" or not self._known(actions[rows]):
            raise InputError(
                f"action is {actions!s:.80}; expected whole numbers from 0 to {self.instance.n_categories - 1}."
            )
        uniforms = rng.random(int(rows.sum()))
        outcomes = draw_outcomes(self.cumulative, actions[rows], self.types[rows], uniforms)
        self.counts[np.flatnonzero(rows), actions[rows], outcomes] += 1
        rewards, terminated, truncated = np.zeros(len(rows)), np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        rewards[rows] = (outcomes == CLICK) | (outcomes == CLICK_DEPART)
        terminated[rows] = outcomes >= DEPART
        if self.max_steps is not None:
            truncated[rows] = (steps(self.counts[rows]) >= self.max_steps) & ~terminated[rows]
        return rewards, terminated, truncated

    def _known(self, actions: Integers) -> bool:
        return bool(((actions >= 0) & (actions < self.instance.n_categories)).all())


class UserEnv(gymnasium.Env[Integers, Any]):
    """One user: `step(category)` rewards a click with 1, terminates when the user departs.

    `instance` may be a path. Episodes are truncated after `max_steps`. The hidden type is in `info["type"]`
    only if `reveal_type` is set.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the base class defines it so

    def __init__(
        self,
        instance: Instance | str | os.PathLike[str],
        max_steps: int | None = None,
        reveal_type: bool = False,
    ) -> None:
        self._crowd = _Crowd(instance, max_steps, 1)
        self._reveal, self._over = reveal_type, True
        self.observation_space, self.action_space = self._crowd.spaces()

    def _info(self) -> dict[str, Any]:
        return {"type": int(self._crowd.types[0])} if self._reveal else {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """A new user."""
        super().reset(seed=seed)
        self._crowd.arrive(np.ones(1, bool), self.np_random)
        self._over = False
        return self._crowd.counts[0].copy(), self._info()

    def step(self, action: Any) -> tuple[Integers, float, bool, bool, dict[str, Any]]:
        """Recommend a category."""
        if self._over:
            raise InputError("There is no user here; call reset() before step().")
        rewards, terminated, truncated = self._crowd.step(np.ones(1, bool), np.asarray([action]), self.np_random)
        self._over = bool(terminated[0] or truncated[0])
        return self._crowd.counts[0].copy(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info()


class UserVectorEnv(VectorEnv[Integers, Any, Any]):
    """Many users side by side; one who is over is replaced by a new user at the next step."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        instance: Instance | str | os.PathLike[str],
        num_envs: int = 1,
        max_steps: int | None = None,
        reveal_type: bool = False,
    ) -> None:
        self.num_envs = check_int("num_envs", num_envs)
        self._crowd = _Crowd(instance, max_steps, self.num_envs)
        self._reveal, self._over = reveal_type, np.ones(self.num_envs, bool)
        self.single_observation_space, self.single_action_space = self._crowd.spaces()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _info(self) -> dict[str, Any]:
        return {"type": self._crowd.types.copy()} if self._reveal else {}

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Integers, dict[str, Any]]:
        """New users everywhere."""
        if isinstance(seed, list):
            raise InputError("seed is a list; the users share one generator, so one seed is enough.")
        super().reset(seed=seed)
        self._crowd.arrive(np.ones(self.num_envs, bool), self.np_random)
        self._over[:] = False
        return self._crowd.counts.copy(), self._info()

    def step(self, actions: Any) -> tuple[Integers, Floats, Booleans, Booleans, dict[str, Any]]:
        """Recommend a category to every user; those who were over become new users instead."""
        over = self._over.copy()
        rewards, terminated, truncated = self._crowd.step(~over, np.asarray(actions), self.np_random)
        self._crowd.arrive(over, self.np_random)
        self._over = terminated | truncated
        return self._crowd.counts.copy(), rewards, terminated, truncated, self._info()


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:UserEnv", vector_entry_point=f"{__name__}:UserVectorEnv")
