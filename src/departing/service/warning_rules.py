"""Warnings for the operator of a service, from its counters: only what is certain, each with the next step."""

from collections.abc import Mapping
from math import isfinite

from departing.service.departures import UNDEFINED, DepartureRule, duration
from departing.service.user import RejectionCode

# Users, and recommendations without a click, after which departures should have been reported. If only 2 % of the
# recommendations without a click made a user depart, none of 300 would with probability 0.98^300 = 0.2 %.
MIN_USERS, MIN_NO_CLICKS = 300, 300
# Recommendations after which there should be feedback: if 1 % are clicked, none of 1,000 is with probability 0.004 %.
MIN_RECOMMENDATIONS = 1000
MIN_REJECTED = 20  # rows of feedback; more than one tries out by hand
MIN_LATE = 100  # rows of feedback or users, and their share, from which feedback arrives late as a rule
LATE_SHARE = 0.05
MIN_UNKNOWN, UNKNOWN_SHARE = 100, 0.05  # requests in segments that the policy does not know, and their share
NEARLY_FULL = 0.9  # share of the active users allowed from which the operator is warned


def find_warnings(rule: DepartureRule, totals: Mapping[str, int]) -> dict[str, str]:
    """Return warnings by their keys, which stay the same while the numbers in the sentences change."""
    warnings = {
        "departures_undefined": None if rule.is_defined else UNDEFINED,
        "departures_not_reported": _not_reported(rule, totals),
        "feedback_missing": _no_feedback(totals),
        "feedback_rejected": _rejected(totals),
        "feedback_late": _late(rule, totals),
        "inactivity_period_short": _short_period(rule, totals),
        "segments_unknown": _unknown_segments(totals),
    }
    return {key: text for key, text in warnings.items() if text is not None}


def learning_warning(is_learned: bool, learns: bool) -> dict[str, str]:
    """Return a warning if new users get a learned version and the service does not learn."""
    if learns or not is_learned:
        return {}
    return {
        "learning_stopped": "The store was learning before; the service does not learn now. Restart with --learn to "
        "go on."
    }


def user_limit_warning(active: int, limit: int) -> dict[str, str]:
    """Return a warning if nearly as many users are active as the service allows."""
    if active < NEARLY_FULL * limit:
        return {}
    next_step = "Restart with a larger --max-users, or with a shorter --inactive-after, before new users are refused."
    return {"user_limit_near": f"{active:,} of at most {limit:,} users are active. {next_step}"}


def _not_reported(rule: DepartureRule, totals: Mapping[str, int]) -> str | None:
    users, clicks = totals.get("new_users", 0), totals.get("clicks", 0)
    # No-clicks that were reported, or that were followed by another request: whatever came last may still change.
    reported, followed = totals.get("feedback", 0) - clicks, totals.get("recommendations", 0) - clicks - users
    no_clicks = max(reported, followed)
    if not rule.reported or totals.get("reported_departures", 0) or users < MIN_USERS or no_clicks < MIN_NO_CLICKS:
        return None
    consequence = "every user counts as active" if not isfinite(rule.inactive_after) else "only inactivity counts"
    return (
        f"Departures are to be reported, but none of {users:,} users was reported to depart, after {no_clicks:,} "
        f"recommendations without a click; {consequence}. Send `departed` with the feedback or POST /v1/depart, or "
        "restart with --inactive-after DURATION."
    )


def _no_feedback(totals: Mapping[str, int]) -> str | None:
    shown, received = totals.get("recommendations", 0), _received(totals)
    if shown < MIN_RECOMMENDATIONS or received:
        return None
    return (
        f"No feedback has arrived for {shown:,} recommendations. Send POST /v1/feedback with the `event` of each "
        "recommendation, at least for clicks."
    )


def _rejected(totals: Mapping[str, int]) -> str | None:
    # The first row of an event is one of these.
    accepted = totals.get("feedback", 0) + totals.get("repeated_feedback", 0)
    rejected = {code: totals.get(f"rejected_feedback_{code}", 0) for code in RejectionCode}
    if accepted or sum(rejected.values()) < MIN_REJECTED:
        return None
    code = max(rejected, key=lambda code: rejected[code])
    return (
        f"All {sum(rejected.values()):,} rows of feedback were rejected, most with code {code}: {code.reason} Send "
        "the `event` of the recommendation as it was returned."
    )


def _late(rule: DepartureRule, totals: Mapping[str, int]) -> str | None:
    reopened, departures = totals.get("reopened_users", 0), totals.get("departures", 0)
    closed, accepted = totals.get(f"rejected_feedback_{RejectionCode.EVENT_CLOSED}", 0), totals.get("feedback", 0)
    if not isfinite(rule.inactive_after):
        return None
    many_reopened = reopened >= max(MIN_LATE, LATE_SHARE * departures)
    if not many_reopened and closed < max(MIN_LATE, LATE_SHARE * accepted):
        return None
    return (
        f"Feedback arrives after departures were inferred: {reopened:,} of {departures:,} were withdrawn, and "
        f"{closed:,} rows of feedback came too late. Send feedback earlier, or restart with an --inactive-after "
        f"longer than {duration(rule.inactive_after)}."
    )


def _short_period(rule: DepartureRule, totals: Mapping[str, int]) -> str | None:
    """Warn if nearly everybody departs after one recommendation and comes back."""
    users, returned = totals.get("new_users", 0), totals.get("returned_users", 0)
    if not isfinite(rule.inactive_after) or users < MIN_USERS or returned < users / 2:
        return None
    if totals.get("recommendations", 0) > (1 + LATE_SHARE) * users:
        return None
    return (
        f"Nearly all users count as departed after one recommendation and return: {returned:,} of {users:,}. The "
        f"inactivity period of {duration(rule.inactive_after)} is shorter than the time between two recommendations; "
        "restart with a longer --inactive-after."
    )


def _unknown_segments(totals: Mapping[str, int]) -> str | None:
    unknown, shown = totals.get("unknown_segments", 0), totals.get("recommendations", 0)
    if unknown < max(MIN_UNKNOWN, UNKNOWN_SHARE * shown):
        return None
    return (
        f"{unknown:,} of {shown:,} recommendations were for users in a segment that the policy does not know; they "
        "get the common prior. Send segments as they are spelled in the policy (case counts), or coarser ones."
    )


def _received(totals: Mapping[str, int]) -> int:
    return sum(count for name, count in totals.items() if name.endswith("feedback") or "feedback_" in name)
