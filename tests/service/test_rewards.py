"""Rewards of clicks: in feedback, in the store and in the log."""

import json

import msgspec
import pytest

from departing.service import messages as m
from departing.service.export import log_parts
from helpers.services import recommend, rows, run, service


def send(served, event, clicked=True, departed=None, reward=None):
    return run(served.feedback([m.Feedback(event, clicked, departed, reward)]))[0]


def stored(served):
    run(served.flush())
    return rows(served, "SELECT event, clicked, departed, reward FROM feedback ORDER BY event")


def test_rewards_are_stored_and_exported(address):
    with service(address, explore=0.0) as served:
        for i, reward in enumerate((2.5, None, 0.0)):
            recommend(served, "ann", event=f"{i}")
            assert send(served, f"{i}", reward=reward).accepted
        recommend(served, "ann", event="last")
        assert [row[3] for row in stored(served)] == [2.5, None, 0.0]
        lines = b"".join(log_parts(served.store.read, "no-click", "jsonl")).splitlines()
        assert [json.loads(line)["reward"] for line in lines] == [2.5, None, 0.0, None]
        assert [event.reward for event in run(served.user_state("ann")).history] == [None, 0.0, None, 2.5]
        assert run(served.totals())["rewarded_clicks"] == 1  # above 0


def test_only_a_click_has_a_reward(address):
    with service(address) as served:
        recommend(served, "ann", event="1")
        assert send(served, "1", clicked=False, reward=1.0).code == "reward_without_click"
        assert stored(served) == []


@pytest.mark.parametrize("settled", [False, True], ids=["open", "settled"])
def test_feedback_is_completed_in_any_order(address, settled):
    with service(address) as served:
        recommend(served, "ann", event="1")
        assert send(served, "1").accepted
        if settled:
            recommend(served, "ann", event="2")
        assert send(served, "1", reward=0.1).accepted
        assert send(served, "1", reward=0.1).accepted  # repeated
        assert send(served, "1").accepted
        assert send(served, "1", reward=0.2).code == "conflicting_feedback"
        assert stored(served)[0][1:] == (1, None, 0.1)
        if not settled:
            assert send(served, "1", departed=True).accepted
            assert stored(served)[0][1:] == (1, 1, 0.1)
        totals = run(served.totals())
        assert (totals["rewarded_clicks"], totals["repeated_feedback"]) == (1, 2)
        assert totals["completed_feedback"] == 2 - settled


def test_a_reward_may_follow_the_departure(address):
    with service(address) as served:
        recommend(served, "ann", event="1")
        assert send(served, "1", departed=True).accepted
        assert send(served, "1", reward=3.0).accepted
        assert stored(served)[0][1:] == (1, 1, 3.0)
        assert run(served.user_state("ann")).departed


def test_rewards_survive_eviction_and_restart(address):
    with service(address) as served:
        recommend(served, "ann", event="1")
        send(served, "1", reward=1 / 3)
    with service(address) as served:
        batch = [m.Feedback("1", True, None, 1 / 3), *(m.Feedback(f"{i}", True) for i in range(9))]
        assert run(served.feedback(batch))[0].accepted
        assert send(served, "1", reward=0.3).code == "conflicting_feedback"
        assert stored(served)[0][3] == 1 / 3


def test_assumed_rewards_of_categories_are_listed(address):
    with service(address) as served:
        added = run(served.add_category("golf", 1 / 3)).categories
        assert [(each.name, each.reward) for each in added[2:]] == [("music", None), ("golf", 1 / 3)]
        changed = run(served.add_category("music", 0.0)).categories
        assert [each.reward for each in changed] == [None, None, 0.0, 1 / 3]
        assert run(served.retire_category("golf")).categories[3] == m.CategoryInfo("golf", True, 1 / 3)
    with service(address, names=[]) as served:
        assert [each.reward for each in run(served.categories()).categories] == [None, None, 0.0, 1 / 3]


@pytest.mark.parametrize("reward", ["-1", "1e13", '"1"', "1e400"])
def test_rewards_out_of_range_are_refused(reward):
    body = f'{{"event": "1", "clicked": true, "reward": {reward}}}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=m.Feedback)
