"""Practice: walk through beliefs as a user would, and improve the floor on the way back.

The search expands counts near the root. Users who stay long go far beyond; vectors made at beliefs they come to raise
the floor of all that leads there.
"""

from numba import uint64

from departing.kernels.compiling import inner, search_kernel
from departing.kernels.planning.alpha_vectors import back_up, best_floor, brings, show_vector
from departing.kernels.planning.sizes import FLOORS, FULL, TRIALS
from departing.kernels.random import GOLDEN, mix


@inner
def _go_on(model, belief, a, u):
    """Move `belief` on by a step of category a with an outcome that u in [0, 1) decides; whether anyone is left."""
    click, stay = 0.0, 0.0
    for x in range(len(belief)):
        click += belief[x] * model.click[a, x]
        stay += belief[x] * model.stay[a, x]
    if u >= click + stay:
        return False
    for x in range(len(belief)):
        if u < click:
            belief[x] *= model.click[a, x] / click
        else:
            belief[x] *= model.stay[a, x] / stay
    return True


@inner
def _improve(model, floors, bench, room, size, belief, known, news):
    """A vector for `belief` from the best category and the best vectors after it, if it beats `known` by `news`."""
    best, most, one, two = -1, 0.0, -1, -1
    for a in range(len(model.reward)):
        value = 0.0
        for x in range(len(belief)):
            value += belief[x] * model.reward[a, x]
            room.one[x] = belief[x] * model.click[a, x]
            room.two[x] = belief[x] * model.stay[a, x]
        after_click, brought = best_floor(room.one, floors, size[FLOORS], known, bench)
        value += brought
        after_stay, brought = best_floor(room.two, floors, size[FLOORS], known, bench)
        value += brought
        if value > most:
            best, most, one, two = a, value, after_click, after_stay
    if best < 0:  # nothing brings anything here
        return
    least = brings(floors, known, belief) + news
    v = back_up(model, floors, size, room.one, belief, best, one, two, least)
    if v >= 0:
        show_vector(floors, size, v, -1)


@search_kernel
def practise(model, floors, bench, room, size, prior, beliefs, news, most):
    """`most` walks of at most `len(beliefs)` steps from the prior, and an improvement by at least `news` on each step
    of the way back; the best vector at the prior."""
    for _ in range(most):
        n, known = 0, 0
        for x in range(len(prior)):
            beliefs[0, x] = prior[x]
        while n < len(beliefs):
            known, _ = best_floor(beliefs[n], floors, size[FLOORS], known, bench)
            n += 1
            if n == len(beliefs):
                break
            for x in range(len(prior)):
                beliefs[n, x] = beliefs[n - 1, x]
            size[TRIALS] += 1
            u = (mix(uint64(size[TRIALS]) * uint64(GOLDEN)) >> uint64(11)) * 2.0**-53
            if not _go_on(model, beliefs[n], floors.category[known], u):
                break
        for i in range(n - 1, -1, -1):
            known, _ = best_floor(beliefs[i], floors, size[FLOORS], known, bench)
            _improve(model, floors, bench, room, size, beliefs[i], known, news)
            if size[FULL]:
                return known
    known, _ = best_floor(prior, floors, size[FLOORS], known, bench)
    return known
