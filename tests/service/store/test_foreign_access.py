"""Other programs that use the files or the tables of a running service, and databases that are not ready."""

import asyncio
import os
import random
import shutil
import sqlite3
import time
from contextlib import closing

import psycopg
import pytest

import departing as dp
from departing.service import messages as m
from departing.service.store import writer
from departing.service.store.base import OverloadedError
from departing.service.store.connection import SqliteDatabase, TemporarilyUnreachableError, UnreachableError
from departing.service.store.postgres import MAX_BATCH, PostgresStore
from helpers.commands import call
from helpers.load import LONG
from helpers.services import recommend, run, service

SERVE = ("serve", "--instance", "magazine", "--departures", "reported", "--port", "1")


def test_a_checkpoint_of_another_program_is_no_damage(tmp_path):
    path = tmp_path / "s.sqlite"
    with service(path) as served:
        event = recommend(served, "ann").event
        run(served.flush())
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        assert served.store.problem() is None
        assert run(served.feedback([m.Feedback(event, True)]))[0].accepted
        assert served.store.problem() is None


@pytest.mark.parametrize("kept", [0, 100])
def test_a_write_ahead_log_that_is_cut_is_damage(tmp_path, kept):
    path = tmp_path / "s.sqlite"
    with service(path) as served:
        recommend(served, "ann")
        run(served.flush())
        os.truncate(f"{path}-wal", kept)
        assert "was deleted, cut or replaced while in use" in served.store._files.problem()
        assert "cannot be read" in served.store.problem()


def test_a_store_that_is_overwritten_by_a_smaller_one_stops_writes(tmp_path):
    path, old = tmp_path / "s.sqlite", tmp_path / "old.sqlite"
    with service(path):
        pass
    shutil.copy(path, old)
    with service(path) as served:
        for i in range(500):
            recommend(served, f"u{i}")
        run(served.flush())
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        recommend(served, "ann")
        run(served.flush())
        path.write_bytes(old.read_bytes())
        assert "was deleted, cut or replaced while in use" in served.store.problem()


def test_a_store_with_two_names_is_refused(tmp_path):
    path = tmp_path / "s.sqlite"
    with service(path):
        pass
    os.link(path, tmp_path / "link.sqlite")
    with pytest.raises(dp.InputError, match=r"has 2 names \(hard links\)"), service(path):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("limit", [writer.MAX_VACUUM_BYTES, 0] if LONG else [writer.MAX_VACUUM_BYTES])
def test_forgotten_names_are_erased_also_where_rows_were_moved(tmp_path, monkeypatch, limit):
    """Random names make SQLite split pages, and keep copies of what it moved; those of a large store stay there."""
    monkeypatch.setattr(writer, "MAX_VACUUM_BYTES", limit)
    rng, path, copy = random.Random(1), tmp_path / "s.sqlite", tmp_path / "copy.sqlite"
    users = [f"{rng.getrandbits(64):016x}" for _ in range(8000)]
    forgotten = rng.sample(users, 4000)

    async def calls(served):
        for i in range(0, len(users), 50):
            requests = [m.RecommendRequest(f"NAME-{user}", event=f"ID-{user}") for user in users[i : i + 50]]
            await asyncio.gather(*map(served.recommend, requests))
            await served.flush()
        for i in range(0, len(forgotten), 100):
            await asyncio.gather(*[served.forget(f"NAME-{user}") for user in forgotten[i : i + 100]])
        deadline = time.monotonic() + 60
        while served.store._writer._scrub and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    def left(*files):
        content = b"".join(file.read_bytes() for file in files)
        return sum(user.encode() in content for user in forgotten)

    with service(path) as served:
        run(calls(served))
        assert limit == 0 or left(path, tmp_path / "s.sqlite-wal") == 0
        with closing(SqliteDatabase(path)) as database:
            database.copy(copy)
        assert left(copy) == 0
        assert recommend(served, f"NAME-{users[0]}").category
        run(served.flush())
        assert served.store.problem() is None
    with service(copy) as served:
        assert run(served.totals())["forgotten_users"] == 4000


def test_a_locked_user_does_not_delay_others(postgres, monkeypatch):
    monkeypatch.setattr("departing.service.store.postgres.MAX_WAITING_SECONDS", 4.0)
    address = postgres.new()

    async def calls(served, event):
        late = [asyncio.create_task(served.feedback([m.Feedback(event, True)]))]
        # More than one database transaction takes.
        late += [asyncio.create_task(served.recommend(m.RecommendRequest("ann"))) for _ in range(2 * MAX_BATCH)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(3.0):
            for i in range(20):
                await served.recommend(m.RecommendRequest(f"other {i}"))
        assert not any(call.done() for call in late)
        assert all(isinstance(each, OverloadedError) for each in await asyncio.gather(*late, return_exceptions=True))

    with service(address) as served:
        event = recommend(served, "ann").event
        with psycopg.connect(address) as other:
            other.execute("SELECT * FROM users WHERE name = 'ann' FOR UPDATE")
            run(calls(served, event))
        assert run(served.feedback([m.Feedback(event, True)]))[0].accepted


def test_a_postponed_call_locks_no_users(postgres, monkeypatch):
    """Two workers that postpone calls and keep their users locked would postpone the calls of each other."""
    address, free = postgres.new(), []
    run_call = PostgresStore._run_call

    def watched(store, *arguments):
        with psycopg.connect(address) as third:
            free.append(third.execute("SELECT 1 FROM users WHERE name = 'ann' FOR UPDATE SKIP LOCKED").fetchall())
        return run_call(store, *arguments)

    async def calls(served, events):
        both = asyncio.create_task(served.feedback([m.Feedback(event, True) for event in events]))
        for i in range(5):
            await served.recommend(m.RecommendRequest(f"other {i}"))
        assert not both.done()
        both.cancel()

    with service(address) as served:
        events = [recommend(served, name).event for name in ("ann", "bob")]
        monkeypatch.setattr(PostgresStore, "_run_call", watched)
        with psycopg.connect(address) as other:
            other.execute("SELECT * FROM users WHERE name = 'bob' FOR UPDATE")
            run(calls(served, events))
        assert len(free) >= 5
        assert all(free)
        assert all(row.accepted for row in run(served.feedback([m.Feedback(event, True) for event in events])))


def test_a_call_that_waits_for_a_lock_delays_no_others(postgres, monkeypatch):
    monkeypatch.setattr("departing.service.store.postgres.MAX_WAITING_SECONDS", 8.0)
    address = postgres.new()

    async def calls(served):
        late = [asyncio.create_task(served.pin(0)) for _ in range(20)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(7.0):
            for i in range(10):
                await served.recommend(m.RecommendRequest(f"u{i}"))
        assert not any(call.done() for call in late)
        assert all(isinstance(each, OverloadedError) for each in await asyncio.gather(*late, return_exceptions=True))

    with service(address) as served:
        epoch = served.store.epoch
        with psycopg.connect(address) as other:
            other.execute("SELECT * FROM meta FOR UPDATE")
            run(calls(served))
            assert (served.store.failure, served.store.epoch) == (None, epoch)
        run(served.pin(0))


def test_a_database_that_does_not_respond_fails_the_probe(postgres, monkeypatch):
    monkeypatch.setattr("departing.service.store.postgres.MAX_WAITING_SECONDS", 1.0)
    monkeypatch.setattr("departing.service.store.postgres.WATCH_SECONDS", 0.2)
    address = postgres.new()

    async def calls(served):
        blocked = asyncio.create_task(served.recommend(m.RecommendRequest("ann")))
        await asyncio.sleep(2.0)
        return blocked, served.store.problem()

    with service(address) as served:
        recommend(served, "ann")
        with psycopg.connect(address) as other:
            other.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")

            async def blocked():
                task, problem = await calls(served)
                assert problem.startswith("The store has not been written for ")
                other.rollback()
                assert (await task).category

            run(blocked())
        assert served.store.problem() is None


def test_a_database_that_is_not_ready_has_another_exit_code_than_invalid_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPARTING_STORE", "postgresql://nobody@127.0.0.1:1/none")
    assert call(*SERVE).exit_code == 1
    monkeypatch.setenv("DEPARTING_STORE", str(tmp_path / "s.sqlite"))
    (tmp_path / "s.sqlite").write_text("no database")
    assert call(*SERVE).exit_code == 2


def test_errors_of_a_database_are_temporary_or_not(tmp_path, monkeypatch):
    path, connect = tmp_path / "s.sqlite", sqlite3.connect
    path.write_text("no database")
    with pytest.raises(UnreachableError) as caught:
        SqliteDatabase(path)
    assert caught.value.exit_code == 2
    path.unlink()
    with service(path):
        pass
    with closing(connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(
            sqlite3, "connect", lambda *given, **options: connect(*given, **options | {"timeout": 0.1})
        )
        with pytest.raises(TemporarilyUnreachableError) as caught:
            SqliteDatabase(path)
    assert caught.value.exit_code == 1
