"""The PostgreSQL store: lost, hanging and read-only databases, and races between processes."""

import asyncio
import os
import signal
import time
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

import departing as dp
from departing.service import messages as m
from departing.service.store import postgres as postgres_store
from departing.service.store.base import Prefetch, StoreError
from helpers.services import NAMES, publish_as_trainer, run, service


@contextmanager
def several(address, n, **options):
    """Services of several processes on one store."""
    with ExitStack() as stack:
        yield [stack.enter_context(service(address, seed=i, **options)) for i in range(n)]


def test_a_category_that_was_not_written_is_not_shown(postgres):
    with service(postgres.new(), explore=1.0) as served:
        store = served.store

        async def add_and_lose():
            def lost(tx):
                served.rollout.add_category(tx, "golf", 0.0)
                raise psycopg.OperationalError("the connection was lost")

            with pytest.raises(StoreError, match="was lost"):
                await store.transaction(lost)
            while store.failure is not None:
                await asyncio.sleep(0.05)
            return {(await served.recommend(m.RecommendRequest(f"u{i}"))).category for i in range(60)}

        assert run(add_and_lose()) == set(NAMES)
        assert served.rollout.state.names == NAMES


def test_an_allocation_adopted_in_vain_is_adopted_again(postgres):
    address = postgres.new()
    with several(address, 2, explore=0.0) as (one, other):
        publish_as_trainer(address, {1: dp.Fixed(1), 2: dp.Fixed(1)}, [(1, 5)])

        async def adopt_in_vain():
            def fails(tx):
                one.rollout.refresh(tx)
                tx.active_change += 7
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await one.store.transaction(fails)
            assert await one.refresh()
            await other.refresh()
            users = [(each, f"{i} of {each.store.worker}") for i in range(5) for each in (one, other)]
            shown = [await each.recommend(m.RecommendRequest(name)) for each, name in users]
            return [row.version for row in shown]

        assert run(adopt_in_vain()) == [1] * 5 + [2] * 5
        assert one.store.active_users == 5


def test_events_of_a_user_are_numbered_in_their_order(postgres):
    with several(postgres.new(), 3) as (one, other, third):

        async def race():
            await other.recommend(m.RecommendRequest("ann"))
            await other.depart("ann")
            slow = other.store.transaction(
                lambda tx: (time.sleep(0.4), other._recommend(tx, m.RecommendRequest("ann"))),
                Prefetch(users=("ann",), new_event=True),
            )
            returns = asyncio.create_task(slow)
            await asyncio.sleep(0.15)
            original, calls = one.store._database.query_pipeline, []

            def late(*queries):
                rows = original(*queries)
                calls.append(queries)
                if len(calls) == 2:
                    time.sleep(0.5)
                return rows

            one.store._database.query_pipeline = late
            waits = asyncio.create_task(one.recommend(m.RecommendRequest("ann")))
            await returns
            await asyncio.sleep(0.1)
            first = await third.recommend(m.RecommendRequest("ann"))
            return [int(each.event.rpartition("-")[2]) for each in (first, await waits)]

        first, then = run(race())
        assert first < then


def test_a_connection_to_a_hanging_database_is_aborted(postgres, monkeypatch):
    monkeypatch.setattr(postgres_store, "MAX_STATEMENT_SECONDS", 1.0)
    with service(postgres.new()) as served:
        pid = served.store._database._connection.info.backend_pid

        async def hang():
            await served.recommend(m.RecommendRequest("ann"))
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(StoreError, match="cannot be reached"):
                await served.recommend(m.RecommendRequest("ann"))
            os.kill(pid, signal.SIGCONT)
            deadline = time.monotonic() + 30
            while served.store.failure is not None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            return await served.recommend(m.RecommendRequest("ann"))

        assert run(hang()).category in NAMES


def test_a_read_only_database_is_a_failure_until_it_can_be_written(postgres):
    address = postgres.new()
    name = address.rpartition("/")[2]
    with service(address) as served, psycopg.connect(address, autocommit=True) as admin:

        async def recommend(n):
            for i in range(n):
                try:
                    return (await served.recommend(m.RecommendRequest(f"u{i}"))).category
                except StoreError as error:
                    message = str(error)
                    await asyncio.sleep(0.1)
            return message

        def set_read_only(value):
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
            admin.execute("SELECT pg_terminate_backend(%s)", (served.store._database._connection.info.backend_pid,))

        set_read_only("on")
        assert "read-only" in run(recommend(12))
        assert served.store.failure is not None
        set_read_only("off")
        assert run(recommend(50)) in NAMES
        assert served.store.failure is None
