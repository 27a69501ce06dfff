"""Vowpal Wabbit: contextual bandit with action-dependent features (`--cb_explore_adf`)."""

import numpy as np
from vowpalwabbit import Workspace
from vowpalwabbit.pyvw import pylibvw  # compiled calls, without the checks of every example in Python

from benchmarks.peer_learners.features import text


class Vowpal:
    """A contextual bandit of Vowpal Wabbit whose context is the capped counts.

    Parameters
    ----------
    states : States
    n_categories : int
    seed : int
    explore : str
        Exploration options, such as "--epsilon 0.05", "--bag 5" or "--rnd 3 --epsilon 0.025".
    features : str
        Kind of features, see `features.text`.
    options : str
        Other options, such as the learning rate.
    reward : "click" or "return"
        Reward of a step: its click, or the clicks from this step to departure.
    base : float
        The cost of a step is `base` - reward. The model starts at cost 0, so a large base is optimistic.
    weights : "inverse" or "equal"
        Importance weight of a step: its inverse propensity, as usual in Vowpal Wabbit, or 1 (the direct method).
    full_weight : int
        Up to twice as many users every step is one update; later rows of users / `full_weight` equal steps are.
    """

    def __init__(
        self,
        states,
        n_categories,
        seed,
        explore,
        features,
        options="",
        reward="click",
        base=0.0,
        weights="inverse",
        full_weight=500,
    ):
        arguments = f"--cb_explore_adf {explore} -q ua {options} -b 16 --random_seed {seed + 1} --quiet"
        self.full_weight = full_weight
        self.reward, self._base, self._vw = reward, base, Workspace(arguments)
        self._states, self._features, self._inverse = states, features, weights == "inverse"
        self._actions = [f"|a x{a}" for a in range(n_categories)]
        self._context, self._parsed = {}, {}

    def _shared(self, state):
        if state not in self._context:
            self._context[state] = "shared |u " + text(self._states.digits[state].tolist(), self._features)
        return self._context[state]

    def _parse(self, lines):
        return pylibvw.vw._parse(self._vw, "\n".join(lines))

    def probabilities(self, states):
        """Return the probabilities of the categories in `states[n]`, `[n, K]`."""
        rows = []
        for state in states:
            if (examples := self._parsed.get(state)) is None:
                examples = self._parsed[state] = self._parse([self._shared(state), *self._actions])
            pylibvw.vw.predict_multi(self._vw, examples)
            rows.append(examples[0].get_action_scores())
        table = np.array(rows)
        return table / table.sum(axis=1, keepdims=True)

    def learn(self, states, categories, users, rewards, probabilities):
        """Learn from rows: mean reward of a number of users who were recommended a category in a state.

        The importance weight of a row is users / probability, or users; Vowpal Wabbit reads its inverse.
        """
        if not self._inverse:
            probabilities = np.ones(len(states))
        for s, a, n, reward, p in zip(states, categories, users, rewards, probabilities, strict=True):
            lines = [self._shared(s), *self._actions]
            lines[a + 1] = f"0:{self._base - reward:.6g}:{p / n:.6g} {lines[a + 1]}"
            examples = self._parse(lines)
            pylibvw.vw.learn_multi(self._vw, examples)
            pylibvw.vw._finish_example_multi_ex(self._vw, examples)

    def close(self):
        """Free the examples and the model."""
        for examples in self._parsed.values():
            pylibvw.vw._finish_example_multi_ex(self._vw, examples)
        self._vw.finish()
