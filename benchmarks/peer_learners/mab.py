"""MABWiser: Thompson sampling without context, and LinUCB and linear Thompson sampling on counts."""

import numpy as np
from mabwiser.mab import MAB, LearningPolicy

from benchmarks.peer_learners.features import vectors

DRAWS = 20  # of a Thompson sampler in every state: its probabilities in a block are frequencies of these


class Linear:
    """LinUCB or LinTS of MABWiser with the counts as context; a row of weight n is scaled by the square root of n.

    Ridge regression reads its data through sums of squares and products, so scaled rows of means equal repeated rows.
    """

    full_weight = None

    def __init__(self, states, n_categories, seed, policy, alpha, features, l2=1.0, reward="click"):
        rule = {"ucb": LearningPolicy.LinUCB, "ts": LearningPolicy.LinTS}[policy]
        self._mab = MAB(list(range(n_categories)), rule(alpha=alpha, l2_lambda=l2), seed=seed)
        self.reward, self._vectors = reward, vectors(states, features)
        self._draws, self._n, self._fitted = (DRAWS if policy == "ts" else 1), n_categories, False

    def probabilities(self, states):
        """Return the probabilities of the categories in `states[n]`, `[n, K]`."""
        if not self._fitted:
            return np.full((len(states), self._n), 1 / self._n)
        contexts = np.repeat(self._vectors[states], self._draws, axis=0)
        chosen = np.atleast_1d(self._mab.predict(contexts)).reshape(len(states), self._draws)
        return (chosen[:, :, None] == np.arange(self._n)).mean(axis=1)

    def learn(self, states, categories, users, rewards, probabilities):
        """Learn from rows of mean rewards."""
        root = np.sqrt(users)
        learn = self._mab.partial_fit if self._fitted else self._mab.fit
        learn(categories, rewards * root, self._vectors[states] * root[:, None])
        self._fitted = True

    def close(self):
        """Do nothing."""


class Thompson:
    """Thompson sampling of MABWiser over categories, the same for all counts."""

    reward, full_weight = "click", None

    def __init__(self, states, n_categories, seed):
        self._mab = MAB(list(range(n_categories)), LearningPolicy.ThompsonSampling(), seed=seed)
        self._n, self._fitted, self._drawn = n_categories, False, None

    def probabilities(self, states):
        """Return the probabilities of the categories in `states[n]`, `[n, K]`."""
        if not self._fitted:
            return np.full((len(states), self._n), 1 / self._n)
        if self._drawn is None:
            chosen = [self._mab.predict() for _ in range(DRAWS)]
            self._drawn = np.bincount(chosen, minlength=self._n) / DRAWS
        return np.tile(self._drawn, (len(states), 1))

    def learn(self, states, categories, users, rewards, probabilities):
        """Learn from rows of mean rewards: all clicks and no-clicks, one by one."""
        clicks = np.rint(users * rewards).astype(np.int64)
        decisions = np.concatenate([np.repeat(categories, clicks), np.repeat(categories, users - clicks)])
        outcomes = np.concatenate([np.ones(clicks.sum()), np.zeros((users - clicks).sum())])
        (self._mab.partial_fit if self._fitted else self._mab.fit)(decisions, outcomes)
        self._fitted, self._drawn = True, None

    def close(self):
        """Do nothing."""
