"""Finite-state controllers: each state recommends a category and has a successor after a click and after a stay."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def evaluate_controller(reward, click, stay, depart, successor, vectors, tolerance, max_sweeps):
    """Value of each state by type, in place in `vectors[n, M]`, by Gauss-Seidel sweeps; return their number.

    `reward`, `click`, `stay` and `depart` are the probabilities `[n, M]` of the category of each state. Sweeps end
    when no value changes by more than `tolerance`, relative to itself.
    """
    n, n_types = vectors.shape
    for sweep in range(max_sweeps):
        changed = False
        for v in range(n):
            one, two = successor[v, 0], successor[v, 1]
            for x in range(n_types):
                value, exits = reward[v, x], depart[v, x]  # exits: probability not to stay in this state
                if one != v:
                    value += click[v, x] * vectors[one, x]
                    exits += click[v, x]
                if two != v:
                    value += stay[v, x] * vectors[two, x]
                    exits += stay[v, x]
                value /= exits
                if abs(value - vectors[v, x]) > tolerance * value:
                    changed = True
                vectors[v, x] = value
        if not changed:
            return sweep + 1
    return max_sweeps


@kernel
def expected_visits(click, stay, depart, successor, start, weights, tolerance, max_sweeps):
    """Expected number of visits to each state by type, `[n, M]`, of users who start with `weights[M]` at `start`."""
    n, n_types = click.shape
    total, now, later = np.zeros((n, n_types)), np.zeros((n, n_types)), np.zeros((n, n_types))
    for x in range(n_types):
        now[start, x] = weights[x]
    for _ in range(max_sweeps):
        remaining = 0.0
        for v in range(n - 1, -1, -1):  # successors mostly have smaller indices, so one sweep does nearly all
            one, two = successor[v, 0], successor[v, 1]
            for x in range(n_types):
                visits = now[v, x]
                if visits == 0:
                    continue
                now[v, x] = 0.0
                visits /= depart[v, x] + (0.0 if one == v else click[v, x]) + (0.0 if two == v else stay[v, x])
                total[v, x] += visits
                for o in range(2):
                    to, flow = successor[v, o], visits * (stay[v, x] if o else click[v, x])
                    if to < v:
                        now[to, x] += flow
                    elif to > v:
                        later[to, x] += flow
                        remaining += flow
        now, later = later, now
        if remaining <= tolerance:
            break
    return total
