"""Downloads of the decision log: read from a snapshot at the pace of the client, and never kept in a file."""

import asyncio
import os
import select
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any

from departing.service.api.connections import drop_connection, is_connected
from departing.service.api.problems import ProblemCode, ProblemError
from departing.service.event_log import log_event
from departing.service.export import log_parts
from departing.service.service import Service

MAX_EXPORTS = 4  # at once; each holds a snapshot of the store, a thread and a few megabytes (250 for Parquet)
RETRY_SECONDS = 10  # until a client should try again that was refused
SHORT = 1 << 20  # bytes of a log that is sent at once
PIPE = 1 << 16  # bytes that a pipe holds at most
# A client must read at least this many bytes per second on average, after a pause at most: a snapshot that stays open
# keeps the database from reusing space.
MIN_RATE, MAX_PAUSE = 100_000, 60.0
POLL_MILLISECONDS = 100  # between two looks at the limits while a client does not read
STOP_SECONDS = 5.0  # for exports to end when the service stops; a query of the store may take longer


class ExportError(Exception):
    """A download that cannot be completed."""


class Exports:
    """Starts downloads, a few at a time."""

    def __init__(self, service: Service) -> None:
        self._service, self._running = service, set[Export]()
        self._pool = ThreadPoolExecutor(MAX_EXPORTS, "export")
        self.stopping = threading.Event()

    async def start(self, log_format: str) -> "bytes | Export":
        """Read the first part of the log; return it if it is all, else an export that sends the rest."""
        if self.stopping.is_set():
            raise ProblemError(ProblemCode.STOPPING, "The service is stopping; send the request again.")
        if len(self._running) >= MAX_EXPORTS:
            detail = f"{MAX_EXPORTS} downloads of the log are running; retry after {RETRY_SECONDS} seconds."
            raise ProblemError(ProblemCode.EXPORT_LIMIT, detail, ("retry-after", str(RETRY_SECONDS)))
        settings = self._service.settings
        features = settings.segment_columns
        parts = log_parts(self._service.store.read, settings.missing_feedback, log_format, features=features)
        export = Export(self, parts)
        self._running.add(export)
        try:
            await self._service.flush()
            short: bytes | None = await self.in_thread(export.read_first)
        except BaseException:
            await export.close()
            raise
        if short is None:
            return export
        await export.close()
        return short

    async def in_thread(self, call: Any, *arguments: Any) -> Any:
        """Run a call in a thread for exports."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    def ended(self, export: "Export") -> None:
        """Make room for another export."""
        self._running.discard(export)

    async def stop(self) -> None:
        """End all exports; their clients notice that they are incomplete.

        This must happen before the server stops: it holds the interpreter lock while it waits for the ends of pipes.
        """
        self.stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        while self._running and time.monotonic() < deadline:
            await asyncio.sleep(POLL_MILLISECONDS / 1000)
        for export in list(self._running):  # threads remove theirs
            export.abandon()


class Export:
    """A log on its way to a client: a thread writes it into a pipe, from which the server sends it.

    A pipe holds 64 kB, so the thread waits for the client. The server's own streams would take the whole log into
    memory.
    """

    def __init__(self, exports: Exports, parts: Generator[bytes, None, None]) -> None:
        self._exports, self._all = exports, parts
        self._parts: Iterator[bytes] = parts
        self._closed, self._client = False, ""
        self._ends: set[int] = set()  # of the pipe
        self._reading = threading.Lock()  # held while a thread reads the parts: a request may be cancelled meanwhile

    def read_first(self) -> bytes | None:
        """Read up to `SHORT` bytes; return them if they are the whole log."""
        first, size = list[bytes](), 0
        with self._reading:
            for part in self._all:
                first.append(part)
                size += len(part)
                if size > SHORT:
                    self._parts = chain(first, self._all)
                    return None
        return b"".join(first)

    async def send(self, protocol: Any, client: str, status: int, headers: list[tuple[str, str]]) -> None:
        """Respond with the log; returns when all of it is written, or the client is gone."""
        try:
            read_end, write_end = os.pipe()
            self._ends = {read_end, write_end}
            protocol.response_file(status, headers, f"/dev/fd/{read_end}")
            self._client = client
            await self._exports.in_thread(self._write, read_end, write_end)
        finally:
            await self.close()

    def _write(self, read_end: int, write_end: int) -> None:
        with self._reading:
            if not self._closed:
                self._write_parts(read_end, write_end)

    def _write_parts(self, read_end: int, write_end: int) -> None:
        os.set_blocking(write_end, False)
        room = select.poll()
        room.register(write_end, select.POLLOUT)
        started, sent = time.monotonic(), 0
        try:
            for part in self._parts:
                rest = memoryview(part)
                while rest:
                    if self._exports.stopping.is_set():
                        raise ExportError("the service is stopping")
                    if self._closed:
                        raise ExportError("the request was cancelled")
                    if time.monotonic() - started > MAX_PAUSE + sent / MIN_RATE:
                        raise ExportError(f"the client reads less than {MIN_RATE:,} bytes per second")
                    if not room.poll(POLL_MILLISECONDS):
                        if sent <= PIPE and not is_connected(self._client):
                            raise BrokenPipeError  # which `write` does not, because `read_end` is open
                        continue
                    written = os.write(write_end, rest[:PIPE])
                    sent, rest = sent + written, rest[written:]
                    if sent > PIPE:  # the server reads: it has opened the pipe for itself
                        self._close_ends({read_end})
        except BrokenPipeError:  # the client has closed the connection
            log_event("export_ended", client=self._client, bytes=sent)
        except BaseException as error:  # the response must not look complete
            dropped, text = drop_connection(self._client), str(error) or repr(error)
            log_event("export_failed", client=self._client, bytes=sent, error=text, dropped=dropped)
        finally:
            self._close_ends({read_end, write_end})

    def _close_ends(self, ends: set[int]) -> None:
        for end in ends:
            with suppress(KeyError):  # another thread closes it
                self._ends.remove(end)
                os.close(end)

    def abandon(self) -> None:
        """Close the connection although the thread still waits for the store."""
        if self._client:
            log_event("export_failed", client=self._client, error="the store does not respond")
            drop_connection(self._client)
            self._close_ends(set(self._ends))

    async def close(self) -> None:
        """Close the snapshot and the pipe, once no thread uses them."""
        if not self._closed:
            self._closed = True
            await asyncio.shield(self._exports.in_thread(self._finish))

    def _finish(self) -> None:
        try:
            with self._reading:
                self._all.close()
        finally:
            if self._ends and self._client:  # the request was cancelled before anything was written
                drop_connection(self._client)
            self._close_ends(set(self._ends))
            self._exports.ended(self)
