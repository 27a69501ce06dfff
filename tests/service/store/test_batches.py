"""Batches of feedback in the SQLite store: queries, fairness to other calls, and races with other calls."""

import asyncio
import random
import sqlite3
import threading
from contextlib import closing

import pytest

from departing.service import batches
from departing.service import messages as m
from departing.service.store.base import OverloadedError, StoreError
from departing.service.store.sqlite import SqliteStore
from helpers.load import check
from helpers.services import locked, recommend, run, service

SLICE = SqliteStore.batch_rows
ROWS = 10 * SLICE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sqlite"


@pytest.fixture
def events(path):
    """Events of many users in a store that was closed, so that none is in memory; every other ID is the client's."""
    with service(path) as served:

        async def calls():
            requests = [m.RecommendRequest(f"u{i % 70}", event=f"id {i}" if i % 2 else None) for i in range(ROWS)]
            return [(await served.recommend(request)).event for request in requests]

        events = run(calls())
    random.Random(1).shuffle(events)
    return events


class Blocked:
    """Let a service's loader wait after it has read, until `release`."""

    def __init__(self, served):
        self._load, self.read, self._released = served.store._loader.load, threading.Event(), threading.Event()
        served.store._loader.load = self._wait

    def _wait(self, event_ids):
        loaded = self._load(event_ids)
        self.read.set()
        assert self._released.wait(60)
        return loaded

    async def until_read(self):
        async with asyncio.timeout(60):
            while not self.read.is_set():
                await asyncio.sleep(0.001)

    def release(self):
        self._released.set()


def test_a_batch_of_old_events_reads_nothing_in_the_event_loop(path, events):
    with service(path) as served:
        queries, rows = [], served.store.rows
        served.store.rows = lambda query, *values: queries.append(query) or rows(query, *values)
        results = run(served.feedback([m.Feedback(event, i % 3 == 0) for i, event in enumerate(events)]))
        assert all(result.accepted for result in results)
        assert not queries
    check(path, {event: (i % 3 == 0, None) for i, event in enumerate(events)})


def test_other_calls_run_between_the_slices_of_batches(path, events, monkeypatch):
    with service(path) as served:
        ticks, seen, single = 0, [], batches.record_feedback

        def spy(*arguments):
            seen.append(ticks)
            return single(*arguments)

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async def calls():
            other = asyncio.create_task(tick())
            half = ROWS // 2
            parts = [[m.Feedback(event, False) for event in part] for part in (events[:half], events[half:])]
            await asyncio.gather(*map(served.feedback, parts))
            other.cancel()

        monkeypatch.setattr(batches, "record_feedback", spy)
        run(calls())
        assert max(seen.count(tick) for tick in set(seen)) <= SLICE


def check_conflict(path, events, calls):
    """Check that a batch of clicks does not overwrite a no-click of its first event.

    `calls(served, blocked, change, batch)` sends both; it returns the results of the batch.
    """
    first, *others = events
    with service(path) as served:
        change, batch = [m.Feedback(first, False)], [m.Feedback(event, True) for event in events]
        conflicting, *results = run(calls(served, Blocked(served), change, batch))
        assert conflicting.code == "conflicting_feedback"
        assert all(result.accepted for result in results)
    check(path, {first: (False, None)} | dict.fromkeys(others, (True, None)))


def test_a_change_while_a_batch_is_read_is_not_overwritten(path, events):
    async def calls(served, blocked, change, batch):
        waiting = asyncio.create_task(served.feedback(batch))
        await blocked.until_read()
        assert (await served.feedback(change))[0].accepted
        await served.flush()
        served.store.cache.__init__()  # as if everything on disk had been evicted meanwhile
        blocked.release()
        return await waiting

    check_conflict(path, events[:20], calls)


def test_a_change_that_is_not_on_disk_when_a_batch_arrives_is_not_overwritten(path, events):
    async def calls(served, blocked, change, batch):
        with locked(path):
            earlier = asyncio.create_task(served.feedback(change))
            waiting = asyncio.create_task(served.feedback(batch))
            await asyncio.sleep(0.2)
        assert (await earlier)[0].accepted
        served.store.cache.__init__()  # as if everything on disk had been evicted meanwhile
        blocked.release()
        return await waiting

    check_conflict(path, events[:20], calls)


def test_repeated_rows_and_batches_count_once(path, events):
    rows = [m.Feedback(event, True) for event in events]
    with service(path) as served:

        async def calls():
            return await asyncio.gather(
                served.feedback(rows + rows), served.feedback(rows), served.feedback(rows[:7])
            )

        for results in run(calls()):
            assert all(result.accepted for result in results)
        totals = run(served.totals())
        assert (totals["feedback"], totals["clicks"], totals["repeated_feedback"]) == (ROWS, ROWS, 2 * ROWS + 7)
    check(path, dict.fromkeys(events, (True, None)))


def test_a_batch_that_cannot_be_read_writes_nothing(path, events):
    with service(path) as served:
        fresh = [recommend(served, f"new {i}").event for i in range(SLICE)]
        run(served.flush())
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("ALTER TABLE feedback RENAME TO hidden")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            run(served.feedback([m.Feedback(event, True) for event in [*fresh, *events]]))
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("ALTER TABLE hidden RENAME TO feedback")
        assert run(served.totals()).get("feedback", 0) == 0
        assert recommend(served, "somebody").category
    check(path, {})


def test_unknown_events_of_a_batch_are_rejected(path, events):
    with service(path) as served:
        rows = [m.Feedback(event, True) for event in [*events[:30], "e-1-5", "never seen", "e-7"]]
        results = run(served.feedback(rows))
        assert [result.accepted for result in results] == [True] * 30 + [False] * 3
        assert [str(result.code) for result in results[30:]] == ["lost_event", "unknown_event", "lost_event"]


def test_a_user_whom_a_batch_reopens_stays_in_memory_until_the_change_is_on_disk(path):
    with service(path, inactive_after=10.0) as served:
        first = recommend(served, "ann").event
        run(served.feedback([m.Feedback(first, True)]))
        last = recommend(served, "ann").event
        run(served.flush())
        served.clock.time += 20
        assert run(served.sweep()) == 1
        others = [recommend(served, f"u{i}").event for i in range(SLICE)]
    with service(path, inactive_after=10.0) as served:
        served.clock.time = 1021.0
        blocked = Blocked(served)

        async def calls():
            rows = [(first, True), *((event, False) for event in others), (last, True)]  # repeated, new, late
            batch = asyncio.create_task(served.feedback([m.Feedback(*row) for row in rows]))
            await blocked.until_read()
            with locked(path):
                blocked.release()
                while served.store.counters["reopened_users"] == 0:
                    await asyncio.sleep(0.001)
                served.store.trim()
                await served.recommend(m.RecommendRequest("ann"))
            return await batch

        assert all(result.accepted for result in run(calls()))
        totals = run(served.totals())
        assert totals["new_users"] == 1 + len(others)
        assert "returned_users" not in totals
        assert totals["feedback"] == 2 + len(others)
        assert run(served.user_state("ann")).history[1].event == last


def test_a_batch_after_the_file_was_deleted_fails_and_creates_no_file(path, events):
    with service(path) as served:
        path.unlink()
        with pytest.raises(StoreError, match="deleted, cut or replaced"):
            run(served.feedback([m.Feedback(event, True) for event in events]))
        assert not path.exists()


@pytest.mark.parametrize("others", [False, True])
def test_batches_pause_while_other_calls_arrive(path, events, monkeypatch, others):
    pauses, sleep = [], asyncio.sleep

    async def spy(seconds):
        pauses.append(seconds)
        await sleep(seconds)

    async def calls(served):
        async def recommend():
            while True:
                await served.recommend(m.RecommendRequest("ann"))
                await sleep(0.001)

        task = asyncio.create_task(recommend()) if others else None
        await sleep(0.01)
        monkeypatch.setattr(batches.asyncio, "sleep", spy)
        await served.feedback([m.Feedback(event, False) for event in events])
        if task is not None:
            task.cancel()

    with service(path) as served:
        run(calls(served))
    assert len(pauses) == ROWS / SLICE
    assert all(seconds >= batches.MIN_PAUSE for seconds in pauses) if others else set(pauses) == {0}


def test_batches_that_wait_are_bounded_in_rows(path, events, monkeypatch):
    monkeypatch.setattr(batches, "MAX_ROWS", 2 * SLICE)
    first, second = (
        [m.Feedback(event, True) for event in part] for part in (events[:SLICE], events[SLICE : 3 * SLICE])
    )

    async def calls(served):
        blocked = Blocked(served)
        waiting = asyncio.create_task(served.feedback(first))
        await blocked.until_read()
        with pytest.raises(OverloadedError, match="50 rows of feedback in batches are waiting"):
            await served.feedback(second)
        assert (await served.feedback(second[:1]))[0].accepted  # not a batch
        blocked.release()
        return await waiting + await served.feedback(second)

    with service(path) as served:
        results = run(calls(served))
    assert all(row.accepted for row in results)
    check(path, {row.event: (True, None) for row in [*first, *second]})
