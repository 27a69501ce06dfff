"""MABWiser: Thompson sampling without context, and LinUCB on counts."""

import numpy as np
from mabwiser.mab import MAB, LearningPolicy

from benchmarks.peer_learners.features import vectors

DRAWS = 20  # of Thompson sampling: its probabilities in a block are frequencies of these


class LinUCB:
    """LinUCB of MABWiser with the counts as context; a row of weight n is scaled by the square root of n.

    Ridge regression reads its data through sums of squares and products, so scaled rows of means equal repeated rows.
    """

    full_weight = None

    def __init__(self, states, n_categories, seed, alpha, features, reward="click"):
        self._mab = MAB(list(range(n_categories)), LearningPolicy.LinUCB(alpha=alpha), seed=seed)
        self.reward, self._vectors = reward, vectors(states, features)
        self._n, self._fitted = n_categories, False

    def probabilities(self, states):
        """Return the probabilities of the categories in `states[n]`, `[n, K]`."""
        if not self._fitted:
            return np.full((len(states), self._n), 1 / self._n)
        return np.eye(self._n)[np.atleast_1d(self._mab.predict(self._vectors[states]))]

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
