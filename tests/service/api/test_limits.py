"""Requests with very long numbers, names and headers: refused in a short response."""

import json
import logging

import pytest

from departing.service.api.auth import CLIENT, WRONG_KEY_BURST, ApiKeys
from departing.service.api.problems import ProblemError
from departing.service.event_log import JsonFormatter
from helpers.servers import request, serving

OPTIONS = ("--learn", "--departures", "reported", "--categories", "news,sports,music")
LONG = "\x7f" * 900_000  # 4.5 MB in a message, as `\\\\x7f`
POLICY = {"kind": "fixed", "category": 0}
INSTANCE = {"prior": [1.0], "click": [[0.5]]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("limits"), *OPTIONS) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"/v1/experiments/{'1' * 5000}", None, 404),
        (f"/v1/experiments/{'1' * 5000}", {"action": "stop"}, 404),
        ("/v1/recommend", {"user": "ann", LONG: 1}, 422),
        ("/v1/policies", {"kind": LONG}, 422),
        ("/v1/policies", POLICY | {LONG: 1}, 422),
        ("/v1/policies", POLICY | {"category": LONG}, 422),
        ("/v1/policies", POLICY | {"names": [LONG, LONG]}, 422),
        ("/v1/explore", {"instance": INSTANCE | {LONG: 1}}, 422),
        ("/v1/explore", {"instance": INSTANCE | {"format": LONG}}, 422),
        ("/v1/explore", {"instance": INSTANCE | {"categories": [LONG[:400_000]] * 2}}, 422),
    ],
)
def test_long_numbers_and_names_are_refused_in_a_short_response(server, path, body, status):
    answered, text = request(server, path, None if body is None else json.dumps(body, ensure_ascii=False).encode())
    assert (answered, json.loads(text)["status"]) == (status, status)
    assert len(text) < 15_000
    assert "request_failed" not in (server.folder / "log.txt").read_text()


class Caller:
    """The scope of a request with a wrong key."""

    def __init__(self, client):
        self.client, self.headers = client, {"authorization": "Bearer wrong"}


def test_wrong_keys_are_counted_by_ipv4_address_although_the_server_listens_on_ipv6():
    keys = ApiKeys(client=("right",))

    def wrong(client):
        with pytest.raises(ProblemError) as refusal:
            keys.check(CLIENT, Caller(client))
        return refusal.value.code.status

    first = [wrong("[::ffff:10.0.0.1]:4000") for _ in range(int(WRONG_KEY_BURST) + 1)]
    assert first[-2:] == [401, 429]
    assert wrong("[::ffff:10.0.0.2]:4000") == 401
    assert wrong("10.0.0.1:4000") == 429


def test_lines_of_the_log_are_ascii():
    record = logging.LogRecord("departing", logging.INFO, "", 0, "a user named %s", ("Zoë \ud800",), None)
    line = JsonFormatter("server").format(record)
    assert line.isascii()
    assert json.loads(line)["message"] == "a user named Zoë \ud800"


@pytest.mark.parametrize(("n", "status"), [(90, 200), (150, 431)])
def test_many_headers_are_refused_without_a_body(server, n, status):
    answered, text = request(server, "/live", headers={f"x-{i}": "y" for i in range(n)})
    assert answered == status
    assert bool(text) == (status == 200)
