"""Kills with a slow disk and many connections, stalled and full disks, restored backups (DEPARTING_LONG=1: more).

Invariants after each: no acknowledged feedback is lost, changed or doubled, counters equal rows and users' counts
equal a replay (`check`), event IDs never repeat, and recommendations lost at a kill are within the documented limits.
"""

import http.client
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from departing.model.examples import magazine
from departing.service.event_id import format_event_id
from departing.service.store.connection import connect
from departing.service.store.writer import MAX_UNWRITTEN, MAX_UNWRITTEN_SECONDS
from helpers import postgres as pg
from helpers.crowd import Crowd
from helpers.faults import KILLS, LEARN, backup, healthy, processes, rejects
from helpers.load import LONG, Load, check, kind, request, wait_until
from helpers.servers import serving
from helpers.slow_disk import SlowDisk

CONNECTIONS = 2000 if LONG else 150
# Share of slow syncs, and milliseconds that they take.
SYNCS = ((0.0, 0), (0.3, 40), (0.02, 1500))
SLACK = 2.0  # seconds between the times that writer and client note, on a busy machine
VICTIMS = {"sqlite": ("server", "trainer", "server"), "postgres": ("database", "server", "worker", "trainer")}
PROCESSES = {"trainer": "departing.service.workers.trainer", "worker": " serve "}
STALLED = "The store has not been written for"


@pytest.fixture
def plan(tmp_path):
    """Options to serve a plan without a trainer."""
    magazine().save(tmp_path / "site.toml")
    return "--instance", tmp_path / "site.toml"


class Losses:
    """Events that were acknowledged and are not in the store after a kill."""

    def __init__(self, address, *loads):
        self.address, self.loads, self.lost, self.oldest = address, loads, set(), 0.0

    def count(self, killed_at):
        """Check that the last kill lost no more than the documented limits; PostgreSQL loses nothing."""
        with closing(connect(self.address)) as database:
            rows = database.execute("SELECT key, epoch, event FROM decisions")
        stored = {key or format_event_id(epoch, event) for key, epoch, event in rows}
        times = {event: at for load in self.loads for event, at in list(load.times.items())}
        new = {event: killed_at - at for event, at in times.items() if event not in stored and event not in self.lost}
        assert len(new) <= (0 if kind(self.address) == "postgres" else MAX_UNWRITTEN // 2)
        self.oldest = max([self.oldest, *new.values()])
        assert self.oldest <= MAX_UNWRITTEN_SECONDS + SLACK
        self.lost |= new.keys()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_kills_with_a_slow_disk_and_many_connections(tmp_path, store):
    folder = tmp_path if store == "sqlite" else Path(tempfile.gettempdir(), "pg")
    with ExitStack() as stack:
        disk = stack.enter_context(closing(SlowDisk(folder)))
        database, address, options = None, str(tmp_path / "s.sqlite"), LEARN
        if store == "postgres":
            database = stack.enter_context(pg.running(disk.environment))
            address, options = database.new(), (*LEARN, "--workers", "2")
        server = stack.enter_context(
            serving(tmp_path, *options, store=address, environment=disk.environment if database is None else None)
        )
        crowd = stack.enter_context(Crowd(server.port, CONNECTIONS))
        # Without an ID of the client the service issues one; with one the client repeats lost requests.
        loads = [stack.enter_context(Load(server, threads=4, keyed=keyed)) for keyed in (False, True)]
        losses, kills = Losses(address, *loads), dict.fromkeys(VICTIMS[store], 0)
        for i in range(KILLS):
            disk.set(*SYNCS[i % len(SYNCS)])
            for load in loads:
                load.more(random.randrange(5, 40), 120)
            victim = VICTIMS[store][i % len(VICTIMS[store])]
            kills[victim] += 1
            strike(server, database, disk, victim, losses)
            wait_until(lambda: recovered(server), 120)
        disk.set(0.0, 0)
        for load in loads:
            load.more(50, 120)
            load.stop()
        server.stop()
        acknowledged = loads[0].acknowledged | loads[1].acknowledged
        check(address, acknowledged)
    issued = loads[0].events
    assert len(set(issued)) == len(issued)
    assert "unknown_event" not in loads[0].rejections  # the service recognises every event ID that it ever issued
    assert crowd.answers
    print(
        f"{store}: slow disk, {CONNECTIONS:,} more connections, kills of {kills}: {len(acknowledged):,} feedback "
        f"acknowledged and kept, {len(issued):,} event IDs without repetition, {len(losses.lost):,} recommendations "
        f"lost, none acknowledged more than {losses.oldest:.2f} s before the kill"
    )


def recovered(server):
    """True if the service is healthy; a worker that was killed resets the connections it had not accepted."""
    with suppress(OSError, http.client.HTTPException):
        return healthy(server)
    return False


def strike(server, database, disk, victim, losses):
    """Kill a process, and bring it back if nobody else does."""
    if victim == "server":
        server.kill()
        losses.count(time.monotonic())
        server.start()
    elif victim == "database":
        disk.set(1.0, 200)  # every commit takes that long, so that the kill is inside one
        time.sleep(0.5)
        database.kill()
        disk.set(0.0, 0)
        wait_until(lambda: rejects(server, "The store "))
        database.start()
        losses.count(time.monotonic())
    elif found := processes(server, PROCESSES[victim]):  # the trainer may still be starting
        with suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["disk", "lock"])
def test_a_kill_during_a_stall_loses_a_bounded_number_of_recommendations(tmp_path, plan, cause):
    with ExitStack() as stack:
        disk = stack.enter_context(closing(SlowDisk(tmp_path)))
        server = stack.enter_context(serving(tmp_path, *plan, environment=disk.environment))
        load = stack.enter_context(Load(server, keyed=False))
        load.more(100)
        before = dict(load.acknowledged)
        holder = stack.enter_context(closing(sqlite3.connect(server.store, isolation_level=None, timeout=30)))
        if cause == "disk":
            disk.set(1.0, 60_000)
        else:
            holder.execute("BEGIN IMMEDIATE")
        asking = stack.enter_context(Load(server, keyed=False, users=10**6, feedback=False))
        wait_until(lambda: rejects(server, STALLED))
        status, health = request(server.port, "GET", "/health")
        assert (status, health["ok"]) == (503, False)
        assert health["oldest_unwritten_seconds"] > MAX_UNWRITTEN_SECONDS
        assert 0 < health["unwritten"] < MAX_UNWRITTEN + 2  # the last call has two rows
        time.sleep(1.0)
        server.kill()
        losses = Losses(server.store, load, asking)
        holder.close()
        refused_since = max(at for each in losses.loads for at in each.times.values())
        losses.count(refused_since)
        disk.set(0.0, 0)
        server.start()
        wait_until(lambda: healthy(server))
        load.more(50)
        lost = next(iter(losses.lost))
        status, result = request(server.port, "POST", "/v1/feedback", {"event": lost, "clicked": True})
        assert (status, result["accepted"], result["code"]) == (200, False, "lost_event")
        for each in losses.loads:
            each.stop()
        server.stop()
    check(server.store, before | load.acknowledged)
    issued = [event for each in losses.loads for event in each.events]
    assert len(set(issued)) == len(issued)
    print(
        f"sqlite: a stall by a {cause}: {len(losses.lost):,} recommendations lost at the kill, all within the limits"
    )


@pytest.mark.slow
def test_a_full_disk(tmp_path, plan):
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", small]  # the write-ahead log takes up to 40 MB
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("A small file system cannot be mounted without privileges")
    store, filler = small / "s.sqlite", small / "filler"

    def fill():
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))

    try:
        with serving(tmp_path, *plan, store=store) as server, Load(server) as load:
            for killed in (False, True):
                load.more(50)
                fill()
                wait_until(lambda: rejects(server, "The store cannot be written"))
                if killed:
                    server.kill()
                filler.unlink()
                if killed:
                    server.start()
                wait_until(lambda: healthy(server))
                load.more(50)
            load.stop()
            server.stop()
        check(store, load.acknowledged)
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.slow
def test_event_ids_never_repeat_after_restoring_a_backup_and_late_feedback_is_recognised(tmp_path, plan):
    copy, store = tmp_path / "copy.sqlite", tmp_path / "store.sqlite"
    issued = []
    with serving(tmp_path, *plan) as server, Load(server, keyed=False) as load:
        load.more(100)
        before = dict(load.acknowledged)
        assert backup(store, copy).returncode == 0
        load.more(100)
        server.kill()
        load.stop()
        issued += load.events
        for _ in range(3 if LONG else 1):  # restore the same backup again and again
            for name in tmp_path.glob("store.sqlite*"):
                name.unlink()
            shutil.copy(copy, store)
            server.start()
            with Load(server, keyed=False) as again:
                again.more(100)
            late = issued[-20:]  # issued after the backup
            rows = [{"event": event, "clicked": True} for event in late]
            _, results = request(server.port, "POST", "/v1/feedback", rows)
            assert {result.get("code") for result in results} == {"lost_event"}
            server.stop()
            check(store, before | again.acknowledged)
            issued += again.events
    assert len(set(issued)) == len(issued)
