"""Reports on logs with segments, rewards and a half-life."""

import re

import pytest

import departing as dp
from helpers.commands import call

SEGMENTS = dp.Segments(
    ["at/mobile", "at/tv", "de/mobile", "de/tv"],
    [0.2, 0.1, 0.5, 0.2],
    [[0.8, 0.2], [0.3, 0.7], [0.8, 0.2], [0.3, 0.7]],
    columns=["country", "device"],
)
SHOP = dp.Instance(
    None,
    [[0.75, 0.25], [0.3, 0.7]],
    0.5,
    0.05,
    categories=["books", "games"],
    segments=SEGMENTS,
    reward=[2.0, 6.0],
    unit="euro",
)
READING = {"segment": ["country", "device"], "reward": "reward", "unit": "euro", "inactive_after": "14 days"}


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "shop.parquet"
    dp.sample_log(SHOP, users=4000, seed=1).save(path)
    return path


@pytest.fixture(scope="module")
def report(events):
    return dp.report(events, types=2, bootstrap=20, half_life="40 days", **READING)


def test_the_page_shows_segments_and_what_to_show_them(report):
    page = report.to_html()
    assert "<h2>What segments tell</h2>" in page
    assert "The segment tells something about a user before the first click" in page
    section = page[page.index("id='segments'") : page.index("id='retention'")]
    assert re.search("country</bdi></th><td>no evidence", section)
    assert re.search("device</bdi></th><td>yes", section)
    order = [section.index(f"<bdi>{name}</bdi>") for name in ("de/mobile", "de/tv", "at/mobile", "at/tv")]
    assert order == sorted(order)
    plans, segments = report.segments, report.fit.instance.segments
    assert (plans.values >= plans.common_values).all()
    for row, i in enumerate(plans.index):
        own = report.fit.instance.in_segment(segments.names[i])
        assert plans.values[row] == pytest.approx(dp.plan(own, 1e-3).value, rel=3e-3)


def test_values_are_in_the_unit_of_the_rewards(report):
    page = report.to_html()
    assert report.unit == "euro"
    assert "euro per user" in page
    assert "clicks per user" not in page
    assert "<h3>What a click is worth</h3>" in page
    assert "clicks per user" not in report.summary()
    true = dp.evaluate(SHOP, report.decision.policy).value
    assert report.value.lower * 0.9 < true < report.value.upper * 1.1


def test_the_page_shows_the_half_life_and_rates_over_time(report):
    page = report.to_html()
    effective = f"{report.fit.histories.effective_users:,.0f}"
    assert f"4,000 users count as {effective} (effective sample size)" in page
    assert "class='over-time'" in page
    assert report.over_time.mean_reward is not None


def test_commands_of_the_page_read_the_log_alike(report, events):
    page = report.to_html()
    for option in ("--segment country,device", "--reward reward", "--unit euro", "--half-life"):
        assert option in page


def test_the_command_takes_the_options(events, tmp_path):
    page = tmp_path / "page.html"
    options = ["--segment", "country,device", "--reward", "reward", "--unit", "euro", "--inactive-after", "14 days"]
    result = call("report", events, *options, "--types", "1", "--bootstrap", "20", "-o", page)
    assert result.exit_code == 0, result.output
    assert "euro per user" in page.read_text()


def test_a_report_without_them_has_no_sections_of_segments(tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.8, 0.2], [0.2, 0.7]], 0.6, categories=["news", "sport"])
    dp.sample_log(site, users=1000, seed=1).save(tmp_path / "events.csv")
    page = dp.report(tmp_path / "events.csv", types=1, bootstrap=20, inactive_after="14 days").to_html()
    assert "What segments tell" not in page
    assert "What a click is worth" not in page
    assert "clicks per user" in page
