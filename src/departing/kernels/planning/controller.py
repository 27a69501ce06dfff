"""Controllers: states that each recommend a category and go on to a state after a click and after a stay."""

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def solve(reward, click, stay, leave, after, vectors, close, most):
    """What every state brings each type, `vectors[n, M]`: sweeps from the first state on, until nothing moves by more
    than `close` of itself; the number of sweeps.

    `reward`, `click`, `stay` and `leave` are `[n, M]`, the rates of the category of each state.
    """
    n, n_types = vectors.shape
    for sweep in range(most):
        moved = False
        for v in range(n):
            one, two = after[v, 0], after[v, 1]
            for x in range(n_types):
                value, left = reward[v, x], leave[v, x]  # left: the chance not to come to this state again at once
                if one != v:
                    value += click[v, x] * vectors[one, x]
                    left += click[v, x]
                if two != v:
                    value += stay[v, x] * vectors[two, x]
                    left += stay[v, x]
                value /= left
                if abs(value - vectors[v, x]) > close * value:
                    moved = True
                vectors[v, x] = value
        if not moved:
            return sweep + 1
    return most


@kernel
def visits(click, stay, leave, after, start, weights, close, most):
    """How often every state is visited by each type, `[n, M]`, when `weights[M]` start at the state `start`."""
    n, n_types = click.shape
    total, now, then = np.zeros((n, n_types)), np.zeros((n, n_types)), np.zeros((n, n_types))
    for x in range(n_types):
        now[start, x] = weights[x]
    for _ in range(most):
        left = 0.0
        for v in range(n - 1, -1, -1):  # states mostly go on to earlier ones, so that one sweep does nearly all
            one, two = after[v, 0], after[v, 1]
            for x in range(n_types):
                here = now[v, x]
                if here == 0:
                    continue
                now[v, x] = 0.0
                here /= leave[v, x] + (0.0 if one == v else click[v, x]) + (0.0 if two == v else stay[v, x])
                total[v, x] += here
                for o in range(2):
                    to, flow = after[v, o], here * (stay[v, x] if o else click[v, x])
                    if to < v:
                        now[to, x] += flow
                    elif to > v:
                        then[to, x] += flow
                        left += flow
        now, then = then, now
        if left <= close:
            break
    return total
