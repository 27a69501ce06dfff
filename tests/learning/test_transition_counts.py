"""The ledger against a dictionary that books one user after the other."""

from collections import Counter

import numpy as np
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


def book(ledger, users, together):
    """Book all users, step by step; users at the same step in one go if `together`."""
    counts = np.zeros((len(users), K, 4), np.int64)
    for step in range(max(map(len, users))):
        rows = np.array([i for i, user in enumerate(users) if len(user) > step])
        category = np.array([users[i][step][0] for i in rows])
        outcome = np.array([users[i][step][1] for i in rows])
        if together:
            ledger.book(counts[rows], category, np.eye(4, dtype=np.int64)[outcome])
        else:
            for i, a, o in zip(rows, category, outcome, strict=True):
                ledger.book(counts[i : i + 1], np.array([a]), np.eye(4, dtype=np.int64)[[o]])
        counts[rows, category, outcome] += 1


def expected_histogram(users, limit):
    """What is known of every user who is looked at for `limit` steps."""
    found = Counter()
    for user in users:
        counts = np.zeros((K, 4), np.int64)
        for category, outcome in user[:limit]:
            counts[category, outcome] += 1
        found[tuple(counts.reshape(-1).tolist())] += 1
    return found


def as_counter(counts, users):
    rows, times = merge(counts, users)
    return Counter({tuple(row.reshape(-1).tolist()): int(n) for row, n in zip(rows, times, strict=True)})


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_histograms_are_those_of_users_looked_at_for_a_limited_time(seed, n, limit, together):
    rng = np.random.default_rng(seed)
    users = [walk(rng) for _ in range(n)]
    ledger = TransitionCounts(K, limit)
    book(ledger, users, together)
    assert as_counter(*ledger.histogram()) == expected_histogram(users, limit)
    for most in (1, 4, 10, 1000):
        counts, times = ledger.histogram(most)
        depth = ledger._affordable(most)
        assert as_counter(counts, times) == expected_histogram(users, depth)
        assert len(counts) <= most or depth == 1


def test_crowds_count_as_many_users():
    one, many = TransitionCounts(K, 5), TransitionCounts(K, 5)
    start = np.zeros((1, K, 4), np.int64)
    for _ in range(7):
        one.book(start, np.array([1]), np.array([[1, 0, 0, 0]]))
    many.book(start, np.array([1]), np.array([[7, 0, 0, 0]]))
    assert as_counter(*one.histogram()) == as_counter(*many.histogram())


def test_a_ledger_grows_and_comes_back_from_its_state():
    rng = np.random.default_rng(3)
    users = [walk(rng) for _ in range(3000)]
    ledger = TransitionCounts(K, 6)
    book(ledger, users, together=True)
    again = TransitionCounts.from_state(K, ledger.state())
    for name in ("nodes", "depth", "seen", "here", "child"):
        assert np.array_equal(getattr(again, name), getattr(ledger, name))
    more = [walk(rng) for _ in range(50)]
    book(ledger, more, together=True)
    book(again, more, together=True)
    assert as_counter(*again.histogram()) == as_counter(*ledger.histogram())
