"""Problem details, API keys and local requests."""

import json
import sqlite3

import psycopg
import pytest

from departing.client import ServiceError
from departing.service.api import problems
from departing.service.api.auth import ADMIN, CLIENT, PUBLIC, ApiKeys
from departing.service.api.problems import as_problem
from departing.service.event_log import JsonFormatter
from departing.service.service import UserLimitError
from departing.service.store.base import StoreError
from helpers.servers import request, serving

CATEGORIES = ("--categories", "news,sports,music")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--learn", "--departures", "reported", *CATEGORIES) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "detail"),
    [
        ("POST", "/v1/recommend", b"{", 400, "invalid_json", "not valid JSON"),
        ("POST", "/v1/recommend", b"[]", 422, "invalid_request", "the body is []; expected an object"),
        ("POST", "/v1/recommend", b'{"user": ""}', 422, "invalid_request", "of 1 to 200 characters"),
        ("POST", "/v1/recommend", b'{"user": "a", "x": 1}', 422, "invalid_request", "x is an unknown field"),
        ("POST", "/v1/recommend", b'{"user": "a", "allowed": ["golf"]}', 422, "invalid_request", "allowed is 'golf'"),
        ("POST", "/v1/recommend", b'{"user": "a", "event": "e-7"}', 422, "invalid_request", "'e-7'"),
        (
            "POST",
            "/v1/recommend",
            b'{"user": "' + b"x" * 300 + b'"}',
            422,
            "invalid_request",
            "of 1 to 200 characters",
        ),
        (
            "POST",
            "/v1/feedback",
            b'{"event": "e-1"}',
            422,
            "invalid_request",
            "clicked is missing; expected true or false",
        ),
        (
            "POST",
            "/v1/feedback",
            b'{"event": "e-1", "clicked": 1}',
            422,
            "invalid_request",
            "clicked is 1; expected true or false",
        ),
        (
            "POST",
            "/v1/feedback",
            b"[" + b" " * (1 << 20) + b"]",
            413,
            "body_too_large",
            "(1,048,576 bytes)",
        ),
        ("POST", "/v1/policy", b'{"version": 99}', 404, "not_found", "99"),
        ("POST", "/v1/categories/retire", b'{"name": "golf"}', 422, "invalid_request", "name is 'golf'"),
        ("GET", "/v1/users/nobody", None, 404, "not_found", "'nobody'"),
        ("GET", "/v1/users/%00%27%3B--", None, 422, "invalid_request", "NUL"),
        ("DELETE", "/v1/recommend", None, 405, "method_not_allowed", "does not accept DELETE; it accepts POST"),
        ("GET", "/v1/log?format=xlsx", None, 422, "invalid_request", "jsonl, parquet"),
        ("GET", "/v1/log?fromat=jsonl", None, 422, "invalid_request", "fromat is an unknown query parameter"),
        ("POST", "/v1/recommend", b" ", 400, "invalid_json", "The body is empty; expected JSON"),
        ("GET", "/elsewhere", None, 404, "unknown_path", "no path /elsewhere"),
    ],
)
def test_a_rejected_request_has_problem_details(server, method, path, body, status, code, detail):
    answered, text = request(server, path, body, method)
    problem = json.loads(text)
    assert (answered, problem["status"], problem["code"]) == (status, status, code)
    assert problem["type"] == "about:blank"
    assert detail in problem["detail"]


def test_the_user_limit_has_its_own_code():
    problem = as_problem(UserLimitError("max_users is 2 and 2 users are active; retry later."))
    assert (problem.code, problem.code.status) == ("user_limit", 503)
    assert problem.details("r").detail == "max_users is 2 and 2 users are active; retry later."


def test_calls_that_an_unavailable_store_refuses_say_when_to_retry():
    problem = as_problem(StoreError("The store cannot be written: the disk is full."))
    assert (problem.code, problem.headers) == ("store_unavailable", (("retry-after", "2"),))


def test_an_unexpected_exception_is_logged_with_its_traceback_and_the_id_of_the_request(caplog):
    with caplog.at_level("INFO", "departing"):
        assert as_problem(ZeroDivisionError("by accident"), "r-1").code == "internal_error"
    (record,) = caplog.records
    line = JsonFormatter("server").format(record)
    event = json.loads(line)
    assert "\n" not in line
    assert (event["event"], event["level"], event["request_id"]) == ("request_failed", "error", "r-1")
    assert "by accident" in event["error"]
    assert "ZeroDivisionError" in event["traceback"]


def test_the_client_raises_an_error_with_code_status_and_detail(server):
    with server.client() as client, pytest.raises(ServiceError, match="'golf'") as error:
        client.recommend("ann", allowed=["golf"])
    assert (error.value.code, error.value.status) == ("invalid_request", 422)
    assert error.value.detail == str(error.value)


def test_calls_require_the_right_key(tmp_path):
    keys = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
    with serving(
        tmp_path, "--learn", "--departures", "reported", "--rate-limit", "5", *CATEGORIES, environment=keys
    ) as server:

        def code(path, body=None, key=None):
            status, text = request(server, path, body, key=key)
            return status if status == 200 else json.loads(text)["code"]

        body = b'{"user": "ann"}'
        assert code("/v1/recommend", body) == "key_required"
        assert code("/v1/recommend", body, key="guess") == "key_required"
        assert code("/v1/recommend", body, key="for clients") == 200
        assert code("/v1/policy", key="for clients") == "admin_key_required"
        assert code("/v1/policy", key="for admins") == 200
        assert code("/metrics", key="for clients") == 200
        assert code("/v1/log", key="for clients") == "admin_key_required"
        assert code("/health") == 200
        assert "rate_limited" in {code("/v1/categories", key="for clients") for _ in range(80)}
        assert "for admins" not in (tmp_path / "log.txt").read_text()


def test_a_key_grants_its_access_level():
    keys = ApiKeys(("client",), ("admin",))
    assert keys.level("Bearer client") == CLIENT < ADMIN
    assert keys.level("Bearer admin") == ADMIN
    assert keys.level("client") == keys.level("Bearer guess") == keys.level(None) == PUBLIC < CLIENT
    assert ApiKeys().level(None) == ADMIN


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "[::1"}, 403),
    ],
)
def test_without_keys_only_local_requests_are_accepted(server, headers, status):
    assert request(server, "/v1/recommend", b'{"user": "zoe"}', headers=headers)[0] == status


def test_an_unavailable_store_is_logged_with_its_cause_but_not_for_every_request(caplog, monkeypatch):
    monkeypatch.setattr(problems, "_logged", {})
    causes = [
        OSError(24, "too many files"),
        sqlite3.OperationalError("disk I/O error"),
        psycopg.OperationalError("down"),
    ]
    causes += [OSError(28, "full"), StoreError("cannot be written")]
    with caplog.at_level("INFO", "departing"):
        for number in range(300):
            assert as_problem(causes[number % len(causes)], f"r-{number}").code == "store_unavailable"
    events = [json.loads(JsonFormatter("server").format(record)) for record in caplog.records]
    assert [each["request_id"] for each in events] == [f"r-{number}" for number in range(len(causes))]
    for cause, event in zip(causes, events, strict=True):
        assert (event["event"], event["level"], event["error"]) == ("store_unavailable", "warning", repr(cause))
        assert type(cause).__name__ in event["traceback"]
    caplog.clear()
    monkeypatch.setattr(problems, "LOG_SECONDS", 0.0)
    as_problem(causes[0], "later")
    assert [record.fields["request_id"] for record in caplog.records] == ["later"]


@pytest.mark.parametrize(
    ("depth", "expected", "message"),
    [
        (900, (422, "invalid_request"), b"has 900 fallbacks inside each other"),
        (5000, (400, "invalid_json"), b"nested too deeply"),
    ],
)
def test_a_policy_that_is_nested_too_deeply_is_rejected(server, depth, expected, message):
    table = b'{"kind": "table", "counts": [], "categories": [], "fallback": '
    status, text = request(server, "/v1/policies", table * depth + b'{"kind": "fixed", "category": 0}' + b"}" * depth)
    assert (status, json.loads(text)["code"]) == expected
    assert message in text
