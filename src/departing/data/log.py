"""Event logs as histories: one row for every recommendation, from files, databases, frames and warehouses."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from departing.data.columns import as_bytes, as_columns, check_categories
from departing.data.quality import LogReport, notes_on
from departing.data.query import Query
from departing.data.sources import described, opened
from departing.data.spec import LOGGED, PENDING, SILENT, LogSpec, LogSummary
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.files import atomic_write, check_suffix
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.model.validation import check_int

if TYPE_CHECKING:
    from departing.data.warehouse import Warehouse


@dataclass(frozen=True)
class Episodes:
    """Steps of some users in order, one entry a step: whole users, numbered as in all of the log.

    `step` counts a user's steps from 0, `outcome` is 0 to 3 (click, stay, depart, click and depart), `propensity` the
    chance that this category had of being recommended, not a number where it is not known, and `pending` marks a
    step after which it is not known whether the user stayed.
    """

    user: Integers
    step: Integers
    category: Integers
    outcome: Integers
    propensity: Floats
    pending: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True)
class _Origin:
    """Where a log came from, to read it again."""

    source: Any
    table: str | None
    asked: LogSpec
    memory: int

    @contextmanager
    def opened(self) -> "Iterator[Query | Warehouse]":
        """The source, read through and ready for further questions."""
        if type(self.source).__module__.split(".")[0] == "ibis":
            from departing.data.warehouse import Warehouse

            if self.table is not None:
                raise InputError(f"table is {self.table!r}, but an Ibis table is one table already.")
            yield Warehouse(self.source, self.asked)
        else:
            with opened(self.source, self.table, self.memory) as source:
                yield Query(source, self.asked)


class Log(Histories):
    """The histories in an event log, with a `report` of what was found and decided while it was read."""

    report: LogReport
    _origin: _Origin

    def __init__(self, found: LogSummary, origin: _Origin) -> None:
        counts, pending = found.counts()
        rows = Histories(counts, found.users, pending=pending, categories=found.names).distinct
        super().__init__(rows.counts, rows.multiplicity, pending=rows.pending, categories=found.names)
        report = _report(found, described(origin.source))
        report = replace(report, notes=notes_on(self.counts, self.multiplicity, found.names, report))
        object.__setattr__(self, "report", report)
        object.__setattr__(self, "_origin", origin)

    def episodes(self, users: int = 100_000) -> Iterator[Episodes]:
        """All steps in order, of so many users at a time; the log is read again for it.

        Users come in the order of the user column, and their steps by time.
        """
        users = check_int("users", users)
        with self._origin.opened() as query:
            for part in query.episodes(users):
                category, outcome = part["category"].astype(np.int64), part["outcome"].astype(np.int64)
                yield Episodes(part["user"], part["step"], category, outcome, part["propensity"], part["pending"])

    def __repr__(self) -> str:
        report, k = self.report, self.counts.shape[1]
        shown = f"{report.users:,} users, {report.censored:,} of them censored, with {report.used:,} events in {k:,} "
        shown += f"{'category' if k == 1 else 'categories'}, {len(self):,} distinct counts"
        return f"<Log of {shown}" + (f"; {report.rejected:,} events rejected>" if report.rejected else ">")


def read_log(
    source: Any,
    *,
    user: str = "user",
    time: str = "time",
    category: str = "category",
    clicked: str = "clicked",
    departed: str | None = "departed",
    propensity: str | None = "propensity",
    inactive_after: str | float | timedelta | None = None,
    categories: Iterable[object] | None = None,
    duplicates: str = "drop",
    table: str | None = None,
    rejects: str | os.PathLike[str] | None = None,
    memory_limit: str | int = "1 GB",
) -> Log:
    """Read an event log, a row for every recommendation, into the histories of its users.

    `source` is a Parquet, CSV or JSON file, a folder or glob of them, a DuckDB or SQLite file with its `table`, a
    table of pandas, Polars or Arrow, or an Ibis table of any database. The next arguments name its columns.
    `departed` marks the event after which a user left; it and `propensity`, the chance of the recommendation, are
    used if the source has such a column, and None leaves them out. With `inactive_after`, such as "30 days", users
    who are silent for that long before the end of the log departed after their last event. All others are censored,
    and whether they stayed after events in that last time of the log is not asked.

    What is irregular is decided by fixed rules and counted in `report`; rows that are rejected are written to the
    file `rejects` if one is named. `categories` fixes the categories and their order. Of rows that are equal in all
    columns one is used, or all with `duplicates="keep"`. Beyond `memory_limit` the work goes on on disk.

    >>> import tempfile, departing as dp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shop = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["news", "sport"])
    ...     run = dp.simulate(shop, dp.Walk([0], then=1), users=1000, seed=1, log=f"{folder}/events.csv")
    ...     log = read_log(f"{folder}/events.csv")
    >>> log
    <Log of 1,000 users, 0 of them censored, with 1,661 events in 2 categories, 8 distinct counts>
    """
    columns = as_columns(
        user=user, time=time, category=category, clicked=clicked, departed=departed, propensity=propensity
    )
    if duplicates not in ("drop", "keep"):
        raise InputError(f"duplicates is {duplicates!r:.80}; expected 'drop' or 'keep'.")
    asked = LogSpec(columns, inactive_after, check_categories(categories), duplicates == "keep")
    memory = as_bytes(memory_limit)
    origin = _Origin(source, table, asked, memory)
    if rejects is not None:
        check_suffix(rejects, (".parquet", ".csv"))
    with origin.opened() as query:
        found = query.histogram(memory)
        if rejects is not None:
            with atomic_write(rejects) as part:
                query.write_rejects(part)
    return Log(found, origin)


def _report(found: LogSummary, source: str) -> LogReport:
    def users(*ends: int) -> int:
        return int(found.users[np.isin(found.ends, ends)].sum())

    total, left = int(found.users.sum()), users(LOGGED, SILENT)
    return LogReport(
        source=source,
        events=found.events,
        used=found.events - sum(each.count for each in found.irregularities if each.rejected),
        users=total,
        departed=left,
        silent=users(SILENT),
        censored=total - left,
        pending=users(PENDING),
        first=found.first,
        last=found.final,
        irregularities=found.irregularities,
        notes=(),
    )
