"""Recording of feedback and departures: the rules of a user's state, applied in a transaction of the store."""

from departing.service import messages as m
from departing.service import user as user_rules
from departing.service.departures import INACTIVE, REPORTED
from departing.service.event_id import parse_event_id
from departing.service.late_feedback import apply_late_feedback, infer_departure, make_final
from departing.service.settings import Settings
from departing.service.store.base import StoreError, Transaction
from departing.service.store.files import RESTORE
from departing.service.user import FeedbackRejectedError, RecordedFeedback, RejectionCode, User


def record_feedback(tx: Transaction, row: m.Feedback, settings: Settings, now: float) -> m.FeedbackResult:
    """Record or reject one row of feedback."""
    try:
        counter = _record_feedback(tx, row, settings, now)
    except FeedbackRejectedError as error:
        tx.count(f"rejected_feedback_{error.code}")
        return m.FeedbackResult(row.event, False, error.code, error.code.reason)
    tx.count(counter)
    return m.FeedbackResult(row.event, True)


def _record_feedback(tx: Transaction, row: m.Feedback, settings: Settings, now: float) -> str:
    """Record one row of feedback; return the counter of such rows."""
    decision = tx.decision_by_event_id(row.event)
    if decision is None:
        issued = parse_event_id(row.event) is not None
        raise FeedbackRejectedError(RejectionCode.LOST_EVENT if issued else RejectionCode.UNKNOWN_EVENT)
    event_number, user = decision.event_number, tx.user_by_number(decision.user_number)
    if user is None:
        raise StoreError(f"The store is damaged: user {decision.user_number} is missing. {RESTORE}.")
    step, was_departed = user.open_step(event_number), user.departed
    earlier = None
    if step is None or step.clicked is not None:  # the step does not hold the reward
        earlier = tx.feedback(event_number)
    feedback = RecordedFeedback(row.clicked, row.departed, row.reward)
    adds_reward = row.reward is not None and _adds_reward(earlier, feedback)
    arguments = user, event_number, feedback, now, settings.missing_feedback, earlier
    if was_departed:
        added = apply_late_feedback(*arguments, settings.late_limit)
    else:
        added = user_rules.apply_feedback(*arguments)
    if not added and not adds_reward:
        return "repeated_feedback"
    if adds_reward and row.reward:  # a field that is always 0 says nothing about rewards
        tx.count("rewarded_clicks")
        if earlier is not None:
            tx.count("late_rewards")
    if earlier is not None:  # one of them completes the other
        departed = row.departed if added and row.departed is not None else earlier.departed
        feedback = RecordedFeedback(row.clicked, departed, row.reward if adds_reward else earlier.reward)
    tx.record_feedback(user, event_number, feedback, now)
    if not added:
        return "completed_feedback"
    if row.departed:
        tx.count("reported_departures")
    if user.departed and not was_departed:
        tx.record_departure(user, now, REPORTED)
        tx.count("departures")
    elif was_departed and user.departed and row.departed and user.finished:
        _record_late_departure(tx, user, now)
    elif was_departed and not user.departed:
        tx.remove_departure(user)
        if not user.finished:  # a visit that the horizon ended was no departure
            tx.count("reopened_users")
    if earlier is not None:
        return "completed_feedback"
    if row.clicked:
        tx.count("clicks")
    return "feedback"


def _adds_reward(earlier: RecordedFeedback | None, feedback: RecordedFeedback) -> bool:
    """Return True if the reward of feedback was not recorded before; raise if it contradicts what was."""
    if not feedback.clicked:
        raise FeedbackRejectedError(RejectionCode.REWARD_WITHOUT_CLICK)
    if earlier is None or earlier.reward is None:
        return True
    if earlier.reward != feedback.reward:
        raise FeedbackRejectedError(RejectionCode.CONFLICTING_FEEDBACK)
    return False


def record_reported_departure(tx: Transaction, user: User, settings: Settings, now: float) -> bool:
    """Record a departure that the caller reports; True if it adds information."""
    if user.departed:
        if not make_final(user):
            return False
        if user.open:  # the latest step of a user who is finished
            user_rules.depart(user, settings.missing_feedback)
            _record_late_departure(tx, user, now)
        tx.save_user(user)
    else:
        user_rules.depart(user, settings.missing_feedback)
        tx.record_departure(user, now, REPORTED)
        tx.count("departures")
    tx.count("reported_departures")
    return True


def _record_late_departure(tx: Transaction, user: User, now: float) -> None:
    """Record the reported departure of a user who was finished and whose visit was over."""
    tx.active_change += 1
    tx.record_departure(user, now, REPORTED)
    tx.count("departures")


def record_inferred_departure(tx: Transaction, user: User, settings: Settings, now: float) -> None:
    """Record that an inactive user has departed, or that the visit of a user who is finished is over."""
    infer_departure(user, now, settings.missing_feedback)
    if user.finished:
        tx.end_visit(user)
        tx.count("finished_users")
        return
    tx.record_departure(user, now, INACTIVE)
    tx.count("departures")
