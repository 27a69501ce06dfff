"""Rules of the service, without HTTP."""

import asyncio

import numpy as np
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.service import UserLimitError
from departing.service.settings import Settings
from departing.service.startup import open_service
from helpers.services import NAMES, publish, recommend, rows, run, service


@pytest.mark.slow
def test_propensities_are_the_frequencies_of_the_categories(address):
    with service(address, instance=magazine(), explore=0.3) as served:

        async def many():
            requests = (m.RecommendRequest(f"u{i}", ["news", "music"]) for i in range(2000))
            return await asyncio.gather(*map(served.recommend, requests))

        shown = run(many())
        for name in ("news", "music"):
            propensities = {row.propensity for row in shown if row.category == name}
            assert len(propensities) == 1
            share = sum(row.category == name for row in shown) / len(shown)
            assert abs(share - propensities.pop()) < 4 * np.sqrt(0.25 / len(shown))


def test_a_category_unknown_to_the_policy_is_shown_by_exploration_only(address):
    with service(address, instance=magazine(), explore=0.0) as served:
        run(served.add_category("golf"))
        version = served.rollout.state.versions[0]
        assert version.choose([], [3], 0.0, served.rng) == (3, 1.0, 3)
        assert recommend(served, "ann").category == "music"
        assert run(served.user_state("ann")).counts["golf"] == m.OutcomeCounts(0, 0, 0, 0)


def test_one_process_serves_a_file_and_several_serve_a_database(address):
    with service(address, explore=0.0) as served:
        if not served.store.shared:
            with pytest.raises(dp.InputError, match="already in use by another process"):
                open_service(address, [], None, Settings())
            return
        with service(address, explore=0.0) as other:
            event = recommend(served, "ann", event="mine").event
            assert recommend(other, "ann", event="mine").event == event
            assert run(other.feedback([m.Feedback("mine", True)]))[0].accepted
            assert not run(served.feedback([m.Feedback("mine", False)]))[0].accepted
            run(other.add_category("golf"))
            assert recommend(served, "ann", ["golf"]).category == "golf"
            assert run(other.user_state("ann")).counts["golf"] == m.OutcomeCounts(
                0, 0, 0, 0
            )  # feedback may still arrive
            run(served.retire_category("golf"))
            run(other.refresh())
            assert run(other.categories()).categories[-1].retired
            recommend(other, "bob")
            assert run(served.totals())["recommendations"] == 3


def test_a_process_adopts_versions_and_categories_of_another_with_its_users(postgres):
    address = postgres.new()
    with service(address, explore=0.0) as served, service(address, explore=0.0) as other:
        for number, name in ((1, "ann"), (2, "bob"), (3, "eve")):
            publish(served, dp.Fixed(number), number + 3)
            run(served.add_category(f"new {number}"))
            assert recommend(served, name, event=name).version == number
            recommend(served, name, [f"new {number}"])
        assert recommend(other, "ann").version == 1
        assert recommend(other, "bob", event="bob").version == 2
        assert run(other.user_state("eve")).history[0].category == "new 3"
        publish(served, dp.Fixed(0))
        assert run(other.pin(4)).version == 4


def test_forgetting_a_user_includes_earlier_visits(address):
    with service(address, inactive_after=5.0) as served:
        recommend(served, "ann", event="first visit")
        served.clock.time += 10
        recommend(served, "ann", event="second visit")
        assert recommend(served, "ann", event="first visit").event == "first visit"  # the same person
        assert run(served.totals())["returned_users"] == 1
        run(served.forget("ann"))
        assert rows(served, "SELECT count(*) FROM decisions WHERE key IS NOT NULL") == [(0,)]
        assert rows(served, "SELECT count(*) FROM users WHERE name LIKE 'forgotten %'") == [(2,)]
        assert served.store.active_users == 0


def test_the_number_of_active_users_is_limited(address):
    with service(address, max_users=2) as served:
        recommend(served, "ann")
        recommend(served, "bob")
        with pytest.raises(UserLimitError, match="max_users is 2 and 2 users are active; retry later"):
            recommend(served, "carl")
        assert any("2 of at most 2 users are active" in text for text in run(served.check()))
        run(served.depart("ann"))
        assert recommend(served, "carl").category in NAMES


def test_a_service_far_from_the_limit_of_users_does_not_warn(address):
    with service(address, max_users=20, inactive_after=60.0) as served:
        recommend(served, "ann")
        assert run(served.check()) == []


def test_a_repeated_request_gets_the_same_explanation(address):
    with service(address, instance=magazine(), explore=0.0) as served:
        first = recommend(served, "ann", event="one", explain=True)
        assert recommend(served, "ann", event="one", explain=True) == first


def test_feedback_after_a_departure_must_agree_with_it(tmp_path):
    with service(tmp_path / "s.sqlite", missing_feedback="not-seen") as served:

        async def calls():
            first, last = [(await served.recommend(m.RecommendRequest("ann"))).event for _ in range(2)]
            early = await served.feedback([m.Feedback(first, False, True)])
            await served.depart("ann")
            late = await served.feedback(
                [m.Feedback(first, False, True), m.Feedback(last, False), m.Feedback(last, False, False)]
            )
            return [row.accepted for row in early + late]

        assert run(calls()) == [False, False, False, False]
