"""TransitionCounts against a dictionary that adds one user after the other."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import merge

K = 2


def walk(rng):
    """One user: the steps as (category, outcome), the last one possibly a departure."""
    steps = []
    for _ in range(rng.integers(1, 7)):
        outcome = int(rng.integers(0, 4))
        steps.append((int(rng.integers(0, K)), outcome))
        if outcome >= 2:
            break
    return steps


def add(transitions, users, together):
    """Add all users, step by step; users at the same step in one call if `together`."""
    counts = np.zeros((len(users), K, 4), np.int64)
    for step in range(max(map(len, users))):
        rows = np.array([i for i, user in enumerate(users) if len(user) > step])
        category = np.array([users[i][step][0] for i in rows])
        outcome = np.array([users[i][step][1] for i in rows])
        if together:
            transitions.add(counts[rows], category, np.eye(4, dtype=np.int64)[outcome])
        else:
            for i, a, o in zip(rows, category, outcome, strict=True):
                transitions.add(counts[i : i + 1], np.array([a]), np.eye(4, dtype=np.int64)[[o]])
        counts[rows, category, outcome] += 1


def expected_histogram(users, limit):
    """Counts of all users, censored after `limit` steps."""
    histogram = Counter()
    for user in users:
        counts = np.zeros((K, 4), np.int64)
        for category, outcome in user[:limit]:
            counts[category, outcome] += 1
        histogram[tuple(counts.reshape(-1).tolist())] += 1
    return histogram


def as_counter(counts, users):
    rows, times = merge(counts, users)
    return Counter({tuple(row.reshape(-1).tolist()): int(n) for row, n in zip(rows, times, strict=True)})


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_histograms_censor_users_after_a_number_of_steps(seed, n, limit, together):
    rng = np.random.default_rng(seed)
    users = [walk(rng) for _ in range(n)]
    transitions = TransitionCounts(K, limit)
    add(transitions, users, together)
    assert as_counter(*transitions.histogram()) == expected_histogram(users, limit)
    for most in (1, 4, 10, 1000):
        counts, times = transitions.histogram(most)
        depth = transitions.max_depth(most)
        assert as_counter(counts, times) == expected_histogram(users, depth)
        assert len(counts) <= most or depth == 1


def test_several_users_at_once_count_as_many():
    one, many = TransitionCounts(K, 5), TransitionCounts(K, 5)
    start = np.zeros((1, K, 4), np.int64)
    for _ in range(7):
        one.add(start, np.array([1]), np.array([[1, 0, 0, 0]]))
    many.add(start, np.array([1]), np.array([[7, 0, 0, 0]]))
    assert as_counter(*one.histogram()) == as_counter(*many.histogram())


def test_it_grows_and_is_restored_from_its_state():
    rng = np.random.default_rng(3)
    users = [walk(rng) for _ in range(3000)]
    transitions = TransitionCounts(K, 6)
    add(transitions, users, together=True)
    again = TransitionCounts(K, 6)
    again.restore(transitions.state())
    for name in ("nodes", "depth", "outcomes", "unresolved_users", "child"):
        assert np.array_equal(getattr(again, name), getattr(transitions, name))
    more = [walk(rng) for _ in range(50)]
    add(transitions, more, together=True)
    add(again, more, together=True)
    assert as_counter(*again.histogram()) == as_counter(*transitions.histogram())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state | {"outcomes": state["outcomes"][:-1]}, "outcomes has the shape"),
        (lambda state: state | {"nodes": state["nodes"][:, :-2]}, "nodes has the shape"),
        (
            lambda state: {name: value if name == "limit" else value[:2] for name, value in state.items()},
            "beyond the 2",
        ),
        (
            lambda state: {name: value if name == "limit" else value[:0] for name, value in state.items()},
            "beyond the 0",
        ),
        (lambda state: TransitionCounts(K + 1, 6).state(), "expected \\(1, 4\\)"),
    ],
    ids=["one array truncated", "one category missing", "all arrays truncated", "empty", "another K"],
)
def test_damaged_states_are_rejected(damage, message):
    transitions = TransitionCounts(K, 6)
    add(transitions, [walk(np.random.default_rng(seed)) for seed in range(20)], together=True)
    state = transitions.state()
    with pytest.raises(ValueError, match=message):
        transitions.restore(damage(state))
    assert np.array_equal(transitions.depth, state["depth"])
