"""Probabilities of observed paths under many instances."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def path_probabilities(category, child, priors, probabilities):
    """Return the probability of every observable path of one user, `[S, 4 n]`, under each of S instances.

    `priors[S, M]` and outcome `probabilities[S, K, 4, M]`. Nodes are counts in the order of steps: `category[n]` is
    recommended, `child[n, 2]` follow after a click and after a stay, -1 where the observation ends. A path is the
    node and the outcome at which the observation ends; outcomes that continue have probability 0.
    """
    n, n_types = len(category), priors.shape[1]
    paths = np.zeros((len(priors), 4 * n))
    reach = np.empty((n, n_types))
    for s in range(len(priors)):
        for i in range(n):
            for x in range(n_types):
                reach[i, x] = priors[s, x] if i == 0 else 0.0
        for i in range(n):
            for outcome in range(4):
                continues = outcome < 2 and child[i, outcome] >= 0
                total = 0.0
                for x in range(n_types):
                    flow = reach[i, x] * probabilities[s, category[i], outcome, x]
                    total += flow
                    if continues:
                        reach[child[i, outcome], x] += flow
                if not continues:
                    paths[s, 4 * i + outcome] = total
    return paths
