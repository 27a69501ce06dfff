"""Concurrent sessions with a service, each over its own connection, with retries."""

import asyncio
import json
import time
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

try:
    import httptools
except ImportError as error:
    from departing.model.errors import MissingExtraError

    raise MissingExtraError("The load test needs httptools; install it with: pip install '.[serve]'") from error

from departing.client import RETRY_STATUSES, ServiceError, parse_url, unreachable
from departing.model.errors import InputError

TIMEOUT = 30.0  # seconds without a response, retries included, after which a session fails
RETRY_PAUSE = 0.2  # seconds; a service that restarts is up again after a few retries
RATE_LIMITED = 429  # retried without a time limit: the service works, only slower than wanted

FINISHED = "finished"  # code of the response to a user who has had all recommendations of the horizon

# Yields requests and receives decoded responses, or a ServiceError `finished`; yields pauses in seconds.
Session = Generator[bytes | float, Any, None]


def post_request(path: str, body: object, headers: bytes = b"host: localhost\r\n") -> bytes:
    """Return a POST request with these header lines.

    >>> post_request("/v1/depart", {"user": "ann"})
    b'POST /v1/depart HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: 15\\r\\n\\r\\n{"user": "ann"}'
    """
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (path.encode(), headers, len(content), content)


class Connection(asyncio.Protocol):
    """Sends the requests of a session one by one, passes it the responses, and records latencies.

    A request without a response is sent again, over a new connection if the old one is lost.
    """

    def __init__(self, session: Session, latencies: "array[float]", url: str = "The service") -> None:
        self.session, self.latencies, self.url = session, latencies, url
        self.done = False
        self._error: Exception | None = None
        self._started, self._request, self._body, self._since, self._trouble = False, b"", b"", 0.0, ""
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    async def run(self, connect: Callable[[Callable[[], "Connection"]], Any]) -> None:
        """Run the session to its end; `connect` opens a connection."""
        self._since = time.perf_counter()
        while not self.done:
            self._lost.clear()
            try:
                await connect(lambda: self)
                await self._until_lost()
            except OSError as error:
                if self._late:
                    raise InputError(unreachable(self.url, error)) from error
            finally:
                if self._transport is not None:
                    self._transport.abort()
            if not self.done:
                await asyncio.sleep(RETRY_PAUSE)
        if self._error is not None:
            raise self._error

    async def _until_lost(self) -> None:
        while not self._lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), min(1.0, TIMEOUT))
            if self._request and self._late and not self.done:
                raise InputError(self._trouble)

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self._since > TIMEOUT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session, or send again the request that has no response."""
        self._transport, self._body = cast(asyncio.Transport, transport), b""
        self._parser = httptools.HttpResponseParser(self)
        if self._started:
            self._send()
        else:
            self._started = True
            self._resume()

    def connection_lost(self, error: Exception | None) -> None:
        """Let `run` open a new connection."""
        if not self._request:
            self._since = time.perf_counter()
        self._lost.set()

    def _resume(self, response: object = None) -> None:
        """Pass a response to the session, and do what it yields next."""
        try:
            item = self.session.send(response)
        except StopIteration:
            self._end()
        except Exception as error:
            self._end(error)
        else:
            if isinstance(item, bytes):
                self._request, self._since = item, time.perf_counter()
                self._trouble = f"{self.url} does not respond within {TIMEOUT:g} seconds."
                self._send()
            else:
                asyncio.get_running_loop().call_later(item, self._resume)

    def _send(self) -> None:
        if self._request and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._request)

    def _end(self, error: Exception | None = None) -> None:
        self.done, self._error = True, error
        if self._transport is not None:
            self._transport.close()
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls `on_body` and `on_message_complete`."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._end(not_departing(self.url, error))

    def on_body(self, part: bytes) -> None:
        """Collect a part of the body."""
        self._body += part

    def on_message_complete(self) -> None:
        """Handle a response."""
        status, body = self._parser.get_status_code(), self._body
        self._body = b""
        problem = None if status == 200 else ServiceError.of_response(status, body)
        if problem is None or problem.code == FINISHED:
            response = json.loads(body) if problem is None else problem
            self.latencies.append(time.perf_counter() - self._since)
            self._request = b""
            self._resume(response)
        elif status in RETRY_STATUSES:
            self._trouble = problem.detail
            if status == RATE_LIMITED:
                self._since = time.perf_counter()
            asyncio.get_running_loop().call_later(RETRY_PAUSE, self._send)
        else:
            self._end(problem)


def not_departing(url: str, error: Exception) -> ServiceError:
    """Return the error of a response that `departing serve` never sends."""
    problem = ServiceError("unexpected_response", None, f"{url} is not a departing service: unexpected response.")
    problem.__cause__ = error
    return problem


def header_lines(url: str, key: str | None = None) -> bytes:
    """Return the header lines of all requests.

    >>> header_lines("http://127.0.0.1:8080", "secret")
    b'host: 127.0.0.1:8080\\r\\nauthorization: Bearer secret\\r\\n'
    """
    host = urlsplit(url).netloc.rpartition("@")[2]
    return (f"host: {host}\r\n" + (f"authorization: Bearer {key}\r\n" if key else "")).encode()


async def run_sessions(url: str, sessions: Iterable[Session], latencies: "array[float]") -> None:
    """Run all sessions concurrently, each over its own connection."""
    host, port, tls = parse_url(url)
    loop = asyncio.get_running_loop()

    def connect(protocol: Callable[[], Connection]) -> Any:
        return loop.create_connection(protocol, host, port, ssl=tls or None)

    tasks = [asyncio.create_task(Connection(session, latencies, url).run(connect)) for session in sessions]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
