"""Export of the decision log in the format that `departing.read_log` reads."""

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from typing import IO, Any

import msgspec

from departing.model.errors import InputError
from departing.model.tables import literal
from departing.service import messages as m
from departing.service.event_id import format_event_id
from departing.service.parquet import parquet_parts
from departing.service.segment_names import segment_features
from departing.service.store import queries
from departing.service.store.connection import Database

CONTENT_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
COLUMNS = {
    "user": "VARCHAR",
    "time": "TIMESTAMPTZ",
    "category": "VARCHAR",
    "clicked": "BOOLEAN",
    "departed": "BOOLEAN",
    "propensity": "DOUBLE",
    "version": "BIGINT",
    "experiment": "BIGINT",
    "arm": "VARCHAR",
    "segment": "VARCHAR",
    "reward": "DOUBLE",
    "event": "VARCHAR",
}
Read = Callable[[], AbstractContextManager[Database]]
Parts = Generator[bytes, None, None]


def check_format(name: str) -> str:
    """Return the name of a log format, `jsonl` or `parquet`; raise if it is another."""
    if name not in CONTENT_TYPES:
        raise InputError(f"format is {name!r:.40}; expected one of {', '.join(CONTENT_TYPES)}.")
    return name


def log_parts(
    read: Read, missing_feedback: str, log_format: str, shadow: bool = False, features: Sequence[str] = ()
) -> Parts:
    """Yield the log of a store in parts of a few megabytes at most, as the bytes of a file.

    Parameters
    ----------
    read
        Opens a snapshot of the store, as `Store.read` does. It is open until the parts are read or closed.
    missing_feedback
        Meaning of a recommendation without feedback.
    log_format
        `jsonl` or `parquet`.
    shadow
        Only decisions of the caller.
    features
        Features of which segments are composed; each has a column.
    """
    lines = _read_lines(read, missing_feedback, shadow, features)
    if log_format == "jsonl":
        return lines
    columns = COLUMNS | dict.fromkeys(features, "VARCHAR")
    return parquet_parts(lines, f"{{{', '.join(f'{literal(name)}: {kind!r}' for name, kind in columns.items())}}}")


def write_log(read: Read, missing_feedback: str, log_format: str, file: IO[bytes], shadow: bool = False) -> None:
    """Write the log of a store to a file."""
    with closing(log_parts(read, missing_feedback, log_format, shadow)) as parts:
        for part in parts:
            file.write(part)
    file.flush()


def _read_lines(read: Read, missing_feedback: str, shadow: bool, features: Sequence[str]) -> Parts:
    with read() as snapshot:
        yield from _lines(snapshot, missing_feedback, shadow, features)


def _lines(snapshot: Database, missing_feedback: str, shadow: bool, features: Sequence[str]) -> Parts:
    """Yield one JSON line for every recommendation, several lines at a time.

    Without feedback `clicked` is false if missing feedback means no click, except in the last recommendation of an
    active user: its feedback may still arrive. Whether a user departs after the last recommendation is unknown until
    the departure, or always if the user reached the horizon.
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
                    "departed": None if last and not gone else bool(last),
                    "propensity": propensity,
                    "version": version,
                    "experiment": experiment,
                    "arm": arm,
                    "segment": segment,
                    **segment_features(segment, features),
                    "reward": reward,
                    "event": key or format_event_id(epoch, event),
                }
            )
            + b"\n"
            for (
                user,
                time,
                category,
                clicked,
                propensity,
                version,
                experiment,
                arm,
                segment,
                reward,
                event,
                key,
                epoch,
                gone,
                last,
            ) in rows
        )


def history_events(rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> list[m.HistoryEvent]:
    """Return past recommendations from their rows."""
    return [
        m.HistoryEvent(
            key or format_event_id(epoch, event),
            time,
            names[category],
            _optional_bool(clicked),
            _optional_bool(departed),
            reward,
        )
        for event, key, epoch, time, category, clicked, departed, reward in rows
    ]


def _optional_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)
