"""State of one user and the rules by which recommendations and feedback change it.

Nothing here depends on stores, clocks or HTTP: functions take a user and change it. A step is *open* until its
outcome (click or not, stay or departure) is final. A user who requests another recommendation has stayed. The latest
step is open until then, also after `departed` false: the user was there, but may depart before the next request.
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
    LOST_EVENT = (
        "lost_event",
        "The service issued this event ID, but the event is not in the store: it was lost in a crash, or issued "
        "after the backup that was restored. Do not send this feedback again.",
    )
    CONFLICTING_FEEDBACK = "conflicting_feedback", "Conflicts with feedback already recorded for this event."
    USER_RETURNED = "user_returned", "The user returned after this event and cannot have departed at it."
    REWARD_WITHOUT_CLICK = (
        "reward_without_click",
        "Only a click can have a reward; send `clicked` true, or no `reward`.",
    )
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
    """Feedback recorded for an event; `departed` is None while unknown, False if the user was still there then."""

    clicked: bool
    departed: bool | None
    reward: float | None = None


class Step(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A recommendation whose outcome is not final."""

    event: int
    category: int
    clicked: bool | None = None
    departed: bool | None = None

    @property
    def recorded(self) -> RecordedFeedback | None:
        """The feedback recorded for the step."""
        return None if self.clicked is None else RecordedFeedback(self.clicked, self.departed)


class InferredDeparture(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A departure inferred from inactivity: its time, the steps that it settled, and the outcome of each.

    An outcome is None where the step was dropped. `final` if the user has returned, or the departure was reported
    later: feedback can then correct outcomes but not reopen the user.
    """

    time: float
    steps: list[Step]
    outcomes: list[int | None]
    final: bool = False


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
    arrived: float = 0.0  # time of the first recommendation; in records of schema 3 only the column has it
    experiment: int | None = None  # ID of the experiment that the user takes part in
    arm: str | None = None  # "treatment", "control" or "holdout"
    entry: int = -1  # number of the same person at the first visit in the experiment
    inferred: InferredDeparture | None = None  # of a departed user, unless the departure was reported
    first: int = -1  # number of the same person at the first visit; -1 if this is the first one
    segment: str | None = None  # as of the first request
    finished: bool = False  # whether the latest recommendation was the last one of the horizon

    @property
    def person(self) -> int:
        """Number that the visits of a person share; of records without `first`, that of the visit before."""
        return next((number for number in (self.first, self.previous) if number >= 0), self.number)

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
                    add_count(counts, step.category, CLICK if clicked else STAY)
        return counts

    def known_counts(self, missing_feedback: str) -> list[int]:
        """Return the current counts without the latest recommendation while its feedback may still arrive."""
        latest = self.open_step(self.last_event)
        is_pending = latest is not None and latest.clicked is None
        return self.current_counts(missing_feedback, self.last_event if is_pending else inf)

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
        earlier = step.recorded
    if is_repeated(earlier, feedback):
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
    elif not is_last:
        _settle(user, step, CLICK if clicked else STAY)
    return True


def is_repeated(earlier: RecordedFeedback | None, feedback: RecordedFeedback) -> bool:
    """Return True if feedback repeats what was recorded for its event; raise if it contradicts that."""
    if earlier is None:
        return False
    departed = feedback.departed
    if earlier.clicked != feedback.clicked or (departed is not None and earlier.departed not in (None, departed)):
        raise FeedbackRejectedError(RejectionCode.CONFLICTING_FEEDBACK)
    return departed is None or earlier.departed == departed


def depart(user: User, missing_feedback: str) -> None:
    """Mark the user as departed and settle open steps, those without feedback according to `missing_feedback`."""
    for step in user.open:
        outcome = departure_outcome(user, step, missing_feedback)
        if outcome is not None:
            add_count(user.counts, step.category, outcome)
    user.open.clear()
    user.departed = True


def departure_outcome(user: User, step: Step, missing_feedback: str) -> int | None:
    """Return the outcome of an open step of a user who departs; None if the step is dropped."""
    if step.clicked is None and missing_feedback != "no-click":
        return None
    click, no_click = (CLICK_DEPART, DEPART) if step.event == user.last_event else (CLICK, STAY)
    return click if step.clicked else no_click


def anonymise_record(user: User, missing_feedback: str) -> None:
    """Close the record of a forgotten user: outcomes before the latest open step stay, that step is dropped."""
    user.counts = user.training_counts(missing_feedback)
    user.open.clear()
    user.departed = True  # Nobody can continue a record without a name; no departure is counted.


def _settle(user: User, step: Step, outcome: int) -> None:
    add_count(user.counts, step.category, outcome)
    user.open.remove(step)


def add_count(counts: list[int], category: int, outcome: int) -> None:
    """Add one outcome of a category to counts in a row."""
    index = 4 * category + outcome
    if index >= len(counts):
        counts.extend([0] * (4 * (category + 1) - len(counts)))
    counts[index] += 1


def remove_count(counts: list[int], category: int, outcome: int) -> None:
    """Undo `add_count`; the row becomes as short as it was."""
    counts[4 * category + outcome] -= 1
    while counts and not any(counts[-4:]):
        del counts[-4:]
