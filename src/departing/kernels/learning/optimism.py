"""Optimistic values over the observed count graph."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def optimistic_values(
    order, depth, child, click_lower, click_upper, depart, depart_on_click, upper_bound, reward, default
):
    """Return the optimistic value of every node and the category that attains it, by backward induction.

    Nodes come in `order[n]`, deepest first. `child[n, K, 2]` follow after a click and after a stay, -1 where no user
    was observed. The click probability is between `click_lower[n, K]` and `click_upper`, the departure probability at
    least `depart` after a no-click and `depart_on_click` after a click. A click is worth `reward[K]`. No value at
    depth `depth[n]` is above `upper_bound[depth]`. Of equal categories `default` is chosen if it is one of them,
    otherwise the first.
    """
    n, n_categories = child.shape[:2]
    value, category = np.empty(n), np.empty(n, np.int64)
    for i in order:
        best, chosen = -1.0, 0
        limit = upper_bound[min(depth[i], len(upper_bound) - 1)]
        unobserved = upper_bound[min(depth[i] + 1, len(upper_bound) - 1)]
        for a in range(n_categories):
            after_click = value[child[i, a, 0]] if child[i, a, 0] >= 0 else unobserved
            after_stay = value[child[i, a, 1]] if child[i, a, 1] >= 0 else unobserved
            click_value = reward[a] + (1 - depart_on_click[i, a]) * after_click
            no_click_value = (1 - depart[i, a]) * after_stay
            p = click_upper[i, a] if click_value >= no_click_value else click_lower[i, a]
            optimistic = min(p * click_value + (1 - p) * no_click_value, limit)
            if optimistic > best or (optimistic == best and a == default):
                best, chosen = optimistic, a
        value[i], category[i] = best, chosen
    return value, category
