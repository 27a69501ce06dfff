"""The service without HTTP: random calls, compared with a plain model, and single rules."""

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import departing as dp
from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.service import Settings, UserLimitError
from departing.service.startup import open_service
from helpers.services import NAMES, FixedClock, publish, recommend, rows, run, service

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("recommend"), st.sampled_from("abc")),
        st.tuples(st.just("feedback"), st.integers(1, 12), st.booleans(), st.sampled_from([None, None, False, True])),
        st.tuples(st.just("depart"), st.sampled_from("abc")),
        st.tuples(st.just("wait"), st.floats(0.1, 6.0)),
        st.tuples(st.just("set clock"), st.floats(-100.0, 0.0)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


class PlainService:
    """The expected state of a service, as lists."""

    def __init__(self):
        self.now, self.visits, self.events = 1000.0, {}, []

    def recommend(self, name):
        visit = self.visits.get(name)
        if visit is None or visit["departed"]:
            visit = self.visits[name] = {"departed": False, "events": [], "last_seen": self.now}
        visit["events"].append(len(self.events))
        visit["last_seen"] = self.now
        self.events.append({"visit": visit, "clicked": None, "departed": None})

    def settled(self, event):
        """True if no feedback can change the event any more."""
        row = self.events[event]
        returned = row["visit"]["events"][-1] != event
        return row["visit"]["departed"] or (row["clicked"] is not None and (returned or row["departed"] is False))

    def accepts(self, event, clicked, departed):
        row = self.events[event]
        last = row["visit"]["events"][-1] == event
        if row["clicked"] is not None:
            if row["clicked"] != clicked or (departed is not None and row["departed"] not in (None, departed)):
                return False
            if departed is None or row["departed"] == departed:
                return True
        elif row["visit"]["departed"] and clicked:
            return False
        if departed is False and last and row["visit"]["departed"]:
            return False
        return not departed or last

    def feedback(self, event, clicked, departed):
        row = self.events[event]
        if self.settled(event):
            return
        row["clicked"] = clicked
        row["departed"] = row["departed"] if departed is None else departed
        row["visit"]["last_seen"] = max(row["visit"]["last_seen"], self.now)
        row["visit"]["departed"] |= bool(departed)

    def sweep(self, inactive_after):
        for visit in self.visits.values():
            visit["departed"] |= visit["last_seen"] < self.now - inactive_after


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(calls=CALLS)
def test_random_calls_equal_a_plain_model_with_sqlite(calls, tmp_path_factory):
    check_random_calls(calls, tmp_path_factory.mktemp("service") / "store.sqlite")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(calls=CALLS)
@pytest.mark.slow
def test_random_calls_equal_a_plain_model_with_postgres(calls, postgres):
    check_random_calls(calls, postgres.new())


def check_random_calls(calls, address):
    options = {"inactive_after": 5.0}
    plain, clock, events = PlainService(), FixedClock(), []
    served = open_service(address, NAMES, None, Settings(**options), seed=1)
    try:
        for call in calls:
            if served.clock is not clock:
                served.clock = clock
                served.now()  # before the clock goes back
            if call[0] == "recommend":
                shown = recommend(served, call[1])
                plain.recommend(call[1])
                assert shown.event == f"e-{len(plain.events)}" or served.store.shared
                events.append(shown.event)
            elif call[0] == "feedback":
                known = call[1] <= len(plain.events)
                event = events[call[1] - 1] if known else "e-999999"
                (row,) = run(served.feedback([m.Feedback(event, *call[2:])]))
                assert row.accepted == (known and plain.accepts(call[1] - 1, *call[2:])), (call, row)
                if row.accepted:
                    plain.feedback(call[1] - 1, *call[2:])
            elif call[0] == "depart" and call[1] in plain.visits:
                run(served.depart(call[1]))
                plain.visits[call[1]]["departed"] = True
            elif call[0] == "wait":
                clock.time = max(clock.time, plain.now) + call[1]
                plain.now = clock.time
                run(served.flush())
                run(served.sweep())
                plain.sweep(5.0)
            elif call[0] == "set clock":
                clock.time = plain.now + call[1]  # back; the service's time does not follow
            elif call[0] == "restart":
                clock.time = max(clock.time, plain.now)
                served.store.close()
                served = open_service(address, NAMES, None, Settings(**options), seed=1)
        served.clock = clock
        for name, visit in plain.visits.items():
            assert run(served.user_state(name)).departed == visit["departed"], name
        clicks = sum(row["clicked"] is True for row in plain.events)
        run(served.flush())
        ((stored,),) = rows(served, "SELECT coalesce(sum(clicked), 0) FROM feedback")
        assert stored == clicks
    finally:
        served.store.close()


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
            assert run(other.user_state("ann")).counts["golf"] == m.OutcomeCounts(0, 1, 0, 0)
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
        run(served.depart("ann"))
        assert recommend(served, "carl").category in NAMES


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
