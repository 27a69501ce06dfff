"""The random number generator of the kernels alone."""

from numba import uint64

from departing.kernels.compiling import kernel
from departing.kernels.random import next_word


@kernel
def sum_of_words(state, n):
    """Sum of the next `n` words: the cost of the generator alone."""
    a, b, c, d = state[0], state[1], state[2], state[3]
    total = uint64(0)
    for _ in range(n):
        word, a, b, c, d = next_word(a, b, c, d)
        total += word
    state[0], state[1], state[2], state[3] = a, b, c, d
    return total
