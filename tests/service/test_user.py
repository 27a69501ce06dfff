"""What is known of a user, against a plain list of what happened."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.service.user import RefusedError, User, answer, come_back, depart, show


def new():
    return User(0, "ann", 0, [], [])


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("show"), st.integers(0, 2)),
        st.tuples(st.just("answer"), st.integers(0, 8), st.booleans(), st.sampled_from([None, False, True])),
    ),
    max_size=25,
)


class Twin:
    """A user as a plain list of steps: category, clicked, departed as told, and whether they came back after it."""

    def __init__(self):
        self.steps = []

    def show(self, category):
        for step in self.steps:
            step["back"] = True
        self.steps.append({"category": category, "clicked": None, "departed": None, "back": False})

    def refuses(self, event, clicked, departed):
        step = self.steps[event]
        if step["clicked"] is not None and (step["back"] or step["departed"] is False):
            return True  # it is settled
        if step["clicked"] is not None and step["clicked"] != clicked:
            return True
        same = step["clicked"] == clicked and departed in (None, step["departed"])
        return bool(departed) and step["back"] and not same

    def answer(self, event, clicked, departed):
        step = self.steps[event]
        step["clicked"] = clicked
        step["departed"] = step["departed"] if departed is None else departed

    def counts(self, unanswered):
        """What they did, if nothing more is heard of them."""
        counts = np.zeros((3, 4), int)
        for step in self.steps:
            if step["clicked"] is None and unanswered == "not-seen":
                continue
            stayed = step["back"] or step["departed"] is False
            outcomes = (CLICK, STAY) if stayed else (CLICK_DEPART, DEPART)
            counts[step["category"], outcomes[0] if step["clicked"] else outcomes[1]] += 1
        return counts


@given(ACTS, st.sampled_from(["no-click", "not-seen"]))
def test_counts_are_those_of_a_plain_list(acts, unanswered):
    user, twin = new(), Twin()
    for act in acts:
        if user.departed:
            break
        if act[0] == "show":
            come_back(user)
            show(user, len(twin.steps), act[1], 0.0)
            twin.show(act[1])
        elif act[1] < len(twin.steps):
            if twin.refuses(*act[1:]):
                with pytest.raises(RefusedError):
                    answer(user, *act[1:], 0.0, unanswered)
            else:
                answer(user, *act[1:], 0.0, unanswered)
                twin.answer(*act[1:])
    if not user.departed:
        depart(user, unanswered)
        expected = twin.counts(unanswered)
    else:
        expected = twin.counts(unanswered)
    found = np.zeros((3, 4), int)
    found.reshape(-1)[: len(user.counts)] = user.counts
    assert (found == expected).all()


def test_who_comes_back_has_stayed():
    user = new()
    show(user, 1, 0, 0.0)
    answer(user, 1, False, None, 1.0)
    assert user.counts == []  # nobody knows yet whether they stay
    come_back(user)
    assert user.counts == [0, 1, 0, 0]


def test_a_late_answer_puts_right_what_was_taken_for_a_no_click():
    user = new()
    show(user, 1, 0, 0.0)
    come_back(user)
    show(user, 2, 1, 1.0)
    assert user.counts_with_open(2, "no-click")[0].tolist() == [0, 1, 0, 0]
    assert user.counts_with_open(2, "not-seen")[0].tolist() == [0, 0, 0, 0]
    answer(user, 1, True, None, 2.0)
    assert user.counts_with_open(2, "no-click")[0].tolist() == [1, 0, 0, 0]
    with pytest.raises(RefusedError, match="came back"):
        show_and_leave_earlier(user)


def show_and_leave_earlier(user):
    come_back(user)
    show(user, 3, 0, 3.0)
    answer(user, 2, False, True, 4.0)


def test_silence_after_a_click_is_a_departure_after_a_click():
    user = new()
    show(user, 1, 0, 0.0)
    answer(user, 1, True, None, 0.0)
    depart(user, "no-click")
    assert user.counts == [0, 0, 0, 1]
