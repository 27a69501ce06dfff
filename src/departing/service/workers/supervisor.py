"""Running the service: one process that serves, one that trains; both stop without losing anything."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from granian.constants import Interfaces
from granian.server.embed import Server

from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import Instance
from departing.planning.plan import plan
from departing.policy.schedule import Fixed
from departing.service.api.app import App
from departing.service.api.auth import LOOPBACK, ApiKeys
from departing.service.policy_version import GIVEN, Version, told_of
from departing.service.rollout import category_row
from departing.service.service import HERE, Service, Settings
from departing.service.service import SWEEP as SWEPT
from departing.service.store.base import NOTHING, Store, StoreError
from departing.service.store.connection import connect, is_postgres
from departing.service.store.sqlite import SqliteStore

WORKER = "DEPARTING_WORKER"  # of a process that is one of several: its number and theirs, as in 0/2
PARENT = "DEPARTING_PARENT"  # the process that started it
PATIENCE = 10.0  # seconds to wait at the end for those who are still talking
REFRESH, SWEEP, COUNT = 0.3, 2.0, 30.0  # seconds between looks: for new policies, silent users, how many are here
log = logging.getLogger("departing")


def open_store(address: str) -> Store:
    """The store at an address: a file, or a PostgreSQL database."""
    if is_postgres(address):
        try:
            from departing.service.store.postgres import PostgresStore
        except ImportError as error:
            raise MissingExtraError("PostgreSQL needs psycopg; install it with: pip install '.[postgres]'") from error
        return PostgresStore(address)
    if "://" in str(address):
        raise InputError(f"store is {str(address)!r:.80}; expected a file, or postgresql://….")
    return SqliteStore(Path(address))


def open_service(
    address: str, names: Sequence[str], instance: Instance | None, settings: Settings, seed: int | None = None
) -> Service:
    """The service of a store; a new one begins with these categories and the best policy of `instance`."""
    if instance is not None:
        names = instance.categories
    store = open_store(address)

    async def begin() -> Service:
        await store.act(NOTHING, lambda: _name_categories(store, names))
        service = await store.act(NOTHING, lambda: Service(store, settings, seed=seed))
        planned = None if instance is None or not _to_plan(service, instance) else _planned(service, instance)
        await store.act(NOTHING, lambda: _publish_first(service, planned))
        return service

    try:
        return asyncio.run(begin())
    except BaseException as error:
        store.close()
        if isinstance(error, StoreError):
            raise InputError(str(error)) from error
        raise


def _name_categories(store: Store, names: Sequence[str]) -> None:
    known = [name for name, _ in store.categories()]
    if not known and not names:
        raise InputError(f"The store {store.name} is new; name its categories, or give an instance.")
    if known and names and list(names) != known[: len(names)]:
        raise InputError(f"The store {store.name} has the categories {', '.join(known)}, not {', '.join(names)}.")
    if not known:
        now = time.time()
        store.write(*(category_row(i, name, now) for i, name in enumerate(names)))


def _to_plan(service: Service, instance: Instance) -> bool:
    """Whether a plan for the instance is still to be made: there is none, or for other categories than are shown."""
    catalogue = service.catalogue
    made = [version.about for version in catalogue.versions.known.values() if version.given]
    if not made or made[-1]["instance"] != json.loads(json.dumps(instance.to_dict())):
        return True
    shown = [a for a in catalogue.shown if a < instance.n_categories]
    return catalogue.current.given and made[-1].get("shown", shown) != shown


def _publish_first(service: Service, planned: Version | None) -> None:
    """Publish a plan, if one was made; anything, all alike, if there is nothing yet."""
    catalogue = service.catalogue
    catalogue.refresh()
    if planned is not None:
        catalogue.publish(planned)
    elif not catalogue.versions.known:
        about = {"words": "anything, all alike", "source": "the start", "uniform": True}
        catalogue.publish(Version(0, time.time(), Fixed(0), len(catalogue.names), about))


def check_place(host: str, port: int, keys: ApiKeys) -> str:
    """Where to listen; raise if strangers could call without a key, or if somebody else listens there.

    The server itself would share the port with them.
    """
    if host not in LOOPBACK and not keys.required:
        raise InputError(f"host is {host!r}; without a key only this machine is served (127.0.0.1).")
    host = "127.0.0.1" if host == "localhost" else host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise InputError(f"port is {port}; it cannot be listened on at {host}: {error.strerror}.") from error
    return host


def _planned(service: Service, instance: Instance) -> Version:
    shown = [a for a in service.catalogue.shown if a < instance.n_categories]
    made = plan(instance, 1e-6 * max(1.0, float(instance.fixed_values.max())), 60.0, allowed=shown)
    about = told_of(made.policy, instance) | {
        "lower": made.lower,
        "upper": made.upper,
        "source": GIVEN,
        "shown": shown,
    }
    return Version(-1, time.time(), made.policy, instance.n_categories, about)


async def serve(
    service: Service,
    host: str,
    port: int,
    keys: ApiKeys,
    train: tuple[int, int] | None = None,
    learning: bool = False,
) -> None:
    """Serve until told to stop; `train` has the number of types and a seed, if this process is to see to learning."""
    catalogue = service.catalogue
    begun = not learning or any(version.given for version in catalogue.versions.known.values())
    app = App(service, keys, lambda: begun or len(catalogue.versions.known) > 1, learning)
    server = Server(app, address=host, port=port, interface=Interfaces.RSGI, log_enabled=False, websockets=False)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.create_task(server.serve())
    others = [asyncio.create_task(_look_after(service))]
    if train is not None:
        others.append(asyncio.create_task(_keep_training(str(service.store.address), *train)))
    tell("serving", host=host, port=port, store=service.store.name, categories=len(catalogue.names))
    waiting = [asyncio.create_task(stopped.wait()), asyncio.create_task(_orphaned())]
    await asyncio.wait([*waiting, serving, others[0]], return_when=asyncio.FIRST_COMPLETED)
    failures = [task.exception() for task in (serving, others[0]) if task.done() and not task.cancelled()]
    server.stop()  # type: ignore[no-untyped-call]
    for task in [*waiting, *others]:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.wait([serving], timeout=PATIENCE)
    await app.close()
    service.store.close()
    tell("stopped")
    if failures:
        raise InputError(f"The service has stopped by itself: {failures[0]!r}.")


async def supervise(workers: int) -> None:
    """Run as many processes like this one, start those again that die, and stop them all when told to stop."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    code = "from departing.cli import main; main()"
    command = [sys.executable, "-c", code, *sys.argv[1:]]
    common = {PARENT: str(os.getpid())}
    tasks = [
        asyncio.create_task(_keep("worker", command, common | {WORKER: f"{number}/{workers}"}))
        for number in range(workers)
    ]
    await stopped.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _orphaned() -> None:
    """Wait until whoever started this worker is gone; for ever if it is not one of several."""
    parent = int(os.environ.get(PARENT, "0"))
    while not parent or os.getppid() == parent:
        await asyncio.sleep(REFRESH)


async def _look_after(service: Service) -> None:
    """Take up new policies, find users who are silent, count who is here; say so if the clock was set."""
    swept, counted, ahead = 0.0, 0.0, 0.0
    while True:
        try:
            if await service.refresh():
                tell("policy", version=service.catalogue.versions.current)
            if time.monotonic() - swept > SWEEP:
                n = await service.sweep()
                while n and n % SWEPT == 0 and (more := await service.sweep()):
                    n += more
                service.store.trim()
                swept = time.monotonic()
                if n:
                    tell("departed", users=n, why="silent")
            if service.store.shared and time.monotonic() - counted > COUNT:
                service.store.here = await asyncio.to_thread(_count_here, service.store.address)
                counted = time.monotonic()
            if abs(getattr(service.clock, "ahead", 0.0) - ahead) > 1.0:
                ahead = getattr(service.clock, "ahead", 0.0)
                tell("clock set", seconds=round(ahead, 1), followed=False)
        except Exception as error:  # such as a full disk: go on answering, if only to say so
            tell("trouble", error=str(error) or repr(error))
            await asyncio.sleep(SWEEP)
        await asyncio.sleep(REFRESH)


def _count_here(address: str | Path) -> int:
    """How many users are here, of all processes."""
    with closing(connect(address)) as database:
        return int(database.rows(HERE)[0][0])


async def _keep_training(address: str, types: int, seed: int) -> None:
    """Keep a trainer running; the address, which may have a password in it, is not for others to see."""
    numbers = [str(number) for number in (types, seed, os.getpid())]
    command = [sys.executable, "-m", "departing.service.workers.trainer", *numbers]
    await _keep("trainer", command, {"DEPARTING_STORE": address, "OPENBLAS_NUM_THREADS": "1"})


async def _keep(what: str, command: list[str], environment: dict[str, str]) -> None:
    """Keep a process running, and start it again if it dies."""
    pause = 1.0
    while True:
        started = time.monotonic()
        try:
            tell(f"{what} died", code=await _run(command, environment))
        except OSError as error:
            tell(f"{what} cannot be started", error=str(error))
        pause = 1.0 if time.monotonic() - started > 60 else min(2 * pause, 60.0)
        await asyncio.sleep(pause)


async def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a process to its end; if this is cancelled, it is told to end, and made to if it does not."""
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, env=os.environ | environment)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise


def tell(what: str, **fields: Any) -> None:
    """One line of the log, as JSON."""
    log.info(json.dumps({"time": round(time.time(), 3), "event": what, **fields}))
