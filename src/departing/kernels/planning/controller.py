"""Finite-state controllers: each state recommends a category and has a successor after a click and after a stay."""

from departing.kernels.compiling import search_kernel


@search_kernel
def evaluate_controller(click, click_stay, stay, depart, successor, vectors, tolerance, max_sweeps):
    """Value of each state by type, in place in `vectors[n, M]`, by Gauss-Seidel sweeps; return their number.

    `click`, `click_stay`, `stay` and `depart` are the probabilities `[n, M]` of the category of each state. Sweeps
    end when no value changes by more than `tolerance`, relative to itself.
    """
    n, n_types = vectors.shape
    for sweep in range(max_sweeps):
        changed = False
        for v in range(n):
            after_click, after_stay = successor[v, 0], successor[v, 1]
            for x in range(n_types):
                value, exits = click[v, x], depart[v, x]  # exits: probability not to stay in this state
                if after_click != v:
                    value += click_stay[v, x] * vectors[after_click, x]
                    exits += click_stay[v, x]
                if after_stay != v:
                    value += stay[v, x] * vectors[after_stay, x]
                    exits += stay[v, x]
                value /= exits
                if abs(value - vectors[v, x]) > tolerance * value:
                    changed = True
                vectors[v, x] = value
        if not changed:
            return sweep + 1
    return max_sweeps


@search_kernel
def add_visits(click_stay, stay, depart, successor, total, now, later, tolerance, max_sweeps):
    """Add the expected visits of users who are `now[n, M]` in each state to `total[n, M]`, in place.

    Returns the number of sweeps. After `max_sweeps`, an even number, users who are still active are in `now`.
    """
    n, n_types = click_stay.shape
    for sweep in range(max_sweeps):
        remaining = 0.0
        for v in range(n - 1, -1, -1):  # successors mostly have smaller indices, so one sweep does nearly all
            after_click, after_stay = successor[v, 0], successor[v, 1]
            for x in range(n_types):
                visits = now[v, x]
                if visits == 0:
                    continue
                now[v, x] = 0.0
                exits = depart[v, x] + (0.0 if after_click == v else click_stay[v, x])
                visits /= exits + (0.0 if after_stay == v else stay[v, x])
                total[v, x] += visits
                for o in range(2):
                    to, flow = successor[v, o], visits * (stay[v, x] if o else click_stay[v, x])
                    if to < v:
                        now[to, x] += flow
                    elif to > v:
                        later[to, x] += flow
                        remaining += flow
        now, later = later, now
        if remaining <= tolerance:
            return sweep + 1
    return max_sweeps
