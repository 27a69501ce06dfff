"""Bulk reads for batches of feedback, in a thread with a connection of its own.

Each query returns one JSON document. The interpreter lock is then released once per query rather than once per row,
so that neither the event loop nor the thread waits for the other.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from departing.service.event_id import parse_event_id
from departing.service.store import queries
from departing.service.store.base import decode_user, feedback_of_row
from departing.service.store.cache import Cache, Decision
from departing.service.store.connection import SqliteDatabase
from departing.service.user import RecordedFeedback, User

_encode = msgspec.json.Encoder().encode
_FeedbackRow = tuple[int, int, int | None, float | None]  # event number, clicked, departed, reward


class Loaded(NamedTuple):
    """Records as they are on disk."""

    users: list[User]
    decisions: list[Decision]
    feedback: dict[int, RecordedFeedback | None]  # by event number, None where there is none


class Loader:
    """Reads one batch at a time."""

    def __init__(self, path: Path) -> None:
        self._database = SqliteDatabase(path)  # not later, when it would create a file that was deleted meanwhile
        self.thread = ThreadPoolExecutor(1, "loader")

    def load(self, event_ids: Sequence[str]) -> Loaded:
        """Return decisions, users and feedback of events; runs in `thread`."""
        parsed = [(event_id, parse_event_id(event_id)) for event_id in event_ids]
        numbers = [epoch_and_number[1] for _, epoch_and_number in parsed if epoch_and_number is not None]
        client_event_ids = [event_id for event_id, epoch_and_number in parsed if epoch_and_number is None]
        with self._database.snapshot():
            rows = self._rows(queries.DECISIONS_JSON, numbers, list[Decision])
            rows += self._rows(queries.DECISIONS_BY_CLIENT_EVENT_ID_JSON, client_event_ids, list[Decision])
            events = [decision.event_number for decision in rows]
            states = self._rows(queries.USERS_JSON, [decision.user_number for decision in rows], list[str])
            feedback = self._rows(queries.FEEDBACK_JSON, events, list[_FeedbackRow])
        recorded: dict[int, RecordedFeedback | None] = dict.fromkeys(events)
        recorded.update({row[0]: feedback_of_row(row[1:]) for row in feedback})
        return Loaded([decode_user(bytes.fromhex(state)) for state in states], rows, recorded)

    def _rows(self, query: str, keys: Sequence[int | str], kind: Any) -> Any:
        if not keys:
            return []
        ((document,),) = self._database.execute(query, _encode(keys).decode())
        return msgspec.json.decode(document, type=kind, strict=False)

    def close(self) -> None:
        """Stop the thread and close the connection."""
        self.thread.shutdown()
        self._database.close()


def missing(cache: Cache, event_ids: Sequence[str]) -> list[str]:
    """Return the events whose decision, user or feedback is not in memory."""
    absent = []
    for event_id in event_ids:
        parsed = parse_event_id(event_id)
        number = cache.event_numbers.find(event_id) if parsed is None else parsed[1]
        decision = None if number is None else cache.decisions.find(number)
        user = None if decision is None else cache.user_by_number(decision.user_number)
        step = None if user is None else user.open_step(number)
        is_recorded = step is None or step.clicked is not None
        if user is None or (is_recorded and not cache.feedback.contains(number)):
            absent.append(event_id)
    return absent


def install(cache: Cache, loaded: Loaded, changed: set[int]) -> list[int]:
    """Add records to the cache where it has none; return the numbers of the users that were added.

    `changed` holds users who may have changed since they were read.
    """
    users = [user for user in loaded.users if user.number not in changed and not cache.user_by_number(user.number)]
    for user in users:
        cache.add_user(user)
    for decision in loaded.decisions:
        number = decision.event_number
        if decision.user_number not in changed:
            if not cache.decisions.contains(number):
                cache.add_decision(decision)
            if not cache.feedback.contains(number):
                cache.feedback[number] = loaded.feedback[number]
    return [user.number for user in users]
