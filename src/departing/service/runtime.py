"""Event loop and garbage collector of a server process."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

# Net allocations between collections of young objects, and collections of a generation between those of the next one.
# Requests make no reference cycles, so frequent collections find nothing: at 50,000 they take 1 % of the CPU time of
# batches instead of 30 %, and what a rare cycle holds stays below about 25 MB.
GC_THRESHOLDS = 50_000, 20, 100


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the main coroutine of a server, on uvloop if it is installed."""
    gc.collect()
    gc.freeze()  # modules, policies and routes live as long as the process
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(main)
    finally:
        gc.unfreeze()  # extension modules report objects that are left at exit


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the class of the event loop, None for that of asyncio."""
    try:
        import uvloop
    except ImportError:  # as on Windows
        return None
    return uvloop.new_event_loop
