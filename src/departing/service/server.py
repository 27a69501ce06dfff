"""The HTTP server of a service, and the maintenance that runs beside it."""

import asyncio
import socket
import time

from granian.constants import Interfaces
from granian.server.embed import Server

from departing.model.errors import InputError
from departing.service.api.app import App
from departing.service.api.auth import LOOPBACK, ApiKeys
from departing.service.event_log import log_event
from departing.service.service import MAX_SWEEP, Service
from departing.service.workers.supervisor import keep_training, parent_exited, stop_event

DRAIN_SECONDS = 10.0  # for open requests to finish when the service stops
REFRESH_SECONDS = 0.3  # between polls for new policy versions
SWEEP_SECONDS = 2.0  # between sweeps of inactive users
COUNT_SECONDS = 30.0  # between counts of the active users of all processes


def check_address(host: str, port: int, keys: ApiKeys) -> str:
    """Return the host to listen on; raise if other machines could connect without a key, or the port is in use.

    Granian itself would share the port with another process.
    """
    if host not in LOOPBACK and not keys.required:
        raise InputError(f"host is {host!r}; without an API key only 127.0.0.1 is allowed. Set DEPARTING_CLIENT_KEY.")
    host = "127.0.0.1" if host == "localhost" else host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise InputError(
                f"port is {port}; cannot listen at {host}: {error.strerror}. Use another port."
            ) from error
    return host


async def serve(
    service: Service,
    host: str,
    port: int,
    keys: ApiKeys,
    train: tuple[int, int] | None = None,
    learning: bool = False,
) -> None:
    """Serve until a signal stops it.

    `train` holds the number of types and a seed if this process starts the trainer; `learning` is true if
    this process or another one learns.
    """
    rollout = service.rollout
    has_plan = not learning or any(version.from_instance for version in rollout.state.versions.values())
    app = App(service, keys, lambda: has_plan or len(rollout.state.versions) > 1, learning)
    server = Server(app, address=host, port=port, interface=Interfaces.RSGI, log_enabled=False, websockets=False)
    stopped = stop_event()
    serving, maintenance = asyncio.create_task(server.serve()), asyncio.create_task(_maintain(service))
    background = [maintenance]
    if train is not None:
        background.append(asyncio.create_task(keep_training(str(service.store.address), *train)))
    log_event("started", host=host, port=port, store=service.store.name, categories=len(rollout.state.names))
    stops = [asyncio.create_task(stopped.wait()), asyncio.create_task(parent_exited())]
    await asyncio.wait([*stops, serving, maintenance], return_when=asyncio.FIRST_COMPLETED)
    failures = [task.exception() for task in (serving, maintenance) if task.done() and not task.cancelled()]
    server.stop()  # type: ignore[no-untyped-call]
    for task in [*stops, *background]:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    await asyncio.wait([serving], timeout=DRAIN_SECONDS)
    await app.endpoints.close()
    service.store.close()
    log_event("stopped")
    if failures:
        raise InputError(f"The service stopped unexpectedly: {failures[0]!r}.")


async def _maintain(service: Service) -> None:
    """Adopt new policy versions, mark inactive users as departed, and log changes of the system time."""
    swept, counted, adjustment = 0.0, 0.0, 0.0
    while True:
        try:
            if await service.refresh():
                log_event("policy_adopted", version=service.rollout.state.latest)
            if time.monotonic() - swept > SWEEP_SECONDS:
                await _sweep(service)
                swept = time.monotonic()
            if service.store.shared and time.monotonic() - counted > COUNT_SECONDS:
                await asyncio.to_thread(service.store.recount_active_users)
                counted = time.monotonic()
            if abs(getattr(service.clock, "adjustment", 0.0) - adjustment) > 1.0:
                adjustment = getattr(service.clock, "adjustment", 0.0)
                log_event("system_time_changed", seconds=round(adjustment, 1), followed=False)
        except Exception as error:  # such as a full disk: keep answering, with an error at least
            log_event("maintenance_failed", error=str(error) or repr(error))
            await asyncio.sleep(SWEEP_SECONDS)
        await asyncio.sleep(REFRESH_SECONDS)


async def _sweep(service: Service) -> None:
    """Mark users inactive for longer than `inactive_after` as departed, and free their memory."""
    departed = swept = await service.sweep()
    while swept == MAX_SWEEP:
        swept = await service.sweep()
        departed += swept
    service.store.trim()
    if departed:
        log_event("users_departed", users=departed, cause="inactive")
