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
from departing.model.tables import TABLE_SUFFIXES, quoted, write_errors, write_table
from departing.simulation.reference import Record, Users
from departing.simulation.segments import segment_columns

COLUMNS = ("user", "time", "category", "clicked", "departed", "reward")  # of every log, or of one with rewards
CHUNK_EVENTS = 2**20  # events collected before they go to the database: about 40 MB


@contextmanager
def event_log(path: str | os.PathLike[str], instance: Instance) -> Iterator[Record]:
    """Context with a function that records events; the file appears at `path` only if the context succeeds.

    Columns: user and time (integers from 0), those of the segment, category (its name), clicked, departed, and the
    reward if clicks have one.
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
        self.events: list[tuple[Integers, Integers, Integers, Integers, Integers]] = []
        self.n_types, self.reward = instance.n_types, instance.reward
        self.columns = {} if instance.segments is None else segment_columns(instance.segments, COLUMNS)
        self.rewarded = rewarded = "reward" in instance.extensions
        features = "".join(f", {quoted(name)} VARCHAR" for name in self.columns)
        database.execute("SET enable_progress_bar = false")
        database.execute(
            f'CREATE TABLE events ("user" BIGINT, "time" BIGINT{features}, category VARCHAR, clicked BOOLEAN, '
            f"departed BOOLEAN{', reward DOUBLE' if rewarded else ''})"
        )
        selected = "".join(f", (${i})[s + 1]" for i in range(2, len(self.columns) + 2))
        selected = f"u, t{selected}, ($1)[c + 1], clicked, departed{', reward' if rewarded else ''}"
        self.insert = f"INSERT INTO events SELECT {selected} FROM chunk"

    def record(self, users: Users, time: int, categories: Integers, outcomes: Integers) -> None:
        """Record one recommendation to each of `users`; with segments their types are those of a joined instance."""
        segments = users.types // self.n_types if self.columns else categories[:0]
        self.events.append((users.ids.copy(), np.full(len(users), time), categories, outcomes, segments))
        self.waiting += len(users)
        if self.waiting >= CHUNK_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Move the buffered events into the database."""
        if not self.events:
            return
        user, time, category, outcome, segment = (np.concatenate(column) for column in zip(*self.events, strict=True))
        clicked = (outcome == CLICK) | (outcome == CLICK_DEPART)
        chunk = {
            "u": user,
            "t": time,
            "c": category,
            "clicked": clicked,
            "departed": outcome >= DEPART,
        }
        if self.columns:
            chunk["s"] = segment
        if self.rewarded:
            chunk["reward"] = np.where(clicked, self.reward[category], 0.0)
        self.database.register("chunk", chunk)
        with write_errors(self.path):
            self.database.execute(self.insert, [self.names, *self.columns.values()])
        self.events, self.waiting = [], 0
