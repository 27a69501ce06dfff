"""The HTTP server of a service, and the maintenance that runs beside it."""

import asyncio
import errno
import logging
import socket
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from departing.model.errors import InputError
from departing.service import tracing
from departing.service.api import connections
from departing.service.api.app import App
from departing.service.api.auth import LOOPBACK, ApiKeys
from departing.service.api.bodies import TICK_SECONDS, BodyReader
from departing.service.api.connection_usage import WATCH_SECONDS, ConnectionUsage
from departing.service.drift_monitor import DriftMonitor
from departing.service.event_log import log_event
from departing.service.experiments.manager import Experiments
from departing.service.service import MAX_SWEEP, Service
from departing.service.store.connection import abort_snapshots
from departing.service.workers.supervisor import keep_training, parent_exited, stop_event

DRAIN_SECONDS = 10.0  # for open requests to finish when the service stops
LISTEN_SECONDS = 0.01  # between two looks whether the server listens
DROP_SECONDS = 0.1  # for the server to drop its connections: what it still holds at exit is reported as leaked
ABORT_SECONDS = 0.05  # between two attempts to end all threads that read the store
REFRESH_SECONDS = 0.3  # between polls for new policy versions
SWEEP_SECONDS = 2.0  # between sweeps of inactive users
COUNT_SECONDS = 30.0  # between counts of the active users of all processes
DRIFT_SECONDS = 10.0  # between looks for drift
WARNING_SECONDS = 10.0  # between searches for reasons to warn
Work = tuple[Callable[[], Awaitable[None]], str, float]  # a call, what follows if it fails, and the pause after it


class PortInUseError(InputError):
    """A port on which another process listens, at least at present."""

    exit_code = 1


def check_address(host: str, port: int, keys: ApiKeys) -> str:
    """Return the host to listen on; raise if other machines could connect without a key, or the port is in use.

    Granian itself would share the port with another process.
    """
    if host not in LOOPBACK and not keys.required:
        local = "expected 127.0.0.1, ::1 or localhost without an API key"
        raise InputError(f"host is {host!r}; {local}. Set DEPARTING_CLIENT_KEY to listen on other addresses.")
    host = "127.0.0.1" if host == "localhost" else host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            kind = PortInUseError if error.errno == errno.EADDRINUSE else InputError
            raise kind(f"port is {port}; cannot listen at {host}: {error.strerror}. Use another port.") from error
    return host


async def serve(
    service: Service,
    host: str,
    port: int,
    keys: ApiKeys,
    train: tuple[int | str, int] | None = None,
    learning: bool = False,
    access_log: bool = False,
    drain_delay: float = 0.0,
) -> None:
    """Serve until a signal stops it.

    `train` holds the number of types, or "auto", and a seed if this process starts the trainer; `learning` is true if
    this process or another one learns. After the signal `/ready` fails, and `drain_delay` seconds later, or at a
    second signal, the server accepts no more connections and finishes open requests.
    """
    rollout = service.rollout
    has_plan = not learning or any(version.from_instance for version in rollout.state.versions.values())

    def is_ready() -> bool:  # also if an operator pins the initial version
        latest = rollout.state.versions[rollout.state.latest]
        return has_plan or latest.is_learned or not latest.uniform

    app = App(service, keys, is_ready, learning, access_log)
    usage = app.endpoints.usage = ConnectionUsage(connections.max_connections(), port)
    server, stopped = http_server(_traced(app), host, port, usage.allowed), stop_event()
    serving = asyncio.create_task(server.serve())
    watches = [*_watches(app.bodies, usage), (DriftMonitor(service).check, "Drift is not looked for", DRIFT_SECONDS)]
    maintenance = asyncio.create_task(_maintain(service, app.endpoints.experiments, watches))
    background = [maintenance]
    if train is not None:
        background.append(asyncio.create_task(keep_training(str(service.store.address), *train)))
    while not connections.limit_unread(port) and not serving.done():
        await asyncio.sleep(LISTEN_SECONDS)
    if not serving.done():
        service.add_warnings(usage.warnings)
        _log_start(service, host, port)
    stops = [asyncio.create_task(stopped.wait()), asyncio.create_task(parent_exited())]
    await asyncio.wait([*stops, serving, maintenance], return_when=FIRST_COMPLETED)
    failures = [_cause(task) for task in (serving, maintenance) if task.done()]
    app.endpoints.draining = True
    if stopped.is_set() and drain_delay > 0 and not failures:
        log_event("draining", seconds=drain_delay)
        stopped.clear()
        stops.append(asyncio.create_task(stopped.wait()))
        await asyncio.wait([stops[-1], serving, maintenance], timeout=drain_delay, return_when=FIRST_COMPLETED)
    await app.endpoints.exports.stop()
    server.stop()  # type: ignore[no-untyped-call]
    for task in [*stops, *background]:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    await _close(service, app, serving, port)
    log_event("stopped")
    if failures:
        raise InputError(f"The service stopped unexpectedly: {failures[0]}.")


def _log_start(service: Service, host: str, port: int) -> None:
    """Log that the service has started, and its warnings."""
    log_event(
        "started",
        host=host,
        port=port,
        store=service.store.name,
        categories=len(service.rollout.state.names),
        departures=service.settings.rule.describe(),
        learning=service.settings.learn,
        shadow=service.rollout.state.shadow,
    )
    _log_warnings(service.warnings())


def _cause(task: asyncio.Task[Any]) -> str:
    """Return why a task has ended that should not."""
    error = None if task.cancelled() else task.exception()
    return "the server ended without an error" if error is None else repr(error)


async def _close(service: Service, app: App, serving: asyncio.Task[Any], port: int) -> None:
    """Wait for open requests, write everything to disk, and end the threads."""
    draining = asyncio.create_task(app.drain())
    await asyncio.wait([serving, draining], timeout=DRAIN_SECONDS, return_when=FIRST_COMPLETED)
    await app.endpoints.close()
    service.store.close()
    connections.drop_all(port)  # those that are idle or have sent half of a request
    await asyncio.sleep(DROP_SECONDS)
    tracing.stop()
    # Nobody waits for what threads still read, and a database that hangs would keep the process from ending.
    threads = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    while abort_snapshots() or not threads.done():
        await asyncio.sleep(ABORT_SECONDS)


def _traced(app: App) -> Any:
    """Return the application, with a span for each request if traces are on."""
    reason = tracing.start("server")
    if reason is not None:
        log_event("traces_off", logging.WARNING, error=reason)
    if tracing.tracer is None:
        return app
    from departing.service.api.traced import TracedApp

    return TracedApp(app, tracing.tracer)


def http_server(app: Any, host: str, port: int, max_connections: int) -> Server:
    """Return the server. HTTP/1 only, because the limit of silent connections needs it, and proxies speak it."""
    settings = HTTP1Settings(
        header_read_timeout=int(1000 * connections.IDLE_SECONDS), max_buffer_size=connections.MAX_HEADERS
    )
    return Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=connections.BACKLOG,
        backpressure=max_connections,
        http1_settings=settings,
        log_enabled=False,
    )


def _watches(bodies: BodyReader, usage: ConnectionUsage) -> list[Work]:
    """Return the maintenance tasks that protect the server from slow and silent clients."""
    return [
        (bodies.check, "Bodies that arrive too slowly are not rejected", TICK_SECONDS),
        (usage.check, "Silent connections are not closed to make room for others", WATCH_SECONDS),
    ]


async def _maintain(service: Service, experiments: Experiments, watches: Sequence[Work] = ()) -> None:
    """Run all maintenance tasks, each in a loop of its own, so that one that fails or takes long delays no other."""
    adjustment = 0.0

    async def refresh() -> None:
        if await service.refresh():
            log_event("policy_adopted", version=service.rollout.state.latest)

    async def count() -> None:
        if service.store.shared:
            await asyncio.to_thread(service.store.recount_active_users)

    async def warn() -> None:
        nonlocal adjustment
        _log_warnings(await service.check())
        now = getattr(service.clock, "adjustment", 0.0)
        if abs(now - adjustment) > 1.0:
            adjustment = now
            log_event("system_time_changed", logging.WARNING, seconds=round(adjustment, 1), followed=False)

    async with asyncio.TaskGroup() as group:
        for work, consequence, pause in (
            (refresh, "New policies and changes of other processes are not adopted", REFRESH_SECONDS),
            (lambda: _sweep(service), "Users who are inactive do not count as departed", SWEEP_SECONDS),
            (experiments.check, "The guardrail of the experiment is not checked", REFRESH_SECONDS),
            (count, "The number of active users is out of date", COUNT_SECONDS),
            (warn, "Counters are not checked for reasons to warn", WARNING_SECONDS),
            *watches,
        ):
            group.create_task(_repeat(service.failing, work, consequence, pause))


async def _repeat(
    failing: dict[str, str], work: Callable[[], Awaitable[None]], consequence: str, pause: float
) -> None:
    """Do maintenance work again and again; while it fails, `failing` holds a warning with its consequence."""
    while True:
        try:
            await work()
            if failing.pop(consequence, None):
                log_event("maintenance_resumed", warning=consequence)
        except Exception as error:  # such as a full disk: keep answering, with an error at least
            warning = f"{consequence}: {' '.join(str(error).split()) or repr(error)}"
            if failing.get(consequence) != warning:
                log_event("maintenance_failed", logging.ERROR, error, warning=consequence)
            failing[consequence] = warning
            await asyncio.sleep(SWEEP_SECONDS)
        await asyncio.sleep(pause)


def _log_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        log_event("warning", logging.WARNING, text=warning)


async def _sweep(service: Service) -> None:
    """Mark users inactive for longer than `inactive_after` as departed, and free their memory."""
    departed = swept = await service.sweep()
    while swept > MAX_SWEEP // 2:  # a user may become active between the reading and the sweep
        await service.flush()  # or those who have just departed would be read again
        swept = await service.sweep()
        departed += swept
    service.store.trim()
    if departed:
        log_event("users_departed", users=departed, cause="inactive")
