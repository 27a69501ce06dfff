"""Reports on logs with segments, rewards and a half-life."""

import html
import re
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import departing as dp
from departing.cli.tables.report import report_values
from departing.fitting.type_names import name_types
from departing.reporting.sections.action import test_section as ab_test_section
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
    assert "<h2>Segments</h2>" in page
    assert "The segment is informative about the type of a user before the first click" in page
    section = page[page.index("id='segments'") : page.index("id='retention'")]
    assert re.search("country</bdi></th><td[^>]*>no evidence", section)
    assert re.search("device</bdi></th><td[^>]*>yes", section)
    order = [section.index(f"<bdi>{name}</bdi>") for name in ("de/mobile", "de/tv", "at/mobile", "at/tv")]
    assert order == sorted(order)


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


def test_values_with_a_half_life_are_those_of_users_at_the_end(report):
    assert "propensity" in report.log.report.columns
    assert report.ope is None
    assert report.value == report.decision.value
    assert report.gain_over_log in report.decision.gains
    assert "Values are those of users at the end of the log" in report.to_html()
    value = dp.off_policy_value(report.log, "greedy", fit=report.fit, bootstrap=20)
    assert any(each.startswith("The fit has a half-life of 40 days: DM is") for each in value.warnings)


def test_a_log_of_few_distinct_histories_by_segment_gives_a_report(tmp_path):
    rng, n = np.random.default_rng(1), 300
    single = pd.DataFrame(
        {
            "user": range(n),
            "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 90, n), unit="D"),
            "category": rng.choice(["a", "b"], n),
            "clicked": rng.random(n) < 0.4,
            "country": rng.choice(["de", "fr", "uk"], n),
        }
    )
    made = dp.report(single, inactive_after="14 days", segment="country")
    assert made.verdict.kind == "insufficient"


def test_commands_of_the_page_read_the_log_alike(report, events):
    page = report.to_html()
    for option in ("--segment country,device", "--reward reward", "--unit euro", "--half-life"):
        assert option in page


def test_the_sample_size_in_clicks_is_computed_as_printed(report, events, monkeypatch):
    monkeypatch.chdir(events.parent)
    (block,) = re.findall(r"<pre><code>(.*?)</code>", ab_test_section(report), re.DOTALL)
    save, power = html.unescape(block).splitlines()
    assert power == "departing power fitted.toml policy.json --clicks-only"
    assert save.endswith("--policy policy.json --instance fitted.toml")
    for line in (save, power):
        result = call(*shlex.split(line)[1:])
        assert result.exit_code == 0, result.output


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
    assert "<h2>Segments</h2>" not in page
    assert "ignoring segments" not in page
    assert "What a click is worth" not in page
    assert "clicks per user" in page


COUNTRIES = ["de", "fr", *"abcdefghijkl"]


@pytest.fixture(scope="module")
def countries(tmp_path_factory):
    """Report on two large segments with opposite types, and twelve small ones, the last of them tiny."""
    segments = dp.Segments(
        COUNTRIES,
        [0.5, 0.3, *[0.0177] * 11, 0.0053],
        [[0.9, 0.1], [0.1, 0.9], *[[0.8, 0.2], [0.2, 0.8]] * 6],
        ["country"],
    )
    site = dp.Instance(None, [[0.8, 0.2], [0.2, 0.8]], 0.6, categories=["news", "film"], segments=segments)
    path = tmp_path_factory.mktemp("log") / "events.csv"
    dp.sample_log(site, users=4000, seed=1, days=60).save(path)
    return dp.report(path, segment="country", inactive_after="14 days", types=2, bootstrap=20)


def section_of(report, name, following):
    page = report.to_html()
    return page[page.index(f"id='{name}'") : page.index(f"id='{following}'")]


def test_the_headline_names_the_first_category_of_each_segment(countries):
    assert re.match(
        r"Start with news in de, .* \(\d\d% of users\), film in fr, .*, then follow", countries.describe()
    )
    assert "not settled" not in str(countries.verdict)
    assert re.search(
        r"In (each segment|segments with at least 9\d% of users) it is (very )?likely", str(countries.verdict)
    )
    values = report_values(countries)
    assert values["policy"]["de"][0].startswith("Start with news")
    assert values["policy"]["fr"][0].startswith("Start with film")


def test_segments_in_doubt_are_named_with_their_own_probabilities(countries):
    decision = countries.decision
    name, share, unsure = decision.segments[0]
    first = tuple(replace(each, probability=p) for each, p in zip(unsure.first, (0.6, 0.4), strict=True))
    parts = decision.by_segment | {name: replace(unsure, first=first)}
    doubtful = replace(countries, decision=replace(decision, by_segment=parts))
    text = str(doubtful.verdict)
    assert re.search(r"not settled in \d of 14 segments, (49|50)% of users \(de: news 60%, film 40%", text)
    assert share == pytest.approx(0.5, abs=0.02)


def test_the_policy_is_described_by_segment(countries):
    section = section_of(countries, "policy", "gain")
    titles = re.findall("<h3>(.*?) of users[)]</h3>", section)
    assert [title.split(" (")[0] for title in titles][:2] == ["de", "fr"]
    assert len(titles) == 3
    assert section.count("<details>") >= 9
    de, fr = section.index("<h3>de ("), section.index("<h3>fr (")
    assert "Start with news" in section[de:fr]
    assert "Start with film" not in section[de:fr]
    assert "Users whose segment is unknown (none in this log) start with " in section


def test_every_segment_has_its_decision_in_the_table(countries):
    section = section_of(countries, "segments", "retention")
    rows = re.findall(r"<tr><th scope='row'><bdi>(\w+)</bdi></th>(.*?)</tr>", section)
    assert {name for name, _ in rows} == set(COUNTRIES)
    assert all("–</td>" not in cells for _, cells in rows)
    assert all(">news<" in cells or ">film<" in cells for _, cells in rows)
    assert "&lt;1%" in dict(rows)["l"]
    shares = [float(re.search(r"(\d+)%</td>", cells).group(1)) for _, cells in rows[:-1]]
    assert shares == sorted(shares, reverse=True)
    assert "Knowing the segment is expected to add" in section


def test_values_say_whether_they_use_the_segment(countries):
    section = section_of(countries, "gain", "fit")
    for label in (
        "recommended (by segment)",
        "greedy (by segment)",
        "ignoring segments",
        "model, corrected for optimism",
    ):
        assert label in section


@pytest.fixture(scope="module")
def jump(tmp_path_factory):
    """Report on a log where the click rate of one category halves on a day."""
    site = dp.Instance([0.5, 0.5], [[0.8, 0.3], [0.2, 0.7]], 0.5, categories=["news", "film"])
    after = site.replace(click=[[0.4, 0.15], [0.2, 0.7]])
    frames = [dp.sample_log(each, users=4000, seed=i, days=60).to_frame() for i, each in enumerate((site, after))]
    frames[1] = frames[1].assign(user=frames[1].user + 10**6, time=frames[1].time + pd.Timedelta("60 days"))
    path = tmp_path_factory.mktemp("jump") / "events.csv"
    pd.concat(frames).to_csv(path, index=False)
    return dp.report(path, inactive_after="14 days", types=2, bootstrap=20)


def test_a_jump_names_its_category_and_the_types_of_the_page(jump):
    page = html.unescape(jump.to_html())
    assert "click rate of category 'news' from" in jump.verdict.sentences[0]
    assert "which may follow from this" in jump.verdict.sentences[0]
    for own in jump.fit.instance.types:
        assert own not in str(jump.verdict)
        assert f"of {own} " not in page
        assert f"'{own}'" not in page[: page.index("<h2>Data quality")]


def test_after_a_jump_the_page_filters_the_log(jump, tmp_path, monkeypatch):
    section = html.unescape(section_of(jump, "change", "data"))
    assert "half-life" not in section
    code, command = re.findall("<pre><code>(.*?)</code></pre>", section, re.S)
    monkeypatch.chdir(tmp_path)
    exec(code)
    recent = dp.read_log("recent.csv", inactive_after="14 days")
    assert command.startswith("departing report recent.csv ")
    first = pd.read_csv("recent.csv", parse_dates=["time"]).groupby("user").time.min()
    assert str(first.min()) >= jump.check.drift.since
    assert 3000 < recent.report.users < 5000


def test_tiny_shares_are_not_printed_as_zero(report, jump):
    assert re.search(r"fewer than 0\.1% of\s+them return later", jump.to_html())
    assert re.search(r"After a recommendation that they click, about \d+\.\d% of users leave", report.to_html())


def test_types_of_a_name_in_two_spellings_are_named_once():
    site = dp.Instance([0.5, 0.5], [[0.8, 0.1], [0.79, 0.1], [0.1, 0.8], [0.1, 0.1]], categories=["a", "A", "b", "c"])
    assert name_types(site)[0] == "a lovers"
