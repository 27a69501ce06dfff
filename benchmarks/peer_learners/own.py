"""Learners of this package under the same protocol: same instances, users, checkpoints and measure."""

import departing as dp
from departing.learning.baselines import Thompson

MAKERS = {
    "bayes": lambda instance, users, seed: dp.Bayes("auto", instance.n_categories, seed, users=users),
    "lattice": lambda instance, users, seed: dp.LatticeUCB(
        instance.n_categories, users, seed, epsilon=float(instance.departure_probabilities.min())
    ),
    "thompson-fixed": lambda instance, users, seed: Thompson(instance.n_categories, seed),
}


def run_own(name, instance, optimum, users, seed):
    """Return the expected regret at the checkpoints."""
    return dp.simulate(instance, MAKERS[name](instance, users, seed), users, seed, optimum=optimum).regret
