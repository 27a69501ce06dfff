"""The decision log: as `departing.read_log` reads it, and what was last recommended."""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from departing.model.errors import InputError
from departing.service.api import messages as m
from departing.service.store.base import StoreError
from departing.service.store.connection import connect

PAST = (
    "SELECT d.event, d.key, d.time, d.category, a.clicked, a.departed "
    "FROM decisions d LEFT JOIN answers a USING (event)"
)
TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
QUERY = """
SELECT u.name, d.time, d.category, a.clicked, d.propensity, d.version, d.event, d.key, a.departed,
       p.number IS NOT NULL, d.event = (SELECT max(event) FROM decisions l WHERE l.number = d.number)
FROM decisions d JOIN users u ON u.number = d.number LEFT JOIN answers a USING (event)
LEFT JOIN departures p ON p.number = d.number {} ORDER BY d.event
"""
COLUMNS = (
    "{user: 'VARCHAR', time: 'TIMESTAMPTZ', category: 'VARCHAR', clicked: 'BOOLEAN', departed: 'BOOLEAN', "
    "propensity: 'DOUBLE', version: 'BIGINT', event: 'VARCHAR'}"
)


def check_form(form: str) -> str:
    """The form of a log, `jsonl` or `parquet`, or a sentence."""
    if form not in TYPES:
        raise InputError(f"format is {form!r:.40}; allowed are {', '.join(TYPES)}.")
    return form


def write_log(
    store: str | Path,
    unanswered: str,
    form: str,
    target: Path,
    shadow: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Write what is on disk of the log of a store to the file `target`, with a connection of its own.

    With `shadow` only what the caller decided. It is given up if it is to be `stopped`.
    """
    lines = target if form == "jsonl" else target.with_suffix(".part")
    with lines.open("wb") as file:
        for part in _lines(store, unanswered, shadow):
            file.write(part)
            if stopped():
                raise StoreError("The service is being stopped.")
    if form == "parquet":
        with duckdb.connect() as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(
                f"COPY (FROM read_json(?, columns = {COLUMNS}, format = 'newline_delimited')) TO '{target}'",
                [str(lines)],
            )
        lines.unlink()


def _lines(store: str | Path, unanswered: str, shadow: bool) -> Iterator[bytes]:
    """A line for every recommendation.

    One that was not answered is no click, if that is the setting; but the last one of a user who is here is left
    open, for an answer may come yet.
    """
    encode, no_click = msgspec.json.Encoder().encode, unanswered == "no-click"
    with closing(connect(store)) as database, database.snapshot():
        names = [name for (name,) in database.rows("SELECT name FROM categories ORDER BY category")]
        for found in database.stream(QUERY.format("WHERE d.shadow = 1" if shadow else "")):
            yield b"".join(
                encode(
                    {
                        "user": user,
                        "time": dt.datetime.fromtimestamp(time, dt.UTC).isoformat(),
                        "category": names[category],
                        "clicked": _clicked(clicked, no_click and bool(gone or not last)),
                        "departed": bool(gone and last) if departed is None else bool(departed),
                        "propensity": propensity,
                        "version": version,
                        "event": key or f"e-{event}",
                    }
                )
                + b"\n"
                for user, time, category, clicked, propensity, version, event, key, departed, gone, last in found
            )


def _clicked(clicked: int | None, over: bool) -> bool | None:
    """Whether there was a click; None where nobody knows, unless that is `over` and was none."""
    return bool(clicked) if clicked is not None or over else None


def pasts(rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> list[m.HistoryEvent]:
    """Recommendations of the past, from their rows."""
    return [
        m.HistoryEvent(key or f"e-{event}", at, names[category], _truth(clicked), _truth(departed))
        for event, key, at, category, clicked, departed in rows
    ]


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)
