"""Departures inferred from inactivity, and feedback that arrives after them.

A click within the grace period shows that the user is active: it reopens the user, as if the departure had not been
inferred. Other feedback within that period, or a click of somebody who has already returned under a new record, only
corrects the outcome of its event. After the grace period the outcomes are final.
"""

from msgspec.structs import replace

from departing.service.user import (
    FeedbackRejectedError,
    InferredDeparture,
    RecordedFeedback,
    RejectionCode,
    Step,
    User,
    add_count,
    apply_feedback,
    depart,
    departure_outcome,
    is_repeated,
    remove_count,
)


def infer_departure(user: User, now: float, missing_feedback: str) -> None:
    """Mark an inactive user as departed, and keep what is needed to reopen the user.

    The latest step of a user who is finished stays open: nothing shows whether the user would have stayed.
    """
    steps, pending = user.open.copy(), list[Step]()
    if user.finished:
        pending = [step for step in steps if step.event == user.last_event]
        user.open = [step for step in steps if step.event != user.last_event]
    outcomes = [None if step in pending else departure_outcome(user, step, missing_feedback) for step in steps]
    depart(user, missing_feedback)
    user.open = pending
    user.inferred = InferredDeparture(now, steps, outcomes)


def make_final(user: User) -> bool:
    """Keep feedback from reopening a departed user, who has returned or whose departure was reported.

    Return True if feedback could reopen the user before.
    """
    inferred = user.inferred
    if inferred is None or inferred.final:
        return False
    user.inferred = replace(inferred, final=True)
    return True


def reopen(user: User) -> None:
    """Make a user active again, exactly as before the departure was inferred."""
    inferred = user.inferred
    assert inferred is not None
    for step, outcome in zip(inferred.steps, inferred.outcomes, strict=True):
        if outcome is not None:
            remove_count(user.counts, step.category, outcome)
    user.open, user.departed, user.inferred = inferred.steps.copy(), False, None


def apply_late_feedback(
    user: User,
    event: int,
    feedback: RecordedFeedback,
    now: float,
    missing_feedback: str,
    earlier: RecordedFeedback | None,
    grace_period: float,
) -> bool:
    """Apply feedback to a departed user; return True if it adds information.

    The user is active again afterwards if the feedback reopened the record. Arguments and errors are those of
    `apply_feedback`, which decides where the departure was reported or the grace period is over.
    """
    inferred = user.inferred
    position = -1
    if inferred is not None and now <= inferred.time + grace_period:
        position = next((i for i, step in enumerate(inferred.steps) if step.event == event), -1)
    if inferred is None or position < 0:
        return apply_feedback(user, event, feedback, now, missing_feedback, earlier)
    step, is_last = inferred.steps[position], event == user.last_event
    if is_repeated(step.recorded, feedback):
        return False
    if feedback.departed and not is_last:
        raise FeedbackRejectedError(RejectionCode.USER_RETURNED)
    stayed = feedback.departed is False and is_last
    if not feedback.departed and (stayed or (feedback.clicked and step.clicked is None)) and not inferred.final:
        reopen(user)
        return apply_feedback(user, event, feedback, now, missing_feedback)
    if stayed:
        raise FeedbackRejectedError(RejectionCode.CONFLICTING_FEEDBACK)
    _correct(user, inferred, position, feedback, missing_feedback)
    if feedback.clicked:  # the visit lasts until its latest click is received
        user.last_seen = max(user.last_seen, now)
    return True


def _correct(
    user: User, inferred: InferredDeparture, position: int, feedback: RecordedFeedback, missing_feedback: str
) -> None:
    """Replace the outcome of a step of a departed user."""
    steps, outcomes = inferred.steps.copy(), inferred.outcomes.copy()
    step = steps[position] = Step(
        steps[position].event, steps[position].category, feedback.clicked, feedback.departed
    )
    before, outcome = outcomes[position], departure_outcome(user, step, missing_feedback)
    if user.finished and step.event == user.last_event:
        if not feedback.departed:
            outcome = None
        user.open = [] if feedback.departed else [step]
    if before is not None:
        remove_count(user.counts, step.category, before)
    if outcome is not None:
        add_count(user.counts, step.category, outcome)
    outcomes[position] = outcome
    user.inferred = InferredDeparture(inferred.time, steps, outcomes, inferred.final or bool(feedback.departed))
