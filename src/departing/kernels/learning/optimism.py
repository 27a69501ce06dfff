"""Optimistic values over the counts that users met."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def look_ahead(order, depth, child, least_click, most_click, least_depart, least_last, ceiling, otherwise):
    """The most that users may bring from every node on, and the category to show there, by what is known of chances.

    Nodes come in `order[n]`, deepest first. `child[n, K, 2]` follow after a click and after a stay, -1 where nobody
    went. The chance of a click is between `least_click[n, K]` and `most_click`, that of departing at least
    `least_depart` after a no-click and `least_last` after a click. From nodes of `depth[n]` steps on nobody brings
    more than `ceiling[depth]`. Of equal categories `otherwise` is taken if it is one of them.
    """
    n, n_categories = child.shape[:2]
    value, category = np.empty(n), np.empty(n, np.int64)
    for i in order:
        best, chosen = -1.0, 0
        below = ceiling[min(depth[i] + 1, len(ceiling) - 1)]
        for a in range(n_categories):
            after_click = value[child[i, a, 0]] if child[i, a, 0] >= 0 else below
            after_stay = value[child[i, a, 1]] if child[i, a, 1] >= 0 else below
            clicked = 1 + (1 - least_last[i, a]) * after_click
            missed = (1 - least_depart[i, a]) * after_stay
            p = most_click[i, a] if clicked >= missed else least_click[i, a]
            hope = min(p * clicked + (1 - p) * missed, ceiling[min(depth[i], len(ceiling) - 1)])
            if hope > best or (hope == best and a == otherwise):
                best, chosen = hope, a
        value[i], category[i] = best, chosen
    return value, category
