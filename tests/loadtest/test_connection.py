"""Sessions with services that misbehave."""

import asyncio
import json
from array import array
from contextlib import asynccontextmanager

import pytest

import departing as dp
from departing import client
from departing.client import ServiceError
from departing.loadtest import connection
from departing.loadtest.connection import post_request, run_sessions
from departing.loadtest.regret import StepRegret
from departing.loadtest.run import check_service
from departing.loadtest.simulated_users import SimulatedUsers
from departing.model.examples import magazine
from helpers.servers import free_port


def response(status, body, length=True):
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\n%s\r\n%s" % (status, b"Content-Length: %d\r\n" % len(text) if length else b"", text)


def problem(status, detail):
    return response(status, {"code": "some_code", "detail": detail})


@asynccontextmanager
async def serving(handle):
    """A server that handles connections; all of them are closed at the end, also those a client opened last."""
    writers = []

    async def tracked(reader, writer):
        writers.append(writer)
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)  # accepts what is pending
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)  # closes the transports


@asynccontextmanager
async def scripted(*responses):
    """A server that sends these responses in order and records requests; None closes the connection."""
    requests, remaining = [], iter(responses)

    async def handle(reader, writer):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            requests.append(head + await reader.readexactly(int(head.split(b"content-length: ")[1])))
            following = next(remaining)
            if following is None:
                return
            writer.write(following)

    async with serving(handle) as url:
        yield url, requests


def run_session(*responses, requests=1):
    """Responses that a session received, and the requests that the server received."""
    received, latencies = [], array("d")

    def session():
        for i in range(requests):
            received.append((yield post_request("/v1/recommend", {"user": str(i)})))

    async def run():
        async with scripted(*responses) as (url, sent):
            await run_sessions(url, [session()], latencies)
            return sent

    sent = asyncio.run(run())
    assert len(latencies) == len(received)
    return received, sent


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch):
    monkeypatch.setattr(connection, "TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "RETRY_PAUSE", 0.05)
    monkeypatch.setattr(client, "RETRY_PAUSES", (0.01,))


@pytest.mark.parametrize("trouble", [None, problem(503, "Full."), problem(429, "Wait.")])
def test_a_request_without_a_response_is_sent_again(trouble):
    received, sent = run_session(trouble, response(200, 1), trouble, response(200, 2), requests=2)
    assert received == [1, 2]
    assert sent[0] == sent[1] != sent[2] == sent[3]


def test_a_rate_limited_request_is_retried_without_a_time_limit():
    received, sent = run_session(*[problem(429, "Wait.")] * 10, response(200, "at last"))
    assert received == ["at last"]
    assert len(sent) == 11


def test_responses_may_arrive_in_parts_and_connections_may_close_during_a_pause():
    async def run():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for part in (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 4\r\n\r\ntr", b"ue"):
                writer.write(part)
                await asyncio.sleep(0.02)

        def session():
            for _ in range(3):
                assert (yield post_request("/", {})) is True
                yield 0.4  # longer than the timeout of a response

        async with serving(handle) as url:
            await run_sessions(url, [session()], latencies)

    latencies = array("d")
    asyncio.run(run())
    assert len(latencies) == 3


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ([b""], "does not respond."),
        ([problem(503, "The disk is full.")] * 20, "The disk is full."),
        ([problem(422, "Invalid request.")], "Invalid request."),
        ([response(500, [])], "Unexpected response with status 500."),
        ([response(200, 1, length=False)], "does not respond."),  # its end is not known
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "is not a departing service"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{"], "is not a departing service"),
    ],
)
def test_lasting_trouble_raises_an_error_of_one_sentence(responses, message):
    with pytest.raises(dp.InputError, match=message):
        run_session(*responses)


def test_a_rejected_request_raises_an_error_with_its_code():
    with pytest.raises(ServiceError) as error:
        run_session(problem(422, "Invalid request."))
    assert (error.value.code, error.value.status) == ("some_code", 422)


def test_an_unreachable_service_raises_an_error():
    def session():
        yield post_request("/", {})

    with pytest.raises(dp.InputError, match="Nothing answers at"):
        asyncio.run(run_sessions(f"http://127.0.0.1:{free_port()}", [session(), session()], array("d")))


def test_a_category_that_the_instance_lacks_raises_an_error():
    async def run():
        users = SimulatedUsers(magazine(), 1, StepRegret(magazine()))
        async with scripted(response(200, {"category": "golf"})) as (url, _):
            await run_sessions(url, [users.session()], array("d"))

    with pytest.raises(dp.InputError, match="recommends 'golf', which is not a category"):
        asyncio.run(run())


@pytest.mark.parametrize("body", [b"[]", b"hi"])
def test_a_server_that_is_not_departing_serve_raises_an_error(body):
    async def run():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + body)

        async with serving(handle) as url:
            await asyncio.to_thread(check_service, magazine(), url)

    with pytest.raises(dp.InputError, match="is not a departing service"):
        asyncio.run(run())
