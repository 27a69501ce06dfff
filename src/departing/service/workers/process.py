"""Child processes of the service: one launcher, a helper that answers requests, and a loop that restarts."""

import asyncio
import logging
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from departing.model.errors import InputError
from departing.service.event_log import log_event
from departing.service.messages import NestingError

STOP_SECONDS = 20.0  # that a child gets to stop by itself: twice as long as a server waits for its connections
MAX_RESTART_DELAY = 60.0  # seconds; the delay doubles from one second and starts again after a minute of work
INVALID = b"!"  # in front of the message of an `InputError`; no JSON document starts with it
NESTED = b"?"  # response to a request that is nested too deeply
MAX_MESSAGE = 2000  # characters of the message of an `InputError`, which may repeat what was sent
MAX_LINE = 1 << 22  # bytes of one response, many times the largest plan of the explorer
T = TypeVar("T")


async def launch(
    arguments: Sequence[str],
    environment: dict[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a Python process with these arguments; workers use one thread each for linear algebra.

    It has a session of its own: at Ctrl-C the terminal signals this process only, which then stops its children.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdin=stdin,
        stdout=stdout,
        limit=MAX_LINE,
        pass_fds=pass_fds,
        start_new_session=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | (environment or {}),
    )


async def keep_running(
    name: str,
    arguments: Sequence[str],
    environment: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    drain_delay: float = 0.0,
) -> None:
    """Run a process until this is cancelled, and restart it whenever it ends."""
    delay = 1.0
    while True:
        started = time.monotonic()
        try:
            code = await _run(arguments, environment, pass_fds, STOP_SECONDS + drain_delay)
            log_event(f"{name}_exited", logging.WARNING, code=code)
        except OSError as error:
            log_event(f"{name}_not_started", logging.ERROR, error=str(error))
        delay = 1.0 if time.monotonic() - started > MAX_RESTART_DELAY else min(2 * delay, MAX_RESTART_DELAY)
        await asyncio.sleep(delay)


async def _run(
    arguments: Sequence[str], environment: dict[str, str] | None, pass_fds: Sequence[int], stop_seconds: float
) -> int:
    """Run a process to its end; if this is cancelled, terminate it, and kill it if that has no effect."""
    process = await launch(arguments, environment, pass_fds=pass_fds)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        try:
            async with asyncio.timeout(stop_seconds):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise


class Helper(Generic[T]):
    """A process that answers each request, a line of JSON, with a line; started at the first request."""

    def __init__(self, arguments: Sequence[str], result: type[T], timeout: float | None = None) -> None:
        self._arguments, self._result, self._timeout = arguments, result, timeout
        self.process: Process | None = None

    async def request(self, request: msgspec.Struct) -> T | None:
        """Return the result of a request, None if the process ended or its response is invalid.

        Raises `InputError` if the request is invalid, `NestingError` if it is nested too deeply, and `TimeoutError`
        if there is no response in time. Whatever fails, the next request starts a new process.
        """
        try:
            line = msgspec.json.encode(request) + b"\n"
        except RecursionError as error:
            raise NestingError from error
        if self.process is None or self.process.returncode is not None:
            self.process = await launch(self._arguments, stdin=PIPE, stdout=PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        response = b""
        try:
            with suppress(ConnectionError):
                self.process.stdin.write(line)
                await self.process.stdin.drain()
                async with asyncio.timeout(self._timeout):
                    response = await self.process.stdout.readline()
        finally:
            if not response:
                await self.close()
        try:
            if response.startswith(NESTED):
                raise NestingError
            if response.startswith(INVALID):
                message = msgspec.json.decode(response.removeprefix(INVALID), type=str)
            else:
                return msgspec.json.decode(response, type=self._result) if response else None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log_event("invalid_response", logging.ERROR, command=" ".join(self._arguments), error=str(error))
            await self.close()
            return None
        raise InputError(message)

    async def close(self) -> None:
        """Kill the process."""
        process, self.process = self.process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def answer_requests(handle: Callable[[T], msgspec.Struct], request: type[T]) -> None:
    """Answer the requests of a `Helper`, inside its process, until the input ends."""
    decode, encode = msgspec.json.Decoder(request).decode, msgspec.json.encode
    for line in sys.stdin.buffer:
        try:
            response = encode(handle(decode(line)))
        except InputError as error:
            response = INVALID + encode(str(error)[:MAX_MESSAGE])
        except RecursionError:
            response = NESTED
        sys.stdout.buffer.write(response + b"\n")
        sys.stdout.buffer.flush()
