"""Many, silent and slow connections to a real server."""

import asyncio
import json
import math
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from array import array
from contextlib import ExitStack, contextmanager, suppress

import pytest

from departing.client import Client
from departing.loadtest.connection import post_request, run_sessions
from departing.service.api import connection_usage, connections
from departing.service.api.connection_usage import ConnectionUsage
from helpers.load import wait_until
from helpers.servers import request, serving
from helpers.services import run, service

OPTIONS = ("--learn", "--departures", "reported", "--categories", "news,sports,music")
KEY = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
FAST = (
    "from departing.service.api import bodies, connections\n"
    "connections.IDLE_SECONDS = connections.SEND_SECONDS = 1.5; bodies.BODY_SECONDS = 1.5"
)
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LIMIT = 30.0  # seconds for anything here, however slow the machine


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)


@contextmanager
def connected(server, n):
    """Open connections."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(server)) for _ in range(n)]


def received(connection):
    """Everything that a connection receives until the server closes it."""
    data = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def ask_in_turn(clients, rounds=1):
    """Send a request over every connection, and return the number of responses with status 200."""
    answered = 0
    for _ in range(rounds):
        for client in clients:
            client.sendall(HEALTH)
        for client in clients:
            answered += client.recv(1 << 16).startswith(b"HTTP/1.1 200")
    return answered


def test_600_keep_alive_connections_are_served_beside_1000_silent_ones(tmp_path):
    with serving(tmp_path, *OPTIONS) as server, connected(server, 1000), connected(server, 600) as clients:
        assert ask_in_turn(clients, rounds=2) == 1200
        assert request(server, "/health")[0] == 200


def serve_many(folder, n):
    """Open n connections to one worker, send a request over each, twice; return the responses and seconds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, n + 500), hard))
    began = time.monotonic()
    try:
        with serving(folder, *OPTIONS) as server, connected(server, n) as clients:
            answered = ask_in_turn(clients, rounds=2)
            assert request(server, "/health")[0] == 200
            return answered, time.monotonic() - began
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 10_600, reason="needs 10,600 open files")
def test_10000_connections_are_served_in_turn(tmp_path):
    answered, seconds = serve_many(tmp_path, 10_000)
    assert answered == 20_000
    print(f"10,000 connections: {answered:,} responses in {seconds:.1f} s")


@pytest.mark.parametrize("environment", [{}, KEY], ids=["without keys", "with keys"])
def test_silent_idle_and_slow_connections_are_dropped(tmp_path, environment):
    post = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer for clients\r\n"
    with serving(tmp_path, *OPTIONS, environment=environment, setup=FAST) as server, connected(server, 6) as opened:
        silent, half, trickled, idle, body, chunked = opened
        half.sendall(b"GET /health HTTP/1.1\r\nhost: local")
        idle.sendall(HEALTH)
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200")
        trickled.sendall(b"GET /health HTTP/1.1\r\n")
        body.sendall(post + b"content-length: 100\r\n\r\n{")
        chunked.sendall(post + b"transfer-encoding: chunked\r\n\r\n")
        waiting, deadline = set(opened), time.monotonic() + LIMIT
        seen = dict.fromkeys(opened, b"")
        while waiting and time.monotonic() < deadline:
            for slow, part in ((trickled, b"x: y\r\n"), (body, b" "), (chunked, b"1\r\n \r\n")):
                with suppress(OSError):
                    slow.send(part)
            for each in select.select(list(waiting), [], [], 0.2)[0]:
                part = b""
                with suppress(ConnectionError):
                    part = each.recv(1 << 16)
                seen[each] += part
                if not part:
                    waiting.remove(each)
        assert not waiting
        assert seen[silent] == seen[half] == seen[trickled] == b""
        for each in (body, chunked):
            assert seen[each].startswith(b"HTTP/1.1 408")
            assert b'"code":"request_timeout"' in seen[each]
        assert request(server, "/health")[0] == 200


def test_a_client_that_does_not_read_is_dropped(tmp_path):
    with serving(tmp_path, *OPTIONS, setup=FAST) as server, socket.socket() as client:
        wait_until(lambda: "started" in (tmp_path / "log.txt").read_text())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        requests = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000
        client.settimeout(0.2)
        with suppress(TimeoutError):
            client.sendall(requests)  # whose responses fill all buffers
        peer = client.getsockname()[1]
        wait_until(lambda: not established(server.port, peer), LIMIT)


def established(port, peer):
    """True if the server has an open connection to the port of a client."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [row.split() for row in list(table)[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[2].endswith(f":{peer:04X}") and row[3] == "01" for row in rows)


@pytest.mark.parametrize(
    "sent", ["POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{", "GET / H"]
)
def test_stopping_does_not_wait_for_what_was_half_sent(tmp_path, sent):
    patient = "from departing.service import server; server.DRAIN_SECONDS = 300.0"
    with serving(tmp_path, *OPTIONS, setup=patient) as server, connect(server) as half:
        half.sendall(sent.encode())
        assert request(server, "/health")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        answer = received(half)
        assert server.process.wait(LIMIT) == 0
        assert bool(answer) == ("POST" in sent)
        assert not answer or (answer.startswith(b"HTTP/1.1 503") and b'"code":"stopping"' in answer)


def test_a_body_that_ends_early_is_no_error_of_the_service(tmp_path):
    with serving(tmp_path, *OPTIONS) as server:
        with connect(server) as client:
            client.sendall(b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
        wait_until(lambda: b'departing_problems_total{status="400"} 1' in request(server, "/metrics")[1])
        assert "request_failed" not in (tmp_path / "log.txt").read_text()


def test_clients_survive_connections_that_were_closed_while_idle(tmp_path):
    with serving(tmp_path, *OPTIONS, setup=FAST) as server, Client(server.url) as client:
        first = client.recommend("ann", event="mine")
        peer = client._connection.sock.getsockname()[1]
        wait_until(lambda: not established(server.port, peer), LIMIT)
        assert client.recommend("ann", event="mine") == first
        assert client.feedback("mine", True)["accepted"]


def test_a_load_test_survives_connections_that_were_closed_while_idle(tmp_path):
    def session():
        """Two requests, with a pause that is longer than the server allows."""
        for event in ("first", "second"):
            seen.append((yield post_request("/v1/recommend", {"user": "ann", "event": event})))
            yield 3.0

    with serving(tmp_path, *OPTIONS, setup=FAST) as server:
        seen, latencies = [], array("d")
        asyncio.run(run_sessions(server.url, [session()], latencies))
        assert [each["event"] for each in seen] == ["first", "second"]
        assert len(latencies) == 2


def test_headers_that_are_too_long_are_refused(tmp_path):
    with serving(tmp_path, *OPTIONS) as server:
        for length, status in ((10_000, b"200"), (60_000, b"431")):
            with connect(server) as client:
                client.sendall(HEALTH[:-2] + b"x: " + b"y" * length + b"\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 " + status)


def test_the_file_limit_is_raised_and_leaves_room_for_the_store():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        n = connections.max_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= n + min(connections.RESERVED_FILES, n)
        assert n >= min(hard - connections.RESERVED_FILES, connections.MIN_CONNECTIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/app/one", {"app/memory.max": "400000000", "app/one/memory.max": "max"}, 4e8),
        ("0::/", {"memory.max": "300000000"}, 3e8),
        ("5:memory:/docker/x", {"memory/memory.limit_in_bytes": "200000000"}, 2e8),
    ],
)
def test_memory_is_limited_by_the_control_groups(tmp_path, line, files, limit):
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/\n{line}\n")
    assert connections.memory_limit(tmp_path) == limit
    assert connections.memory_limit(tmp_path / "nothing") > limit  # that of the machine


def test_connections_are_limited_by_memory(monkeypatch):
    for memory, expected in ((0, 12_000), (1e10, 20_833), (1e12, 65_536)):
        monkeypatch.setattr(connections, "memory_limit", lambda memory=memory: memory)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert connections.max_connections() == min(expected, hard - connections.RESERVED_FILES)


def test_bodies_without_a_key_are_not_kept(tmp_path):
    few = "from departing.service.api import bodies; bodies.MAX_ARRIVING = 1 << 20"
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 65000\r\n\r\n"
    with serving(tmp_path, *OPTIONS, environment=KEY, setup=few) as server, connected(server, 40) as clients:
        for client in clients:
            client.sendall(head + b" " * 64_900)
        recommend = request(server, "/v1/recommend", b'{"user": "ann"}', key="for clients")
        assert recommend[0] == 200  # although 2.6 MB arrive
        for client in clients:
            client.sendall(b" " * 100)
        assert all(client.recv(100).startswith(b"HTTP/1.1 401") for client in clients)


def test_bodies_that_arrive_at_once_are_limited(tmp_path):
    few = "from departing.service.api import bodies; bodies.MAX_ARRIVING = 1 << 20"
    for length in (60_000, 500_000):  # received as a whole, and in parts
        head = f"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode()
        with serving(tmp_path, *OPTIONS, setup=few) as server, connected(server, 20) as clients:
            for client in clients:
                client.sendall(head + b" " * (length - 2))
            refused = select.select(clients, [], [], LIMIT)[0]
            assert refused
            answer = refused[0].recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1\r\n" in answer
            for client in clients:
                client.close()
            wait_until(lambda server=server: request(server, "/v1/recommend", b'{"user": "ann"}')[0] == 200)


def test_large_bodies_that_end_early_are_not_executed(tmp_path):
    body = b'{"user": "ann"}' + b" " * 80_000
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body) + 9}\r\n\r\n".encode()
    with serving(tmp_path, *OPTIONS) as server, connect(server) as client:
        client.sendall(head + body)
        client.shutdown(socket.SHUT_WR)
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b'"code":"incomplete_body"' in answer
        assert b"departing_recommendations_total 0" in request(server, "/metrics")[1]


def connection_metrics(server):
    """Metrics about connections, by name."""
    lines = request(server, "/metrics")[1].decode().splitlines()
    return {
        name: int(value)
        for name, value in (line.split() for line in lines if "connections" in line and line[0] != "#")
    }


def test_silent_connections_make_room_when_nearly_all_are_in_use(tmp_path):
    few = (
        "from departing.service.api import connections, connection_usage\n"
        "connections.max_connections = lambda: 50; connection_usage.SILENT_SECONDS = 1.0"
    )
    with serving(tmp_path, *OPTIONS, setup=few) as server:
        wait_until(lambda: "started" in (log := (tmp_path / "log.txt").read_text()) and "only 50 connections" in log)
        with connected(server, 49), connected(server, 30):
            assert request(server, "/live")[0] == 200  # long before idle connections are dropped
            # The server may accept a connection a moment before it closes the one that made room for it.
            wait_until(lambda: 0 < connection_metrics(server)["departing_connections"] <= 50)
            metrics = connection_metrics(server)
            assert metrics["departing_max_connections"] == 50
            assert metrics["departing_dropped_connections_total"] > 0
        assert '"connections_nearly_full"' in (tmp_path / "log.txt").read_text()
        assert any("only 50 connections" in each for each in json.loads(request(server, "/health")[1])["warnings"])


LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)  # the byte that SQLite locks while a file is in use
    except OSError:
        print("locked")
"""


def test_the_search_for_sockets_keeps_the_locks_of_files(tmp_path):
    def locked():
        command = [sys.executable, "-c", LOCKED, str(tmp_path / "s.sqlite-shm")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"

    with service(tmp_path / "s.sqlite") as served, socket.create_server(("127.0.0.1", 0)) as listening:
        run(served.flush())
        assert locked()
        assert connections.limit_unread(listening.getsockname()[1])
        assert locked()
        assert not connections.drop_connection("127.0.0.1:1")
        assert locked()


def test_connections_are_limited_where_the_size_of_the_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(connections, "memory_limit", lambda: math.inf)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert connections.max_connections() == min(65_536, hard - connections.RESERVED_FILES)


def test_without_information_about_connections_none_is_closed(monkeypatch):
    monkeypatch.setattr(connection_usage, "HAS_TCP_INFO", False)
    monkeypatch.delattr(socket, "TCP_INFO")  # as on macOS
    with socket.create_server(("127.0.0.1", 0)) as listening:
        usage = ConnectionUsage(1, listening.getsockname()[1])
        with socket.create_connection(listening.getsockname()), listening.accept()[0]:
            run(usage.check())
            assert usage.dropped == 0
            assert "1 of 1 connections are in use. Limit" in usage.warnings()["connections_nearly_full"]


def test_one_address_cannot_keep_all_others_out(tmp_path):
    few = "from departing.service.api import connections\nconnections.max_connections = lambda: 50"
    busy, served = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n", False
    with serving(tmp_path, *OPTIONS, setup=few) as server, ExitStack() as stack:
        opened = [stack.enter_context(connect(server)) for _ in range(60)]  # from 127.0.0.1
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", server.port))
        other.sendall(busy)
        deadline = time.monotonic() + connection_usage.SILENT_SECONDS - 0.5
        while not served and time.monotonic() < deadline:
            for each in opened:
                with suppress(OSError):  # closed
                    each.send(busy)
            served = bool(select.select([other], [], [], 0.3)[0])
        assert served
        assert other.recv(100).startswith(b"HTTP/1.1 200")


def test_addresses_with_most_connections_lose_theirs_first(monkeypatch):
    monkeypatch.setattr(connection_usage, "TCP_INFO", struct.Struct("=I"))

    class Connection:
        def __init__(self, host, port, milliseconds):
            self.peer, self.milliseconds = (host, port), milliseconds

        def getsockopt(self, *_):
            return struct.pack("=I", self.milliseconds)

        def getpeername(self):
            return self.peer

    def superfluous(*opened):
        monkeypatch.setattr(connection_usage, "connections_to", lambda _: [Connection(*each) for each in opened])
        return [port for _, port in ConnectionUsage(30, 1)._superfluous()]

    many = [(f"2001:db8::{i}", i, 100 * i) for i in range(1, 7)]  # one network
    some = [("::ffff:10.0.0.1", 11, 50), ("10.0.0.1", 12, 40), ("10.0.0.1", 13, 30), ("10.0.0.1", 14, 20)]
    assert superfluous(*many, *some, ("10.0.0.2", 20, 0)) == [6, 5, 4, 11]
    assert superfluous(("10.0.0.3", 1, 4999), ("10.0.0.4", 2, 5000), ("10.0.0.5", 3, 6000)) == [3, 2]


def test_declared_bodies_do_not_keep_others_out(tmp_path):
    few = "from departing.service.api import bodies; bodies.MAX_ARRIVING = 1 << 20"
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 65536\r\n\r\n"
    with serving(tmp_path, *OPTIONS, setup=few) as server, connected(server, 40) as clients:
        for client in clients:
            client.sendall(head)
        assert select.select(clients, [], [], LIMIT)[0]  # all have arrived, so that the oldest are refused
        for _ in range(10):
            assert request(server, "/v1/recommend", b'{"user": "ann"}')[0] == 200
        refused = [client for client in clients if select.select([client], [], [], 0)[0]]
        assert 20 <= len(refused) < 40
        for client in refused:
            answer = client.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b'"code":"overloaded"' in answer


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_are_too_large_are_not_kept(tmp_path, chunked):
    few = "from departing.service.api import bodies; bodies.MAX_ARRIVING = 3 << 19"
    size, head = 1 << 22, b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\n"
    with serving(tmp_path, *OPTIONS, setup=few) as server, connect(server) as client:
        if chunked:
            client.sendall(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % size + b" " * size + b"\r\n0\r\n\r\n")
        else:
            client.sendall(head + b"content-length: %d\r\n\r\n" % size + b" " * size)
        answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"The body exceeds 1 MiB" in answer


def test_every_line_of_the_log_is_json_although_a_request_was_half_sent(tmp_path):
    with serving(tmp_path, *OPTIONS) as server, connected(server, 20) as clients:
        for client in clients:
            client.sendall(b"GET / H")
        assert request(server, "/health")[0] == 200
        server.stop()
    for line in (tmp_path / "log.txt").read_text().splitlines():
        json.loads(line)
