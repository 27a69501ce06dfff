"""Protection of callers and of the service: keys, other sites, headers and hostile bodies."""

import http.client
import json
import socket
from contextlib import suppress

import pytest

from departing.service.api import auth
from departing.service.api.auth import CLIENT, PUBLIC, ApiKeys
from departing.service.api.problems import ProblemError
from helpers.servers import serving

OPTIONS = ("--learn", "--departures", "reported", "--categories", "news,sports,music")
KEYS = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
BODY = b'{"user": "ann"}'
PROTECTION = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("local"), *OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("keys"), *OPTIONS, environment=KEYS) as running:
        yield running


def send(server, method, path, body=None, **headers):
    """The response to a request, with its body as `text`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    response.text = response.read()
    connection.close()
    return response


def send_raw(server, *lines):
    """The start of the response to a request with these header lines."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"\r\n".join([*lines, b"connection: close", b"", b""]))
        return connection.recv(1 << 16)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/health", 200),
        ("GET", "/v1/policy", 200),
        ("GET", "/v1/log", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/v1/recommend", 405),
        ("POST", "/v1/recommend", 400),
    ],
)
def test_every_response_has_headers_that_protect_the_browser(server, method, path, status):
    response = send(server, method, path, b"{" if method != "GET" else None)
    assert response.status == status
    assert PROTECTION.items() <= {name.lower(): value for name, value in response.getheaders()}.items()
    assert "frame-ancestors 'none'" in response.getheader("content-security-policy")
    if status >= 400:
        assert response.getheader("content-type") == PROBLEM


@pytest.mark.parametrize("path", ["/", "/health", "/v1/policy", "/v1/users/nobody", "/openapi.json"])
def test_head_has_the_headers_of_get_and_no_body(server, path):
    get, head = send(server, "GET", path), send(server, "HEAD", path)
    assert (head.status, head.text) == (get.status, b"")
    for name in ("content-type", "content-length"):
        assert head.getheader(name) == get.getheader(name)
    refused = send(server, "HEAD", "/v1/recommend")
    assert (refused.status, refused.getheader("allow")) == (405, "POST")


CROSS_SITE = [
    *(("GET", path, "cross-site", "empty", 403) for path in ("/", "/health", "/v1/log", "/v1/policy")),
    ("GET", "/v1/log", "same-site", "empty", 403),
    ("GET", "/v1/log", "cross-site", "document", 403),  # a link to the log
    ("GET", "/", "cross-site", "iframe", 403),
    ("GET", "/", "cross-site", "document", 200),  # a link to the page
    ("GET", "/explorer", "same-site", "document", 200),
    ("POST", "/v1/recommend", "cross-site", "empty", 403),
    ("GET", "/v1/log", "same-origin", "empty", 200),
    ("GET", "/v1/log", "none", "document", 200),  # typed by the user
]


@pytest.mark.parametrize(("method", "path", "site", "destination", "status"), CROSS_SITE)
def test_other_sites_cannot_make_a_browser_call_the_service(server, method, path, site, destination, status):
    body = BODY if method == "POST" else None
    response = send(server, method, path, body, Sec_Fetch_Site=site, Sec_Fetch_Dest=destination)
    assert response.status == status
    if status == 403:
        assert json.loads(response.text)["code"] == "local_only"


def test_a_key_authenticates_a_request_of_another_site(with_keys):
    for key, status in (("for clients", 200), ("wrong", 401)):
        headers = {"authorization": f"Bearer {key}", "Sec_Fetch_Site": "cross-site", "host": "recommend.example"}
        assert send(with_keys, "POST", "/v1/recommend", BODY, **headers).status == status


@pytest.mark.parametrize(
    "lines",
    [
        [b"GET /v1/policy HTTP/1.0"],
        [b"GET /v1/policy HTTP/1.1"],
        [b"GET /v1/policy HTTP/1.1", b"host: \xff"],
        [b"GET /v1/policy HTTP/1.1", b"host: localhost", b"host: evil.example"],
        [b"GET /v1/policy HTTP/1.1", b"host: evil.example", b"host: localhost"],
        [b"GET /v1/policy HTTP/1.1", b"host: localhost", b"host: localhost"],
        [b"GET /v1/policy HTTP/1.1", b"host: "],
        [b"GET /v1/policy HTTP/1.1", b"host: localhost.evil.example"],
    ],
)
def test_without_keys_a_request_names_this_machine_as_its_only_host(server, lines):
    response = send_raw(server, *lines)
    assert b" 403 " in response or b" 400 " in response
    assert b" 200 " in send_raw(server, b"GET /v1/policy HTTP/1.1", b"host: LOCALHOST:80")


def test_http2_without_encryption_is_not_spoken(server):
    response = send_raw(server, b"PRI * HTTP/2.0", b"", b"SM", b"")
    assert b" 200 " not in response


def test_the_scheme_of_a_key_is_case_insensitive_and_a_refusal_names_it(with_keys):
    for header in ("Bearer for clients", "bearer for clients", "BEARER  for clients"):
        assert send(with_keys, "GET", "/v1/categories", authorization=header).status == 200
    missing = send(with_keys, "GET", "/v1/categories")
    assert (missing.status, missing.getheader("www-authenticate")) == (401, 'Bearer realm="departing"')
    for header in ("Basic for clients", "for clients", "Bearer", "Bearer "):
        wrong = send(with_keys, "GET", "/v1/categories", authorization=header)
        assert wrong.status in (401, 429)
    assert send(with_keys, "GET", "/v1/policy", authorization="Bearer for clients").status == 403


def test_wrong_keys_are_limited_and_the_right_one_is_not(tmp_path):
    rare = "from departing.service.api import auth; auth.WRONG_KEY_RATE = 1e-3"  # however slow the machine
    with serving(tmp_path, *OPTIONS, environment=KEYS, setup=rare) as server:
        answers = [send(server, "GET", "/v1/categories", authorization=f"Bearer {i}") for i in range(40)]
        statuses = [answer.status for answer in answers]
        assert statuses == [401] * 10 + [429] * 30
        assert "invalid_token" in answers[0].getheader("www-authenticate")
        refused = answers[statuses.index(429)]
        assert (refused.getheader("retry-after"), json.loads(refused.text)["code"]) == ("1", "rate_limited")
        assert send(server, "GET", "/v1/categories", authorization="Bearer for clients").status == 200
        assert send(server, "GET", "/v1/categories").status == 401  # no key is not a wrong one
        assert (tmp_path / "log.txt").read_text().count('"wrong_keys"') == 1


class Caller:
    """Address and headers of a request, by which a caller is known."""

    def __init__(self, client, header="Bearer wrong"):
        self.client, self.headers = client, {"authorization": header}


@pytest.mark.parametrize("start", [b"POST /nothing", b"POST /health", b"POST /v1/recommend"])
def test_large_bodies_of_requests_without_a_key_or_a_route_are_not_read(with_keys, start):
    answer = send_raw(with_keys, start + b" HTTP/1.1", b"host: localhost", b"content-length: 8000000")
    assert answer.split()[1] in (b"404", b"405", b"401")  # 408 if it waited for the body


def test_spaces_in_front_of_a_key_do_not_raise_its_rate():
    keys, accepted = ApiKeys(("client",), ("admin",), rate=1.0), 0
    for spaces in range(1, 50):
        with suppress(ProblemError):
            keys.check(CLIENT, Caller("10.0.0.1:1", "Bearer" + " " * spaces + "client"))
            accepted += 1
    assert accepted == 10
    keys.check(CLIENT, Caller("10.0.0.1:1", "Bearer admin"))  # has a rate of its own


def test_wrong_keys_of_many_addresses_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(auth, "MAX_BUCKETS", 100)
    keys = ApiKeys(("right",))
    for i in range(1000):
        with pytest.raises(ProblemError, match="not valid"):
            keys.check(CLIENT, Caller(f"10.0.{i // 256}.{i % 256}:5000"))
    assert len(keys.wrong) == 100
    codes = []
    for i in range(12):  # all of one network
        with pytest.raises(ProblemError) as error:
            keys.check(CLIENT, Caller(f"[2001:db8::{i}]:5000"))
        codes.append(error.value.code.status)
    assert codes[:10] == [401] * 10
    assert codes[-1] == 429
    keys.check(CLIENT, Caller("[2001:db8::1]:5000", "bearer right"))
    assert keys.level("Bearer ") == PUBLIC


def post_paths(server):
    """All paths that accept POST, from the OpenAPI document."""
    paths = json.loads(send(server, "GET", "/openapi.json").text)["paths"]
    found = [path.replace("{experiment}", "1") for path, methods in paths.items() if "post" in methods]
    assert len(found) >= 11
    return found


@pytest.mark.parametrize("depth", [1001, 1500, 30_000])
def test_json_that_is_nested_too_deeply_is_a_mistake_of_the_caller(server, depth):
    lists = b"[" * depth + b"]" * depth
    bodies = (
        lists,
        b'{"instance": {"prior": ' + lists + b"}}",
        b'{"policy": ' + lists + b"}",
        b'{"kind": "fixed", "category": ' + lists + b"}",
        b'{"user": ' + lists + b"}",
        b'{"user": "ann", "unknown": ' + lists + b"}",
        b'[{"event": ' + lists + b"}]",
        b'{"x": ' * depth + b"1" + b"}" * depth,
        b'{"instance": ' * depth + b"{}" + b"}" * depth,
        b'{"policy": ' * depth + b"{}" + b"}" * depth,
    )
    wrong = []
    for path in post_paths(server):
        for body in bodies:
            response = send(server, "POST", path, body)
            code = json.loads(response.text)["code"]
            if (response.status, code, response.getheader("content-type")) != (400, "invalid_json", PROBLEM):
                wrong.append((path, body[:40], response.status, code))
    assert not wrong
    assert send(server, "GET", "/health").status == 200


@pytest.mark.parametrize("depth", [10, 200, 980])
def test_nested_json_is_no_error_of_the_service(server, depth):
    lists = b"[" * depth + b"]" * depth
    for path in post_paths(server):
        for body in (lists, b'{"user": ' + lists + b"}", b'{"policy": ' + lists + b"}"):
            response = send(server, "POST", path, body)
            assert response.status in (400, 422), (path, body[:30], response.text)
            assert response.getheader("content-type") == PROBLEM


@pytest.mark.parametrize(
    "body",
    [
        b'{"user": "' + b"[" * 5000 + b'"}',
        b'{"user": "\\"' + b"[{" * 2000 + b'"}',
        b'{"user": "ann", "event": "' + b'{\\"' * 100 + b'"}',
    ],
)
def test_brackets_in_a_text_are_not_nested(server, body):
    response = send(server, "POST", "/v1/recommend", body)
    assert response.status != 400, response.text
