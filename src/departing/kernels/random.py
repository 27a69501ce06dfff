"""xoshiro256++ (Blackman and Vigna, 2019), inlined into the loops that use it."""

import numpy as np
from numba import njit, uint64

from departing.kernels.compiling import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: the increment of splitmix64


@njit(inline="always")
def rotate(x, k):
    """Rotate the 64 bits of `x` left by `k`."""
    return (x << uint64(k)) | (x >> uint64(64 - k))


@njit(inline="always")
def next_word(a, b, c, d):
    """Draw the next 64-bit word of the generator with state a, b, c, d; return the word and the next state.

    The state is four scalars, not an array, so that it stays in registers throughout a loop.
    """
    word = rotate(a + d, 23) + a
    t = b << uint64(17)
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= t
    return word, a, b, c, rotate(d, 45)


@kernel
def mix(x):
    """Finalise as in splitmix64: a bijection of 64 bits that scatters them."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@kernel
def stream(root, index):
    """Generator state[4] of stream `index` of a run: four splitmix64 outputs of its own."""
    state = np.empty(4, np.uint64)
    for i in range(4):
        state[i] = mix(uint64(root) + (uint64(index) * uint64(4) + uint64(i + 1)) * uint64(GOLDEN))
    return state
