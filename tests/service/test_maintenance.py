"""Maintenance beside the server: a task that fails stops no other, and is reported."""

import asyncio
import errno
import sqlite3
import time
from contextlib import closing

import pytest

from departing.model.errors import InputError
from departing.service import messages as m
from departing.service import server
from departing.service.api import connection_usage
from departing.service.api.auth import ApiKeys
from departing.service.api.bodies import BodyReader
from departing.service.api.connection_usage import ConnectionUsage
from departing.service.experiments import messages as em
from departing.service.experiments.manager import Experiments
from helpers.experiments import with_versions
from helpers.servers import free_port
from helpers.services import run, service

LIMIT = 60.0  # seconds for anything here, however slow the machine
FUTURE = 'INSERT INTO policies VALUES (9, 0, \'{"kind": "future", "categories_known": 3}\', \'{}\')'


async def until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("damage", "repair", "warning"),
    [
        (FUTURE, "DELETE FROM policies WHERE version = 9", "are not adopted: policy 9"),
        (
            "ALTER TABLE assignments RENAME TO hidden",
            "ALTER TABLE hidden RENAME TO assignments",
            "guardrail of the experiment is not checked: ",
        ),
    ],
)
def test_a_task_that_fails_stops_no_other_and_is_a_warning(tmp_path, damage, repair, warning):
    path = tmp_path / "s.sqlite"

    def change(statement):
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(statement)

    with service(path, inactive_after=10.0) as served:
        with_versions(served)

        async def maintain():
            experiments = Experiments(served)
            await served.recommend(m.RecommendRequest("ann"))
            await experiments.start(em.ExperimentStart(2))
            await served.flush()
            change(damage)
            maintenance = asyncio.create_task(server._maintain(served, experiments))
            await until(lambda: any(warning in text for text in served.warnings()))
            served.clock.time += 100.0
            await until(lambda: served.store.active_users == 0)
            change(repair)
            await until(lambda: not any(warning in text for text in served.warnings()))
            maintenance.cancel()
            await asyncio.gather(maintenance, return_exceptions=True)

        run(maintain())


def test_bodies_and_connections_are_watched_again_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.1)
    bodies, usage = BodyReader(), ConnectionUsage(1000, 1)
    warnings = ("Bodies that arrive too slowly are not rejected", "Silent connections are not closed")

    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with service(tmp_path / "s.sqlite") as served:

        async def watch():
            with monkeypatch.context() as broken:
                broken.setattr(connection_usage.os, "listdir", fail)
                broken.setattr(bodies, "_expire", fail)
                watches = server._watches(bodies, usage)
                maintenance = asyncio.create_task(server._maintain(served, Experiments(served), watches))
                for warning in warnings:
                    await until(lambda warning=warning: any(warning in text for text in served.warnings()))
            slow = asyncio.create_task(asyncio.sleep(LIMIT))
            bodies._arriving[slow] = 0.0
            await until(lambda: not any(warning in text for text in served.warnings() for warning in warnings))
            await until(slow.cancelled)
            maintenance.cancel()
            await asyncio.gather(maintenance, return_exceptions=True)

        run(watch())


class Ended:
    """An HTTP server that ends at once."""

    def __init__(self, error):
        self.error = error

    async def serve(self):
        if self.error is not None:
            raise self.error

    def stop(self):
        pass


@pytest.mark.parametrize(
    ("error", "cause"),
    [(OSError("the port is in use"), "OSError.'the port is in use'."), (None, "the server ended without an error")],
)
def test_a_server_that_ends_by_itself_is_reported_and_has_not_started(tmp_path, monkeypatch, caplog, error, cause):
    monkeypatch.setattr(server, "http_server", lambda *_: Ended(error))
    with service(tmp_path / "s.sqlite") as served, caplog.at_level("INFO", "departing"):
        with pytest.raises(InputError, match=f"The service stopped unexpectedly: {cause}"):
            run(server.serve(served, "127.0.0.1", free_port(), ApiKeys()))
        assert "stopped" in caplog.messages
        assert "started" not in caplog.messages
