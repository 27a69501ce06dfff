"""Many users in flight at once, one random word a step, no branch on what a user does.

A *state* is four consecutive entries of `table`, one group for every (node of the policy's graph, type):

    table[s]      a word below this is a click that goes on
    table[s + 1]  a word below this goes on, with or without a click
    table[s + 2]  what a click adds to the lane's word
    table[s + 3]  what a stay adds to the lane's word

A lane's *word* is `clicks << 32 | s`, so one addition moves a user to the next state and counts the click.
`buffer` is the queue of first words of users yet to start and, in the same memory, the last words of those
who left: the word of the i-th to leave is `buffer[i]`, the next to start is `buffer[i + 2]`, and the slot
between them is scratch.
"""

from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import next_word, stream

LOW = 0xFFFFFFFF


@kernel
def enqueue(share, buffer, lanes):
    """Put the first words of `share[x]` users of every type x into the lanes, then into the queue."""
    width = lanes.shape[0]
    start = 0
    for x in range(share.shape[0]):
        word, stop = uint64(4 * x), start + share[x]
        lanes[min(start, width) : min(stop, width)] = word
        buffer[max(start - width, 0) + 2 : max(stop - width, 0) + 2] = word
        start = stop


@kernel
def run_lanes(root, block, table, users, buffer, lanes, shown, seats, order, tally):
    """Play `users` enqueued users to the end; their last words are `buffer[:users]`, in order of leaving.

    Returns the number of steps. Where `tally[users, K, 4]` is not empty the clicks and stays of every user are
    counted in it, by the category `shown[s // 4]` of every state, and `order[i]` becomes the user of
    `buffer[i]`; `seats` is the user in every lane.
    """
    state = stream(root, block)
    a, b, c, d = state[0], state[1], state[2], state[3]
    low, one, two = uint64(LOW), uint64(1), uint64(2)
    width, total = uint64(lanes.shape[0]), uint64(users)
    record = tally.shape[0] > 0
    at, made = uint64(0), uint64(0)
    while at + width + width <= total:
        made += width
        for k in range(width):
            lane = uint64(k)
            r, a, b, c, d = next_word(a, b, c, d)
            word = lanes[lane]
            s = word & low
            stays = uint64(r >= table[s])
            gone = uint64(r >= table[s + one])
            if record:
                order[at] = seats[lane]
                tally[seats[lane], shown[s >> two], stays] += one - gone
                seats[lane] += gone * (at + width - seats[lane])
            # The two stores and the load stand for `if gone`: a branch here would be a coin toss.
            buffer[at] = word
            buffer[at + one] = word + table[s + two + stays]
            at += gone
            lanes[lane] = buffer[at + one]
    for k in range(width):
        while True:
            made += one
            r, a, b, c, d = next_word(a, b, c, d)
            word = lanes[k]
            s = word & low
            stays = uint64(r >= table[s])
            if r < table[s + one]:
                lanes[k] = word + table[s + two + stays]
                if record:
                    tally[seats[k], shown[s >> two], stays] += one
                continue
            buffer[at] = word
            if record:
                order[at] = seats[k]
                seats[k] = at + width
            at += one
            if at + width > total:
                break
            lanes[k] = buffer[at + one]
    return made


@kernel
def tally_clicks(words, shown, histogram, aside):
    """Add the clicks of every word to `histogram[4 * cap]`, four histograms one after the other.

    Four, so that users with equal clicks need not wait for each other. The indices of words in an exit (where
    `shown` is -1) or with too many clicks go to `aside`; returns how many of these there are.
    """
    cap, two, three = uint64(histogram.shape[0] // 4), uint64(2), uint64(3)
    exits = shown.min() < 0
    n_aside = 0
    for k in range(words.shape[0]):
        i = uint64(k)
        word = words[i]
        clicks = word >> uint64(32)
        if clicks < cap and (not exits or shown[(word & uint64(LOW)) >> two] >= 0):
            histogram[(i & three) * cap + clicks] += 1
        else:
            aside[n_aside] = k
            n_aside += 1
    return n_aside
