"""Supervisor: serves from several worker processes, and restarts those that end."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from departing.service.workers.process import keep_running

WORKER = "DEPARTING_WORKER"  # set in a worker process: its index and the number of workers, such as 0/2
METRICS = "DEPARTING_METRICS"  # set in a worker process: the descriptor of the file in which all workers count
PARENT = "DEPARTING_PARENT"  # set in a worker process: the process ID of the supervisor
POLL_SECONDS = 0.3


async def supervise(workers: int, metrics: int, drain_delay: float) -> None:
    """Run this command in as many worker processes, until a signal asks to stop.

    `metrics` is the file in which all workers count; `drain_delay` are the seconds that they take before they stop.
    """
    stopped = stop_event()
    arguments = ["-c", "from departing.cli import main; main()", *sys.argv[1:]]
    environment = {PARENT: str(os.getpid()), METRICS: str(metrics)}
    tasks = [
        asyncio.create_task(
            keep_running("worker", arguments, environment | {WORKER: f"{index}/{workers}"}, (metrics,), drain_delay)
        )
        for index in range(workers)
    ]
    await stopped.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def parent_exited() -> None:
    """Wait until the supervisor of this worker has ended; without a supervisor, wait forever."""
    parent = int(os.environ.get(PARENT, "0"))
    while not parent or os.getppid() == parent:
        await asyncio.sleep(POLL_SECONDS)


def keep_training(address: str, types: int | str, seed: int) -> Coroutine[Any, Any, None]:
    """Keep a trainer running; the address may contain a password and is therefore not an argument."""
    arguments = ["-m", "departing.service.workers.trainer", *map(str, (types, seed, os.getpid()))]
    return keep_running("trainer", arguments, {"DEPARTING_STORE": address})
