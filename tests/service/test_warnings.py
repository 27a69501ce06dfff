"""Warnings of the service: certain, with a next step, and gone when their cause is."""

import json
from math import inf

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.departures import UNDEFINED, DepartureRule
from departing.service.warning_rules import find_warnings
from helpers.load import wait_until
from helpers.servers import request, serving
from helpers.services import publish, recommend, run, service

REPORTED, PERIOD, NONE = DepartureRule(inf, True), DepartureRule(1800.0), DepartureRule()


@pytest.mark.parametrize(
    ("rule", "totals", "expected"),
    [
        (NONE, {}, {"departures_undefined": "Restart with --inactive-after DURATION or --departures reported"}),
        (PERIOD, {}, {}),
        (
            REPORTED,
            {"new_users": 400, "recommendations": 1300, "feedback": 1250, "clicks": 800},
            {"departures_not_reported": "none of 400 users was reported to depart, after 450 recommendations"},
        ),
        (  # feedback for clicks only
            REPORTED,
            {"new_users": 400, "recommendations": 1500, "feedback": 700, "clicks": 700},
            {"departures_not_reported": "after 400 recommendations without a click; every user counts as active"},
        ),
        (
            DepartureRule(60.0, True),
            {"new_users": 400, "recommendations": 1300, "feedback": 1250, "clicks": 800, "departures": 350},
            {"departures_not_reported": "only inactivity counts"},
        ),
        (PERIOD, {"recommendations": 900, "feedback": 900, "unknown_segments": 99}, {}),
        (PERIOD, {"recommendations": 9000, "feedback": 9000, "unknown_segments": 400}, {}),
        (
            PERIOD,
            {"recommendations": 900, "feedback": 900, "unknown_segments": 100},
            {"segments_unknown": "100 of 900 recommendations were for users in a segment that the policy does not"},
        ),
        (REPORTED, {"new_users": 299, "recommendations": 9000, "feedback": 9000, "clicks": 1}, {}),
        (REPORTED, {"new_users": 400, "recommendations": 400, "feedback": 100, "clicks": 90}, {}),
        (
            REPORTED,
            {"new_users": 400, "recommendations": 1300, "feedback": 1250, "clicks": 800, "reported_departures": 1},
            {},
        ),
        (PERIOD, {"new_users": 400, "recommendations": 1300, "feedback": 1250, "clicks": 800}, {}),
        (PERIOD, {"new_users": 900, "recommendations": 1000}, {"feedback_missing": "POST /v1/feedback"}),
        (PERIOD, {"new_users": 900, "recommendations": 1000, "rejected_feedback_unknown_event": 1}, {}),
        (
            PERIOD,
            {"recommendations": 50, "rejected_feedback_unknown_event": 19, "rejected_feedback_event_closed": 1},
            {"feedback_rejected": "All 20 rows of feedback were rejected, most with code unknown_event"},
        ),
        (PERIOD, {"recommendations": 50, "feedback": 1, "rejected_feedback_unknown_event": 50}, {}),
        (
            PERIOD,
            {"feedback": 5000, "departures": 1000, "reopened_users": 100},
            {"feedback_late": "100 of 1,000 were withdrawn, and 0 rows of feedback came too late"},
        ),
        (
            PERIOD,
            {"feedback": 1000, "departures": 5000, "rejected_feedback_event_closed": 100},
            {"feedback_late": "an --inactive-after longer than 30 minutes"},
        ),
        (PERIOD, {"feedback": 5000, "departures": 3000, "reopened_users": 100}, {}),
        (
            PERIOD,
            {"new_users": 300, "recommendations": 310, "feedback": 300, "returned_users": 200, "departures": 299},
            {"inactivity_period_short": "The inactivity period of 30 minutes is shorter"},
        ),
        (PERIOD, {"new_users": 300, "recommendations": 310, "feedback": 300, "departures": 299}, {}),
    ],
)
def test_warnings_follow_from_the_counters(rule, totals, expected):
    found = find_warnings(rule, totals)
    assert found.keys() == expected.keys()
    for key, part in expected.items():
        assert part in found[key]


def test_a_warning_is_new_once_and_disappears_with_its_cause(address):
    with service(address, departures_reported=True) as served:
        for i in range(300):
            event = recommend(served, f"user {i}").event
            run(served.feedback([m.Feedback(event, False)]))
        assert served.warnings() == []  # until the next check
        (warning,) = run(served.check())
        assert "none of 300 users was reported to depart" in warning
        assert run(served.check()) == []
        assert served.warnings() == [warning]
        run(served.depart("user 1"))
        assert run(served.check()) == []
        assert served.warnings() == []


def test_health_page_and_log_show_a_warning(tmp_path):
    options = ("--learn", "--departures", "reported", "--categories", "news,sport")
    with serving(tmp_path, *options) as server, server.client() as client:
        for i in range(300):
            client.feedback(client.recommend(f"user {i}")["event"], clicked=False)
        expected = "none of 300 users was reported to depart"

        def shown(path):
            return any(expected in text for text in json.loads(request(server, path)[1])["warnings"])

        wait_until(lambda: shown("/health"))
        wait_until(lambda: shown("/v1/dashboard"))
        wait_until(lambda: expected in (tmp_path / "log.txt").read_text())


def test_a_restart_without_learning_is_a_warning(tmp_path):
    address, stopped = tmp_path / "store.sqlite", "The store was learning before; the service does not learn now."
    with service(address, inactive_after=60.0, learn=True) as served:
        publish(served, dp.Fixed(1), source="learned")
        assert served.warnings() == []
    with service(address, learn=True) as served:
        assert served.warnings() == []
    with service(address) as served:
        assert served.warnings() == [f"{stopped} Restart with --learn to go on."]
        assert run(served.check()) == []
        run(served.pin(0))  # a version that was not learned
        run(served.check())
        assert served.warnings() == []
        run(served.pin(None))
    log = tmp_path / "log.txt"
    with serving(tmp_path) as server:
        assert stopped in request(server, "/health")[1].decode()
        assert stopped in request(server, "/v1/dashboard")[1].decode()
        wait_until(lambda: stopped in log.read_text())
        assert '"learning": false' in log.read_text()


def test_the_first_warning_is_there_before_the_first_check(address):
    with service(address) as served:
        assert served.warnings() == [UNDEFINED]
