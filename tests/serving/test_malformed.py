"""Requests that no client should send: refused, and never the fault of the server."""

import http.client
import json
import random

import pytest

from servers import serving

PATHS = [
    *("/v1/recommend", "/v1/feedback", "/v1/depart", "/v1/policy", "/v1/categories", "/v1/categories/retire"),
    *(
        "/v1/shadow",
        "/v1/users/ann",
        "/v1/users/%F0%9F%98%80",
        "/v1/users/",
        "/v1/log?format=%00",
        "/v1/../etc",
        "/%",
    ),
]
VALUES = [
    None,
    True,
    -1,
    0,
    1e308,
    2**70,
    "",
    "ann",
    "'; DROP TABLE users; --",
    "<i>",
    "\x00",
    "é" * 300,
    [],
    {},
    [1],
]
FIELDS = ["user", "event", "clicked", "departed", "allowed", "shown", "version", "name", "shadow", "explain", "x"]


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


def test_thousands_of_malformed_requests_are_refused(tmp_path):
    rng = random.Random(1)
    with serving(tmp_path, "--learn", "--categories", "news,sports,music") as server:
        connection, seen = http.client.HTTPConnection("127.0.0.1", server.port), set()
        for body in bodies(rng, 4000):
            try:
                connection.request(rng.choice(["POST", "POST", "GET", "DELETE", "PUT"]), rng.choice(PATHS), body)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException):  # it was closed after a body that nobody wanted to read
                connection.close()
                continue
            text = answer.read()
            seen.add(answer.status)
            assert answer.status < 500, (body, text)
        connection.close()
        assert seen <= {200, 400, 404, 405, 413, 422}
        with server.client() as client:
            assert client.recommend("still here")["category"]
        assert server.process.poll() is None


@pytest.mark.parametrize("raw", [b"GARBAGE\r\n\r\n", b"POST /v1/recommend HTTP/1.1\r\ncontent-length: -4\r\n\r\n"])
def test_what_is_no_http_does_no_harm(tmp_path, raw):
    import socket

    with serving(tmp_path, "--learn", "--categories", "news,sports") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(raw)
            connection.settimeout(5)
            assert b" 200" not in connection.recv(100)
        with server.client() as client:
            assert client.recommend("ann")["category"]
