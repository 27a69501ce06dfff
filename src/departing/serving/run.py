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
from pathlib import Path
from typing import Any

from granian.constants import Interfaces
from granian.server.embed import Server

from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.planning.plan import plan
from departing.policy.library import describe
from departing.policy.schedule import Fixed
from departing.serving.http import App, Keys
from departing.serving.service import Service, Settings
from departing.serving.store import SqliteStore
from departing.serving.versions import Version

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PATIENCE = 10.0  # seconds to wait at the end for those who are still talking
REFRESH, SWEEP = 0.3, 2.0  # seconds between looks at the store: for new policies, for silent users
log = logging.getLogger("departing")


def open_service(
    path: Path, names: Sequence[str], instance: Instance | None, settings: Settings, seed: int | None = None
) -> Service:
    """The service of a store; a new one begins with these categories and the best policy of `instance`."""
    if instance is not None:
        names = instance.categories
    store = SqliteStore(path)
    known = [name for name, _ in store.categories()]
    if not known:
        if not names:
            store.close()
            raise InputError(f"The store {str(path)!r} is new; name its categories, or give an instance.")
        now = time.time()
        store.write(
            *(("INSERT INTO categories VALUES (?, ?, ?, NULL)", (i, name, now)) for i, name in enumerate(names))
        )
        store.settle()
    elif names and list(names) != known[: len(names)]:
        store.close()
        raise InputError(f"The store {str(path)!r} has the categories {', '.join(known)}, not {', '.join(names)}.")
    service = Service(store, settings, seed=seed)
    planned = [version.about["instance"] for version in service.versions.known.values() if _of_instance(version)]
    if instance is not None and (not planned or planned[-1] != json.loads(json.dumps(instance.document()))):
        service.publish(_planned(instance, len(service.versions.known)))
    elif not service.versions.known:
        about = {"words": "anything, all alike", "source": "the start", "uniform": True}
        service.publish(Version(0, time.time(), Fixed(0), len(service.names), about))
    store.settle()
    return service


def _of_instance(version: Version) -> bool:
    return version.about.get("source") == "the instance"


def _check_port(host: str, port: int) -> None:
    """Raise if somebody else listens there; the server itself would share the port with them."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            raise InputError(f"port is {port}; it cannot be listened on at {host}: {error.strerror}.") from error


def _planned(instance: Instance, number: int) -> Version:
    made = plan(instance, 1e-6 * max(1.0, float(instance.fixed_values.max())), 60.0)
    about = {
        "words": describe(made.policy, instance),
        "lower": made.lower,
        "upper": made.upper,
        "source": "the instance",
        "instance": instance.document(),
    }
    return Version(number, time.time(), made.policy, instance.n_categories, about)


async def serve(service: Service, host: str, port: int, keys: Keys, train: tuple[int, int] | None = None) -> None:
    """Serve until told to stop; `train` has the number of types and a seed, if it is to learn."""
    if host not in LOOPBACK and not keys.needed:
        raise InputError(f"host is {host!r}; without a key only this machine is served (127.0.0.1).")
    if host == "localhost":
        host = "127.0.0.1"
    _check_port(host, port)
    begun = train is None or any(map(_of_instance, service.versions.known.values()))
    app = App(service, keys, lambda: begun or len(service.versions.known) > 1)
    server = Server(app, address=host, port=port, interface=Interfaces.RSGI, log_enabled=False, websockets=False)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(_look_after(service))]
    trainer = None if train is None else asyncio.create_task(_keep_training(service.store.path, *train))
    tell("serving", host=host, port=port, store=str(service.store.path), categories=len(service.names))
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    failures = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    server.stop()  # type: ignore[no-untyped-call]
    for task in [waiting, *tasks[1:], *([trainer] if trainer else [])]:
        task.cancel()
    others = [*tasks[1:], *([trainer] if trainer else [])]
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.wait([tasks[0]], timeout=PATIENCE)
    service.store.close()
    tell("stopped")
    if failures:
        raise InputError(f"The service has stopped by itself: {failures[0]!r}.")


async def _look_after(service: Service) -> None:
    """Take up new policies, and find users who are silent."""
    swept = 0.0
    while True:
        try:
            if service.refresh():
                tell("policy", version=service.versions.current)
            if time.monotonic() - swept > SWEEP:
                n = service.sweep()
                service.store.trim()
                swept = time.monotonic()
                if n:
                    tell("departed", users=n, why="silent")
        except Exception as error:  # such as a full disk: go on answering, if only to say so
            tell("trouble", error=repr(error))
            await asyncio.sleep(SWEEP)
        await asyncio.sleep(REFRESH)


async def _keep_training(path: Path, types: int, seed: int) -> None:
    """Keep a trainer running, and start another if it dies."""
    pause = 1.0
    while True:
        numbers = [str(number) for number in (types, seed, os.getpid())]
        command = [sys.executable, "-m", "departing.serving.trainer", str(path), *numbers]
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL)
        started = time.monotonic()
        try:
            await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        tell("trainer died", code=process.returncode)
        pause = 1.0 if time.monotonic() - started > 60 else min(2 * pause, 60.0)
        await asyncio.sleep(pause)


def tell(what: str, **fields: Any) -> None:
    """One line of the log, as JSON."""
    log.info(json.dumps({"time": round(time.time(), 3), "event": what, **fields}))
