"""Event IDs that the service issues: `e-<epoch>-<number>`.

A process draws its epoch at random when it opens the store, and again when it reconnects to PostgreSQL. Numbers can
repeat after a crash or after a backup was restored, IDs cannot. Events of schema 3 and earlier have epoch 0 and keep
their IDs `e-<number>`.
"""

import re
import secrets

RESERVED_PREFIX = "e-"  # clients cannot choose IDs with it
_MAX_EPOCH = 2**47  # SQLite stores such integers in 6 bytes; two of 10,000 epochs are equal with probability 4e-7
_EVENT_ID = re.compile(r"e-(?:([1-9][0-9]{0,14})-)?(0|[1-9][0-9]{0,17})")  # both fit in 64 bits
_match = _EVENT_ID.fullmatch


def new_epoch() -> int:
    """Draw the epoch of a process."""
    return 1 + secrets.randbelow(_MAX_EPOCH - 1)


def format_event_id(epoch: int, number: int) -> str:
    """Return the ID of an event without an ID of the client."""
    return f"e-{epoch}-{number}" if epoch else f"e-{number}"


def parse_event_id(event_id: str) -> tuple[int, int] | None:
    """Return epoch and number of an ID that the service can have issued; None for all others."""
    match = _match(event_id)
    if match is None:
        return None
    epoch, number = match.groups()
    return int(epoch or 0), int(number)
