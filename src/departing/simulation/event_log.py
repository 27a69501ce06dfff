"""Event log of a run: a row for every recommendation, written without holding it in memory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import numpy as np

from departing.model.counts import Integers
from departing.model.files import check_writable
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Instance
from departing.model.tables import TABLE_SUFFIXES, write_errors, write_table
from departing.simulation.reference import Record

CHUNK_EVENTS = 2**20  # events collected before they go to the database: about 40 MB


@contextmanager
def event_log(path: str | os.PathLike[str], instance: Instance) -> Iterator[Record]:
    """Context with a function that records events; the file appears at `path` only if the context succeeds.

    Columns: user and time (integers from 0), category (its name), clicked, departed.
    """
    check_writable(path, TABLE_SUFFIXES)
    with (
        tempfile.TemporaryDirectory(prefix=".departing-", dir=Path(path).parent) as folder,
        closing(duckdb.connect(str(Path(folder) / "events.duckdb"))) as database,
    ):
        with write_errors(path):
            writer = _Writer(database, instance, path)
        yield writer.record
        writer.flush()
        write_table(database, "FROM events", path)


class _Writer:
    """Buffer that moves events into the database in chunks."""

    def __init__(self, database: duckdb.DuckDBPyConnection, instance: Instance, path: str | os.PathLike[str]) -> None:
        self.database, self.names, self.path, self.waiting = database, list(instance.categories), path, 0
        self.events: list[tuple[Integers, Integers, Integers, Integers]] = []
        database.execute("SET enable_progress_bar = false")
        database.execute(
            'CREATE TABLE events ("user" BIGINT, "time" BIGINT, category VARCHAR, clicked BOOLEAN, departed BOOLEAN)'
        )

    def record(self, users: Integers, time: int, categories: Integers, outcomes: Integers) -> None:
        """Record one recommendation to each of `users`."""
        self.events.append((users.copy(), np.full(len(users), time), categories, outcomes))
        self.waiting += len(users)
        if self.waiting >= CHUNK_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Move the buffered events into the database."""
        if not self.events:
            return
        user, time, category, outcome = (np.concatenate(column) for column in zip(*self.events, strict=True))
        chunk = {
            "u": user,
            "t": time,
            "c": category,
            "clicked": (outcome == CLICK) | (outcome == CLICK_DEPART),
            "departed": outcome >= DEPART,
        }
        self.database.register("chunk", chunk)
        insert = "INSERT INTO events SELECT u, t, ($1)[c + 1], clicked, departed FROM chunk"
        with write_errors(self.path):
            self.database.execute(insert, [self.names])
        self.events, self.waiting = [], 0
