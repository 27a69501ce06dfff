"""Acknowledged feedback survives kills, full disks, torn files and clock changes (DEPARTING_LONG=1: more rounds)."""

import asyncio
import os
import random
import resource
import signal
import threading
from contextlib import closing

import pytest

from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.clock import Clock
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store.connection import connect
from helpers import postgres as pg
from helpers.faults import KILLS, LEARN, backup, healthy, processes, rejects
from helpers.load import LONG, Load, check, kind, request, wait_until
from helpers.servers import Running, serving

FEW = 5 if LONG else 2
LOST = r"lacks [\d,]+ commits with [\d,]+ recommendations and .* start with --accept-loss"
YEAR = 365 * 86400.0


@pytest.fixture
def killable_postgres():
    """A PostgreSQL server that the test may kill."""
    with pg.running() as server:
        yield server


@pytest.fixture
def plan(tmp_path):
    """Options to serve a plan without a trainer."""
    magazine().save(tmp_path / "site.toml")
    return "--instance", tmp_path / "site.toml"


@pytest.mark.slow
def test_no_acknowledged_feedback_is_lost_by_kills(tmp_path, address):
    with serving(tmp_path, *LEARN, store=address) as server, Load(server) as load:
        for _ in range(KILLS):
            load.more(random.randrange(10, 100))
            server.kill()
            server.start()
        load.more()
        load.stop()
        server.stop()
    check(address, load.acknowledged)
    print(f"{kind(address)}: {KILLS} kills, {len(load.acknowledged):,} feedback acknowledged and all of them kept")


@pytest.mark.slow
def test_a_killed_worker_is_restarted_without_loss(tmp_path, postgres):
    address = postgres.new()
    with serving(tmp_path, *LEARN, "--workers", "2", store=address) as server, Load(server) as load:
        for kill in range(FEW - 1):
            wait_until(lambda: server.listeners() == 2)
            load.more(200)
            victim = processes(server, " serve ")[kill % 2]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda victim=victim: victim not in processes(server, " serve "))
            load.more()
        wait_until(lambda: server.listeners() == 2)
        load.more(200)
        load.stop()
        server.stop()
    check(address, load.acknowledged)
    with closing(connect(address)) as database:
        assert len(database.execute("SELECT worker FROM counters WHERE name = 'recommendations' AND value > 0")) >= 2


@pytest.mark.slow
def test_workers_stop_when_their_supervisor_is_killed(tmp_path, postgres):
    address = postgres.new()
    with serving(tmp_path, *LEARN, "--workers", "2", store=address) as server, Load(server) as load:
        wait_until(lambda: server.listeners() == 2)
        load.more()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: server.listeners() == 0)
        server.start()
        load.more()
        load.stop()
        server.stop()
    check(address, load.acknowledged)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_of_conflicting_feedback_one_wins(tmp_path, postgres, workers):
    address = postgres.new()
    with serving(tmp_path, *LEARN, "--workers", str(workers), store=address) as server:
        wait_until(lambda: server.listeners() == workers)
        for round_ in range(5):
            event = request(server.port, "POST", "/v1/recommend", {"user": f"carl {round_}"})[1]["event"]
            results, together = [], threading.Barrier(16)

            def send(clicked, event=event, results=results, together=together):
                together.wait()
                status, body = request(server.port, "POST", "/v1/feedback", {"event": event, "clicked": clicked})
                results.append((clicked, status, body["accepted"]))

            threads = [threading.Thread(target=send, args=(i % 2 == 0,)) for i in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert {status for _, status, _ in results} == {200}
            assert len({clicked for clicked, _, taken in results if taken}) == 1
            assert sum(taken for _, _, taken in results) == 8
        server.stop()
    check(address, {})


@pytest.mark.slow
def test_a_killed_trainer_is_restarted(tmp_path):
    with serving(tmp_path, *LEARN) as server, Load(server, users=1000, departing=0.7) as load:

        def published():
            return len(request(server.port, "GET", "/v1/policies")[1]["versions"])

        wait_until(lambda: published() > 1, 60)
        (victim,) = processes(server, "departing.service.workers.trainer")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in processes(server, "departing.service.workers.trainer"))
        before = published()
        load.more()
        wait_until(lambda: processes(server, "departing.service.workers.trainer"))
        wait_until(lambda: published() > before, 60)
        load.stop()
        server.stop()
    check(server.store, load.acknowledged)


@pytest.mark.slow
def test_the_service_recovers_from_a_killed_database(tmp_path, plan, killable_postgres):
    address = killable_postgres.new()
    with serving(tmp_path, *plan, store=address) as server, Load(server) as load:
        for _ in range(FEW):
            load.more(100)
            killable_postgres.kill()
            wait_until(lambda: rejects(server, "The store "))
            killable_postgres.start()
            wait_until(lambda: healthy(server))
            load.more()
        load.stop()
        server.stop()
        check(address, load.acknowledged)
    assert load.statuses[503]
    assert all(message.startswith("The store ") and message.endswith(".") for message in load.messages)


@pytest.mark.slow
def test_the_service_recovers_from_a_full_disk(tmp_path, plan):
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with serving(tmp_path, *plan) as server, Load(server) as load:
        for _ in range(FEW):
            load.more(100)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            wait_until(lambda: rejects(server, "The store cannot be written"))
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
            wait_until(lambda: healthy(server))
            load.more()
        load.stop()
        server.stop()
    check(server.store, load.acknowledged)
    assert load.statuses[503]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "scribbled over"])
@pytest.mark.parametrize("size", [7, 1000, "a third"])
def test_a_torn_write_ahead_log_loses_only_its_end(tmp_path, plan, damage, size):
    with serving(tmp_path, *plan) as server:
        with Load(server, keyed=False) as load:
            load.more(200)
            server.kill()
        wal = tmp_path / "store.sqlite-wal"
        whole = wal.read_bytes()
        assert len(whole) > 200_000
        lost = len(whole) // 3 if size == "a third" else size
        wal.write_bytes(whole[:-lost] + (b"" if damage == "cut" else random.Random(1).randbytes(lost)))
        if size == "a third":  # a shorter end of the log may be a commit that was not acknowledged
            with pytest.raises(AssertionError, match=LOST):
                server.start()
        server.options += ("--accept-loss",)
        server.start()
        with Load(server, keyed=False) as again:
            again.more(20)
        server.stop()
    assert len({*load.events, *again.events}) == len(load.events) + len(again.events)
    check(server.store, again.acknowledged)
    kept = dict(list(load.acknowledged.items())[:50])  # on disk long before the end
    check(server.store, kept)


def test_changes_of_the_system_time_make_no_user_inactive(tmp_path):
    wall, monotonic = [1e9], [0.0]

    def later(seconds, adjustment=0.0):
        monotonic[0] += seconds
        wall[0] += seconds + adjustment

    service = open_service(str(tmp_path / "s.sqlite"), ["news", "sports"], None, Settings(inactive_after=60.0), 1)
    service.clock = Clock(lambda: wall[0], lambda: monotonic[0])

    async def sweep():
        await service.flush()
        return await service.sweep()

    with closing(service.store):
        event = asyncio.run(service.recommend(m.RecommendRequest("ann"))).event
        for adjustment in (YEAR, 0.0, -2 * YEAR, YEAR):
            later(10, adjustment)
            assert asyncio.run(sweep()) == 0
            assert not asyncio.run(service.user_state("ann")).departed
        later(10)
        assert asyncio.run(service.feedback([m.Feedback(event, True)]))[0].accepted
        asyncio.run(service.recommend(m.RecommendRequest("bob")))
        later(59)
        assert asyncio.run(sweep()) == 0
        later(2)
        assert asyncio.run(sweep()) == 2  # inactive for a minute, by any clock
        assert asyncio.run(service.user_state("ann")).departed
    check(tmp_path / "s.sqlite", {event: (True, None)})


@pytest.mark.slow
def test_a_backup_under_load_has_all_feedback_acknowledged_before(tmp_path):
    with serving(tmp_path, *LEARN) as server, Load(server) as load:
        for number in range(FEW):
            load.more(100)
            before, copy = dict(load.acknowledged), tmp_path / f"copy {number}.sqlite"
            made = backup(server.store, copy)
            assert (made.returncode, made.stderr) == (0, "")
            check(copy, before)
        refused = backup(server.store, copy)
        assert refused.returncode == 2
        assert "exists; expected the name of a new file." in refused.stderr
    (tmp_path / "other").mkdir()
    with serving(tmp_path / "other", *LEARN, store=copy) as again, Load(again) as more:
        more.more()
        more.stop()
        again.stop()
    check(copy, before | more.acknowledged)


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        (b"no database at all, but text", "copy.sqlite", "file is not a database"),
        (b"", "copy.sqlite", "it is empty"),
        (None, "nowhere/copy.sqlite", "Cannot write"),
    ],
)
def test_a_backup_that_fails_is_reported_in_one_sentence(tmp_path, content, target, message):
    store = tmp_path / "store.sqlite"
    if content is None:
        open_service(str(store), ["news", "sports"], None, Settings()).store.close()
    else:
        store.write_bytes(content)
    files = sorted(tmp_path.iterdir())
    made = backup(store, tmp_path / target)
    assert made.returncode == 2
    assert message in made.stderr
    assert "Traceback" not in made.stderr
    assert sorted(tmp_path.iterdir()) == files
    assert content is None or store.read_bytes() == content


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_no_acknowledged_feedback_is_lost_by_stopping(tmp_path, request, workers):
    store = tmp_path / "store.sqlite" if workers == 1 else request.getfixturevalue("postgres").new()
    server = Running(tmp_path, *LEARN, "--workers", str(workers), store=store)
    acknowledged = {}
    for _ in range(FEW - workers + 1):
        server.start()
        with Load(server) as load:
            load.more(100)
            server.stop()
        acknowledged |= load.acknowledged
        assert not load.statuses.keys() - {200, 503}
    check(store, acknowledged)
