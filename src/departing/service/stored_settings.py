"""Settings that a store remembers for later starts."""

import json
from collections.abc import Sequence
from math import isfinite

from departing.model.errors import InputError
from departing.model.segments import Segments
from departing.service.export import COLUMNS
from departing.service.names import check_name
from departing.service.segment_names import UNNAMED, is_composed_of
from departing.service.store import queries
from departing.service.store.base import Transaction


def adopt_columns(tx: Transaction, given: Sequence[str], segments: Segments | None) -> tuple[str, ...]:
    """Store the features of which segments are composed, and return them.

    They are those `given`, else the stored ones, else those of the `segments` of the instance, which must agree.
    """
    rows = tx.rows(queries.SETTING, queries.SEGMENT_COLUMNS_KEY)
    stored = tuple(json.loads(rows[0][0])) if rows else ()
    columns = check_columns(given, stored, segments)
    if columns != stored:
        known = [] if stored in UNNAMED else [name for (name,) in tx.rows(queries.SEGMENTS)]
        confused = next((name for name in known if is_composed_of(name, columns)), None)
        if confused is not None:
            raise InputError(
                f"segment is {','.join(columns)!r:.60}; expected {','.join(stored)!r:.60}, of which the segments in "
                f"the store are composed, such as {confused!r:.60}. Use another store (--store) for other features."
            )
        tx.write(queries.SET, queries.SEGMENT_COLUMNS_KEY, json.dumps(columns))
    return columns


def check_columns(given: Sequence[str], stored: tuple[str, ...], segments: Segments | None) -> tuple[str, ...]:
    """Features of which segments are composed; raise if the instance has others or they cannot be exported."""
    columns = tuple(given) or stored or (() if segments is None else segments.columns)
    if segments is not None:
        _check_segments(segments, columns, bool(given))
    if columns != stored:
        _check_exported(columns)
    return columns


def _check_segments(segments: Segments, columns: tuple[str, ...], given: bool) -> None:
    """Raise unless requests with features of these columns can be in segments of the instance."""
    own, expected = ",".join(segments.columns), ",".join(columns)
    if segments.columns == columns:
        return
    if segments.columns not in UNNAMED:
        if given:
            raise InputError(f"segment is {expected!r:.60}; expected {own!r:.60}, as in the instance.")
        raise InputError(
            f"The segments of the instance are composed of {own!r:.60}, those of the store of {expected!r:.60}; give "
            f"an instance that was fitted with --segment {expected:.60}, or change the store by --segment {own:.60}."
        )
    if not any(is_composed_of(name, columns) for name in segments.names):
        raise InputError(
            f"The segments of the instance, such as {segments.names[0]!r:.60}, are not composed of {expected!r:.60}; "
            f"give an instance that was fitted with --segment {expected:.60}."
        )


def _check_exported(columns: tuple[str, ...]) -> None:
    """Raise if columns of features cannot be in the exported log; case does not distinguish columns in Parquet."""
    lowered = [check_name("segment", column).casefold() for column in columns]
    for column, lower in zip(columns, lowered, strict=True):
        if columns not in UNNAMED and (lower in COLUMNS or lowered.count(lower) > 1):
            problem = "a column of the exported log" if lower in COLUMNS else "twice, in another case"
            raise InputError(f"segment has {column!r:.60}, {problem}; rename it in --segment and the instance.")


def adopt_half_life(tx: Transaction, given: float | None) -> None:
    """Store the half-life of users in training; the stored one stays if None is given, and infinity removes it."""
    if given is not None and isfinite(given):
        tx.write(queries.SET, queries.HALF_LIFE_KEY, json.dumps(given))
    elif given is not None:
        tx.write(queries.UNSET, queries.HALF_LIFE_KEY)


def adopt_unit(tx: Transaction, given: str) -> str:
    """Store the unit of rewards, or read the stored one if none is given; return it."""
    if given:
        tx.write(queries.SET, queries.UNIT_KEY, given)
        return given
    rows = tx.rows(queries.SETTING, queries.UNIT_KEY)
    return str(rows[0][0]) if rows else ""


def adopt_missing_feedback(tx: Transaction, given: str) -> str:
    """Store the meaning of missing feedback; return the one stored before."""
    rows = tx.rows(queries.SETTING, queries.MISSING_FEEDBACK_KEY)
    tx.write(queries.SET, queries.MISSING_FEEDBACK_KEY, given)
    return str(rows[0][0]) if rows else given
