"""Many users in lockstep, one random number a step, no branch on the outcome.

A *state* is four consecutive entries of `table`, one group for every (node of the automaton, type):

    table[s]      a random word below this is a click without departure
    table[s + 1]  a random word below this is no departure, with or without a click
    table[s + 2]  number that a click adds to the packed state
    table[s + 3]  number that a stay adds to the packed state

The *packed state* of a lane is `clicks << 32 | s`, so one addition moves a user to the next state and counts the
click. `buffer` is the queue of the first packed states of users yet to start and, in the same memory, the last ones
of those who departed: that of the i-th to depart is `buffer[i]`, the next to start is `buffer[i + 2]`, and the slot
between them is scratch.
"""

from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import next_word, stream

LOW = 0xFFFFFFFF  # mask of the state in a packed state


@kernel
def enqueue(users_by_type, buffer, lanes):
    """Put the first packed states of `users_by_type[x]` users of every type x into the lanes, then into the queue."""
    width = lanes.shape[0]
    start = 0
    for x in range(users_by_type.shape[0]):
        packed, stop = uint64(4 * x), start + users_by_type[x]
        lanes[min(start, width) : min(stop, width)] = packed
        buffer[max(start - width, 0) + 2 : max(stop - width, 0) + 2] = packed
        start = stop


@kernel
def run_lanes(root, block, table, users, buffer, lanes, category, lane_user, order, counts):
    """Play `users` enqueued users to the end; their last packed states are `buffer[:users]`, in order of departure.

    Returns the number of steps. If `counts[users, K, 4]` is not empty the clicks and stays of every user are counted
    in it, by the category `category[s // 4]` of every state, and `order[i]` becomes the user of
    `buffer[i]`; `lane_user` is the user in every lane.
    """
    state = stream(root, block)
    a, b, c, d = state[0], state[1], state[2], state[3]
    low, one, two = uint64(LOW), uint64(1), uint64(2)
    width, total = uint64(lanes.shape[0]), uint64(users)
    record = counts.shape[0] > 0
    at, steps = uint64(0), uint64(0)
    while at + width + width <= total:
        steps += width
        for k in range(width):
            lane = uint64(k)
            r, a, b, c, d = next_word(a, b, c, d)
            packed = lanes[lane]
            s = packed & low
            stays = uint64(r >= table[s])
            departs = uint64(r >= table[s + one])
            if record:
                order[at] = lane_user[lane]
                counts[lane_user[lane], category[s >> two], stays] += one - departs
                lane_user[lane] += departs * (at + width - lane_user[lane])
            # The two stores and the load replace `if departs`: the processor could not predict that branch.
            buffer[at] = packed
            buffer[at + one] = packed + table[s + two + stays]
            at += departs
            lanes[lane] = buffer[at + one]
    for k in range(width):
        while True:
            steps += one
            r, a, b, c, d = next_word(a, b, c, d)
            packed = lanes[k]
            s = packed & low
            stays = uint64(r >= table[s])
            if r < table[s + one]:
                lanes[k] = packed + table[s + two + stays]
                if record:
                    counts[lane_user[k], category[s >> two], stays] += one
                continue
            buffer[at] = packed
            if record:
                order[at] = lane_user[k]
                lane_user[k] = at + width
            at += one
            if at + width > total:
                break
            lanes[k] = buffer[at + one]
    return steps


@kernel
def count_clicks(packed_states, category, histogram, deferred):
    """Add the clicks of every packed state to `histogram[4 * cap]`, four histograms one after the other.

    With four, successive users with equal clicks do not wait for each other's store. The indices of those at an
    exit (where `category` is -1) or with too many clicks go to `deferred`; returns their number.
    """
    cap, two, three = uint64(histogram.shape[0] // 4), uint64(2), uint64(3)
    exits = category.min() < 0
    n_deferred = 0
    for k in range(packed_states.shape[0]):
        i = uint64(k)
        packed = packed_states[i]
        clicks = packed >> uint64(32)
        if clicks < cap and (not exits or category[(packed & uint64(LOW)) >> two] >= 0):
            histogram[(i & three) * cap + clicks] += 1
        else:
            deferred[n_deferred] = k
            n_deferred += 1
    return n_deferred
