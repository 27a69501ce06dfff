"""Responses about one user: a recommendation, and the user's state."""

from msgspec import UNSET

from departing.service import messages as m
from departing.service.event_id import format_event_id
from departing.service.export import history_events
from departing.service.rollout import RolloutState
from departing.service.store.cache import Decision
from departing.service.store.connection import Rows
from departing.service.user import User, counts_array


def recommendation(
    state: RolloutState,
    decision: Decision,
    user: User,
    counts: list[int] | None,
    segment: str | None,
    is_unknown: bool = False,
) -> m.Recommendation:
    """Return the response to a request with a `segment`; `counts` if belief and remaining value are wanted.

    `is_unknown` says that the user has a segment in the request which the policy does not know.
    """
    names, version = state.names, decision.version
    forecast = None if counts is None else state.versions[version].forecast(counts, user.segment)
    belief, clicks = forecast or (UNSET, UNSET)
    shadow_category = names[decision.policy_category] if decision.shadow else UNSET
    arm, experiment = (UNSET, UNSET) if decision.arm is None else (decision.arm, decision.experiment)
    is_kept = segment is not None and segment != user.segment
    event = decision.client_event_id or format_event_id(decision.epoch, decision.event_number)
    return m.Recommendation(
        event,
        names[decision.category],
        decision.propensity,
        version,
        belief,
        clicks,
        shadow_category,
        experiment,  # type: ignore[arg-type]  # not None where there is an arm
        arm,
        user.segment if is_kept else UNSET,
        "segment_kept" if is_kept else UNSET,
        False if is_unknown else UNSET,
    )


def user_state(state: RolloutState, user: User, counts: list[int], history: Rows) -> m.UserState:
    """Return the state of a user with known counts and the rows of the latest events."""
    names = state.names
    rows = counts_array(counts, len(names)).tolist()
    belief, clicks = state.versions[user.version].forecast(counts, user.segment) or (None, None)
    return m.UserState(
        user.name,
        user.version,
        user.departed,
        user.segment,
        {name: m.OutcomeCounts(*row) for name, row in zip(names, rows, strict=True)},
        belief,
        None if user.departed else clicks,
        history_events(history, names),
    )
