"""UCB-Hybrid over policies, one user after the other: choose, walk the user through the policy, update.

States and words are those of `lanes`: `table[s : s + 4]` for every (node of a policy's graph, type), the graphs of
all policies one after the other, and a word `clicks << 32 | s`.
"""

from math import sqrt

import numpy as np
from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import next_word

LOW = 0xFFFFFFFF
CLICK_DEPART, DEPART = 3, 2


@kernel
def radius(n, log_users, eta):
    """The radius of Algorithm 2 after n users of a policy, for a scale of one."""
    if n < 8.0 * eta * log_users:
        return 8.0 * sqrt(eta) * log_users / n
    return sqrt(8.0 * log_users / n)


@kernel
def estimated_scale(users, clicks, squares):
    """Half the standard deviation of the returns of so many users, one more of variance one put to them."""
    spread = squares - clicks * (clicks / users) if users else 0.0
    return 0.5 * sqrt((1.0 + max(spread, 0.0)) / (1.0 + users))


@kernel
def first_largest(bounds):
    """The index of the first of the largest `bounds`."""
    best = 0
    for i in range(1, bounds.shape[0]):
        if bounds[i] > bounds[best]:
            best = i
    return best


@kernel
def learn(pulls, sums, totals, arm, value):
    """Be told that a user of policy `arm` departed after `value` clicks."""
    pulls[arm] += 1
    sums[arm] += value
    totals[0] += 1
    totals[1] += value
    totals[2] += value * value


@kernel
def run_arms(
    words,
    table,
    shown,
    starts,
    types,
    shares,
    last,
    pulls,
    sums,
    totals,
    log_users,
    eta,
    scale,
    chosen,
    returns,
    tally,
):
    """Play users one after the other: `chosen[n]` becomes the policy of each and `returns[n]` the clicks.

    `words[4]` is the generator; `starts[p]` the first state of policy p, to which `types[x]` is added for each type;
    below the word `shares[x]` a user is of a type up to x, in this order; `last[s // 4]` is the chance that who
    leaves a state clicks on leaving. `pulls[p]`, `sums[p]` and `totals` (users, clicks, squares of clicks) are what
    the learner knows, and go on; `scale` is the learner's tau, or 0 for one that is estimated. Where `tally[n, K, 4]`
    is not empty it counts what users did.

    Returns how many users are done, the steps made, and the word of the next user if that one has come to an exit of
    the graph (where `shown` is -1), or -1 if there is none; that user is chosen for, but not learned from.
    """
    a, b, c, d = words[0], words[1], words[2], words[3]
    low, one, two = uint64(LOW), uint64(1), uint64(2)
    record, fixed_scale = tally.shape[0] > 0, scale > 0.0
    means, radii, bounds = np.empty(len(pulls)), np.empty(len(pulls)), np.empty(len(pulls))
    tau = scale if fixed_scale else estimated_scale(totals[0], totals[1], totals[2])
    for p in range(len(pulls)):
        means[p] = sums[p] / pulls[p] if pulls[p] else np.inf
        radii[p] = radius(pulls[p], log_users, eta) if pulls[p] else 0.0
        bounds[p] = means[p] + tau * radii[p]
    made = 0
    for n in range(len(chosen)):
        arm = first_largest(bounds)
        chosen[n] = arm
        r, a, b, c, d = next_word(a, b, c, d)
        x = 0
        while x < len(shares) and r >= shares[x]:
            x += 1
        word = uint64(starts[arm] + types[x])
        while True:
            r, a, b, c, d = next_word(a, b, c, d)
            s = word & low
            if r >= table[s + one]:
                break
            stays = uint64(r >= table[s])
            word += table[s + two + stays]
            made += 1
            if record:
                tally[n, shown[s >> two], stays] += 1
        s = word & low
        if shown[s >> two] < 0:
            words[0], words[1], words[2], words[3] = a, b, c, d
            return n, made, np.int64(word)
        made += 1
        value = np.int64(word >> uint64(32))
        clicked_last = False
        if last[s >> two] > 0.0:
            r, a, b, c, d = next_word(a, b, c, d)
            clicked_last = float(r >> uint64(11)) * 2.0**-53 < last[s >> two]
            value += clicked_last
        if record:
            tally[n, shown[s >> two], CLICK_DEPART if clicked_last else DEPART] += 1
        returns[n] = value
        learn(pulls, sums, totals, arm, value)
        means[arm] = sums[arm] / pulls[arm]
        radii[arm] = radius(pulls[arm], log_users, eta)
        if fixed_scale:
            bounds[arm] = means[arm] + tau * radii[arm]
        else:
            tau = estimated_scale(totals[0], totals[1], totals[2])
            for p in range(len(bounds)):
                bounds[p] = means[p] + tau * radii[p]
    words[0], words[1], words[2], words[3] = a, b, c, d
    return len(chosen), made, np.int64(-1)
