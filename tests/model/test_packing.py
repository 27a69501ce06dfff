"""Packed tables of counts, against plain arrays of 64-bit integers."""

import numpy as np
import pytest

import departing as dp
from departing.model import packing

PLAIN = packing.LARGE_COUNTS


@pytest.fixture
def packed(monkeypatch):
    """Pack every table, and convert a few rows at a time."""
    monkeypatch.setattr(packing, "LARGE_COUNTS", 0)
    monkeypatch.setattr(packing, "CHUNK", 100)
    monkeypatch.setattr("departing.model.history_fields.CHUNK", 100)


def random_histories(most, seed=1, users=300):
    rng = np.random.default_rng([most, seed])
    counts = rng.choice([0, 0, 1, most // 4], (users, 2, 4)) * [1, 1, 0, 0]
    departs = rng.random(users) < 0.5
    counts[departs, rng.integers(2, size=departs.sum()), rng.integers(2, 4, departs.sum())] = 1
    pending = np.where(departs[:, None, None], 0, rng.integers(0, counts[..., :2] + 1))
    return counts, rng.integers(1, 5, users), pending


@pytest.mark.parametrize(
    ("most", "dtype"), [(4, np.int8), (124, np.int8), (128, np.int16), (2**15, np.int32), (2**40, np.int64)]
)
def test_packed_histories_agree_with_plain_ones(packed, monkeypatch, most, dtype):
    counts, users, pending = random_histories(most)
    counts[0] = [[most // 2, most - most // 2, 0, 0], [0, 0, 0, 0]]
    pending[0] = 0
    small = dp.Histories(counts, users, pending=pending, categories=["a", "b"])
    assert small.counts.dtype == dtype
    monkeypatch.setattr(packing, "LARGE_COUNTS", PLAIN)
    plain = dp.Histories(counts, users, pending=pending, categories=["a", "b"])
    for name in ("counts", "multiplicity", "pending", "steps", "clicks", "censored", "totals", "confirmed_totals"):
        assert (getattr(small, name) == getattr(plain, name)).all(), name
    if most < 2**20:
        assert small.retention == pytest.approx(plain.retention, rel=1e-12)
    for name in ("distinct", "confirmed"):
        one, other = getattr(small, name), getattr(plain, name)
        assert (one.counts == other.counts).all()
        assert (one.multiplicity == other.multiplicity).all()
        assert (one.pending == other.pending).all()
        assert one.categories == other.categories
    assert repr(small) == repr(plain)
    parts = [(rows.counts, rows.users) for rows in small.confirmed_rows()]
    assert (len(parts) > 1) == (dtype != np.int64)
    joined = dp.Histories(*(np.concatenate(each) for each in zip(*parts, strict=True))).distinct
    assert (joined.counts == plain.confirmed.counts).all()
    assert (joined.multiplicity == plain.confirmed.multiplicity).all()


def test_invalid_counts_are_refused_in_packed_tables(packed):
    counts, users, pending = random_histories(4)
    with pytest.raises(dp.InputError, match="counts contain -1"):
        dp.Histories(np.where(np.arange(300)[:, None, None] == 250, -1, counts), users)
    with pytest.raises(dp.InputError, match="more than one departure"):
        dp.Histories(counts + np.array([0, 0, 2, 0]), users)
    with pytest.raises(dp.InputError, match="pending is negative or exceeds"):
        dp.Histories(counts, users, pending=pending + 300)
    without = dp.Histories(counts, users)
    assert without.pending.shape == (300, 2, 2)
    assert not without.pending.any()
    with pytest.raises(ValueError, match="read-only"):
        without.counts[0] = 0


def test_a_table_sorts_large_integers_by_value():
    table = packing.PackedTable(4, 2, 70_000)
    table.add(np.array([[256, 1], [1, 256], [69_999, 0], [256, 1]]), np.array([1, 2, 3, 4]))
    rows, users, *_ = table.merge()
    assert rows.tolist() == [[1, 256], [256, 1], [69_999, 0]]
    assert users.tolist() == [2, 5, 3]
