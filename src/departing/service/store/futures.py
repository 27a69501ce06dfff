"""Results that a thread hands to calls which wait in event loops."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def resolve(futures: Iterable["asyncio.Future[Any]"], results: Iterable[Any]) -> None:
    """Hand results to futures of any thread's event loop; a result that is an exception is raised there."""
    by_loop = defaultdict(list)
    for pair in zip(futures, results, strict=True):
        by_loop[pair[0].get_loop()].append(pair)
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set_results, pairs)


def _set_results(pairs: list[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
