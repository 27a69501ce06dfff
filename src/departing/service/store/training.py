"""Access of the trainer, a process of its own, to a store."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from departing.service.store import queries
from departing.service.store.base import Write
from departing.service.store.connection import Database, connect

T = TypeVar("T")


class TrainingStore:
    """Reads training data from a store that other processes serve from, and publishes policy versions to it."""

    def __init__(self, address: str | Path) -> None:
        self._database = connect(address)

    def acquire_lock(self) -> bool:
        """Try to become the store's only trainer until this is closed; return whether this is it."""
        return self._database.acquire_trainer_lock()

    @contextmanager
    def read(self) -> Iterator[Database]:
        """Open a snapshot of what is on disk."""
        with self._database.snapshot():
            yield self._database

    def setting(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Return a stored JSON document, parsed; None if there is none."""
        rows = self._database.execute(queries.SETTING, key)
        return parse(json.loads(rows[0][0])) if rows else None

    def publish(self, writes_from: Callable[[int], list[Write]]) -> None:
        """Write what `writes_from` returns for the first free version number, all or nothing."""
        with self._database.transaction():
            ((latest,),) = self._database.execute(queries.LATEST_POLICY)
            for query, values in writes_from(latest + 1):
                self._database.execute(query, *values)

    def close(self) -> None:
        """Close the connection, and with it the lock."""
        self._database.close()
