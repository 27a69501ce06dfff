"""The SQLite store: memory, files and locks."""

import asyncio
import time
from contextlib import closing

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store.connection import SqliteDatabase
from helpers.services import NAMES, run, service


def test_a_renamed_user_stays_in_memory_until_written(tmp_path):
    with service(tmp_path / "s.sqlite") as served:
        store = served.store

        async def calls():
            await served.recommend(m.RecommendRequest("ann"))
            await served.depart("ann")
            await served.flush()
            commit, store._writer._commit = store._writer._commit, lambda *batch: time.sleep(0.5) or commit(*batch)
            forgetting = asyncio.create_task(served.forget("ann"))
            await asyncio.sleep(0.1)
            store.trim()
            again = await served.recommend(m.RecommendRequest("ann"))
            await forgetting
            return again

        run(calls())
        assert store.cache.users["ann"].previous == -1


@pytest.mark.slow
def test_forgotten_names_are_erased_from_all_files(tmp_path):
    with service(tmp_path / "s.sqlite") as served:

        async def calls():
            for i in range(300):
                await served.recommend(m.RecommendRequest(f"secret name {i}", event=f"secret id {i}"))
            for i in range(300):
                await served.forget(f"secret name {i}")
            assert not (await served.feedback([m.Feedback("secret id 7", True)]))[0].accepted

        run(calls())
        deadline = time.monotonic() + 10
        while any(b"secret" in file.read_bytes() for file in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_symbolic_link_opens_the_same_store(tmp_path):
    with service(tmp_path / "s.sqlite"):
        (tmp_path / "link.sqlite").symlink_to(tmp_path / "s.sqlite")
        with pytest.raises(dp.InputError, match="already in use by another process"):
            open_service(tmp_path / "link.sqlite", NAMES, None, Settings())


def test_departed_users_are_dropped_from_memory(tmp_path):
    with service(tmp_path / "s.sqlite") as served:

        async def calls():
            events = [(await served.recommend(m.RecommendRequest(f"u{i}"))).event for i in range(50)]
            rows = [m.Feedback(event, False, True) for event in events]
            await served.feedback(rows)
            served.store.trim()
            assert not served.store.cache.users
            assert all(row.accepted for row in await served.feedback(rows))
            served.store.trim()

        run(calls())
        assert not served.store.cache.users


def test_locks_with_different_suffixes_are_independent(tmp_path):
    path = tmp_path / "s.sqlite"
    with closing(SqliteDatabase(path)) as one, closing(SqliteDatabase(path)) as other:
        assert one.acquire_lock(".a")
        assert other.acquire_lock(".b")
        assert not one.acquire_lock(".b")
        assert one.acquire_lock(".a")
        assert not other.acquire_lock(".a")
    with closing(SqliteDatabase(path)) as third:
        assert third.acquire_lock(".a")
        assert third.acquire_lock(".b")
