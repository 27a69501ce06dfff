"""Segments and weights of histories, in plain and packed tables."""

import pickle
from collections import defaultdict

import numpy as np
import pytest

import departing as dp
from departing.model import packing

NAMES = ("de/mobile", "de/desktop", "fr/mobile")


@pytest.fixture(params=["plain", "packed"])
def table(request, monkeypatch):
    """Tables of either kind; packed ones convert a few rows at a time."""
    if request.param == "packed":
        monkeypatch.setattr(packing, "LARGE_COUNTS", 0)
        monkeypatch.setattr(packing, "CHUNK", 100)
        monkeypatch.setattr("departing.model.history_fields.CHUNK", 100)
    return request.param


def fields_of_users(users=300, seed=1):
    rng = np.random.default_rng(seed)
    counts = rng.choice([0, 0, 1, 2], (users, 2, 4)) * [1, 1, 0, 0]
    departs = rng.random(users) < 0.5
    counts[departs, rng.integers(2, size=departs.sum()), rng.integers(2, 4, departs.sum())] = 1
    pending = np.where(departs[:, None, None], 0, rng.integers(0, counts[..., :2] + 1))
    times = rng.integers(1, 5, users)
    weight = times * rng.uniform(0.1, 1, users)
    return {
        "counts": counts,
        "multiplicity": times,
        "pending": pending,
        "categories": ["news", "film"],
        "segment": rng.integers(-1, 3, users),
        "segments": NAMES,
        "segment_columns": ["country", "device"],
        "weight": weight,
        "weight_squares": np.minimum(weight**2 / times * rng.uniform(1, 1.5, users), weight**2),
    }


def sums(fields, *keys):
    """Sums of users, weights and their squares by the named fields, with a dictionary."""
    total = defaultdict(lambda: np.zeros(3))
    columns = zip(*(fields[name] for name in ("multiplicity", "weight", "weight_squares", *keys)), strict=True)
    for users, weight, squares, *key in columns:
        total[tuple(np.asarray(part).tobytes() for part in key)] += users, weight, squares
    return total


def sums_of(histories, *keys):
    fields = {
        name: getattr(histories, name)
        for name in ("counts", "pending", "segment", "multiplicity", "weight", "weight_squares")
    }
    fields |= {name: np.asarray(fields[name], np.int64) for name in ("counts", "pending")}
    return sums(fields, *keys)


def same(one, other):
    assert set(one) == set(other)
    for key, values in one.items():
        assert values == pytest.approx(other[key], rel=1e-12)


def test_distinct_keeps_segments_apart_and_adds_weights(table):
    fields = fields_of_users()
    seen = dp.Histories(**fields)
    assert (seen.counts.dtype == np.int64) == (table == "plain")
    merged = seen.distinct
    keys = ("counts", "pending", "segment")
    same(sums_of(merged, *keys), sums(fields, *keys))
    assert len(merged) == len(sums(fields, *keys))
    assert (merged.segments, merged.segment_columns) == (NAMES, ("country", "device"))
    assert merged.segment.dtype == np.int64
    flat = np.column_stack([merged.counts.reshape(-1, 8), merged.pending.reshape(-1, 4), merged.segment]).tolist()
    assert flat == sorted(flat)  # equal counts of different segments follow each other
    assert merged.segment_users.tolist() == [fields["multiplicity"][fields["segment"] == i].sum() for i in range(3)]
    assert merged.effective_users == pytest.approx(fields["weight"].sum() ** 2 / fields["weight_squares"].sum())


def test_confirmed_rows_keep_segments_and_weights(table):
    fields = fields_of_users(seed=2)
    seen = dp.Histories(**fields)
    confirmed = np.concatenate([fields["counts"][..., :2] - fields["pending"], fields["counts"][..., 2:]], axis=2)
    left = confirmed.any(axis=(1, 2))
    expected = {name: np.asarray(fields[name])[left] for name in ("multiplicity", "weight", "weight_squares")}
    expected |= {"counts": confirmed[left], "segment": fields["segment"][left]}
    same(sums_of(seen.confirmed, "counts", "segment"), sums(expected, "counts", "segment"))
    rows = [np.concatenate(each) for each in zip(*seen.confirmed_rows(), strict=True)]
    parts = {"counts": rows[0].astype(np.int64), "multiplicity": rows[1], "segment": rows[2]}
    parts |= {"weight": rows[3][:, 0], "weight_squares": rows[3][:, 1]}
    same(sums(parts, "counts", "segment"), sums(expected, "counts", "segment"))


def test_histories_of_one_segment(table):
    fields = fields_of_users(seed=3)
    seen = dp.Histories(**fields)
    for index, name in enumerate((*NAMES, None)):
        rows = fields["segment"] == (index if name else -1)
        part = seen.in_segment(name)
        assert (part.segment, part.segments, part.segment_columns) == (None, None, ())
        assert (part.counts == fields["counts"][rows]).all()
        assert (part.pending == fields["pending"][rows]).all()
        assert (part.multiplicity == fields["multiplicity"][rows]).all()
        assert part.weight == pytest.approx(fields["weight"][rows])
        assert part.categories == ("news", "film")
        assert part.distinct.users == part.users
    with pytest.raises(dp.InputError, match=r"There is no segment 'de/mobil'.*'de/mobile'"):
        seen.in_segment("de/mobil")


def test_without_segments_and_weights_the_rows_are_those_of_plain_histories(table):
    fields = fields_of_users(seed=4)
    seen = dp.Histories(**fields)
    plain = dp.Histories(*(fields[name] for name in ("counts", "multiplicity")), pending=fields["pending"])
    for one in (seen.without_segments.without_weights, seen.without_weights.without_segments):
        assert one.segment is None
        assert not one.is_weighted
        assert (one.weight == one.multiplicity).all()
        assert one.effective_users == one.users
        for name in ("distinct", "confirmed"):
            for field in ("counts", "multiplicity", "pending"):
                assert (getattr(getattr(one, name), field) == getattr(getattr(plain, name), field)).all()
    assert seen.without_segments.is_weighted
    assert seen.without_segments.distinct.effective_users == pytest.approx(seen.effective_users)
    assert seen.without_weights.segments == NAMES
    assert (seen.totals == plain.totals).all()
    assert seen.retention == pytest.approx(plain.retention)


def test_one_segment_has_the_distinct_counts_of_no_segments(table):
    fields = fields_of_users(seed=5)
    plain = {name: fields[name] for name in ("counts", "multiplicity", "pending")}
    one = dp.Histories(**plain, segment=np.zeros(300, int), segments=["all"])
    none = dp.Histories(**plain)
    for field in ("counts", "multiplicity", "pending"):
        assert (getattr(one.distinct, field) == getattr(none.distinct, field)).all()
    assert (one.distinct.segment == 0).all()


def test_users_with_ids_keep_them_by_segment():
    seen = dp.Histories([[[1, 0, 0, 0]]] * 3, ids=["ann", "bob", "cy"], segment=[0, 1, 0], segments=["de", "fr"])
    assert seen.in_segment("de").ids == ("ann", "cy")
    assert seen.without_segments.ids == ("ann", "bob", "cy")
    assert len(seen.distinct) == 2
    assert pickle.loads(pickle.dumps(seen)).segments == ("de", "fr")
    with pytest.raises(ValueError, match="read-only"):
        seen.segment[0] = 1


def test_default_squares_are_those_of_equal_weights_in_a_row():
    seen = dp.Histories([[[1, 0, 0, 0]], [[0, 1, 0, 0]]], [4, 1], weight=[2.0, 0.0])
    assert seen.weight_squares.tolist() == [1.0, 0.0]
    assert seen.effective_users == 4.0


ROW = [[[1, 0, 0, 0]], [[0, 1, 0, 0]]]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"segment": [0, 0]}, "segments is None; expected both"),
        ({"segments": ["a"]}, "segment is None; expected both"),
        ({"segment_columns": ["country"]}, "there are no segments"),
        ({"segment": [0], "segments": ["a"]}, r"segment is int64 of shape \(1,\); expected integers of shape \(2,\)"),
        ({"segment": [0.0, 0.0], "segments": ["a"]}, "segment is float64"),
        ({"segment": [[0], [0, 1]], "segments": ["a"]}, "segment is object"),
        ({"segment": [0, 1], "segments": ["a"]}, "segment contains 1; expected indices of the 1 segments"),
        ({"segment": [0, -2], "segments": ["a"]}, "segment contains -2"),
        ({"segment": [0, 1], "segments": ["a", "a"]}, "segments"),
        ({"weight": [1.0]}, "weight is .*; expected 2 numbers ≥ 0"),
        ({"weight": [1.0, -1.0]}, "weight is .*; expected 2 numbers ≥ 0"),
        ({"weight": [1.0, float("nan")]}, "weight is .*; expected 2 numbers ≥ 0"),
        ({"weight_squares": [1.0, 1.0]}, "weight_squares is given without weight"),
        ({"weight": [1.0, 1.0], "weight_squares": [1.0, 2.0]}, r"weight_squares\[1\] is 2; .* from 1 to 1"),
    ],
)
def test_invalid_segments_and_weights_raise_a_clear_error(fields, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.Histories(ROW, **fields)
    with pytest.raises(dp.InputError, match="There is no segment 'de': the histories have no segments"):
        dp.Histories(ROW).in_segment("de")
