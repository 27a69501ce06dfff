"""xoshiro256++ (Blackman and Vigna, 2019), inlined into the loops that use it."""

import numpy as np
from numba import njit, uint64

from departing.kernels.compiling import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def rotate(x, k):
    """Rotate the 64 bits of `x` left by `k`."""
    return (x << uint64(k)) | (x >> uint64(64 - k))


@kernel
def mix(x):
    """The finaliser of splitmix64: a bijection of 64 bits that scatters them."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@kernel
def stream(root, index):
    """The generator state[4] of stream `index` of a run: four splitmix64 outputs of its own."""
    state = np.empty(4, np.uint64)
    for i in range(4):
        state[i] = mix(uint64(root) + (uint64(index) * uint64(4) + uint64(i + 1)) * uint64(GOLDEN))
    return state


@kernel
def draws(state, n):
    """The sum of the next `n` words: what the generator alone costs, for the benchmarks."""
    a, b, c, d = state[0], state[1], state[2], state[3]
    total = uint64(0)
    for _ in range(n):
        total += rotate(a + d, 23) + a
        t = b << uint64(17)
        c ^= a
        d ^= b
        b ^= c
        a ^= d
        c ^= t
        d = rotate(d, 45)
    state[0], state[1], state[2], state[3] = a, b, c, d
    return total
