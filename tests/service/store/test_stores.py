"""What stores must do when things go wrong in between: nothing is kept of calls that came to nothing."""

import asyncio
import os
import signal
import time
from contextlib import closing, contextmanager

import psycopg
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service.api import messages as m
from departing.service.policy_version import PolicyVersion
from departing.service.rollout import publication
from departing.service.service import Settings
from departing.service.startup import open_service
from departing.service.store import postgres as module
from departing.service.store.base import Prefetch, StoreError
from departing.service.store.training import TrainingStore
from departing.service.workers.trainer import Trainer

NAMES = ["news", "sports", "music"]


@contextmanager
def services(address, n=1, instance=None, **options):
    made = [open_service(address, [] if instance else NAMES, instance, Settings(**options), seed=i) for i in range(n)]
    try:
        yield made[0] if n == 1 else made
    finally:
        for each in made:
            each.store.close()


def run(call):
    return asyncio.run(call)


def publish(address, parts, current):
    """As a trainer does."""
    numbers = sorted({*(version for version, _ in parts), current})
    versions = [PolicyVersion(number, 0.0, dp.Fixed(1), 3, {}) for number in numbers]
    with closing(TrainingStore(address)) as store:
        store.publish(lambda first: publication(versions, parts, current))


def test_a_category_that_could_not_be_written_is_not_shown(postgres):
    with services(postgres.new(), explore=1.0) as found:
        store = found.store

        async def add_and_lose():
            def lost(tx):
                found.rollout.add_category(tx, "golf", 0.0)
                raise psycopg.OperationalError("the connection was lost")

            with pytest.raises(StoreError, match="was lost"):
                await store.transaction(lost)
            while store.failure is not None:
                await asyncio.sleep(0.05)
            return {(await found.recommend(m.RecommendRequest(f"u{i}"))).category for i in range(60)}

        assert run(add_and_lose()) == set(NAMES)
        assert found.rollout.state.names == NAMES


def test_what_was_taken_up_in_vain_is_taken_up_again(postgres):
    address = postgres.new()
    with services(address, 2, explore=0.0) as (one, other):
        publish(address, [(1, 5)], 2)

        async def take_up_in_vain():
            def in_vain(tx):
                one.rollout.refresh(tx)
                tx.active_change += 7
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await one.store.transaction(in_vain)
            assert await one.refresh()
            await other.refresh()
            users = [(each, f"{i} of {each.store.worker}") for i in range(5) for each in (one, other)]
            given = [await each.recommend(m.RecommendRequest(name)) for each, name in users]
            return [row.version for row in given]

        assert run(take_up_in_vain()) == [1] * 5 + [2] * 5
        assert one.store.active_users == 5


def test_events_of_a_user_are_numbered_in_their_order(postgres):
    with services(postgres.new(), 3) as (one, other, third):

        async def race():
            await other.recommend(m.RecommendRequest("ann"))
            await other.depart("ann")
            slow = other.store.transaction(
                lambda tx: (time.sleep(0.4), other._recommend(tx, m.RecommendRequest("ann"))),
                Prefetch(users=("ann",), new_event=True),
            )
            begins_anew = asyncio.create_task(slow)
            await asyncio.sleep(0.15)
            real, times = one.store._database.several, []

            def late(*queries):
                rows = real(*queries)
                times.append(1)
                if len(times) == 2:
                    time.sleep(0.5)
                return rows

            one.store._database.several = late
            waits = asyncio.create_task(one.recommend(m.RecommendRequest("ann")))
            await begins_anew
            await asyncio.sleep(0.1)
            first = await third.recommend(m.RecommendRequest("ann"))
            return int(first.event[2:]), int((await waits).event[2:])

        first, then = run(race())
        assert first < then


def test_a_database_that_hangs_is_given_up(postgres, monkeypatch):
    monkeypatch.setattr(module, "MAX_STATEMENT_SECONDS", 1.0)
    with services(postgres.new()) as found:
        pid = found.store._database._connection.info.backend_pid

        async def hang():
            await found.recommend(m.RecommendRequest("ann"))
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(StoreError, match="cannot be reached"):
                await found.recommend(m.RecommendRequest("ann"))
            os.kill(pid, signal.SIGCONT)
            deadline = time.monotonic() + 30
            while found.store.failure is not None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            return await found.recommend(m.RecommendRequest("ann"))

        assert run(hang()).category in NAMES


def test_a_database_that_may_only_be_read_is_a_failure(postgres):
    address = postgres.new()
    name = address.rpartition("/")[2]
    with services(address) as found, psycopg.connect(address, autocommit=True) as admin:

        async def ask(n):
            for i in range(n):
                try:
                    return (await found.recommend(m.RecommendRequest(f"u{i}"))).category
                except StoreError as error:
                    sentence = str(error)
                    await asyncio.sleep(0.1)
            return sentence

        def set_read_only(value):
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
            admin.execute("SELECT pg_terminate_backend(%s)", (found.store._database._connection.info.backend_pid,))

        set_read_only("on")
        assert "read-only" in run(ask(12))
        assert found.store.failure is not None
        set_read_only("off")
        assert run(ask(50)) in NAMES
        assert found.store.failure is None


def test_what_is_told_after_a_departure_must_go_with_it(tmp_path):
    with services(tmp_path / "s.sqlite", missing_feedback="not-seen") as found:

        async def calls():
            first, last = [(await found.recommend(m.RecommendRequest("ann"))).event for _ in range(2)]
            early = await found.feedback([m.Feedback(first, False, True)])
            await found.depart("ann")
            told = await found.feedback(
                [m.Feedback(first, False, True), m.Feedback(last, False), m.Feedback(last, False, False)]
            )
            return [row.accepted for row in early + told]

        assert run(calls()) == [False, False, False, False]


def test_a_departed_user_who_is_renamed_is_not_lost_from_memory_too_soon(tmp_path):
    with services(tmp_path / "s.sqlite") as found:
        store = found.store

        async def calls():
            await found.recommend(m.RecommendRequest("ann"))
            await found.depart("ann")
            await found.flush()
            real, store._writer._commit = store._writer._commit, lambda *batch: time.sleep(0.5) or real(*batch)
            forgetting = asyncio.create_task(found.forget("ann"))
            await asyncio.sleep(0.1)
            store.trim()
            again = await found.recommend(m.RecommendRequest("ann"))
            await forgetting
            return again

        run(calls())
        assert store.cache.users["ann"].previous == -1


def test_no_name_is_left_in_any_file_while_it_goes_on(tmp_path):
    with services(tmp_path / "s.sqlite") as found:

        async def calls():
            for i in range(300):
                await found.recommend(m.RecommendRequest(f"secret name {i}", event=f"secret id {i}"))
            for i in range(300):
                await found.forget(f"secret name {i}")
            assert not (await found.feedback([m.Feedback("secret id 7", True)]))[0].accepted

        run(calls())
        deadline = time.monotonic() + 10
        while any(b"secret" in file.read_bytes() for file in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_link_to_a_store_is_the_same_store(tmp_path):
    with services(tmp_path / "s.sqlite"):
        (tmp_path / "link.sqlite").symlink_to(tmp_path / "s.sqlite")
        with pytest.raises(dp.InputError, match="already in use by another process"):
            open_service(tmp_path / "link.sqlite", NAMES, None, Settings())


def test_departed_users_are_not_kept_in_memory(tmp_path):
    with services(tmp_path / "s.sqlite") as found:

        async def calls():
            events = [(await found.recommend(m.RecommendRequest(f"u{i}"))).event for i in range(50)]
            rows = [m.Feedback(event, False, True) for event in events]
            await found.feedback(rows)
            found.store.trim()
            assert all(row.accepted for row in await found.feedback(rows))

        run(calls())
        assert not found.store.cache.users


def test_a_learned_policy_outlives_a_restart_after_a_category_was_retired(address):
    site = magazine()
    with services(address, instance=site) as found, closing(TrainingStore(address)) as training:
        trainer = Trainer(training, types=2)

        async def calls():
            for i in range(30):
                shown = await found.recommend(m.RecommendRequest(f"u{i}"))
                await found.feedback([m.Feedback(shown.event, i % 2 == 0, i % 2 == 1)])
            await found.retire_category("sport")

        run(calls())
        assert trainer.step()
        run(found.refresh())
        learned = run(found.policy()).version
    with services(address, instance=site) as found:
        assert run(found.policy()).version == learned


def test_a_plan_is_made_anew_without_what_was_retired(address):
    site = magazine()
    with services(address, instance=site) as found:
        run(found.retire_category("music"))
    with services(address, instance=site) as found:
        assert "music" not in run(found.policy()).description


def test_one_trainer_of_a_file_at_a_time(tmp_path):
    with services(tmp_path / "s.sqlite"), closing(TrainingStore(tmp_path / "s.sqlite")) as one:
        assert one.acquire_lock()
        assert one.acquire_lock()
        with closing(TrainingStore(tmp_path / "s.sqlite")) as other:
            assert not other.acquire_lock()
            one.close()
            assert other.acquire_lock()
