import numpy as np
from benchmarks.draws import sum_of_words

from departing.kernels.random import GOLDEN, mix, stream


def test_the_generator_is_xoshiro256_plus_plus():
    """Against a plain Python twin of the published algorithm."""
    mask = 2**64 - 1

    def rotate(x, k):
        return (x << k | x >> (64 - k)) & mask

    def splitmix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    for root, index in ((0, 0), (12345, 7), (2**64 - 1, 2**40)):
        state = stream(np.uint64(root), np.uint64(index))
        s = [splitmix((root + (4 * index + i + 1) * int(GOLDEN)) & mask) for i in range(4)]
        assert state.tolist() == s
        total = 0
        for _ in range(100):
            total += (rotate((s[0] + s[3]) & mask, 23) + s[0]) & mask
            t = s[1] << 17 & mask
            s[2] ^= s[0]
            s[3] ^= s[1]
            s[1] ^= s[2]
            s[0] ^= s[3]
            s[2] ^= t
            s[3] = rotate(s[3], 45)
        assert int(sum_of_words(state, 100)) == total & mask
        assert state.tolist() == s
    assert int(mix(np.uint64(1))) == splitmix(1)
