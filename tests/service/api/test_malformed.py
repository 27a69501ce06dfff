"""Malformed requests: rejected, never a server error."""

import http.client
import json
import os
import random
import socket
import time

import pytest

from helpers.load import LONG, check, kind
from helpers.servers import serving

REQUESTS = int(os.environ.get("DEPARTING_REQUESTS", "100000" if LONG else "4000"))
PATHS = [
    *("/v1/recommend", "/v1/feedback", "/v1/depart", "/v1/policy", "/v1/categories", "/v1/categories/retire"),
    *("/v1/shadow", "/v1/explore", "/v1/dashboard", "/v1/users/ann", "/v1/users/%F0%9F%98%80", "/v1/users/"),
    *("/v1/users/%FF%00", "/v1/log?format=%00", "/v1/../etc", "/%", "/?" + "x" * 300),
]
KINDS = ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "é", "x" * 300]
VALUES = [
    None,
    True,
    -1,
    0,
    1e308,
    2**70,
    [],
    {},
    [1],
    "",
    "ann",
    "'; DROP TABLE users; --",
    "<i>",
    "\x00",
    "é" * 300,
]
FIELDS = [
    *("user", "event", "clicked", "departed", "allowed", "shown", "propensity", "version", "name", "enabled"),
    *("explain", "instance", "toml", "seconds", "x"),
]


def bodies(rng, n):
    for _ in range(n):
        kind = rng.randrange(4)
        if kind == 0:
            yield bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
        elif kind == 1:
            yield json.dumps(rng.choice(VALUES)).encode()
        else:
            row = {field: rng.choice(VALUES) for field in rng.sample(FIELDS, rng.randrange(1, 5))}
            yield json.dumps([row] * rng.randrange(1, 3) if kind == 3 else row).encode()


def send_malformed(server, n):
    """Send n requests; count the statuses of the responses."""
    rng, seen = random.Random(1), {}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=150)
    for body in bodies(rng, n):
        method = rng.choice(["POST"] * 6 + ["GET", "GET", "DELETE", "PUT"])
        headers = {"content-type": rng.choice(KINDS).encode()} if rng.random() < 0.5 else {}
        try:
            connection.request(method, rng.choice(PATHS), body, headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):  # the server closes the connection after an unread body
            connection.close()
            seen["closed"] = seen.get("closed", 0) + 1
            continue
        text = answer.read()
        seen[answer.status] = seen.get(answer.status, 0) + 1
        assert answer.status < 500, (body, text)
    connection.close()
    return seen


@pytest.mark.slow
def test_thousands_of_malformed_requests_are_rejected(tmp_path, address):
    requests, began = REQUESTS if address.endswith(".sqlite") else REQUESTS // 8, time.monotonic()
    with serving(
        tmp_path, "--learn", "--departures", "reported", "--categories", "news,sports,music", store=address
    ) as server:
        seen = send_malformed(server, requests)
        assert seen.keys() <= {200, 400, 404, 405, 413, 422, "closed"}
        assert seen.get("closed", 0) < requests / 2
        with server.client() as client:
            client.call("POST", "/v1/shadow", {"enabled": False})  # some requests may have been valid
            assert client.recommend("eve")["category"]
        assert server.process.poll() is None
        server.stop()
    check(address, {})
    statuses = ", ".join(f"{n:,} × {status}" for status, n in sorted(seen.items(), key=str))
    print(f"{kind(address)}: {requests:,} malformed requests in {time.monotonic() - began:.0f} s: {statuses}")


@pytest.mark.parametrize("raw", [b"GARBAGE\r\n\r\n", b"POST /v1/recommend HTTP/1.1\r\ncontent-length: -4\r\n\r\n"])
def test_data_that_is_not_http_does_no_harm(tmp_path, raw):
    with serving(tmp_path, "--learn", "--departures", "reported", "--categories", "news,sports") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(raw)
            connection.settimeout(5)
            assert b" 200" not in connection.recv(100)
        with server.client() as client:
            assert client.recommend("ann")["category"]
