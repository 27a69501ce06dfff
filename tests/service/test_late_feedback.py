"""Random calls to the service, departures and late feedback included, compared with a replay; and single rules."""

import json
from io import BytesIO

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.export import write_log
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store import queries
from departing.service.workers.evidence import histogram
from helpers.services import NAMES, FixedClock, recommend, rows, run, service

PERIOD, GRACE = 5.0, 4.0
RECOMMEND = st.tuples(st.just("recommend"), st.sampled_from("ab"))
FEEDBACK = st.tuples(  # for one of the latest events
    st.just("feedback"), st.integers(0, 3), st.booleans(), st.sampled_from([None, None, False, True])
)
WAIT = st.tuples(st.sampled_from(["wait", "wait and sweep"]), st.sampled_from([0.5, 3.0, 6.0]))
OTHER = st.one_of(
    st.tuples(st.just("depart"), st.sampled_from("ab")),
    st.tuples(st.just("set clock"), st.sampled_from([-100.0, 0.0])),
    st.tuples(st.just("restart")),
)
CALLS = st.lists(st.one_of(RECOMMEND, FEEDBACK, FEEDBACK, WAIT, WAIT, OTHER), min_size=15, max_size=40)


class PlainService:
    """All visits and events, as lists; everything else follows from them."""

    def __init__(self, missing_feedback):
        self.now, self.visits, self.current, self.events = 1000.0, [], {}, []
        self.missing_feedback = missing_feedback

    def recommend(self, name, category):
        visit = self.current.get(name)
        if visit is not None and self.now - visit["last_seen"] > PERIOD:
            self.infer(visit)
        if visit is None or visit["departed"]:
            if visit is not None:
                visit["final"] = True
            visit = {"departed": False, "final": False, "inferred": None, "events": []}
            self.visits.append(visit)
            self.current[name] = visit
        event = {"visit": visit, "category": category, "clicked": None, "departed": None, "late": False}
        visit["events"].append(event)
        visit["last_seen"] = self.now
        self.events.append(event)

    def infer(self, visit):
        if not visit["departed"]:
            for event in visit["events"]:
                event["late"] = not self.settled(event)
            visit["departed"], visit["inferred"] = True, self.now

    def sweep(self):
        for visit in self.visits:
            if visit["last_seen"] < self.now - PERIOD:
                self.infer(visit)

    def settled(self, event):
        """True if the outcome of an event of an active user is final."""
        last = event["visit"]["events"][-1] is event
        return event["clicked"] is not None and not last

    def feedback(self, event, clicked, departed):
        """Apply feedback; return whether it is accepted."""
        visit, last = event["visit"], event["visit"]["events"][-1] is event
        if event["clicked"] is not None:
            if event["clicked"] != clicked or (departed is not None and event["departed"] not in (None, departed)):
                return False
            if departed is None or event["departed"] == departed:
                return True
        if departed and not last:
            return False
        if visit["departed"]:
            if not (event["late"] and visit["inferred"] is not None and self.now <= visit["inferred"] + GRACE):
                known = event["clicked"] is not None
                unknown = not known and (clicked or self.missing_feedback != "no-click")
                return not unknown and not (departed is False and last)
            stayed = departed is False and last
            if not departed and not visit["final"] and (stayed or (clicked and event["clicked"] is None)):
                visit["departed"], visit["inferred"] = False, None
            elif stayed:
                return False
            else:
                visit["final"] |= bool(departed)
        elif self.settled(event):
            return True
        if not visit["departed"]:
            visit["last_seen"] = self.now
            visit["departed"] = bool(departed)
        event["clicked"] = clicked
        event["departed"] = event["departed"] if departed is None else departed
        return True

    def depart(self, name):
        visit = self.current[name]
        if visit["departed"]:
            visit["final"] = True
        else:
            visit["departed"] = True

    def counts(self, visit, training=False):
        """Counts of a visit: those that are shown, or those to learn from."""
        counts = np.zeros((3, 4), int)
        for event in visit["events"]:
            last = visit["events"][-1] is event
            if event["clicked"] is None and self.missing_feedback != "no-click":
                continue
            if training and last and not visit["departed"] and not self.settled(event):
                continue
            if last and not visit["departed"] and event["clicked"] is None:
                continue
            click, no_click = (CLICK_DEPART, DEPART) if last and visit["departed"] else (CLICK, STAY)
            counts[event["category"], click if event["clicked"] else no_click] += 1
        return counts


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(calls=CALLS, missing_feedback=st.sampled_from(["no-click", "not-seen"]))
def test_random_calls_equal_a_replay_with_sqlite(calls, missing_feedback, tmp_path_factory):
    check_random_calls(calls, missing_feedback, tmp_path_factory.mktemp("service") / "store.sqlite")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(calls=CALLS, missing_feedback=st.sampled_from(["no-click", "not-seen"]))
@pytest.mark.slow
def test_random_calls_equal_a_replay_with_postgres(calls, missing_feedback, postgres):
    check_random_calls(calls, missing_feedback, postgres.new())


def check_random_calls(calls, missing_feedback, address):
    options = Settings(inactive_after=PERIOD, grace_period=GRACE, missing_feedback=missing_feedback)
    plain, clock, ids = PlainService(missing_feedback), FixedClock(), []
    served = open_service(address, NAMES, None, options, seed=1)
    try:
        for call in calls:
            if served.clock is not clock:
                served.clock = clock
                served.now()  # before the clock goes back
            if call[0] == "recommend":
                shown = recommend(served, call[1])
                plain.recommend(call[1], NAMES.index(shown.category))
                ids.append(shown.event)
            elif call[0] == "feedback":
                known = call[1] < len(ids)
                event = ids[-1 - call[1]] if known else f"e-{served.store.epoch}-999999"
                for _ in range(2):  # the second time changes nothing
                    (row,) = run(served.feedback([m.Feedback(event, *call[2:])]))
                    accepted = known and plain.feedback(plain.events[-1 - call[1]], *call[2:])
                    assert row.accepted == accepted, (call, row)
            elif call[0] == "depart" and call[1] in plain.current:
                run(served.depart(call[1]))
                plain.depart(call[1])
            elif call[0].startswith("wait"):
                clock.time = max(clock.time, plain.now) + call[1]
                plain.now = served.now()
                if "sweep" in call[0]:
                    run(served.flush())
                    run(served.sweep())
                    served.store.trim()
                    plain.sweep()
            elif call[0] == "set clock":
                clock.time = plain.now + call[1]  # back; the service's time does not follow
            elif call[0] == "restart":
                clock.time = max(clock.time, plain.now)
                served.store.close()
                served = open_service(address, NAMES, None, options, seed=1)
        served.clock = clock
        run(served.flush())
        compare(served, plain, ids, missing_feedback)
    finally:
        served.store.close()


def compare(served, plain, ids, missing_feedback):
    """Compare the service's users, rows, counters, training data and log with those that follow from the replay."""
    departed = sum(visit["departed"] for visit in plain.visits)
    for name, visit in plain.current.items():
        state = run(served.user_state(name))
        counts = [list(msgspec.structs.astuple(each)) for each in state.counts.values()]
        assert state.departed == visit["departed"]
        assert counts == plain.counts(visit).tolist()
    assert rows(served, "SELECT count(*) FROM departures") == [(departed,)]
    assert rows(served, queries.ACTIVE_USERS) == [(len(plain.visits) - departed,)]
    assert served.store.active_users == len(plain.visits) - departed
    totals = run(served.totals())
    clicks = sum(event["clicked"] is True for event in plain.events)
    assert totals.get("departures", 0) - totals.get("reopened_users", 0) == departed
    assert totals.get("new_users", 0) == len(plain.visits)
    assert totals.get("clicks", 0) == clicks
    with served.store.read() as snapshot:
        histories, users = histogram(snapshot, 3)
    expected = [plain.counts(visit, training=True) for visit in plain.visits]
    assert sorted(histories.repeat(users, axis=0).tolist()) == sorted(
        each.tolist() for each in expected if each.any()
    )
    compare_log(served, plain, ids, missing_feedback)


def log_lines(served, missing_feedback="no-click"):
    file = BytesIO()
    write_log(served.store.read, missing_feedback, "jsonl", file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def compare_log(served, plain, ids, missing_feedback):
    lines = log_lines(served, missing_feedback)
    assert [line["event"] for line in lines] == ids
    for line, event in zip(lines, plain.events, strict=True):
        visit = event["visit"]
        last = visit["events"][-1] is event
        missing = False if missing_feedback == "no-click" and (visit["departed"] or not last) else None
        assert line["clicked"] == (missing if event["clicked"] is None else event["clicked"])
        assert line["departed"] is (None if last and not visit["departed"] else visit["departed"] and last)


@pytest.fixture
def served(address):
    with service(address, inactive_after=PERIOD, grace_period=GRACE) as opened:
        yield opened


def depart_by_inactivity(served, *names):
    """Recommend to users, and let them depart by inactivity; return their event IDs."""
    events = [recommend(served, name).event for name in names]
    run(served.flush())
    served.clock.time += PERIOD + 1.0
    assert run(served.sweep()) == len(names)
    run(served.flush())
    served.store.trim()
    return events


def feedback(served, event, *outcome):
    return run(served.feedback([m.Feedback(event, *outcome)]))[0]


def outcomes(served, name):
    """Sums of the outcomes of a user over all categories."""
    counts = run(served.user_state(name)).counts.values()
    return [
        sum(each) for each in zip(*((c.click, c.stay, c.depart, c.click_and_depart) for c in counts), strict=True)
    ]


@pytest.mark.parametrize("reported", [True, False])
def test_a_user_who_was_still_there_can_depart_later(served, reported):
    for name, clicked in (("ann", True), ("bob", False)):
        for _ in range(2):
            event = recommend(served, name).event
            assert feedback(served, event, clicked, False).accepted
        assert feedback(served, event, clicked, True).code == "conflicting_feedback"
        if reported:
            assert run(served.depart(name)).ok
    if not reported:
        run(served.flush())
        served.clock.time += PERIOD + 1.0
        assert run(served.sweep()) == 2
    assert feedback(served, event, False, False).accepted  # repeated, and the user stays departed
    assert [outcomes(served, name) for name in ("ann", "bob")] == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert run(served.totals())["departures"] == 2
    with served.store.read() as snapshot:
        histories, users = histogram(snapshot, 3)
    assert (users @ histories.sum(axis=1)).tolist() == [1, 1, 1, 1]
    assert [line["departed"] for line in log_lines(served)] == [False, True, False, True]
    served.clock.time += 3600.0
    assert sum(category.departures for category in run(DashboardReader(served).read()).categories) == 2


def test_a_late_click_reopens_the_user(served):
    (event,) = depart_by_inactivity(served, "ann")
    assert outcomes(served, "ann") == [0, 0, 1, 0]
    assert feedback(served, event, True).accepted
    assert not run(served.user_state("ann")).departed
    assert outcomes(served, "ann") == [1, 0, 0, 0]
    recommend(served, "ann")
    totals = run(served.totals())
    assert (totals["reopened_users"], totals["new_users"], totals.get("returned_users", 0)) == (1, 1, 0)
    served.store.trim()  # a reopened user stays in memory
    assert run(served.sweep()) == 0
    served.clock.time += PERIOD + 1.0
    assert run(served.sweep()) == 1


def test_a_click_after_the_grace_period_is_rejected(served):
    (event,) = depart_by_inactivity(served, "ann")
    served.clock.time += GRACE + 0.1
    assert feedback(served, event, True).code == "event_closed"
    assert feedback(served, event, False).accepted  # as the missing feedback was counted
    assert outcomes(served, "ann") == [0, 0, 1, 0]


def test_a_late_no_click_is_recorded_and_the_user_stays_departed(served):
    (event,) = depart_by_inactivity(served, "ann")
    assert feedback(served, event, False).accepted
    assert outcomes(served, "ann") == [0, 0, 1, 0]
    assert run(served.user_state("ann")).history[0].clicked is False
    assert feedback(served, event, True).code == "conflicting_feedback"


def test_a_late_click_of_a_returned_user_counts_in_the_old_record(served):
    (event,) = depart_by_inactivity(served, "ann")
    new = recommend(served, "ann").event
    assert feedback(served, event, True).accepted
    assert feedback(served, event, True).accepted
    assert feedback(served, event, True, False).code == "conflicting_feedback"
    run(served.flush())
    with served.store.read() as snapshot:
        histories, users = histogram(snapshot, 3)
    assert users.tolist() == [1]
    assert histories[0].sum(axis=0).tolist() == [0, 0, 0, 1]
    assert outcomes(served, "ann") == [0, 0, 0, 0]  # of the new record, whose feedback may still arrive
    assert feedback(served, new, True).accepted
    assert run(served.totals()).get("reopened_users", 0) == 0


def test_a_reported_departure_is_final(served):
    first, second = depart_by_inactivity(served, "ann", "bob")
    assert run(served.depart("ann")).ok
    assert not run(served.depart("ann")).ok
    assert feedback(served, second, True, True).accepted
    assert feedback(served, first, True).accepted
    for name in ("ann", "bob"):
        assert run(served.user_state(name)).departed
        assert outcomes(served, name) == [0, 0, 0, 1]
    totals = run(served.totals())
    assert (totals["departures"], totals["reported_departures"], totals["clicks"]) == (2, 2, 2)


def test_feedback_cannot_reopen_a_forgotten_user(served):
    (event,) = depart_by_inactivity(served, "ann")
    run(served.forget("ann"))
    assert feedback(served, event, True).code == "event_closed"
    assert served.store.active_users == 0
