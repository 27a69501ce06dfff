"""Export of the decision log in the format that `departing.read_log` reads."""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from departing.model.errors import InputError
from departing.model.tables import disable_progress_bar
from departing.service import messages as m
from departing.service.store import queries
from departing.service.store.base import StoreError
from departing.service.store.connection import Database

CONTENT_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
COLUMNS = (
    "{user: 'VARCHAR', time: 'TIMESTAMPTZ', category: 'VARCHAR', clicked: 'BOOLEAN', departed: 'BOOLEAN', "
    "propensity: 'DOUBLE', version: 'BIGINT', event: 'VARCHAR'}"
)
Read = Callable[[], AbstractContextManager[Database]]


def check_format(name: str) -> str:
    """Return the name of a log format, `jsonl` or `parquet`; raise if it is another."""
    if name not in CONTENT_TYPES:
        raise InputError(f"format is {name!r:.40}; expected one of {', '.join(CONTENT_TYPES)}.")
    return name


def write_log(
    read: Read,
    missing_feedback: str,
    log_format: str,
    target: Path,
    shadow: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Write the log of a store to the file `target`; with `shadow` only decisions of the caller.

    `read` opens a snapshot of the store, as `Store.read` does. Raises `StoreError` once `stopped()` is true.
    """
    lines = target if log_format == "jsonl" else target.with_suffix(".part")
    with lines.open("wb") as file, read() as snapshot:
        for part in _lines(snapshot, missing_feedback, shadow):
            file.write(part)
            if stopped():
                raise StoreError("The service is stopping; retry after its restart.")
    if log_format == "parquet":
        with duckdb.connect() as connection:
            disable_progress_bar(connection)
            connection.execute(
                f"COPY (FROM read_json(?, columns = {COLUMNS}, format = 'newline_delimited')) TO '{target}'",
                [str(lines)],
            )
        lines.unlink()


def _lines(snapshot: Database, missing_feedback: str, shadow: bool) -> Iterator[bytes]:
    """Yield one JSON line for every recommendation, several lines at a time.

    Without feedback `clicked` is false if missing feedback means no click, except in the last recommendation of an
    active user: its feedback may still arrive.
    """
    encode, no_click = msgspec.json.Encoder().encode, missing_feedback == "no-click"
    names = [name for name, _ in snapshot.execute(queries.CATEGORIES)]
    for rows in snapshot.stream(queries.SHADOW_LOG if shadow else queries.LOG):
        yield b"".join(
            encode(
                {
                    "user": user,
                    "time": dt.datetime.fromtimestamp(time, dt.UTC).isoformat(),
                    "category": names[category],
                    "clicked": bool(clicked) if clicked is not None or (no_click and (gone or not last)) else None,
                    "departed": bool(gone and last) if departed is None else bool(departed),
                    "propensity": propensity,
                    "version": version,
                    "event": key or f"e-{event}",
                }
            )
            + b"\n"
            for user, time, category, clicked, propensity, version, event, key, departed, gone, last in rows
        )


def history_events(rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> list[m.HistoryEvent]:
    """Return past recommendations from their rows."""
    return [
        m.HistoryEvent(key or f"e-{event}", time, names[category], _optional_bool(clicked), _optional_bool(departed))
        for event, key, time, category, clicked, departed in rows
    ]


def _optional_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)
