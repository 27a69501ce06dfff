"""UCB-Hybrid over policies, one user after the other: choose a policy, simulate the user, update the index.

States are those of `lanes`: `table[s : s + 4]` for every (node of a policy's graph, type), the graphs of all policies
one after the other, and a packed state `clicks << 32 | s`.
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
    """Return the confidence radius of Algorithm 2 after n users of a policy, for tau = 1."""
    if n < 8.0 * eta * log_users:
        return 8.0 * sqrt(eta) * log_users / n
    return sqrt(8.0 * log_users / n)


@kernel
def estimated_tau(users, clicks, squares):
    """Return half the standard deviation of the returns, with one more return of variance 1 added."""
    spread = squares - clicks * (clicks / users) if users else 0.0
    return 0.5 * sqrt((1.0 + max(spread, 0.0)) / (1.0 + users))


@kernel
def first_largest(bounds):
    """Return the index of the first largest bound."""
    best = 0
    for i in range(1, bounds.shape[0]):
        if bounds[i] > bounds[best]:
            best = i
    return best


@kernel
def record_return(pulls, clicks, totals, arm, value):
    """Record that a user of policy `arm` departed after `value` clicks."""
    pulls[arm] += 1
    clicks[arm] += value
    totals[0] += 1
    totals[1] += value
    totals[2] += value * value


@kernel
def run_arms(generator, graphs, statistics, chosen, returns, counts):
    """Simulate users one after the other: `chosen[n]` becomes the policy of each and `returns[n]` the clicks.

    `generator[4]` is the state of the random number generator. `graphs` are the transitions `table`, the recommended
    category `shown` of each (node, type), the first state `starts[p]` of each policy, `type_offsets` and
    `type_bounds` (a user whose first random number is below `type_bounds[x]`, and not below the bound before, has the
    offset `type_offsets[x]`), and `click_on_departure`, the probability that a user who departs at a state clicks.
    `statistics` are those of the learner (see `ArmStatistics`), updated in place.
    `counts[n, K, 4]`, if not empty, becomes the counts of the users.

    Returns the number of finished users, the number of steps, and the packed state of the next user if it has
    reached an exit of its graph (where `shown` is -1), else -1; that user has a policy, but its return is not
    recorded.
    """
    table, shown, starts, type_offsets, type_bounds, click_on_departure = graphs
    pulls, clicks, totals, log_users, etas, taus = statistics
    a, b, c, d = generator[0], generator[1], generator[2], generator[3]
    low, one, two = uint64(LOW), uint64(1), uint64(2)
    keep_counts, tau_is_known = counts.shape[0] > 0, len(taus) > 0
    means, radii, bounds = np.empty(len(pulls)), np.empty(len(pulls)), np.empty(len(pulls))
    tau = estimated_tau(totals[0], totals[1], totals[2])
    for p in range(len(pulls)):
        means[p] = clicks[p] / pulls[p] if pulls[p] else np.inf
        radii[p] = radius(pulls[p], log_users, etas[p]) if pulls[p] else 0.0
        bounds[p] = means[p] + (taus[p] if tau_is_known else tau) * radii[p]
    steps = 0
    for n in range(len(chosen)):
        arm = first_largest(bounds)
        chosen[n] = arm
        r, a, b, c, d = next_word(a, b, c, d)
        x = 0
        while x < len(type_bounds) and r >= type_bounds[x]:
            x += 1
        packed = uint64(starts[arm] + type_offsets[x])
        while True:
            r, a, b, c, d = next_word(a, b, c, d)
            s = packed & low
            if r >= table[s + one]:
                break
            stays = uint64(r >= table[s])
            packed += table[s + two + stays]
            steps += 1
            if keep_counts:
                counts[n, shown[s >> two], stays] += 1
        s = packed & low
        if shown[s >> two] < 0:
            generator[0], generator[1], generator[2], generator[3] = a, b, c, d
            return n, steps, np.int64(packed)
        steps += 1
        value = np.int64(packed >> uint64(32))
        click_departed = False
        if click_on_departure[s >> two] > 0.0:
            r, a, b, c, d = next_word(a, b, c, d)
            click_departed = float(r >> uint64(11)) * 2.0**-53 < click_on_departure[s >> two]
            value += click_departed
        if keep_counts:
            counts[n, shown[s >> two], CLICK_DEPART if click_departed else DEPART] += 1
        returns[n] = value
        record_return(pulls, clicks, totals, arm, value)
        means[arm] = clicks[arm] / pulls[arm]
        radii[arm] = radius(pulls[arm], log_users, etas[arm])
        if tau_is_known:
            bounds[arm] = means[arm] + taus[arm] * radii[arm]
        else:
            tau = estimated_tau(totals[0], totals[1], totals[2])
            for p in range(len(bounds)):
                bounds[p] = means[p] + tau * radii[p]
    generator[0], generator[1], generator[2], generator[3] = a, b, c, d
    return len(chosen), steps, np.int64(-1)
