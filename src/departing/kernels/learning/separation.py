"""What is seen of the users of a policy, under many instances."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def sights(category, child, priors, chances):
    """The chance of everything that can be seen of one user, `[S, 4 n]`, under each of S instances.

    `priors[S, M]` and `chances[S, K, 4, M]`. Nodes are counts in the order of steps: `category[n]` is shown,
    `child[n, 2]` follow after a click and after a stay, -1 where a user is not looked at any longer. What is seen
    is the node and the outcome there with which that ends; outcomes that go on have chance 0.
    """
    n, n_types = len(category), priors.shape[1]
    seen = np.zeros((len(priors), 4 * n))
    here = np.empty((n, n_types))
    for s in range(len(priors)):
        for i in range(n):
            for x in range(n_types):
                here[i, x] = priors[s, x] if i == 0 else 0.0
        for i in range(n):
            for outcome in range(4):
                goes_on = outcome < 2 and child[i, outcome] >= 0
                total = 0.0
                for x in range(n_types):
                    flow = here[i, x] * chances[s, category[i], outcome, x]
                    total += flow
                    if goes_on:
                        here[child[i, outcome], x] += flow
                if not goes_on:
                    seen[s, 4 * i + outcome] = total
    return seen
