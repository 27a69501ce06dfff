"""Dashboard, metrics and log: three views of the same store."""

import json
from dataclasses import replace

import departing as dp
from departing.service import messages as m
from departing.service.api.latency import Latency
from departing.service.api.metrics import metrics_text
from departing.service.dashboard import DashboardReader
from departing.service.export import write_log
from departing.service.follow_up import UserSample
from helpers.services import recommend, run, service


def test_dashboard_metrics_and_log_agree(address, tmp_path):
    with service(address, explore=0.0) as served:
        for i in range(20):
            shown = recommend(served, f"u{i}")
            run(served.feedback([m.Feedback(shown.event, i % 2 == 0, i % 4 == 3)]))
        figures = run(DashboardReader(served).read())
        assert (figures.users, figures.active_users) == (20, 15)
        assert sum(category.departures for category in figures.categories) == 0  # nobody was followed for a second
        served.clock.time += 3600
        figures = run(DashboardReader(served).read())
        assert sum(category.departures for category in figures.categories) == 5
        assert len(figures.recent_events) == 8
        assert figures.follow_up.users == 20
        text = metrics_text(run(served.totals()) | {"problems_422": 3}, served, Latency([]))
        assert "departing_clicks_total 10" in text
        assert 'departing_rejected_feedback_total{code="lost_event"} 0\n' in text
        assert 'departing_problems_total{status="422"} 3\n' in text
        for log_format in ("jsonl", "parquet"):
            with (tmp_path / f"log.{log_format}").open("wb") as file:
                write_log(served.store.read, "no-click", log_format, file)
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert sum(row["clicked"] for row in lines) == 10
        assert sum(row["departed"] is True for row in lines) == 5
        assert dp.read_log(tmp_path / "log.parquet").users == 20
    with service(address, names=[]) as served:
        assert run(served.totals())["clicks"] == 10


def test_clicks_of_forgotten_users_count(address):
    with service(address, explore=0.0) as served:
        for i in range(120):
            shown = recommend(served, f"u{i}")
            run(served.feedback([m.Feedback(shown.event, i % 3 > 0)]))
            if i % 2:
                run(served.forget(f"u{i}"))
        served.clock.time += 3600.0
        latest = run(DashboardReader(served).read()).follow_up.latest
    assert (latest.users, latest.clicks_per_user) == (120, 80 / 120)


def test_clicks_after_the_window_do_not_count(address):
    with service(address, explore=0.0, inactive_after=10.0, grace_period=1000.0) as served:
        events = [recommend(served, f"u{i}").event for i in range(120)]
        run(served.feedback([m.Feedback(event, True) for event in events[:30]]))
        served.clock.time += 20.0
        for i in range(120):
            recommend(served, f"u{i}")  # a new visit, so that the click cannot reopen the earlier one
        results = run(served.feedback([m.Feedback(event, True) for event in events[30:90]]))
        assert all(row.accepted for row in results)
        served.clock.time += 3600.0
        run(served.flush())
        run(served.sweep())
        run(served.flush())
        with served.store.read() as snapshot:
            users = replace(UserSample.read(snapshot, served.now(), 10.0), window=1.0)
            assert users.cohort().clicks.sum() == 30
            assert replace(users, window=30.0).cohort().clicks.sum() == 90


def test_a_category_is_not_shown_yet_until_it_is_shown(address):
    with service(address, explore=0.0, inactive_after=100.0) as served:
        reader = DashboardReader(served)
        assert {category.shown for category in run(reader.read()).categories} == {False}
        shown = recommend(served, "ann")
        run(served.flush())
        activity = {each.name: each for each in run(DashboardReader(served).read()).categories}
        assert {name for name, each in activity.items() if each.shown} == {shown.category}
        assert activity[shown.category].outcomes == 0
