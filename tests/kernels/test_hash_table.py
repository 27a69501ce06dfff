"""The hash table of counts against a dictionary."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from departing.kernels.hash_table import find_rows, insert_keys, insert_rows, key_multipliers
from departing.kernels.random import mix


def empty_slots(n):
    return np.full(1 << (2 * n + 1).bit_length(), -1, np.int64)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 200), st.sampled_from([2, 5, 2**60]))
def test_rows_are_found_as_in_a_dictionary(seed, width, n, most):
    rng = np.random.default_rng(seed)
    rows = np.unique(rng.integers(0, most, (n, width)), axis=0)
    rng.shuffle(rows)
    wanted = np.concatenate([rows, rng.integers(0, most, (n, width))])
    slots, multipliers = empty_slots(len(rows)), key_multipliers(width)
    insert_rows(slots, rows, len(rows), multipliers)
    twin = {row.tobytes(): i for i, row in enumerate(rows)}
    assert find_rows(slots, rows, multipliers, wanted).tolist() == [twin.get(row.tobytes(), -1) for row in wanted]


def test_rows_with_equal_keys_are_told_apart():
    """Multipliers of zero give every row the same key: only the comparison of rows separates them."""
    rows = np.arange(30).reshape(10, 3)
    slots, same = empty_slots(len(rows)), np.zeros(3, np.uint64)
    insert_rows(slots, rows, len(rows), same)
    assert find_rows(slots, rows, same, rows[::-1].copy()).tolist() == list(range(10))[::-1]
    assert find_rows(slots, rows, same, rows + 1).tolist() == [-1] * 10


def test_only_the_first_entries_are_inserted():
    rows, multipliers = np.arange(30).reshape(10, 3), key_multipliers(3)
    slots = empty_slots(10)
    insert_rows(slots, rows, 4, multipliers)
    assert sorted(slots[slots >= 0].tolist()) == [0, 1, 2, 3]
    assert find_rows(slots, rows, multipliers, rows).tolist() == [0, 1, 2, 3, -1, -1, -1, -1, -1, -1]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=100, unique=True))
def test_keys_stand_where_linear_probing_puts_them(keys):
    slots = empty_slots(len(keys))
    insert_keys(slots, np.array(keys, np.uint64), len(keys))
    twin = [-1] * len(slots)
    for i, key in enumerate(keys):
        slot = int(mix(np.uint64(key))) % len(slots)
        while twin[slot] >= 0:
            slot = (slot + 1) % len(slots)
        twin[slot] = i
    assert slots.tolist() == twin


def test_multipliers_differ_and_do_not_depend_on_their_number():
    long = key_multipliers(4000)
    assert len(set(long.tolist())) == 4000
    assert key_multipliers(10).tolist() == long[:10].tolist()
