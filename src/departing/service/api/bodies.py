"""Bodies of requests: limited in size, and in the time that they take to arrive."""

import asyncio
import math
import time
from typing import Any

from granian._granian import RSGIProtocolClosed

from departing.service.api.problems import ProblemCode, ProblemError

MAX_BODY = 1 << 20  # bytes; 1,000 feedback rows whose event IDs are 100 escaped characters take 645 kB
# Bytes that are read of a body that is too large: most callers then get a response instead of a broken connection.
MAX_READ = 8 * MAX_BODY
# Seconds for a whole body to arrive: long enough for slow networks, short enough to free connections held open.
BODY_SECONDS = 10.0
SMALL = 1 << 16  # bytes of a body that is received as a whole; larger ones are counted part by part
# Bytes of all bodies that arrive at once, so that many connections cannot fill the memory. Beyond it the oldest
# are refused: the body of an ordinary client arrives within a moment, and is never the oldest of so many.
MAX_ARRIVING = 64 * MAX_BODY
RETRY_SECONDS = 1  # until a client should try again that was refused because of `MAX_ARRIVING`
TICK_SECONDS = 0.5  # between two looks at the bodies that arrive
INCOMPLETE = "The connection was closed before the body was complete."
EXPIRED, REFUSED = -1.0, -2.0  # in place of the time since when a body arrives


class BodyReader:
    """Reads bodies, and rejects those that take too long.

    `check` looks at all requests whose body arrives, because a timer for each would cost ten times as much.
    """

    def __init__(self) -> None:
        self._arriving: dict[asyncio.Task[Any] | None, float] = {}  # requests, and since when their body arrives
        self._now, self._stopping = time.monotonic(), False
        self._held: dict[asyncio.Task[Any] | None, int] = {}  # requests, the oldest first, and the bytes counted
        self.n_bytes = 0  # of all bodies that arrive

    async def read(self, scope: Any, protocol: Any, max_size: int) -> bytes:
        """Return the body; raise if it is larger than `max_size`, or does not arrive completely and in time.

        With a `max_size` of 0 any body is dropped as it arrives, and the result is empty. A chunked body
        ends like a broken connection does; only the end of the JSON document in it shows that it is complete.
        """
        task, state = asyncio.current_task(), 0.0
        header = scope.headers.get("content-length")
        length = MAX_READ if header is None else int(header)
        self._arriving[task] = self._now
        try:
            if length <= SMALL and max_size:
                self._hold(task, length)
                return bytes(await protocol())
            return await self._read_parts(protocol, task, None if header is None else length, max_size)
        except asyncio.CancelledError:
            state = self._arriving[task]
            if task is None or state not in (EXPIRED, REFUSED):
                raise
            task.uncancel()
        except RSGIProtocolClosed as error:
            raise ProblemError(ProblemCode.INCOMPLETE_BODY, INCOMPLETE) from error
        finally:
            self._release(task)
            del self._arriving[task]
        if state == REFUSED:
            raise _overloaded()
        if self._stopping:
            raise ProblemError(ProblemCode.STOPPING, "The service is stopping; send the request again.")
        detail = f"The body did not arrive within {BODY_SECONDS:g} seconds."
        raise ProblemError(ProblemCode.REQUEST_TIMEOUT, detail)

    async def _read_parts(
        self, protocol: Any, task: asyncio.Task[Any] | None, length: int | None, max_size: int
    ) -> bytes:
        """Return a body that is received part by part; nothing is kept of one that is too large."""
        body, size = bytearray(), 0
        async for part in protocol:
            size += len(part)
            if max(size, length or 0) <= max_size:
                self._hold(task, len(part))
                body += part
            elif body:
                body = bytearray()
                self._release(task)
            if size > MAX_READ:
                break
        if length is not None and size < min(length, MAX_READ):
            raise ProblemError(ProblemCode.INCOMPLETE_BODY, INCOMPLETE)
        if size > max_size > 0:
            detail = f"The body exceeds {max_size >> 20} MiB ({max_size:,} bytes); send less at once."
            raise ProblemError(ProblemCode.BODY_TOO_LARGE, detail)
        return bytes(body)

    def _hold(self, task: asyncio.Task[Any] | None, n_bytes: int) -> None:
        """Count bytes of a body; refuse the oldest bodies if there are too many, raise if this is one of them."""
        self._held[task] = self._held.get(task, 0) + n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > MAX_ARRIVING:
            oldest = next(iter(self._held))
            self._release(oldest)
            if oldest is task or oldest is None:
                raise _overloaded()
            if self._arriving[oldest] != EXPIRED:
                self._arriving[oldest] = REFUSED
                oldest.cancel()

    def _release(self, task: asyncio.Task[Any] | None) -> None:
        self.n_bytes -= self._held.pop(task, 0)

    async def check(self) -> None:
        """Reject bodies that take too long; to be called every `TICK_SECONDS`."""
        self._now = time.monotonic()
        self._expire(self._now - BODY_SECONDS)

    async def stop(self) -> None:
        """Reject bodies that do not arrive within a moment."""
        self._stopping = True
        await asyncio.sleep(TICK_SECONDS)
        self._expire(math.inf)

    def _expire(self, before: float) -> None:
        for task, since in list(self._arriving.items()):
            if task is not None and EXPIRED < since < before:
                self._arriving[task] = EXPIRED
                task.cancel()


def _overloaded() -> ProblemError:
    detail = f"More than {MAX_ARRIVING >> 20} MiB of requests arrive at once; retry after a second."
    return ProblemError(ProblemCode.OVERLOADED, detail, ("retry-after", str(RETRY_SECONDS)))
