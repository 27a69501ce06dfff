"""State of a user, compared with a plain list of events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.service.user import (
    MAX_OPEN_STEPS,
    FeedbackRejectedError,
    RecordedFeedback,
    RejectionCode,
    User,
    add_step,
    apply_feedback,
    confirm_stay,
    depart,
)


def new_user():
    return User(0, "ann", 0, [], [])


def feedback(user, event, clicked, departed, now=0.0, missing_feedback="no-click", earlier=None):
    return apply_feedback(user, event, RecordedFeedback(clicked, departed), now, missing_feedback, earlier)


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("recommend"), st.integers(0, 2)),
        st.tuples(st.just("feedback"), st.integers(0, 8), st.booleans(), st.sampled_from([None, False, True])),
    ),
    max_size=25,
)


class PlainUser:
    """A user as a list of steps: category, reported outcome, and whether the user returned after it."""

    def __init__(self):
        self.steps = []

    def recommend(self, category):
        for step in self.steps:
            step["returned"] = True
        self.steps.append({"category": category, "clicked": None, "departed": None, "returned": False})

    def earlier(self, event):
        step = self.steps[event]
        return None if step["clicked"] is None else RecordedFeedback(step["clicked"], step["departed"])

    def rejection(self, event, clicked, departed):
        """The code with which feedback must be rejected, None if it is accepted."""
        step = self.steps[event]
        if step["clicked"] is not None:
            if step["clicked"] != clicked or (departed is not None and step["departed"] not in (None, departed)):
                return RejectionCode.CONFLICTING_FEEDBACK
            if departed is None or step["departed"] == departed:
                return None
        return RejectionCode.USER_RETURNED if departed and step["returned"] else None

    def feedback(self, event, clicked, departed):
        step = self.steps[event]
        step["clicked"] = clicked
        step["departed"] = step["departed"] if departed is None else departed

    def counts(self, missing_feedback):
        """The counts if the user departs now."""
        counts = np.zeros((3, 4), int)
        for step in self.steps:
            if step["clicked"] is None and missing_feedback == "not-seen":
                continue
            outcomes = (CLICK, STAY) if step["returned"] else (CLICK_DEPART, DEPART)
            counts[step["category"], outcomes[0] if step["clicked"] else outcomes[1]] += 1
        return counts


@given(CALLS, st.sampled_from(["no-click", "not-seen"]))
def test_counts_and_rejections_equal_those_of_a_plain_list(calls, missing_feedback):
    user, plain = new_user(), PlainUser()
    for call in calls:
        if user.departed:
            break
        if call[0] == "recommend":
            confirm_stay(user)
            add_step(user, len(plain.steps), call[1], 0.0)
            plain.recommend(call[1])
        elif call[1] < len(plain.steps):
            code, earlier = plain.rejection(*call[1:]), plain.earlier(call[1])
            if code is not None:
                with pytest.raises(FeedbackRejectedError) as error:
                    feedback(user, *call[1:], 0.0, missing_feedback, earlier)
                assert error.value.code == code
            else:
                feedback(user, *call[1:], 0.0, missing_feedback, earlier)
                plain.feedback(*call[1:])
    if not user.departed:
        depart(user, missing_feedback)
    counts = np.zeros((3, 4), int)
    counts.reshape(-1)[: len(user.counts)] = user.counts
    assert (counts == plain.counts(missing_feedback)).all()


def test_a_user_who_returns_has_stayed():
    user = new_user()
    add_step(user, 1, 0, 0.0)
    feedback(user, 1, False, None)
    assert user.counts == []  # the user may still depart
    confirm_stay(user)
    assert user.counts == [0, 1, 0, 0]


def test_late_feedback_corrects_a_provisional_no_click():
    user = new_user()
    add_step(user, 1, 0, 0.0)
    confirm_stay(user)
    add_step(user, 2, 1, 1.0)
    assert user.current_counts("no-click")[:4] == [0, 1, 0, 0]
    assert user.current_counts("not-seen") == []
    feedback(user, 1, True, None)
    assert user.current_counts("no-click")[:4] == [1, 0, 0, 0]
    confirm_stay(user)
    add_step(user, 3, 0, 3.0)
    with pytest.raises(FeedbackRejectedError, match="The user returned after this event"):
        feedback(user, 2, False, True)


def test_inactivity_after_a_click_is_a_departure_after_a_click():
    user = new_user()
    add_step(user, 1, 0, 0.0)
    feedback(user, 1, True, None)
    depart(user, "no-click")
    assert user.counts == [0, 0, 0, 1]


@pytest.mark.parametrize(("missing_feedback", "stays"), [("no-click", 1), ("not-seen", 0)])
def test_the_oldest_open_step_is_closed_beyond_the_limit(missing_feedback, stays):
    user = new_user()
    for event in range(MAX_OPEN_STEPS + 1):
        add_step(user, event, 0, 0.0, missing_feedback)
    assert len(user.open) == MAX_OPEN_STEPS
    assert sum(user.counts) == stays
    with pytest.raises(FeedbackRejectedError) as error:
        feedback(user, 0, True, None, missing_feedback=missing_feedback)
    assert error.value.code == "event_closed"


def test_a_copy_of_a_user_shares_nothing_that_changes():
    user = new_user()
    add_step(user, 1, 0, 0.0)
    copy = user.copy()
    feedback(copy, 1, True, True)
    assert (user.counts, user.departed, user.open[0].clicked) == ([], False, None)
    assert (copy.counts, copy.departed, copy.open) == ([0, 0, 0, 1], True, [])
