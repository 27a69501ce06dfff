"""Events of one user, given by names: (category, outcome) pairs and the counts they add up to."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.model.names import find_category, suggest

Events = Sequence[tuple[str | int, Any]]

OUTCOME_NAMES = ("click", "stay", "depart", "click_and_depart")
_OUTCOMES = {name: code for code, name in enumerate(OUTCOME_NAMES)} | {
    "no-click": STAY,
    "departed": DEPART,
    "click-and-departed": CLICK_DEPART,
}
_BY_SPELLING = {name.replace("_", "-"): code for name, code in _OUTCOMES.items()}


def find_outcome(outcome: Any) -> int:
    """Code of an outcome, 0 to 3, given by its name, or by True for a click and False for a no-click.

    Codes are not accepted: 0 is that of a click, but means no click in most logs.

    >>> [find_outcome(each) for each in ("click", "no-click", "departed", "click_and_depart", False)]
    [0, 1, 2, 3, 1]
    """
    if isinstance(outcome, bool | np.bool_):
        return CLICK if outcome else STAY
    name = str(outcome).strip().lower().replace("_", "-").replace(" ", "-")
    if not isinstance(outcome, str) or name not in _BY_SPELLING:
        raise InputError(f"outcome is {outcome!r:.60}; {suggest(str(outcome), list(_OUTCOMES))}")
    return _BY_SPELLING[name]


def count_events(events: Events, categories: Sequence[str]) -> Integers:
    """Counts `[K, 4]` of a user with these events.

    Parameters
    ----------
    events : sequence of (category, outcome)
        Categories by name or index; outcomes "click" and "no-click" (or True and False). Order does not matter.
    categories : sequence of str
        Names of the K categories.

    Raises
    ------
    InputError
        If a category or outcome is unknown, or the user departed.

    Examples
    --------
    >>> count_events([("sport", "click"), ("sport", "no-click"), ("news", "click")], ["news", "sport"])
    array([[1, 0, 0, 0],
           [1, 1, 0, 0]])
    """
    counts = np.zeros((len(categories), len(OUTCOME_NAMES)), np.int64)
    for category, outcome in check_events(events):
        code = find_outcome(outcome)
        if code >= DEPART:
            raise InputError(f"events contain the outcome {outcome!r}: the user departed, so there is no next step.")
        counts[find_category(category, categories), code] += 1
    return counts


def check_events(events: Any) -> Events:
    """`events` if they are pairs."""
    expected = 'expected (category, outcome) pairs such as [("news", "click"), ("sport", "no-click")]'
    if isinstance(events, str) or not isinstance(events, Sequence):
        raise InputError(f"events is {events!r:.80}; {expected}.", "events")
    for event in events:
        if isinstance(event, str) or not isinstance(event, Sequence) or len(event) != 2:
            raise InputError(f"events contain {event!r:.80}; {expected}.", "events")
    return events


def check_either(counts: object, events: Events | None) -> Events:
    """Return `events` if they are given and `counts` are not."""
    if counts is not None or events is None:
        raise InputError("Give either counts or events, such as events=[] for a new user.")
    return events
