"""Settings that a store remembers for later starts."""

import json
from collections.abc import Sequence
from math import isfinite

from departing.service.store import queries
from departing.service.store.base import Transaction


def adopt_columns(tx: Transaction, given: Sequence[str]) -> tuple[str, ...]:
    """Store the columns of segments, or read the stored ones if none are given; return them."""
    if given:
        tx.write(queries.SET, queries.SEGMENT_COLUMNS_KEY, json.dumps(list(given)))
        return tuple(given)
    rows = tx.rows(queries.SETTING, queries.SEGMENT_COLUMNS_KEY)
    return tuple(json.loads(rows[0][0])) if rows else ()


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
