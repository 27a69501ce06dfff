"""The decision log, as `departing.read_log` reads it."""

import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from departing.model.errors import InputError

if TYPE_CHECKING:
    from departing.serving.service import Service

QUERY = """
SELECT u.name, d.time, d.category, a.clicked, d.propensity, d.version, d.event, a.departed, p.user IS NOT NULL,
       d.event = (SELECT max(event) FROM decisions WHERE user = d.user)
FROM decisions d JOIN users u ON u.number = d.user LEFT JOIN answers a USING (event)
LEFT JOIN departures p ON p.user = d.user ORDER BY d.event
"""


def export_rows(service: "Service", form: str) -> tuple[str, Iterator[bytes]]:
    """The type of the content and its parts: `jsonl`, or `parquet`."""
    if form == "jsonl":
        return "application/x-ndjson", _lines(service)
    if form == "parquet":
        return "application/vnd.apache.parquet", _parquet(service)
    raise InputError(f"format is {form!r:.40}; allowed are jsonl, parquet.")


def _lines(service: "Service") -> Iterator[bytes]:
    """A line for every recommendation.

    One that was not answered is no click, if that is the setting; but the last one of a user who is here is left
    open, for an answer may come yet.
    """
    encode, names = msgspec.json.Encoder().encode, service.names
    no_click = service.settings.unseen == "no-click"
    rows = service.store.cursor(QUERY)
    while found := rows.fetchmany(5000):
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
                    "event": event,
                }
            )
            + b"\n"
            for user, time, category, clicked, propensity, version, event, departed, gone, last in found
        )


def _parquet(service: "Service") -> Iterator[bytes]:
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        lines, target = Path(folder) / "log.jsonl", Path(folder) / "log.parquet"
        with lines.open("wb") as file:
            for part in _lines(service):
                file.write(part)
        with duckdb.connect() as connection:
            columns = "{user: 'VARCHAR', time: 'TIMESTAMPTZ', category: 'VARCHAR', clicked: 'BOOLEAN', "
            columns += "departed: 'BOOLEAN', propensity: 'DOUBLE', version: 'BIGINT', event: 'BIGINT'}"
            connection.execute("SET enable_progress_bar = false")
            connection.execute(f"COPY (FROM read_json(?, columns = {columns})) TO '{target}'", [str(lines)])
        with target.open("rb") as file:
            while part := file.read(1 << 20):
                yield part
