"""Records in memory: which of them are evicted, and when."""

import asyncio

from departing.service import messages as m
from departing.service.batches import MAX_LOADED
from departing.service.store import cache
from departing.service.store.cache import Recent
from helpers.services import run, service

ROWS = 100  # of a batch
BATCHES = 16 * MAX_LOADED
USERS = 997


def test_the_least_recent_records_are_evicted_first():
    records = Recent()
    records.update({key: str(key) for key in range(10)})
    records.rotate(0)
    assert records.find(2) == "2"
    assert list(records.evict(4)) == ["0", "1", "3"]
    assert [key for key in range(10) if records.contains(key)] == [2, 4, 5, 6, 7, 8, 9]
    assert list(records.evict(100)) == ["4", "5", "6", "7", "8", "9"]
    assert not records.old
    assert list(records.evict(1)) == []


def test_many_batches_at_once_find_what_was_loaded_for_them(tmp_path, monkeypatch):
    """As many records stay in memory, relative to the rows of a batch, as in a service with the largest batches."""
    monkeypatch.setattr(cache, "MAX_RECORDS", cache.MAX_RECORDS * ROWS // 1000)
    path = tmp_path / "s.sqlite"

    async def recommend(served, n):
        requests = [m.RecommendRequest(f"u{i % USERS}") for i in range(n)]
        return [(await served.recommend(request)).event for request in requests]

    async def send(served, events):
        parts = [events[i : i + ROWS] for i in range(0, len(events), ROWS)]
        results = await asyncio.gather(*[served.feedback([m.Feedback(e, True) for e in part]) for part in parts])
        return [each.accepted for part in results for each in part]

    with service(path) as served:
        events = run(recommend(served, BATCHES * ROWS))
    with service(path) as served:
        run(recommend(served, cache.MAX_RECORDS - 1))  # so that records are evicted while batches wait for their turn
        queries, rows = [], served.store.rows
        served.store.rows = lambda query, *values: queries.append(query) or rows(query, *values)
        assert all(run(send(served, events)))
        assert not queries
