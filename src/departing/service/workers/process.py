"""Child processes of the service: one launcher, a helper that answers requests, and a loop that restarts."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

from departing.service.event_log import log_event

STOP_SECONDS = 20.0  # that a child gets to stop by itself: twice as long as a server waits for its connections
MAX_RESTART_DELAY = 60.0  # seconds; the delay doubles from one second and starts again after a minute of work
MAX_LINE = 1 << 22  # bytes of one response, many times the largest plan of the explorer


async def launch(
    arguments: Sequence[str],
    environment: dict[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int | None = None,
) -> Process:
    """Start a Python process with these arguments; workers use one thread each for linear algebra."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdin=stdin,
        stdout=stdout,
        limit=MAX_LINE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | (environment or {}),
    )


async def keep_running(name: str, arguments: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a process until this is cancelled, and restart it whenever it ends."""
    delay = 1.0
    while True:
        started = time.monotonic()
        try:
            log_event(f"{name}_exited", code=await _run(arguments, environment))
        except OSError as error:
            log_event(f"{name}_not_started", error=str(error))
        delay = 1.0 if time.monotonic() - started > MAX_RESTART_DELAY else min(2 * delay, MAX_RESTART_DELAY)
        await asyncio.sleep(delay)


async def _run(arguments: Sequence[str], environment: dict[str, str] | None) -> int:
    """Run a process to its end; if this is cancelled, terminate it, and kill it if that has no effect."""
    process = await launch(arguments, environment)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise


class Helper:
    """A process that answers each line of its input with one line; started at the first request."""

    def __init__(self, arguments: Sequence[str], timeout: float | None = None) -> None:
        self._arguments, self._timeout = arguments, timeout
        self.process: Process | None = None

    async def request(self, line: bytes) -> bytes:
        """Send a line and return the response, empty if the process ended instead.

        Raises `TimeoutError` if there is no response in time. Whatever fails, the next request starts a new process.
        """
        if self.process is None or self.process.returncode is not None:
            self.process = await launch(self._arguments, stdin=PIPE, stdout=PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        response = b""
        try:
            with suppress(ConnectionError):
                self.process.stdin.write(line + b"\n")
                await self.process.stdin.drain()
                async with asyncio.timeout(self._timeout):
                    response = await self.process.stdout.readline()
        finally:
            if not response:
                await self.close()
        return response

    async def close(self) -> None:
        """Kill the process."""
        process, self.process = self.process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def answer_requests(handle: Callable[[bytes], bytes], requests: BinaryIO, responses: BinaryIO) -> None:
    """Answer the requests of a `Helper`, inside its process, until the input ends."""
    for line in requests:
        responses.write(handle(line) + b"\n")
        responses.flush()
