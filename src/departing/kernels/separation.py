"""How well the users of a policy tell two instances apart."""

import math

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def separation(category, child, first_prior, first, second_prior, second):  # type: ignore[no-untyped-def]
    """The KL divergence, in nats per user, of what is seen of users if `first` is true and `second` is supposed.

    `first[K, 4, M]` and `second[K, 4, M]` are chances. Nodes are counts in the order of steps: `category[n]` is shown,
    `child[n, 2]` follow after a click and after a stay, -1 where users are not looked at any longer.
    """
    n_types = len(first_prior)
    n_others = len(second_prior)
    here, there = np.zeros((len(category), n_types)), np.zeros((len(category), n_others))
    here[0], there[0] = first_prior, second_prior
    total = 0.0
    for i in range(len(category)):
        a = category[i]
        for outcome in range(4):
            p, q = 0.0, 0.0
            goes_on = outcome < 2 and child[i, outcome] >= 0
            for x in range(n_types):
                flow = here[i, x] * first[a, outcome, x]
                p += flow
                if goes_on:
                    here[child[i, outcome], x] += flow
            for x in range(n_others):
                flow = there[i, x] * second[a, outcome, x]
                q += flow
                if goes_on:
                    there[child[i, outcome], x] += flow
            if not goes_on and p > 1e-15:
                total += p * math.log(p / max(q, 1e-12 * p))
    return max(total, 0.0)
