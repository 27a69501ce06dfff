"""Trials from the prior with point-based backups on the way back, as in SARSOP and HSVI.

The search expands counts near the root. Users who stay long go far beyond; alpha vectors backed up at the beliefs of
sampled users raise the lower bound of everything that leads there.
"""

from numba import uint64

from departing.kernels.compiling import inner, search_kernel
from departing.kernels.planning.alpha_vectors import activate_vector, backup_vector, best_vector, vector_value
from departing.kernels.planning.counters import FULL, TRIALS, VECTOR_COLUMNS
from departing.kernels.random import GOLDEN, mix


@inner
def _sample_step(model, belief, a, u):
    """Update `belief` by an outcome of category a sampled with u in [0, 1); return False if the user departs."""
    click, stay = 0.0, 0.0
    for x in range(len(belief)):
        click += belief[x] * model.click_stay[a, x]
        stay += belief[x] * model.stay[a, x]
    if u >= click + stay:
        return False
    for x in range(len(belief)):
        if u < click:
            belief[x] *= model.click_stay[a, x] / click
        else:
            belief[x] *= model.stay[a, x] / stay
    return True


@inner
def _point_backup(model, vectors, lp, space, counters, belief, start, min_gain):
    """Back up the best category at `belief`; keep the vector if it improves on `start` by more than `min_gain`."""
    best, most, best_after_click, best_after_stay = -1, 0.0, -1, -1
    for a in range(len(model.reward)):
        value = 0.0
        for x in range(len(belief)):
            value += belief[x] * model.reward[a, x]
            space.weights[x] = belief[x] * model.click_stay[a, x]
            space.belief[x] = belief[x] * model.stay[a, x]
        after_click, later = best_vector(space.weights, vectors, counters[VECTOR_COLUMNS], start, lp)
        value += later
        after_stay, later = best_vector(space.belief, vectors, counters[VECTOR_COLUMNS], start, lp)
        value += later
        if value > most:
            best, most, best_after_click, best_after_stay = a, value, after_click, after_stay
    if best < 0:  # no category has a positive value here
        return
    min_value = vector_value(vectors, start, belief) + min_gain
    v = backup_vector(
        model, vectors, counters, space.weights, belief, best, best_after_click, best_after_stay, min_value
    )
    if v >= 0:
        activate_vector(vectors, counters, v, -1)


@search_kernel
def run_trials(model, vectors, space, lp, counters, prior, beliefs, min_gain, n_trials):
    """Run trials of at most `len(beliefs)` steps from the prior; return the best vector at the prior."""
    for _ in range(n_trials):
        n, best = 0, 0
        for x in range(len(prior)):
            beliefs[0, x] = prior[x]
        while n < len(beliefs):
            best, _ = best_vector(beliefs[n], vectors, counters[VECTOR_COLUMNS], best, lp)
            n += 1
            if n == len(beliefs):
                break
            for x in range(len(prior)):
                beliefs[n, x] = beliefs[n - 1, x]
            counters[TRIALS] += 1
            u = (mix(uint64(counters[TRIALS]) * uint64(GOLDEN)) >> uint64(11)) * 2.0**-53
            if not _sample_step(model, beliefs[n], vectors.category[best], u):
                break
        for i in range(n - 1, -1, -1):
            best, _ = best_vector(beliefs[i], vectors, counters[VECTOR_COLUMNS], best, lp)
            _point_backup(model, vectors, lp, space, counters, beliefs[i], best, min_gain)
            if counters[FULL]:
                return best
    best, _ = best_vector(prior, vectors, counters[VECTOR_COLUMNS], best, lp)
    return best
