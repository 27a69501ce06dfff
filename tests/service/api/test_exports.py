"""Downloads of the log from a real server: streamed, bounded, and never complete when they are not."""

import asyncio
import http.client
import json
import os
import re
import socket
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service.api import exports
from departing.service.parquet import parquet_parts
from departing.service.store.connection import connect, is_postgres
from helpers.load import wait_until
from helpers.servers import request, serving
from helpers.services import recommend, run, service

ROWS = 60_000  # 18 MB of JSON lines, 4 MB of Parquet: more than all buffers between server and client hold
SERIES = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) "
USERS = (
    "INSERT INTO users (number, name, state, counts, departed, last_seen) "
    "SELECT 1000 + i, 'user ' || i, state, counts, 1, 0 FROM users, n WHERE number = 0"
)
DECISIONS = (
    "INSERT INTO decisions (event, key, number, time, category, propensity, version, policy_category) "
    "SELECT 1000 + i, {}, 1001 + i / 100, 1000.0 + i, i % 3, 0.5, 0, 0 FROM n"
)
FAILING = """
from departing.service import export
lines = export._lines
def broken(*arguments):
    for i, part in enumerate(lines(*arguments)):
        if i == 8:
            raise OSError("a damaged page")
        yield part
export._lines = broken
"""
IMPATIENT = "from departing.service.api import exports; exports.MAX_PAUSE, exports.MIN_RATE = 1.0, 1e9"


def fill(address, rows=ROWS):
    """Create a store with a long log."""
    with service(address, instance=magazine()) as served:
        recommend(served, "a name")
    with closing(connect(address)) as database:
        database.execute(SERIES.format(rows // 100 + 1) + USERS)
        random = "md5(random()::text) || md5(i::text)" if is_postgres(address) else "hex(randomblob(50))"
        database.execute(SERIES.format(rows) + DECISIONS.format(random))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "s.sqlite"
    fill(path)
    return path


@pytest.fixture
def start(tmp_path, store):
    """Start a server on a store with a long log, with a folder of its own for temporary files."""
    with ExitStack() as stack:

        def start(address=store, **options):
            folder = tmp_path / "temporary"
            folder.mkdir()
            environment = {"TMPDIR": str(folder)}
            return stack.enter_context(serving(tmp_path, environment=environment, store=address, **options))

        yield start


@contextmanager
def download(server, log_format="jsonl", **options):
    """The response to a request for the log, of which the headers were read; small buffers with `buffer` bytes."""
    with socket.socket() as client:
        if "buffer" in options:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["buffer"])
        client.settimeout(60)
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"GET /v1/log?format={log_format} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        with closing(http.client.HTTPResponse(client)) as response:
            response.begin()
            yield response


def resident(server, field="VmHWM"):
    """Megabytes of memory of a server."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1000


def logged(server, event):
    return f'"event": "{event}"' in (server.folder / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_long_log_is_streamed_without_a_file(start, store, tmp_path, kind, request):
    address = store
    if kind == "postgres":
        address = request.getfixturevalue("postgres").new()
        fill(address)
    server = start(address)
    for log_format in ("jsonl", "parquet"):
        with download(server, log_format) as response, (tmp_path / f"log.{log_format}").open("wb") as file:
            while part := response.read(1 << 20):
                file.write(part)
                assert not list((tmp_path / "temporary").iterdir())
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    assert len(lines) == ROWS + 1
    assert json.loads(lines[-1])["user"] == f"user {ROWS // 100 + 1}"
    logs = [dp.read_log(tmp_path / f"log.{each}") for each in ("jsonl", "parquet")]
    assert (logs[0].counts == logs[1].counts).all()
    assert logs[0].users == logs[1].users
    server.stop()


def test_a_client_that_does_not_read_costs_no_memory_and_its_end_ends_the_export(start):
    server = start()
    assert request(server, "/v1/categories")[0] == 200
    for log_format in ("jsonl", "parquet"):
        with download(server, log_format, buffer=16_384) as response:
            assert response.read(1000)
            time.sleep(0.5)
            assert request(server, "/health")[0] == 200
        wait_until(lambda: logged(server, "export_ended"))
        (server.folder / "log.txt").write_text("")
    before = resident(server)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(download(server, buffer=16_384))
        status, body = request(server, "/v1/log")
        assert (status, json.loads(body)["code"]) == (503, "export_limit")
        time.sleep(0.5)
        assert resident(server) - before < 15  # of 4 × 18 MB
    wait_until(lambda: request(server, "/v1/log", method="HEAD")[0] == 200)


@pytest.mark.parametrize("log_format", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cause", ["store", "client", "stop"])
def test_an_export_that_fails_never_looks_complete(start, cause, log_format):
    server = start(setup={"store": FAILING, "client": IMPATIENT, "stop": ""}[cause])
    with download(server, log_format, buffer=16_384) as response:
        if cause == "client":
            wait_until(lambda: logged(server, "export_failed"))
        if cause == "stop":
            server.stop()
        if response.status == 503:  # DuckDB writes nothing before it has read the rows of a row group
            assert (cause, log_format) == ("store", "parquet")
            return
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            while response.read(1 << 20):
                pass
    wait_until(lambda: logged(server, "export_failed"))
    if cause != "stop":
        assert request(server, "/health")[0] == 200


def test_a_forgotten_user_is_not_exported(tmp_path):
    options = ("--learn", "--departures", "reported", "--categories", "news,sports")
    with serving(tmp_path, *options) as server, server.client() as client:
        for name in ("ann", "secret name"):
            client.recommend(name)
        client.forget("secret name")
        status, body = request(server, "/v1/log")
        assert status == 200
        assert b"secret name" not in body
        assert len(body.splitlines()) == 2
        assert request(server, "/v1/log", method="HEAD") == (200, b"")


class Response:
    """A response to a download that fails, or that nobody reads."""

    def __init__(self, error=None):
        self.error = error

    def response_file(self, *arguments):
        if self.error is not None:
            raise self.error


def pipes():
    """The pipes that this process has open."""
    opened = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the folder itself
            opened.add(os.readlink(f"/proc/self/fd/{name}"))
    return {target for target in opened if target.startswith("pipe:")}


@pytest.mark.parametrize("cause", ["error of the server", "cancelled at once", "cancelled while writing"])
def test_an_export_that_ends_early_closes_its_pipe_and_its_snapshot(store, monkeypatch, cause):
    dropped = []
    monkeypatch.setattr(exports, "drop_connection", dropped.append)
    monkeypatch.setattr(exports, "is_connected", lambda client: True)

    async def download_in_vain(served):
        started = exports.Exports(served)
        export = await started.start("jsonl")
        if cause == "error of the server":
            with pytest.raises(OSError, match="broken"):
                await export.send(Response(OSError("broken")), "client", 200, [])
        else:
            if cause == "cancelled at once":
                monkeypatch.setattr(started, "in_thread", lambda call, *more: in_thread(started, call, more))
            sending = asyncio.create_task(export.send(Response(), "client", 200, []))
            await asyncio.sleep(0.0 if cause == "cancelled at once" else 0.3)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        assert not started._running
        assert dropped == ([] if cause == "error of the server" else ["client"])

    async def in_thread(started, call, more):
        if call.__name__ == "_write":  # all threads are in use
            await asyncio.sleep(60)
        return await exports.Exports.in_thread(started, call, *more)

    with service(store, names=[]) as served:
        run(served.flush())
        before = pipes()
        run(download_in_vain(served))
        assert pipes() == before


def test_an_export_whose_client_is_gone_before_anything_was_read_ends(store):
    async def download_in_vain(served):
        started = exports.Exports(served)
        export = await started.start("jsonl")
        await asyncio.wait_for(export.send(Response(), "127.0.0.1:1", 200, []), 10)  # there is no such client
        assert not started._running

    with service(store, names=[]) as served:
        run(download_in_vain(served))


def test_an_export_without_a_pipe_makes_room_for_another(store, monkeypatch):
    def no_pipe():
        raise OSError("Too many open files")

    async def download_in_vain(served):
        started = exports.Exports(served)
        export = await started.start("jsonl")
        monkeypatch.setattr(exports.os, "pipe", no_pipe)
        with pytest.raises(OSError, match="Too many"):
            await export.send(Response(), "client", 200, [])
        assert not started._running

    with service(store, names=[]) as served:
        run(download_in_vain(served))


def test_a_parquet_file_that_nobody_reads_on_ends_soon():
    """Without a broken pipe, at which DuckDB may hang."""
    rows = 0

    def lines():
        nonlocal rows
        while rows < 1_000_000:
            rows += 500
            yield b"".join(b'{"event": "%s"}\n' % os.urandom(50).hex().encode() for _ in range(500))

    for _ in range(3):
        rows, before = 0, pipes()
        parts = parquet_parts(lines(), "{event: 'VARCHAR'}")
        assert next(parts).startswith(b"PAR1")
        rows_read = rows
        parts.close()
        assert rows - rows_read < 50_000  # of a row group of 123,000
        assert pipes() == before
