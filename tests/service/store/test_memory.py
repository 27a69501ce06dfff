"""Memory of the SQLite store: bounded, and nothing that is not on disk is evicted."""

import asyncio

import pytest

from departing.service import messages as m
from departing.service.store import cache, sqlite, writer
from helpers.load import check
from helpers.services import locked, run, service

LIMIT = 100


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(cache, "MAX_CACHED_USERS", LIMIT)
    monkeypatch.setattr(cache, "MAX_RECORDS", LIMIT)
    monkeypatch.setattr(writer, "LOCK_SECONDS", 0.1)


def sizes(served):
    store = served.store
    records = [getattr(store.cache, name) for name in ("users", "names", "decisions", "event_numbers", "feedback")]
    return [len(each) + len(each.old) for each in records] + [len(store._departed), len(store.cache.absent)]


def test_memory_does_not_grow_with_users_and_events(tmp_path):
    path, largest, acknowledged = tmp_path / "s.sqlite", 0, {}
    with service(path) as served:

        async def calls():
            nonlocal largest
            for i in range(3000):
                name = f"u{i}" if i % 3 else f"u{i // 30}"  # new users, and users who were evicted
                shown = await served.recommend(m.RecommendRequest(name, event=f"id {i}"))
                if i % 5 == 0:
                    row = m.Feedback(shown.event, i % 2 == 0, i % 10 == 0 or None)
                    assert (await served.feedback([row]))[0].accepted
                    acknowledged[shown.event] = (row.clicked, row.departed)
                if i % 50 == 0:
                    await served.flush()
                    largest = max(largest, *sizes(served))

        run(calls())
        assert 2 * LIMIT < largest < 6 * LIMIT  # two generations, and what is not on disk yet
        assert served.store.active_users == run(active(served))
    check(path, acknowledged)


async def active(served):
    await served.flush()
    with served.store.read() as snapshot:
        return snapshot.execute("SELECT count(*) FROM users WHERE departed = 0")[0][0]


def test_nothing_is_evicted_before_it_is_on_disk(tmp_path):
    path, count = tmp_path / "s.sqlite", 10 * LIMIT
    with service(path, explore=1.0) as served:

        async def calls():
            with locked(path):
                requests = [m.RecommendRequest(f"u{i}", event=f"id {i}") for i in range(count)]
                first = [await served.recommend(request) for request in requests]
                second = [await served.recommend(request) for request in requests]
                assert second == first
                waiting = asyncio.gather(*(served.feedback([m.Feedback(each.event, True)]) for each in first))
                await asyncio.sleep(0)
                served.store.trim()
                assert sizes(served)[0] == count
            assert all(row.accepted for (row,) in await waiting)

        run(calls())
        totals = run(served.totals())
        assert (totals["new_users"], totals["recommendations"], totals["feedback"]) == (count, count, count)
        assert "repeated_feedback" not in totals
    check(path, {f"id {i}": (True, None) for i in range(count)})


def test_a_departed_user_is_evicted_while_other_calls_arrive(tmp_path):
    with service(tmp_path / "s.sqlite") as served:

        async def calls():
            for i in range(500):
                shown = await served.recommend(m.RecommendRequest(f"u{i}"))
                await served.feedback([m.Feedback(shown.event, False, True)])
            assert sizes(served)[0] <= LIMIT  # without the sweep of inactive users

        run(calls())


@pytest.mark.parametrize("n_categories", [3, 400])
def test_memory_does_not_grow_with_categories(tmp_path, monkeypatch, n_categories):
    limit, largest = 1_000_000, 0
    monkeypatch.setattr(cache, "MAX_CACHED_USERS", 1000)
    monkeypatch.setattr(cache, "MAX_USER_BYTES", limit)
    monkeypatch.setattr(sqlite, "EVICTION_ROWS", 20)

    def size(served):
        users = served.store.cache.users
        cached = [*users.values(), *users.old.values()]
        return sum(cache.USER_BYTES + cache.COUNT_BYTES * len(user.counts) for user in cached), len(cached)

    names = [f"c{i}" for i in range(n_categories)]
    with service(tmp_path / "s.sqlite", names, max_categories=n_categories) as served:

        async def calls():
            nonlocal largest
            for i in range(0, 4000, 20):
                events = [(await served.recommend(m.RecommendRequest(f"u{i + j}"))).event for j in range(20)]
                await served.feedback([m.Feedback(event, True, False) for event in events])
                largest = max(largest, size(served)[0])

        run(calls())
        assert largest < 4 * limit  # two generations, and what is not on disk yet
        assert size(served)[1] > 0.2 * limit / (cache.USER_BYTES + 4 * cache.COUNT_BYTES * n_categories)
