"""State of one user and the rules by which recommendations and feedback change it.

Nothing here depends on stores, clocks or HTTP: functions take a user and change it. A step is *open* until its
outcome (click or not, stay or departure) is final. A user who requests another recommendation has stayed.
"""

from enum import StrEnum
from math import inf

import msgspec
import numpy as np

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

# Bounds the state of a user who never sends feedback to about 1 kB; the oldest open step is settled beyond it.
MAX_OPEN_STEPS = 50
MISSING_FEEDBACK = ("no-click", "not-seen")  # meanings of a recommendation that never gets feedback


class RejectionCode(StrEnum):
    """Machine-readable codes of rejected feedback; `reason` is the sentence for people."""

    UNKNOWN_EVENT = "unknown_event", "No recommendation has this event ID."
    CONFLICTING_FEEDBACK = "conflicting_feedback", "Conflicts with feedback already recorded for this event."
    USER_RETURNED = "user_returned", "The user returned after this event and cannot have departed at it."
    EVENT_CLOSED = "event_closed", "The event was closed because its feedback did not arrive in time."

    reason: str

    def __new__(cls, code: str, reason: str) -> "RejectionCode":
        """Create a member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_, member.reason = code, reason
        return member


class FeedbackRejectedError(InputError):
    """Feedback that contradicts the recorded state."""

    def __init__(self, code: RejectionCode) -> None:
        super().__init__(code.reason)
        self.code = code


class RecordedFeedback(msgspec.Struct, frozen=True, gc=False):
    """Feedback recorded for an event; `departed` is None while unknown."""

    clicked: bool
    departed: bool | None


class Step(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A recommendation whose outcome is not final."""

    event: int
    category: int
    clicked: bool | None = None
    departed: bool | None = None


class User(msgspec.Struct, array_like=True, gc=False):
    """One user: settled `counts` (K × 4 numbers in a row) and open steps.

    Users and steps cannot form reference cycles, so the garbage collector need not visit the many in memory.
    """

    number: int
    name: str
    version: int
    counts: list[int]
    open: list[Step]
    steps: int = 0
    last_event: int = -1
    last_seen: float = 0.0
    departed: bool = False
    previous: int = -1  # number of the same person before an earlier departure; -1 for none

    def copy(self) -> "User":
        """Copy the user, so that changes to the copy leave this one alone."""
        user: User = self.__copy__()  # type: ignore[attr-defined]  # copy.copy takes three times as long
        user.counts, user.open = self.counts.copy(), self.open.copy()  # steps are immutable
        return user

    @property
    def n_categories(self) -> int:
        """Smallest number of categories that covers everything shown to the user."""
        return max([-(-len(self.counts) // 4), *(step.category + 1 for step in self.open)])

    def open_step(self, event: int) -> Step | None:
        """Return the open step of an event, None if the event is settled."""
        for step in self.open:
            if step.event == event:
                return step
        return None

    def current_counts(self, missing_feedback: str, until: float = inf) -> list[int]:
        """Return the counts to decide by, in a row, in which open steps have their provisional outcome.

        Open steps from the event `until` on are left out.
        """
        counts, is_no_click = self.counts.copy(), missing_feedback == "no-click"
        for step in self.open:
            clicked = step.clicked
            if step.event < until and (is_no_click or clicked is not None):
                index = 4 * step.category + (CLICK if clicked else STAY)
                if index < len(counts):
                    counts[index] += 1
                else:
                    _add(counts, step.category, CLICK if clicked else STAY)
        return counts

    def training_counts(self, missing_feedback: str) -> list[int]:
        """Return the settled counts plus the steps without feedback before the user's latest one."""
        return self.current_counts(missing_feedback, self.last_event)  # only the latest open step can have feedback


def counts_array(counts: list[int], n_categories: int) -> Integers:
    """Return counts in a row as an array `[K, 4]` of the first `n_categories` categories."""
    array = np.zeros(4 * n_categories, np.int64)
    known = counts[: 4 * n_categories]
    array[: len(known)] = known
    return array.reshape(n_categories, 4)


def confirm_stay(user: User) -> None:
    """Settle all steps with feedback: a new request shows that the user stayed."""
    for step in user.open.copy():
        if step.clicked is not None:
            _settle(user, step, CLICK if step.clicked else STAY)


def add_step(user: User, event: int, category: int, now: float, missing_feedback: str = "no-click") -> None:
    """Open a step for a recommendation; beyond `MAX_OPEN_STEPS` the oldest one is closed."""
    user.open.append(Step(event, category))
    if len(user.open) > MAX_OPEN_STEPS:
        if missing_feedback == "no-click":
            _settle(user, user.open[0], STAY)
        else:
            del user.open[0]
    user.steps += 1
    user.last_event, user.last_seen = event, now


def apply_feedback(
    user: User,
    event: int,
    feedback: RecordedFeedback,
    now: float,
    missing_feedback: str = "no-click",
    earlier: RecordedFeedback | None = None,
) -> bool:
    """Apply feedback to a user; return True if it adds information.

    `earlier` is the feedback already recorded for the event; it is needed for settled events only.

    Raises
    ------
    FeedbackRejectedError
        If the feedback contradicts what is recorded.
    """
    clicked, departed = feedback.clicked, feedback.departed
    step = user.open_step(event)
    if step is not None:
        earlier = None if step.clicked is None else RecordedFeedback(step.clicked, step.departed)
    if earlier is not None:
        if earlier.clicked != clicked or (departed is not None and earlier.departed not in (None, departed)):
            raise FeedbackRejectedError(RejectionCode.CONFLICTING_FEEDBACK)
        if departed is None or earlier.departed == departed:
            return False
    is_last = event == user.last_event
    if step is None:  # The step is settled: feedback must match the settled outcome.
        if earlier is None and (clicked or missing_feedback != "no-click"):
            raise FeedbackRejectedError(RejectionCode.EVENT_CLOSED)
        if departed and not (is_last and user.departed):
            raise FeedbackRejectedError(RejectionCode.USER_RETURNED)
        if departed is False and is_last and user.departed:
            raise FeedbackRejectedError(RejectionCode.CONFLICTING_FEEDBACK)
        return False
    if departed and not is_last:
        raise FeedbackRejectedError(RejectionCode.USER_RETURNED)
    user.open[user.open.index(step)] = step = Step(event, step.category, clicked, departed)
    user.last_seen = max(user.last_seen, now)
    if departed:
        depart(user, missing_feedback)
    elif not is_last or departed is False:
        _settle(user, step, CLICK if clicked else STAY)
    return True


def depart(user: User, missing_feedback: str) -> None:
    """Mark the user as departed and settle open steps, those without feedback according to `missing_feedback`."""
    for step in list(user.open):
        if step.clicked is not None or missing_feedback == "no-click":
            outcomes = (CLICK_DEPART, DEPART) if step.event == user.last_event else (CLICK, STAY)
            _settle(user, step, outcomes[0] if step.clicked else outcomes[1])
    user.open.clear()
    user.departed = True


def anonymise_record(user: User, missing_feedback: str) -> None:
    """Close the record of a forgotten user: outcomes before the latest open step stay, that step is dropped."""
    user.counts = user.training_counts(missing_feedback)
    user.open.clear()
    user.departed = True  # Nobody can continue a record without a name; no departure is counted.


def _settle(user: User, step: Step, outcome: int) -> None:
    _add(user.counts, step.category, outcome)
    user.open.remove(step)


def _add(counts: list[int], category: int, outcome: int) -> None:
    index = 4 * category + outcome
    if index >= len(counts):
        counts.extend([0] * (4 * (category + 1) - len(counts)))
    counts[index] += 1
