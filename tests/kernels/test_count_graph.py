import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from departing.kernels.evaluation.count_graph import expand, gather


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 60))
def test_children_are_merged_as_a_dictionary_merges_them(seed, n_categories, n):
    rng = np.random.default_rng(seed)
    counts = np.zeros((n, n_categories, 4), np.int64)
    counts[..., :2] = rng.integers(0, 3, (n, n_categories, 2))
    counts = np.unique(counts, axis=0)
    categories = rng.integers(0, n_categories, len(counts))
    reachable = rng.random((n_categories, 2)) < 0.8
    flows = rng.integers(0, 10, (len(counts), 2, 3))
    child, children = expand(counts, categories, reachable)
    arrived = gather(child, flows, len(children))
    expected = {}
    for i, (row, a) in enumerate(zip(counts, categories, strict=True)):
        for o in range(2):
            if not reachable[a, o]:
                assert child[i, o] == -1
                continue
            after = row.copy()
            after[a, o] += 1
            assert (children[child[i, o]] == after).all()
            expected[after.tobytes()] = expected.get(after.tobytes(), 0) + flows[i, o]
    assert len(children) == len(expected)
    for row, total in zip(children, arrived, strict=True):
        assert (expected[row.tobytes()] == total).all()
