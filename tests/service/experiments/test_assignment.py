"""Assignment of users by hash: uniform, stable under ramps, and independent between experiments."""

import hashlib

import numpy as np
import pytest

from departing.model.errors import InputError
from departing.service.experiments.experiment import Change, Experiment, State, bucket, check_shares

USERS = [f"user {i}" for i in range(20_000)]


def experiment(share=0.1, holdout=0.05, salt="s"):
    start = Change(100.0, "start", share, "api")
    return Experiment(1, "n", 1, 0, share, holdout, 60.0, 60.0, 10_000, True, salt, (start,))


def test_the_place_of_a_user_is_the_documented_function():
    digest = hashlib.sha256("spring:zoë".encode()).hexdigest()
    assert bucket("spring", "zoë") == (int(digest[:16], 16) >> 11) / 2**53


def test_places_are_uniform():
    places = np.array([bucket("s", user) for user in USERS])
    counts = np.histogram(places, 50, (0, 1))[0]
    chi_square = ((counts - len(USERS) / 50) ** 2 / (len(USERS) / 50)).sum()
    assert abs(chi_square - 49) / np.sqrt(2 * 49) < 4


def test_experiments_with_other_salts_are_independent():
    one, other = (np.array([bucket(salt, user) for user in USERS]) for salt in ("one", "other"))
    assert abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(USERS)) < 4
    both = ((one < 0.1) & (other < 0.1)).sum()
    assert abs(both - 0.01 * len(USERS)) / np.sqrt(0.01 * 0.99 * len(USERS)) < 4


def test_ramps_change_only_users_at_the_edge():
    before = experiment()
    after = before.ramped(0.3, 200.0, "page")
    down = after.ramped(0.2, 300.0, "api")
    for user in USERS:
        arms = [each.arm(user) for each in (before, after, down)]
        if arms[0] == "treatment":
            assert arms == ["treatment"] * 3
        if arms[0] == "holdout":
            assert arms == ["holdout"] * 3
        if arms[2] == "treatment":
            assert arms[1] == "treatment"
    shares = [np.mean([each.arm(user) == "treatment" for user in USERS]) for each in (before, after, down)]
    expected = np.array([0.1, 0.3, 0.2])
    assert (np.abs(shares - expected) / np.sqrt(expected * (1 - expected) / len(USERS))).max() < 4
    assert (down.stage, down.stage_shares) == (2, [0.1, 0.3, 0.2])
    assert [change.actor for change in down.changes] == ["api", "page", "api"]
    assert down.ramped(0.2, 400.0, "api") is down


def test_states_are_final():
    ended = experiment().finished("rollback", 200.0, "guardrail", "worse")
    assert (ended.state, ended.ended, ended.running) == (State.ROLLED_BACK, 200.0, False)
    assert ended.finished("rollback", 300.0, "api") is ended
    for action in ("stop", "complete"):
        with pytest.raises(InputError, match="Experiment 1 is rolled back; only a running experiment can be"):
            ended.finished(action, 300.0, "api")
    with pytest.raises(InputError, match="Experiment 1 is rolled back; only a running experiment can be ramped"):
        ended.ramped(0.5, 300.0, "api")


@pytest.mark.parametrize(
    ("share", "holdout", "message"),
    [(0.0, 0.0, "share is 0;"), (1.1, 0.0, "share is 1.1;"), (0.5, 1.0, "holdout is 1;"), (0.7, 0.4, "at most 0.6")],
)
def test_shares_that_do_not_fit_are_rejected(share, holdout, message):
    with pytest.raises(InputError, match=message):
        check_shares(share, holdout)


def test_shares_may_add_up_to_one():
    check_shares(0.7, 0.3)
    assert experiment(0.7, 0.3).arm_shares(0)["control"] == 0.0
