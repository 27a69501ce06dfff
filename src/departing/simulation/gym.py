"""Gymnasium environments: one user, and many users in parallel.

Importing this module registers `departing/User-v0`. The observation is the counts of the user, `[K, 4]`, the action a
category.

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
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, EXTENSIONS, Floats, Instance
from departing.model.sampling import sample_outcomes, sample_types
from departing.model.validation import check_instance, check_int
from departing.simulation.segments import joined_instance

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
Observation = Integers | dict[str, Integers]  # counts, or counts and segment


class _UserBatch:
    """Users who make their steps together: the part that both environments share."""

    def __init__(
        self, instance: Instance | str | os.PathLike[str], max_steps: int | None, reveal: bool, n: int
    ) -> None:
        self.instance = instance if isinstance(instance, Instance) else Instance.load(instance)
        check_instance(self.instance, EXTENSIONS)
        limits = [None if max_steps is None else check_int("max_steps", max_steps), self.instance.horizon]
        self.max_steps = min((limit for limit in limits if limit is not None), default=None)
        self.sampled = self.instance if self.instance.segments is None else joined_instance(self.instance)
        self.reveal, self.over = reveal, np.ones(n, bool)  # over: the episode has ended, or not begun
        self.types = np.zeros(n, np.int64)
        self.counts = np.zeros((n, self.instance.n_categories, 4), np.int64)

    def spaces(self) -> tuple["gymnasium.Space[Any]", "gymnasium.Space[Any]"]:
        """Observation and action space of one user: counts, with the segment if there are any, and categories."""
        space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, np.iinfo(np.int64).max, self.counts.shape[1:], np.int64)
        if self.instance.segments is not None:
            segments = gymnasium.spaces.Discrete(len(self.instance.segments.names))
            space = gymnasium.spaces.Dict({"counts": space, "segment": segments})
        return space, gymnasium.spaces.Discrete(self.instance.n_categories)

    def observe(self) -> tuple[Observation, dict[str, Any]]:
        """Observations `[n, K, 4]` with the segments `[n]`, and `info` with the types `[n]` if they are revealed."""
        segment, types = np.divmod(self.types, self.instance.n_types)
        counts = self.counts.copy()
        observed = counts if self.instance.segments is None else {"counts": counts, "segment": segment}
        return observed, {"type": types} if self.reveal else {}

    def reset(self, rng: np.random.Generator) -> tuple[Observation, dict[str, Any]]:
        """Start new users everywhere."""
        self._arrive(np.ones_like(self.over), rng)
        self.over[:] = False
        return self.observe()

    def step(self, actions: Integers, rng: np.random.Generator) -> tuple[Floats, Booleans, Booleans]:
        """Recommend `actions[n]`: rewards, terminated and truncated, `[n]` each; new users start where it is over."""
        over, rows = self.over, ~self.over
        if actions.shape != rows.shape:
            raise InputError(f"actions have shape {actions.shape}; expected {rows.shape}, one for every user.")
        shown, n_categories = actions[rows], self.instance.n_categories
        if actions.dtype.kind not in "iu" or not ((shown >= 0) & (shown < n_categories)).all():
            raise InputError(f"action is {actions!s:.80}; expected integers from 0 to {n_categories - 1}.")
        outcomes = sample_outcomes(self.sampled, shown, self.types[rows], rng.random(len(shown)))
        self.counts[np.flatnonzero(rows), shown, outcomes] += 1
        rewards, terminated, truncated = np.zeros(len(rows)), np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        rewards[rows] = self.instance.reward[shown] * ((outcomes == CLICK) | (outcomes == CLICK_DEPART))
        terminated[rows] = outcomes >= DEPART
        if self.max_steps is not None:
            truncated[rows] = (steps(self.counts[rows]) >= self.max_steps) & ~terminated[rows]
        self._arrive(over, rng)
        self.over = terminated | truncated
        return rewards, terminated, truncated

    def _arrive(self, rows: Booleans, rng: np.random.Generator) -> None:
        """Start new users in `rows`."""
        self.types[rows] = sample_types(self.sampled, int(rows.sum()), rng)
        self.counts[rows] = 0


class UserEnv(gymnasium.Env[Observation, Any]):
    """Environment of one user; an episode is one visit.

    The observation is the counts of the user, int64 `[K, 4]`; if the instance has segments, it is a dictionary of
    `counts` and the index `segment`. The action is a category, 0 to K - 1. A click has the reward of its category, by
    default 1. The episode terminates when the user departs, and is truncated at the horizon.

    Parameters
    ----------
    instance : Instance or path
        Users and categories, or a file to load them from.
    max_steps : int, optional
        Number of steps after which the episode is truncated.
    reveal_type : bool
        Put the hidden type of the user into `info["type"]`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the base class defines it so

    def __init__(
        self,
        instance: Instance | str | os.PathLike[str],
        max_steps: int | None = None,
        reveal_type: bool = False,
    ) -> None:
        self._batch = _UserBatch(instance, max_steps, reveal_type, 1)
        self.observation_space, self.action_space = self._batch.spaces()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a new user; returns the observation and `info`."""
        super().reset(seed=seed)
        return _single(*self._batch.reset(self.np_random))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Recommend a category; returns observation, reward, terminated, truncated and `info`."""
        if self._batch.over[0]:
            raise InputError("The episode is over; call reset() before step().")
        rewards, terminated, truncated = self._batch.step(np.asarray([action]), self.np_random)
        observation, info = _single(*self._batch.observe())
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info


def _single(observed: Observation, info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
    """Observation and `info` of a batch of one user as those of this user."""
    single = {name: value[0] for name, value in observed.items()} if isinstance(observed, dict) else observed[0]
    return single, {name: int(value[0]) for name, value in info.items()}


class UserVectorEnv(VectorEnv[Observation, Any, Any]):
    """Environment of many users in parallel; at the step after an episode ends a new user takes the place.

    Observations are `[num_envs, K, 4]`, actions, rewards, terminated and truncated `[num_envs]`; see UserEnv.

    Parameters
    ----------
    instance : Instance or path
        Users and categories, or a file to load them from.
    num_envs : int
        Number of users in parallel.
    max_steps : int, optional
        Number of steps after which an episode is truncated.
    reveal_type : bool
        Put the hidden types of the users into `info["type"]`, `[num_envs]`.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        instance: Instance | str | os.PathLike[str],
        num_envs: int = 1,
        max_steps: int | None = None,
        reveal_type: bool = False,
    ) -> None:
        self.num_envs = check_int("num_envs", num_envs)
        self._batch = _UserBatch(instance, max_steps, reveal_type, self.num_envs)
        self.single_observation_space, self.single_action_space = self._batch.spaces()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new users everywhere; returns the observations and `info`."""
        if isinstance(seed, list):
            raise InputError("seed is a list; expected one integer, because all users share one generator.")
        super().reset(seed=seed)
        return self._batch.reset(self.np_random)

    def step(self, actions: Any) -> tuple[Observation, Floats, Booleans, Booleans, dict[str, Any]]:
        """Recommend a category to every user; where the episode is over a new user starts instead."""
        rewards, terminated, truncated = self._batch.step(np.asarray(actions), self.np_random)
        observation, info = self._batch.observe()
        return observation, rewards, terminated, truncated, info


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:UserEnv", vector_entry_point=f"{__name__}:UserVectorEnv")
