"""Dashboard, metrics and log: three views of the same store."""

import json

import departing as dp
from departing.service import messages as m
from departing.service.api.metrics import metrics_text
from departing.service.dashboard import DashboardReader
from departing.service.export import write_log
from helpers.services import recommend, run, service


def test_dashboard_metrics_and_log_agree(address, tmp_path):
    with service(address, explore=0.0) as served:
        for i in range(20):
            shown = recommend(served, f"u{i}")
            run(served.feedback([m.Feedback(shown.event, i % 2 == 0, i % 4 == 3)]))
        figures = run(DashboardReader(served).read())
        assert (figures.users, figures.active_users) == (20, 15)
        assert sum(category.departures for category in figures.categories) == 5
        assert len(figures.recent_events) == 8
        assert sum(each.users for each in figures.clicks) == 5
        assert figures.survival[:3] == [1.0, 1.0, 0.0]
        assert "departing_clicks_total 10" in metrics_text(run(served.totals()), 0, False)
        for log_format in ("jsonl", "parquet"):
            write_log(served.store.read, "no-click", log_format, tmp_path / f"log.{log_format}")
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert sum(row["clicked"] for row in lines) == 10
        assert sum(row["departed"] for row in lines) == 5
        assert dp.read_log(tmp_path / "log.parquet").users == 20
    with service(address, names=[]) as served:
        assert run(served.totals())["clicks"] == 10
