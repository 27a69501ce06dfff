"""Speaking to a service over many connections at once, as fast as it answers, and again where it does not."""

import asyncio
import json
import time
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from departing.client import RETRY_STATUSES, ServiceError
from departing.model.errors import InputError

PATIENCE = 30.0  # seconds that a request may go unanswered, tries and all
PAUSE = 0.2  # seconds between two tries
BUSY = 429  # the status of those who ask too often; they need patience without end

Talk = Generator[bytes | float, Any, None]  # requests, which are given the answers, and pauses in seconds


def post(path: str, body: object, head: bytes = b"host: localhost\r\n") -> bytes:
    """A request with these header lines.

    >>> post("/v1/depart", {"user": "ann"})
    b'POST /v1/depart HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: 15\\r\\n\\r\\n{"user": "ann"}'
    """
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (path.encode(), head, len(content), content)


class Asker(asyncio.Protocol):
    """Sends what a talk wants to send, one request after the other, gives it the answers, and takes the times.

    A request without an answer is sent again, over another connection where there is none any more.
    """

    def __init__(self, talk: Talk, times: "array[float]", url: str = "The service") -> None:
        self.talk, self.times, self.url = talk, times, url
        self.over = False
        self._error: Exception | None = None
        self._begun, self._request, self._buffer, self._since, self._trouble = False, b"", b"", 0.0, ""
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    async def run(self, connect: Callable[[Callable[[], "Asker"]], Any]) -> None:
        """Talk to the end; `connect` makes a connection."""
        self._since = time.perf_counter()
        while not self.over:
            self._lost.clear()
            try:
                await connect(lambda: self)
                await self._connected()
            except OSError as error:
                if self._late:
                    raise InputError(f"{self.url} cannot be reached: {error!r}.") from error
            finally:
                if self._transport is not None:
                    self._transport.abort()
            if not self.over:
                await asyncio.sleep(PAUSE)
        if self._error is not None:
            raise self._error

    async def _connected(self) -> None:
        """Wait until the connection is lost."""
        while not self._lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), min(1.0, PATIENCE))
            if self._request and self._late and not self.over:
                raise InputError(self._trouble)

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self._since > PATIENCE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or send again what was not answered."""
        self._transport, self._buffer = cast(asyncio.Transport, transport), b""
        if self._begun:
            self._send()
        else:
            self._begun = True
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing can be sent any more."""
        if not self._request:
            self._since = time.perf_counter()
        self._lost.set()

    def _go_on(self, answer: object = None) -> None:
        """Give the talk its answer, and do what it wants next."""
        try:
            wanted = self.talk.send(answer)
        except StopIteration:
            self._end()
        except Exception as error:
            self._end(error)
        else:
            if isinstance(wanted, bytes):
                self._request, self._since = wanted, time.perf_counter()
                self._trouble = f"{self.url} does not answer."
                self._send()
            else:
                asyncio.get_running_loop().call_later(wanted, self._go_on)

    def _send(self) -> None:
        if self._request and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._request)

    def _end(self, error: Exception | None = None) -> None:
        self.over, self._error = True, error
        if self._transport is not None:
            self._transport.close()
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        """Take an answer when all of it has come."""
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        fields = self._buffer[:head].lower()
        place = fields.find(b"content-length:")
        try:
            status = int(fields[9:12])
            length = int(fields[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else -1
            if length < 0:
                raise ValueError
            if len(self._buffer) >= head + 4 + length:
                text, self._buffer = self._buffer[head + 4 : head + 4 + length], b""
                self._take(status, text)
        except ValueError:
            self._end(InputError(f"{self.url} does not answer as departing serve does."))

    def _take(self, status: int, text: bytes) -> None:
        if status == 200:
            answer = json.loads(text)
            self.times.append(time.perf_counter() - self._since)
            self._request = b""
            self._go_on(answer)
        elif status in RETRY_STATUSES:
            self._trouble = ServiceError.of_response(status, text).detail
            if status == BUSY:
                self._since = time.perf_counter()
            asyncio.get_running_loop().call_later(PAUSE, self._send)
        else:
            self._end(ServiceError.of_response(status, text))


def place_of(url: str) -> tuple[str, int, bool]:
    """The host, the port, and whether to speak TLS.

    >>> place_of("http://127.0.0.1:8080"), place_of("https://recommend.example")
    (('127.0.0.1', 8080, False), ('recommend.example', 443, True))
    """
    try:
        parts = urlsplit(url)
        host, port, tls = parts.hostname, parts.port, parts.scheme == "https"
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InputError(f"url is {url!r:.80}; expected something like http://127.0.0.1:8080.")
    return host, port or (443 if tls else 80), tls


def head_of(url: str, key: str | None = None) -> bytes:
    """The header lines of all requests.

    >>> head_of("http://127.0.0.1:8080", "secret")
    b'host: 127.0.0.1:8080\\r\\nauthorization: Bearer secret\\r\\n'
    """
    host = urlsplit(url).netloc.rpartition("@")[2]
    return (f"host: {host}\r\n" + (f"authorization: Bearer {key}\r\n" if key else "")).encode()


async def converse(url: str, talks: Iterable[Talk], times: "array[float]") -> None:
    """Hold all talks at once, each over a connection of its own."""
    host, port, tls = place_of(url)
    loop = asyncio.get_running_loop()

    def connect(asker: Callable[[], Asker]) -> Any:
        return loop.create_connection(asker, host, port, ssl=tls or None)

    tasks = [asyncio.create_task(Asker(talk, times, url).run(connect)) for talk in talks]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
