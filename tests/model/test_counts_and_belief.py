from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import departing as dp
from departing.model.counts import as_counts, clicks, departed, hash_rows, merge, steps
from departing.model.examples import blog
from helpers.exact import posterior
from helpers.strategies import counts, instances


@given(st.data())
def test_the_belief_is_bayes_rule(data):
    instance = data.draw(instances())
    seen = data.draw(counts(instance.n_categories))
    weights = posterior(instance, seen)
    if not any(weights):
        with pytest.raises(dp.InputError, match="probability 0 under every type"):
            dp.belief(instance, seen)
        return
    exact = [float(w / sum(weights)) for w in weights]
    np.testing.assert_allclose(dp.belief(instance, seen), exact, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(dp.predict(instance, seen).sum(axis=-1), 1, rtol=1e-12)


def test_beliefs_are_accurate_after_a_million_steps():
    instance = dp.Instance([0.5, 0.5], [[0.5, 0.500001], [0.4, 0.4]], 0.5)
    seen = np.array([[1_000_000, 1_000_000, 0, 0], [0, 0, 0, 0]])
    a, b = Fraction(0.5), Fraction(0.500001)
    odds = float(b * (1 - b) / (a * (1 - a))) ** 1_000_000
    assert dp.belief(instance, seen)[1] == pytest.approx(odds / (1 + odds), rel=1e-8)
    far = dp.belief(blog(), [[10**6, 0, 0, 0], [0, 0, 0, 0]])
    assert far.tolist() == [1.0, 0.0]


def test_beliefs_are_computed_in_batches():
    seen = np.zeros((2, 3, 2, 4), np.int64)
    seen[1, 2, 0, 0] = 3
    beliefs = dp.belief(blog(), seen)
    assert beliefs.shape == (2, 3, 2)
    np.testing.assert_allclose(beliefs[1, 2], dp.belief(blog(), seen[1, 2]))
    assert dp.predict(blog(), seen).shape == (2, 3, 2, 4)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([[1, 0, 0]], "expected \\[..., categories, 4\\]"),
        (3, "expected \\[..., categories, 4\\]"),
        ([[-1, 0, 0, 0], [0, 0, 0, 0]], "expected integers ≥ 0"),
        ([[0.5, 0, 0, 0], [0, 0, 0, 0]], "such as 0.5.*expected integers"),
        ([[np.nan, 0, 0, 0], [0, 0, 0, 0]], "expected integers"),
        ([["a", "b", "c", "d"]] * 2, "expected integers"),
        ([[1e300, 0, 0, 0], [0, 0, 0, 0]], "such as 1e.300.*expected integers"),
        ([[1, 0, 0, 0], [0]], "rows of different lengths"),
        ([[0, 0, 0, 0]], "counts have 1 categories; the instance has 2"),
    ],
)
def test_invalid_counts_raise_a_clear_error(wrong, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.belief(blog(), wrong)


def test_integral_floats_and_small_integers_are_accepted():
    assert as_counts(np.array([[1.0, 2.0, 0.0, 0.0]])).dtype == np.int64
    assert as_counts(np.array([[1, 2, 0, 0]], np.uint8)).tolist() == [[1, 2, 0, 0]]


def test_steps_clicks_and_departures_follow_from_counts():
    seen = np.array([[[2, 1, 0, 0], [3, 0, 0, 1]], [[2, 1, 0, 0], [3, 0, 0, 0]]])
    assert steps(seen).tolist() == [7, 6]
    assert clicks(seen).tolist() == [6, 5]
    assert departed(seen).tolist() == [True, False]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=40))
def test_merging_adds_up_equal_counts(rows):
    table = np.array([[[a, b, 0, 0]] for a, b, _ in rows])
    times = np.array([n for _, _, n in rows])
    distinct, total = merge(table, times)
    expected = {}
    for a, b, n in rows:
        expected[a, b] = expected.get((a, b), 0) + n
    assert [(int(r[0, 0]), int(r[0, 1])) for r in distinct] == sorted(expected)
    assert total.tolist() == [expected[key] for key in sorted(expected)]


def test_merging_handles_hash_collisions(monkeypatch):
    monkeypatch.setattr("departing.model.counts.hash_rows", lambda counts, seed=0: np.zeros(len(counts), np.uint64))
    table = np.array([[[1, 0, 0, 0]], [[2, 0, 0, 0]], [[1, 0, 0, 0]]])
    distinct, total = merge(table, np.array([1, 1, 5]))
    assert distinct[:, 0, 0].tolist() == [1, 2]
    assert total.tolist() == [6, 1]


def test_users_without_departure_are_censored():
    seen = dp.Histories([[[2, 0, 1, 0]], [[0, 3, 0, 0]], [[2, 0, 1, 0]]], ids=["ann", "bob", "cy"])
    assert seen.censored.tolist() == [False, True, False]
    assert seen.distinct.multiplicity.tolist() == [1, 2]
    assert (seen.users, len(seen), len(seen.distinct)) == (3, 3, 2)
    assert seen.clicks.tolist() == [2, 0, 2]
    assert seen.steps.tolist() == [3, 3, 3]
    assert "3 users, 1 of them censored, 2 distinct" in repr(seen)
    with pytest.raises(ValueError, match="read-only"):
        seen.counts[0] = 0


def test_rows_that_differ_in_pending_steps_are_distinct():
    seen = dp.Histories([[[2, 1, 0, 0]]] * 4, pending=[[[1, 0]], [[2, 1]], [[0, 0]], [[2, 1]]], categories=["news"])
    assert seen.distinct.pending.tolist() == [[[0, 0]], [[1, 0]], [[2, 1]]]
    assert seen.distinct.multiplicity.tolist() == [1, 1, 2]
    assert seen.distinct.categories == ("news",)


@pytest.mark.parametrize("largest", [3, 255, 256, 2**16, 2**32, 2**40])
def test_distinct_histories_agree_with_a_dictionary_for_integers_of_every_size(largest):
    rng = np.random.default_rng(largest)
    table = rng.choice([0, 1, largest - 1, largest], (300, 2, 4)) * [1, 1, 0, 0]
    pending = rng.choice([0, 1], (300, 1, 1)) * table[..., :2]
    users = rng.integers(1, 5, 300)
    expected = {}
    for row, places, n in zip(table.tolist(), pending.tolist(), users.tolist(), strict=True):
        key = (str(row), str(places))
        expected[key] = expected.get(key, 0) + n
    merged = dp.Histories(table, users, pending=pending).distinct
    assert merged.counts.dtype == merged.pending.dtype == np.int64
    keys = list(zip(map(str, merged.counts.tolist()), map(str, merged.pending.tolist()), strict=True))
    assert dict(zip(keys, merged.multiplicity.tolist(), strict=True)) == expected
    flat = np.concatenate([merged.counts.reshape(-1, 8), merged.pending.reshape(-1, 4)], axis=1).tolist()
    assert len(keys) == len(expected)
    assert flat == sorted(flat)


def test_hashes_do_not_depend_on_the_integer_type(monkeypatch):
    table = np.random.default_rng(1).integers(0, 200, (50, 3, 4))
    monkeypatch.setattr("departing.model.counts.CHUNK", 100)
    for dtype in (np.uint8, np.int16, np.uint32, np.uint64):
        assert (hash_rows(table.astype(dtype)) == hash_rows(table)).all()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"counts": [[1, 0, 0, 0]]}, "expected \\[users, categories, 4\\]"),
        ({"counts": [[[0, 0, 2, 0]]]}, "more than one departure"),
        ({"counts": [[[0, 0, 1, 1]]]}, "more than one departure"),
        (
            {"counts": [[[1, 0, 0, 0]]], "multiplicity": [0]},
            r"the smallest 0; expected integers ≥ 1 of shape \(1,\)",
        ),
        ({"counts": [[[1, 0, 0, 0]]], "multiplicity": [1.5]}, r"is float64 of .*expected integers ≥ 1"),
        ({"counts": [[[1, 0, 0, 0]]], "ids": ["a", "b"]}, "ids has 2 entries"),
        ({"counts": [[[1, 0, 0, 0]]], "pending": [2]}, "expected integers of shape \\[1, 1, 2\\]"),
        ({"counts": [[[1, 0, 0, 0]]], "pending": [[[0, 1]]]}, "exceeds the clicks and stays in counts"),
        ({"counts": [[[1, 0, 0, 0]]], "pending": [[[-1, 0]]]}, "pending is negative"),
        ({"counts": [[[1, 0, 1, 0]]], "pending": [[[1, 0]]]}, "a departed user"),
        ({"counts": [[[1, 0, 0, 0]]], "categories": ["a", "b"]}, "categories has 2 names"),
    ],
)
def test_invalid_histories_raise_a_clear_error(fields, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.Histories(**fields)
