"""Rewards in experiments: the readout and the guardrail."""

import time

import pytest

from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.experiments.manager import Experiments
from helpers.experiments import metric, readout, start, with_versions
from helpers.services import rows, run, service

REWARDS = {"sports": 4.0, "music": 1.0}  # of a click; music, the treatment, is clicked more often
CLICKED = {"sports": 2, "music": 1}  # one of so many users


async def visit(served, i):
    """Let a user visit for one recommendation."""
    shown = await served.recommend(m.RecommendRequest(f"u{i}"))
    clicked = i % CLICKED[shown.category] == 0
    reward = REWARDS[shown.category] * (1 + i % 3) / 2 if clicked else None
    await served.feedback([m.Feedback(shown.event, clicked, True, reward)])


def test_rewards_decide_once_there_are_any(address):
    with service(address, inactive_after=50.0, explore=0.0, unit="euro") as served:
        experiments = Experiments(served)
        with_versions(served)
        start(experiments, share=0.5, window=10.0, planned_users=1000)

        async def calls():
            for i in range(800):
                served.clock.time += 0.01
                await visit(served, i)
            await served.flush()

        run(calls())
        served.clock.time += 100.0
        found = readout(experiments)
        names = [each.metric for each in found.metrics]
        assert names == ["reward_per_user", "clicks_per_user", "retention"]
        rewards = metric(found, "reward_per_user")
        total = (
            "SELECT sum(f.reward) FROM assignments b JOIN decisions d ON d.number = b.number "
            "JOIN feedback f ON f.event = d.event WHERE b.arm = a.arm"
        )
        arms = rows(served, f"SELECT a.arm, count(*), ({total}) FROM assignments a GROUP BY a.arm ORDER BY a.arm")
        (_, controls, control), (_, treated, treatment) = arms
        assert (rewards.unit, rewards.control_users, rewards.treatment_users) == ("euro", controls, treated)
        assert rewards.control == pytest.approx(control / controls)
        assert rewards.treatment == pytest.approx(treatment / treated)
        assert rewards.upper < 0 < metric(found).lower  # fewer euro, more clicks
        assert "Euro per user: worse" in found.summary
        run(experiments.check())
        assert served.rollout.state.running is None
        reason = served.rollout.state.experiments[1].changes[-1].reason
        assert "worse in euro per user" in reason
        follow_up = run(DashboardReader(served).read()).follow_up
        assert follow_up.unit == "euro"
        assert sum(each.clicks_per_user * each.users for each in follow_up.over_time) == pytest.approx(
            (control + treatment) * sum(each.users for each in follow_up.over_time) / 800, rel=0.2
        )


def test_rewards_of_0_leave_the_decision_to_clicks(address):
    with service(address, inactive_after=50.0, explore=0.0, unit="euro") as served:
        experiments = Experiments(served)
        with_versions(served)
        start(experiments, share=0.5, window=10.0, planned_users=1000)

        async def calls():
            for i in range(800):
                served.clock.time += 0.01
                shown = await served.recommend(m.RecommendRequest(f"u{i}"))
                clicked = shown.category == "sports"
                await served.feedback([m.Feedback(shown.event, clicked, True, 0.0 if clicked else None)])
            await served.flush()

        run(calls())
        served.clock.time += 100.0
        assert [each.metric for each in readout(experiments).metrics] == ["clicks_per_user", "retention"]
        run(experiments.check())
        assert served.rollout.state.running is None
        assert "worse in clicks per user" in served.rollout.state.experiments[1].changes[-1].reason


def test_rewards_that_follow_later_count_as_after_a_restart(address):
    with service(address, inactive_after=50.0, explore=0.0, unit="euro") as served:
        experiments = Experiments(served)
        with_versions(served)
        start(experiments, share=0.5, window=10.0, planned_users=1000)

        async def calls():
            clicked = []
            for i in range(400):
                served.clock.time += 0.01
                shown = await served.recommend(m.RecommendRequest(f"u{i}"))
                (result,) = await served.feedback([m.Feedback(shown.event, True, True, 1.0 if i == 0 else None)])
                assert result.accepted
                clicked.append(shown)
            await served.flush()
            return clicked

        _, *others = run(calls())
        served.clock.time += 100.0
        before = metric(readout(experiments), "reward_per_user")
        assert before.control_users + before.treatment_users == 400
        run(served.feedback([m.Feedback(each.event, True, True, 2.0) for each in others]))
        time.sleep(1.1)  # a readout is reused for a second
        later = metric(readout(experiments), "reward_per_user")
        total = later.control * later.control_users + later.treatment * later.treatment_users
        assert total == pytest.approx(1.0 + 2.0 * len(others))
        assert metric(readout(Experiments(served)), "reward_per_user") == later
        assert run(served.totals())["late_rewards"] == len(others)
