"""Operation of real servers: probes, draining, request IDs, logs and metrics."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from departing.service.api.latency import BOUNDS, MAX_ROUTES, Latency
from departing.service.api.request_id import request_ids
from helpers.load import wait_until
from helpers.postgres import running
from helpers.servers import children, command_of, request, serving

PLAN = ("--instance", "magazine", "--departures", "reported")  # ready at once
START = ("--learn", "--categories", "news,sports,music", "--inactive-after", "14 days")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), *START, "--access-log") as running:
        yield running


def lines(server):
    return [json.loads(line) for line in (server.folder / "log.txt").read_text().splitlines()]


def headers_of(server, path, body=None, **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers


def test_a_response_has_the_id_of_its_request_or_a_new_one(server):
    assert headers_of(server, "/health", **{"X-Request-Id": "a-1"})[1]["x-request-id"] == "a-1"
    made = [headers_of(server, "/v1/recommend", b'{"user": "ann"}')[1]["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    status, headers = headers_of(server, "/v1/nothing", **{"X-Request-Id": "x" * 129})
    assert status == 404
    assert "x" not in headers["x-request-id"]
    for invalid in ('a"b', "a b", "", "é"):
        assert request_ids()(invalid) != invalid


def test_the_access_log_has_routes_and_ids_but_no_names(server):
    headers_of(server, "/v1/users/secret", **{"X-Request-Id": "look-1"})
    wait_until(lambda: any(line.get("request_id") == "look-1" for line in lines(server)))
    (line,) = [line for line in lines(server) if line.get("request_id") == "look-1"]
    assert (line["event"], line["method"], line["route"]) == ("request", "GET", "/v1/users/{user}")
    assert line["status"] == 404
    assert 0 < line["seconds"] < 60
    assert "secret" not in (server.folder / "log.txt").read_text()


def test_histograms_count_every_request_by_route_and_status(server):
    def counts():
        text = request(server, "/metrics")[1].decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = families["departing_request_duration_seconds"].samples
        return families, {
            (
                sample.name.rpartition("_")[2],
                *(sample.labels.get(key) for key in ("route", "status", "le")),
            ): sample.value
            for sample in samples
        }

    before = counts()[1]
    for i in range(7):
        request(server, "/v1/recommend", json.dumps({"user": f"user {i}"}).encode())
    request(server, "/v1/recommend", b"{")
    request(server, "/nowhere")
    families, after = counts()
    added = {key: value - before.get(key, 0) for key, value in after.items()}
    assert added["count", "/v1/recommend", "2xx", None] == 7
    assert added["bucket", "/v1/recommend", "2xx", "+Inf"] == 7
    assert added["count", "/v1/recommend", "4xx", None] == 1
    assert added["count", "other", "4xx", None] == 1
    buckets = [after["bucket", "/v1/recommend", "2xx", str(bound)] for bound in (*BOUNDS, "+Inf")]
    assert buckets == sorted(buckets)
    assert 0 < added["sum", "/v1/recommend", "2xx", None] < 60
    assert families["departing_store_failing"].samples[0].value == 0
    assert families["departing_info"].samples[0].labels["version"]
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}


def test_a_duration_counts_in_the_bucket_with_the_next_bound():
    latency = Latency([("GET", "/x")])
    for nanoseconds in (0, 250_000, 250_001, 10**11):
        latency.observe("GET", "/x", 200, nanoseconds)
    values = {line.split()[0].split("le=")[-1]: line.split()[1] for line in latency.lines() if "_bucket" in line}
    assert values['"0.00025"}'] == "2"
    assert values['"0.0005"}'] == "3"
    assert values['"10.0"}'] == "3"
    assert values['"+Inf"}'] == "4"


@pytest.mark.slow
def test_workers_share_their_histograms(tmp_path, postgres):
    with serving(tmp_path, *START, "--workers", "2", store=postgres.new()) as server:
        wait_until(lambda: server.listeners() == 2)
        for _ in range(40):  # each over a connection of its own
            request(server, "/v1/categories")
        text = request(server, "/metrics")[1].decode()
        label = '{method="GET",route="/v1/categories",status="2xx"}'
        assert f"departing_request_duration_seconds_count{label} 40" in text


def test_liveness_does_not_depend_on_the_database_and_readiness_does(tmp_path):
    with running() as database, serving(tmp_path, *PLAN, store=database.new()) as server:
        assert request(server, "/ready")[0] == 200
        database.kill()
        wait_until(lambda: request(server, "/ready")[0] == 503)
        status, text = request(server, "/health")
        health = json.loads(text)
        assert (status, health["ok"]) == (503, False)
        assert "The store" in health["reason"]
        assert {"oldest_unwritten_seconds", "unwritten", "warnings"} <= set(health)
        assert request(server, "/live") == (200, b'{"ok":true}')


def test_a_service_stays_ready_when_the_initial_version_is_pinned(server):
    wait_until(lambda: request(server, "/ready")[0] == 200, 300)
    assert request(server, "/v1/policy", b'{"version": 0}')[0] == 200
    assert request(server, "/ready")[0] == 200
    assert request(server, "/v1/policy", b'{"version": null}')[0] == 200


def test_after_sigterm_the_service_is_not_ready_and_keeps_serving_for_the_delay(tmp_path):
    with serving(tmp_path, *PLAN, "--drain-delay", "600") as server:
        assert request(server, "/ready")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: request(server, "/ready")[0] == 503)
        assert b"stopping" in request(server, "/ready")[1]
        assert request(server, "/v1/recommend", b'{"user": "ann"}')[0] == 200
        assert request(server, "/live")[0] == request(server, "/health")[0] == 200
        with socket.create_connection(("127.0.0.1", server.port), 30) as kept:  # not closed by the caller
            kept.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            response = kept.makefile("rb").read()  # up to the end of the connection, which the server closes
        assert b"connection: close" in response.lower()
        assert server.process.poll() is None
        server.stop()  # a second signal ends the delay
    assert [line["event"] for line in lines(server) if line["event"] in ("draining", "stopped")] == [
        "draining",
        "stopped",
    ]


def test_every_line_of_all_processes_is_a_json_object(tmp_path):
    with serving(tmp_path, *START) as server:
        wait_until(lambda: request(server, "/ready")[0] == 200)
        request(server, "/v1/explore", json.dumps({"toml": "prior = [1.0]\nclick = [[0.5]]"}).encode())
        [trainer] = [pid for pid in children(server.process.pid) if "workers.trainer" in command_of(pid)]
        os.kill(trainer, signal.SIGTERM)
        wait_until(lambda: any(line["event"] == "trainer_exited" for line in lines(server)))
        server.stop()
    logged = lines(server)
    assert {line["process"] for line in logged} == {"server", "trainer"}
    assert {"started", "policies_published", "policy_adopted", "stopped"} <= {line["event"] for line in logged}
    assert all({"time", "level", "event", "pid"} <= set(line) for line in logged)


NOISE = """
import asyncio, logging, threading, warnings
from departing.service.event_log import json_lines
class Broken:
    def __del__(self): raise ValueError("in a finaliser")
async def task(): raise KeyError("in a task")
async def main():
    running = asyncio.ensure_future(task())
    await asyncio.sleep(0)
    del running
    await asyncio.sleep(0)
with json_lines("trainer"):
    warnings.warn("two\\nlines")
    logging.getLogger("library").error("failed %s", "twice")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    Broken()
    asyncio.run(main())
    raise RuntimeError("in the main thread")
"""


def test_warnings_records_of_libraries_and_uncaught_exceptions_are_json_lines():
    done = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, text=True)
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert {line["process"] for line in logged} == {"trainer"}
    text = json.dumps(logged)
    for part in ("two", "failed twice", "ZeroDivisionError", "in a finaliser", "in a task", "in the main thread"):
        assert part in text
    assert sum("traceback" in line for line in logged) == 4


def test_lines_below_the_level_are_left_out(tmp_path):
    with serving(tmp_path, *PLAN, "--log-level", "warning") as server:
        assert request(server, "/ready")[0] == 200
        server.stop()
    assert lines(server) == []


def test_routes_that_do_not_fit_into_shared_memory_are_refused():
    routes = [("GET", f"/{i}") for i in range(MAX_ROUTES)]
    latency = Latency(routes[1:])
    latency.observe("GET", "without a route", 599, 10**12)  # the last cells
    with pytest.raises(ValueError, match="Increase SLOT"):
        Latency(routes)


def test_what_only_grows_is_a_counter(server):
    families = {each.name: each for each in text_string_to_metric_families(request(server, "/metrics")[1].decode())}
    for name in ("departing_lost_transactions", "departing_dropped_connections"):
        assert (families[name].type, families[name].samples[0].name) == ("counter", f"{name}_total")


@pytest.mark.parametrize("path", ["/v1/dashboard", "/v1/log"])
def test_the_service_stops_while_a_read_waits_for_postgresql(tmp_path, postgres, path):
    address = postgres.new()
    short = "from departing.service import server; server.DRAIN_SECONDS = 1.0"
    with serving(tmp_path, *PLAN, store=address, setup=short) as server, socket.socket() as client:
        wait_until(lambda: request(server, "/ready")[0] == 200)
        with psycopg.connect(address) as other:
            other.execute("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE")
            client.connect(("127.0.0.1", server.port))
            client.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: other.execute(waiting).fetchone()[0] > 0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
            assert '"event": "stopped"' in (tmp_path / "log.txt").read_text()
