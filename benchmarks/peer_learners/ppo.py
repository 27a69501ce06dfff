"""PPO of Stable-Baselines3 on a vectorised environment of many users."""

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peer_learners.features import vectors
from benchmarks.peer_learners.protocol import FrozenPolicy
from departing.model.sampling import sample_outcomes, sample_types
from departing.simulation.regret_curve import log_checkpoints

# Users up to which a stage lasts, users in parallel, steps per rollout, minibatch. Small rollouts first, because a
# policy that changes after 1,024 steps has less regret early; large ones later are cheaper.
STAGES = ((20_000, 64, 16, 256), (None, 1024, 16, 4096))


class UsersVecEnv(VecEnv):
    """Users in parallel, as `departing/User-v0`, with features of the capped counts as observations.

    A new user takes the place of one who departs within the same step, as Stable-Baselines3 expects.
    """

    def __init__(self, block, observations, n_users, rng):
        self._instance, self._states, self._rng = block.instance, block.states, rng
        self._observations, self.arrived = observations.astype(np.float32), 0
        box = spaces.Box(-np.inf, np.inf, (observations.shape[1],), np.float32)
        super().__init__(n_users, box, spaces.Discrete(block.instance.n_categories))
        self.states, self.types = np.zeros(n_users, np.int64), np.zeros(n_users, np.int64)

    def reset(self):
        self._arrive(np.arange(self.num_envs))
        return self._observations[self.states]

    def _arrive(self, rows):
        self.types[rows] = sample_types(self._instance, len(rows), self._rng)
        self.states[rows] = 0
        self.arrived += len(rows)

    def step_async(self, actions):
        self._actions = np.asarray(actions)

    def step_wait(self):
        s, shown = self._states, self._actions
        outcomes = sample_outcomes(self._instance, shown, self.types, self._rng.random(self.num_envs))
        over, kind = outcomes > 1, outcomes % 2
        more = s.digits[self.states, s.columns[kind, shown]] < s.caps[kind]
        self.states += np.where(over, 0, more * s.strides[kind, shown])
        infos = [{} for _ in range(self.num_envs)]
        rows = np.flatnonzero(over)
        for row, last in zip(rows, self._observations[self.states[rows]], strict=True):
            infos[row]["terminal_observation"] = last
        self._arrive(rows)
        clicks = ((outcomes == 0) | (outcomes == 3)).astype(np.float32)
        return self._observations[self.states], clicks, over, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        setattr(self, attr_name, value)

    def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class _Probabilities:
    """Probabilities of the current policy, for `FrozenPolicy`."""

    def __init__(self, observations):
        self.model, self._observations = None, observations.astype(np.float32)

    def probabilities(self, states):
        with torch.no_grad():
            seen = torch.as_tensor(self._observations[states])
            return self.model.policy.get_distribution(seen).distribution.probs.double().numpy()


class _Regret(BaseCallback):
    """Expected regret: that of the policy of a rollout, for all users who arrive in it."""

    def __init__(self, block, optimum, observations):
        super().__init__()
        self._agent, self._optimum = _Probabilities(observations), optimum
        self._policy = FrozenPolicy(block, self._agent)
        self.points, self._loss = [(0, 0.0)], 0.0

    def _on_rollout_start(self):
        self._agent.model = self.model
        self._loss = self._optimum - self._policy.update()

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        arrived, (before, regret) = self.training_env.arrived, self.points[-1]
        self.points.append((arrived, regret + (arrived - before) * self._loss))


def run_ppo(block, optimum, users, seed, features="log", learning_rate=3e-3, ent_coef=0.01, n_epochs=4, net=(32, 32)):
    """Run PPO; return the expected regret at the checkpoints, interpolated within rollouts."""
    torch.set_num_threads(1)
    observations, rng = vectors(block.states, features), np.random.default_rng([seed, 77])
    regret, arrived, model = _Regret(block, optimum, observations), 0, None
    for until, n_users, n_steps, batch in STAGES:
        env = UsersVecEnv(block, observations, n_users, rng)
        env.arrived = arrived
        options = {"learning_rate": learning_rate, "ent_coef": ent_coef, "n_epochs": n_epochs, "gamma": 1.0}
        options |= {"n_steps": n_steps, "batch_size": batch, "policy_kwargs": {"net_arch": list(net)}}
        new = PPO("MlpPolicy", env, gae_lambda=0.95, seed=seed, device="cpu", **options)
        if model is not None:
            new.policy.load_state_dict(model.policy.state_dict())
        model = new
        while env.arrived < min(until or users, users):
            model.learn(n_steps * n_users, callback=regret, reset_num_timesteps=False)
        arrived = env.arrived
    at, total = np.array(regret.points).T
    return np.interp(log_checkpoints(users), at, total)
