"""Protocol of all peers: blocks of users under a frozen peer, or one update after every step; expected regret."""

import numpy as np

from departing.simulation.regret_curve import log_checkpoints

GROWTH = 0.1  # block size as a share of the users so far, at least one user
COVERED = 0.999  # share of the expected visits in states whose probabilities are up to date


class FrozenPolicy:
    """Table of a peer's probabilities, brought up to date where users go.

    States that make up less than 1 - COVERED of the expected visits keep the probabilities of an earlier block, at
    first those of the uniform policy. A peer is asked only for states that matter.
    """

    def __init__(self, block, peer):
        self._block, self._peer = block, peer
        n_categories = block.instance.n_categories
        self.table = np.full((len(block.states), n_categories), 1 / n_categories)

    def update(self):
        """Bring the table up to date; return the expected clicks of one user."""
        fresh = np.zeros(len(self.table), bool)
        while True:
            visits = self._block.visits(self.table)
            total = visits.sum(axis=1)
            stale = np.where(fresh, 0.0, total)
            if stale.sum() <= (1 - COVERED) * total.sum():
                return self._block.value(self.table, visits)
            reached = np.flatnonzero(stale > 1e-9)
            order = reached[np.argsort(-stale[reached])]
            enough = np.searchsorted(stale[order].cumsum(), stale.sum() - 0.5 * (1 - COVERED) * total.sum()) + 1
            states = order[:enough]
            self.table[states] = self._peer.probabilities(states.tolist())
            fresh[states] = True


def run_blocks(block, peer, optimum, users, rng, growth=GROWTH):
    """Run a peer that learns after every block; return the expected regret at the checkpoints."""
    checkpoints, policy = log_checkpoints(users), FrozenPolicy(block, peer)
    regret, arrived, curve = 0.0, 0, []
    for checkpoint in checkpoints:
        while arrived < checkpoint:
            n = min(max(1, int(growth * arrived)), int(checkpoint) - arrived)
            regret += n * (optimum - policy.update())
            weight = max(1, arrived // peer.full_weight) if peer.full_weight else users
            rows = block.simulate(policy.table, n, rng, weight)
            states, categories, steps = rows[:, 0], rows[:, 1], rows[:, 2]
            rewards = rows[:, 3 if peer.reward == "click" else 4] / steps
            peer.learn(states, categories, steps, rewards, policy.table[states, categories])
            arrived += n
        curve.append(regret)
    return np.array(curve)


def run_online(block, peer, optimum, users, rng, growth=GROWTH):
    """Run a peer that is asked before and learns after every step; return the expected regret at the checkpoints.

    The regret of a block of users is that of the peer's policy at its start, the same measure as in `run_blocks`.
    """
    checkpoints, policy = log_checkpoints(users), FrozenPolicy(block, peer)
    regret, arrived, curve = 0.0, 0, []
    for checkpoint in checkpoints:
        while arrived < checkpoint:
            n = min(max(1, int(growth * arrived)), int(checkpoint) - arrived)
            regret += n * (optimum - policy.update())
            for _ in range(n):
                _one_user(block, peer, rng)
            arrived += n
        curve.append(regret)
    return np.array(curve)


def _one_user(block, peer, rng):
    """Simulate one user; the peer learns from clicks after every step, from returns after departure."""
    steps, state, type_ = [], 0, rng.choice(block.instance.n_types, p=block.instance.normalised_prior)
    while state >= 0:
        probabilities = peer.probabilities([state])[0]
        category = int(min(np.searchsorted(probabilities.cumsum(), rng.random()), len(probabilities) - 1))
        clicked, after = block.step(state, category, type_, rng.random())
        steps.append((state, category, float(clicked), probabilities[category]))
        if peer.reward == "click":
            _learn_one(peer, *steps[-1])
        state = after
    to_go = 0.0
    for state, category, clicked, probability in reversed(steps if peer.reward == "return" else []):
        to_go += clicked
        _learn_one(peer, state, category, to_go, probability)


def _learn_one(peer, state, category, reward, probability):
    one = np.ones(1, np.int64)
    peer.learn(np.array([state]), np.array([category]), one, np.array([reward]), np.array([probability]))
