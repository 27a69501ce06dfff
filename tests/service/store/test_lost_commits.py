"""PostgreSQL lost around a COMMIT: counters and active users equal the rows, whether it was committed or not."""

import asyncio

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.store.base import StoreError
from helpers import postgres as pg
from helpers.load import check
from helpers.proxy import proxy
from helpers.services import publish, recommend, run, service, wait_for


@pytest.fixture
def killable():
    """A PostgreSQL server that the test may kill."""
    with pg.running() as server:
        yield server


def lose_calls(served, how, through):
    """Lose the connection in each of several kinds of calls."""

    async def calls():
        shown = await served.recommend(m.RecommendRequest("ann"))
        for call in (
            lambda: served.recommend(m.RecommendRequest("bob")),
            lambda: served.feedback([m.Feedback(shown.event, True)]),
            lambda: served.depart("ann"),
        ):
            through.lose(how)
            with pytest.raises(StoreError):
                await call()
            while served.store.failure is not None:
                await asyncio.sleep(0.05)
        served.store.counters["problems_422"] += 1  # counted without a transaction
        await served.recommend(m.RecommendRequest("eve"))

    run(calls())


@pytest.mark.parametrize("how", ["before", "after"])
def test_counters_equal_the_rows_after_a_connection_was_lost(postgres, how):
    address = postgres.new()
    with proxy(postgres) as through, service(through.address(address)) as served:
        lose_calls(served, how, through)
        assert through.lost == 3
        totals = run(served.totals())
        with served.store.read() as snapshot:
            assert snapshot.execute("SELECT count(*) FROM users WHERE departed = 0") == [(served.store.active_users,)]
    check(address, {})
    committed = how == "after"
    assert totals == {"new_users": 2 + committed, "recommendations": 2 + committed, "problems_422": 1} | (
        {"feedback": 1, "clicks": 1, "departures": 1, "reported_departures": 1} if committed else {}
    )


@pytest.mark.slow
def test_counters_equal_the_rows_after_the_server_died_in_a_commit(killable):
    address = killable.new()

    def restart():
        killable.kill()
        killable.start()

    with proxy(killable) as through, service(through.address(address)) as served:
        lose_calls(served, restart, through)
        assert through.lost == 3
    check(address, {})


def test_versions_are_read_again_after_the_database_was_replaced(postgres):
    """A version of a database that was restored since can have the number of another one."""
    address = postgres.new()
    with service(address) as served:
        publish(served, dp.Fixed(1))
    restore = postgres.copy(address)
    with service(address) as served:
        publish(served, dp.Fixed(2))
        assert recommend(served, "ann").version == 2
        restore()
        assert wait_for(served.refresh) is False
        assert set(served.rollout.state.versions) == {0, 1}
        assert recommend(served, "bob").version == 1
