"""Definition of departure: required to learn, remembered by the store, and replaced with a notice."""

import json
import logging

import pytest

import departing as dp
from departing.service import messages as m
from departing.service import server
from departing.service.departures import UNDEFINED, DepartureRule
from departing.service.settings import Settings
from departing.service.startup import open_service
from helpers.commands import call
from helpers.load import wait_until
from helpers.servers import request, serving
from helpers.services import NAMES, run, service


def test_learning_without_a_definition_is_rejected_before_a_file_is_created(tmp_path):
    done = call("serve", "--learn", "--categories", "a,b", "--store", tmp_path / "s.sqlite")
    assert done.exit_code == 2
    for part in ("--inactive-after DURATION", "--departures reported", "'14 days'", "return-times LOG"):
        assert part in done.stderr
    assert done.stderr.startswith("Error: A service that learns needs a definition of departure.")
    command = f"departing serve --learn --categories a,b --store {tmp_path}/s.sqlite --inactive-after '14 days'"
    assert f"\n    {command}\n" in done.stderr
    done = call("serve", "--learn", "--instance", "magazine", "--store", tmp_path / "s.sqlite")
    assert "\n    departing serve --learn --instance magazine " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_definitions_are_rejected(tmp_path):
    for options, reason in (
        (("--departures", "none"), "expected 'reported'"),
        (("--inactive-after", "5"), "a duration"),
    ):
        done = call("serve", "--learn", "--categories", "a,b", "--store", tmp_path / "s.sqlite", *options)
        assert done.exit_code == 2
        assert reason in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_store_remembers_the_definition(address):
    with service(address) as served:
        assert served.warnings() == [UNDEFINED]
    with pytest.raises(dp.InputError, match="needs a definition of departure"):
        open_service(address, [], None, Settings(learn=True))
    rules = (DepartureRule(60.0), DepartureRule(reported=True), DepartureRule(5400.0, True))
    for rule in rules:
        given = Settings(inactive_after=rule.inactive_after, departures_reported=rule.reported, learn=True)
        for settings in (given, Settings(learn=True), Settings()):
            served = open_service(address, NAMES, None, settings)
            served.store.close()
            assert served.settings.rule == rule
            assert served.warnings() == []


def test_another_definition_is_applied_with_a_notice(address, caplog):
    with caplog.at_level(logging.INFO, "departing"):
        for period in (60.0, 60.0, 5400.0):
            with service(address, inactive_after=period):
                pass
        with service(address, departures_reported=True) as served:
            assert served.settings.rule == DepartureRule(reported=True)
    lines = [{"event": record.message, **record.fields} for record in caplog.records]
    assert [(line["before"], line["now"]) for line in lines if line["event"] == "departures_redefined"] == [
        ("inactive for 1 minute", "inactive for 1.5 hours"),
        ("inactive for 1.5 hours", "reported"),
    ]


def test_another_meaning_of_missing_feedback_is_noticed(address, caplog):
    with caplog.at_level(logging.INFO, "departing"):
        for meaning in ("not-seen", "not-seen", "no-click"):
            with service(address, missing_feedback=meaning):
                pass
    lines = [record.fields for record in caplog.records if record.message == "missing_feedback_redefined"]
    assert lines == [{"before": "not-seen", "now": "no-click"}]


def test_a_plan_is_served_without_a_definition_but_with_a_warning(tmp_path):
    with serving(tmp_path, "--instance", "blog") as server:
        status, body = request(server, "/health")
        assert (status, json.loads(body)["warnings"]) == (200, [UNDEFINED])
        wait_until(lambda: UNDEFINED in (tmp_path / "log.txt").read_text())
        server.stop()
    with serving(tmp_path, "--instance", "blog", "--inactive-after", "1 hour") as server:
        assert json.loads(request(server, "/health")[1])["warnings"] == []
        server.stop()
    with serving(tmp_path) as server:  # neither policy nor definition has to be given again
        assert json.loads(request(server, "/health")[1])["warnings"] == []


def test_one_pass_finds_all_inactive_users(address, monkeypatch):
    monkeypatch.setattr("departing.service.service.MAX_SWEEP", 100)
    monkeypatch.setattr(server, "MAX_SWEEP", 100)
    with service(address, inactive_after=10.0) as served:

        async def calls():
            for i in range(450):
                await served.recommend(m.RecommendRequest(f"u{i}"))
            await served.flush()
            served.clock.time += 20.0
            await server._sweep(served)

        run(calls())
        assert served.store.active_users == 0
        assert run(served.totals())["departures"] == 450
