import html
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from benchmarks.checks import model_log

import departing as dp
from departing.cli.tables.report import report_values
from departing.decision.decision import FirstCategory
from departing.fitting.type_names import name_types
from departing.reporting.log_page import SECTIONS
from departing.reporting.sections.action import next_section
from departing.reporting.sections.action import test_section as ab_test_section
from helpers.commands import call, json_output, output
from helpers.report_logs import NAMES, make_log, make_report


@pytest.fixture(scope="module")
def two_types():
    """Report of two types with names in several scripts and with HTML."""
    return make_report(make_log(3000, [[0.8, 0.2], [0.2, 0.7], [0.3, 0.3], [0.1, 0.1]], 0.5, 1, NAMES))


@pytest.fixture(scope="module")
def magazine(tmp_path_factory):
    """Report of a randomised log with propensities, and departures by inactivity."""
    folder = tmp_path_factory.mktemp("magazine")
    path = folder / "events.csv"
    site = dp.Instance([0.6, 0.4], [[0.8, 0.2], [0.2, 0.7]], 0.6, categories=["news", "sport"])
    dp.sample_log(site, users=8000, seed=1, days=60).save(path)
    stages = []
    result = dp.report(
        path, folder / "page.html", types=2, bootstrap=20, progress=lambda stage, *_: stages.append(stage)
    )
    assert list(dict.fromkeys(stages)) == ["reading", "fitting", "checking", "planning", "evaluating", "writing"]
    return result


@pytest.fixture(scope="module")
def misfit():
    """Report of users who click less with every step."""
    return make_report(make_log(4000, [[0.9, 0.3], [0.3, 0.9]], 0.3, 3, fall=0.8))


class Checker(HTMLParser):
    """Checks nesting and collects ids, texts and the addresses of external resources."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.ids, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            self.ids += [value] * (name == "id")
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.loads += [value] * (not value.startswith("#"))

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(report):
    """Check that a page is well formed and self-contained, with all sections in order; return its text."""
    text = report.to_html()
    checker = Checker(text)
    assert checker.loads == []
    assert not {"script", "img", "iframe", "link", "object"} & set(checker.tags)
    assert not re.search(r"url\((?!#)|@import", text)  # a plot refers to its own parts
    # The section of segments is that of a log with segments, the one of change that of a fit.
    optional = {"segments"} | ({"change"} if report.fit is None else set())
    expected = [key for key, *_ in SECTIONS if key not in optional]
    assert [each for each in checker.ids if each in {key for key, *_ in SECTIONS}] == expected
    visible = re.sub(r"<pre>.*?</pre>|<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    assert "nan" not in visible.lower().split()
    assert not re.search(r"`|_on_click|\bnats\b", visible)
    return text


def test_page_recommends_with_uncertainty(magazine):
    text = check_page(magazine)
    verdict = magazine.verdict
    assert verdict.kind == "recommend"
    assert verdict.headline == "Show news first, then follow each user's clicks."
    assert re.search(
        r"instead of \d\.\d\d today \(what the log shows\): .* \(95% interval .* to .*\)", verdict.sentences[0]
    )
    assert re.match(r"The best single category, news, is expected to bring \d\.\d\d if", verdict.sentences[1])
    assert "likely" in verdict.sentences[2]
    assert text.index(html.escape(verdict.headline)) < text.index("id='users'")
    assert "news lovers" in text
    assert "estimated from the log by off-policy evaluation" in text
    assert "count as departed; an estimated" in text


def test_sample_size_is_that_of_a_power_analysis(magazine):
    size = dp.power(magazine.decision)
    assert magazine.sample_size.users == size.users
    few, many = (replace(magazine, sample_size=replace(size, users=users)) for users in (74, 1000))
    assert "Use at least 200 users in total: 37 users in each half would find" in ab_test_section(few)
    assert "With 500 users in each half, such a test finds" in ab_test_section(many)


def test_messages_show_arguments_as_code(magazine):
    table = make_log(300, [[0.6], [0.5], [0.5]], 0.9, 2)
    text = check_page(make_report(table, types=1, categories=["c0", "c1"], max_rejected=1.0))
    assert "category is not in <code>categories</code>" in text


def test_value_uses_the_log_only_where_it_covers_most_clicks(magazine):
    ope = magazine.ope
    assert ope.dr is not None
    assert magazine.uses_ope == (ope.tail_share <= 0.5)
    own = magazine.decision.value.value
    corrected = ope.dr.value - max(ope.dm.value - own, 0)
    assert magazine.value.value == (pytest.approx(corrected) if magazine.uses_ope else own)
    gain = magazine.gain_over_log
    assert gain.value == pytest.approx(magazine.value.value - magazine.today)


def test_names_are_escaped_and_cut(two_types):
    text = check_page(two_types)
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<bdi>الأخبار &amp; co</bdi>" in text
    assert "title='long name" in text
    assert len(set(two_types.type_names)) == two_types.fit.instance.n_types
    assert "<script>" not in two_types._repr_html_()


def test_frame_lists_the_types(magazine):
    frame = magazine.to_frame()
    assert list(frame["type"]) == ["news lovers", "sport lovers"]
    assert frame["click: news"][0] == magazine.fit.instance.click[0, 0]


def test_one_type_has_nothing_to_plan():
    report = make_report(make_log(2000, [[0.6], [0.3], [0.4]], 0.4, 2))
    check_page(report)
    assert report.verdict.kind == "fixed"
    assert report.verdict.headline == "Show c0 to everyone."
    assert "nothing to gain" in report.verdict.sentences[0]


def with_decision(report, **changes):
    """The report with a changed decision, without an off-policy estimate."""
    return replace(report, decision=replace(report.decision, **changes), ope=None)


def test_one_category_for_everyone_is_the_best_single_one(magazine):
    assert magazine.decision.candidates[0].first == "news"
    gains = tuple(
        replace(gain, name="always sport", value=0.0) if gain.name.startswith("always ") else gain
        for gain in magazine.decision.gains
    )
    report = with_decision(magazine, gains=gains)
    assert report.verdict.headline == "Show sport to everyone."
    assert report.verdict.sentences[0].startswith("Starting with news and then following each user's clicks")
    assert "Always showing sport is nearly as good as this policy" in check_page(report)


def test_gain_that_is_not_clear_is_not_said_to_be_small():
    report = make_report(make_log(300, [[0.6], [0.5]], 1.0, 2))
    assert report.gain_over_log.lower <= 0
    assert report.verdict.headline == "This log does not show that a change would help."


def test_recommendation_against_the_likeliest_first_category_is_explained(magazine):
    first = (FirstCategory("sport", 0.54), FirstCategory("news", 0.46))
    report = with_decision(magazine, first=first)
    assert "(sport 54%, news 46%); news is recommended because it costs less" in str(report.verdict)
    assert "news is recommended because it loses less" in report.decision.summary()
    assert "recommended because" not in magazine.decision.summary()


def test_clicks_after_the_longest_history_are_stated():
    report = make_report(make_log(1000, [[0.9], [0.5]], 0.3, 1, max_steps=8))
    assert report.extrapolation.steps == 8
    assert "of this policy comes after more than 8 recommendations, where no user of this log was observed" in str(
        report.verdict
    )
    short = make_report(make_log(1000, [[0.4], [0.2]], 0.8, 1))
    assert "extrapolated" not in str(short.verdict)


def test_commands_of_the_page_run_as_printed(tmp_path, monkeypatch):
    site = dp.Instance([0.6, 0.4], [[0.8, 0.2], [0.2, 0.7]], 0.6, categories=["hard news", "sport"])
    dp.sample_log(site, users=3000, seed=1, days=60).save(tmp_path / "events.csv")
    table = pd.read_csv(tmp_path / "events.csv", dtype={"time": str})
    table["clicked"] = np.where(table["clicked"], "tap", "shown")
    table["time"] = pd.to_datetime(table["time"]).dt.strftime("%d/%m/%Y %H:%M:%S")
    table.loc[table.index[::400], "category"] = "sprot"
    columns = {"propensity": "p show", "user": "Visitor's ID", "time": "seen at", "category": "Kind", "clicked": "do"}
    table.rename(columns=columns).to_csv(tmp_path / "my events.csv", index=False)
    monkeypatch.chdir(tmp_path)
    options = {"clicked_values": ["tap"], "duplicates": "keep", "time_format": "%d/%m/%Y %H:%M:%S"}
    report = dp.report("my events.csv", types=2, bootstrap=20, seed=3, **columns, **options)
    assert report.verdict.shows_policy
    blocks = re.findall(r"<pre><code>(.*?)</code>", ab_test_section(report) + next_section(report), re.DOTALL)
    lines = html.unescape("\n".join(blocks)).splitlines()
    printed = [line for line in lines if line.startswith("departing ")]
    assert len(printed) == 6
    assert sum("--categories 'hard news,sport'" in line for line in printed) == 3
    assert sum("--types 2 --bootstrap 20 --seed 3" in line for line in printed) == 2
    users = {"user": range(400), "arm": ["treatment", "control"] * 200, "clicks": [3, 1, 2, 0] * 100}
    pd.DataFrame(users).to_csv("results.csv", index=False)
    for line in dict.fromkeys(printed):
        name, *arguments = shlex.split(line, comments=True)[1:]
        if name == "serve":
            assert arguments[2] == "--inactive-after"
        else:
            done = call(name, *arguments)
            assert done.exit_code == 0, done.output
    assert len(pd.read_csv("users.csv")) >= report.log.users - 10
    assert dp.Instance.load("fitted.toml").categories == ("hard news", "sport")


@pytest.fixture(scope="module")
def misspelt():
    """Report of a log of two types with a few misspelt categories."""
    table = make_log(3000, [[0.8, 0.2], [0.2, 0.7]], 0.5, 1, ["news", "sport"])
    names = ["News", " sport ", "sprot", "<b>x</b>", "музыка 🎵"]
    for i, name in enumerate(names):
        table.loc[table.index[i :: len(table) // 9], "category"] = name
        table.loc[table["category"] == name, "clicked"] = True
    return make_report(table, types=2)


def test_rare_categories_are_named_and_not_recommended(misspelt):
    text = check_page(misspelt)
    assert misspelt.verdict.headline == "Show news first, then follow each user's clicks."
    assert [misspelt.log.categories[a] for a in misspelt.decision.allowed] == ["news", "sport"]
    assert "“ sport ” (9)" in text
    assert report_values(misspelt)["rare_categories"] == [
        misspelt.log.categories[a] for a in misspelt.rare_categories
    ]
    assert "5 categories have fewer than 100 impressions, too few to recommend: " in text
    assert "leave them out with --categories news,sport." in misspelt.summary()
    assert "--categories news,sport --policy" not in text  # the options of the analysis come between
    assert "--categories news,sport --types 2" in text


def test_commands_accept_the_loss_of_rare_categories():
    table = make_log(500, [[0.6], [0.3]], 0.6, 1)
    table.loc[table.index[:90], "category"] = "c2"
    report = make_report(table, types=1)
    share = np.ceil(100 * 90 / len(table)) / 100
    assert share > 0.05
    assert f"--categories c0,c1 --max-rejected {share:g}" in next_section(report)


def test_rates_that_are_not_determined_name_no_type(misspelt):
    assert set(misspelt.type_names) == {"news lovers", "sport lovers"}
    text = check_page(misspelt)
    assert re.search(r"Not identifiable: click probability of [^<]* for (news|sport) lovers", text)
    known = np.zeros((7, 2), bool)
    assert name_types(misspelt.fit.instance, known) == ("other users 1", "other users 2")


def test_misfit_is_stated_before_rates_that_are_not_determined(misfit):
    fit = misfit.fit
    unknown = replace(fit.identified, click=np.zeros_like(fit.identified.click))
    guessed = replace(misfit, fit=replace(fit, identified=unknown))
    assert guessed.verdict.kind == "misfit"
    fitting = replace(guessed, check=replace(misfit.check, tests=(), drift=None))
    assert fitting.verdict.kind == "insufficient"
    assert "for only 0% of its recommendations" in fitting.verdict.sentences[0]


def test_off_policy_value_of_a_policy_chosen_on_the_same_log_is_corrected(tmp_path):
    site = dp.Instance([1.0], [[0.4]] * 8, 1.0, categories=list("abcdefgh"))
    dp.sample_log(site, users=1500, seed=101, days=90).save(tmp_path / "events.parquet")
    report = dp.report(tmp_path / "events.parquet", inactive_after="20 days", types=1, bootstrap=20)
    truth = 0.4 / 0.6
    assert report.uses_ope
    assert report.ope.dr.value > report.value.value
    assert abs(report.value.value - truth) < abs(report.ope.dr.value - truth)
    assert truth in report.value


def test_misfit_is_stated_instead_of_a_recommendation(misfit):
    report = misfit
    text = check_page(report)
    assert report.verdict.kind == "misfit"
    assert "no policy is recommended" in report.verdict.headline
    assert text.count("No policy is recommended; the top of this page says why.") >= 2
    assert "class='tree'" not in text


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (make_log(1, [[0.9], [0.9]], 0.1, 1), "It has 1 user;"),
        (make_log(60, [[0.5], [0.5]], 0.4, 1), "It has 60 users;"),
        (make_log(500, [[0.5]], 0.4, 1), "only one category, c0"),
        (make_log(500, [[0.5], [0.4]], 0.0, 1, max_steps=5), "known to have left"),
        (make_log(500, [[0.0], [0.0]], 1.0, 1), "two or more events"),
        (make_log(500, [[0.0], [0.0]], 0.5, 1), "was clicked"),
    ],
)
def test_log_that_cannot_answer_says_why(table, reason):
    report = make_report(table)
    text = check_page(report)
    assert report.verdict.kind == "insufficient"
    assert reason in report.verdict.sentences[0]
    assert "class='tree'" not in text


def test_many_categories_are_collapsed():
    click = np.where(np.arange(20)[:, None] % 2 == np.arange(2), 0.7, 0.2)
    report = make_report(make_log(1500, click, 0.4, 4), types=2)
    text = check_page(report)
    assert "<summary>8 more categories" in text


def test_empty_log_writes_no_page(tmp_path):
    (tmp_path / "empty.csv").write_text("user,time,category,clicked,departed\n")
    done = call("report", tmp_path / "empty.csv", "-o", tmp_path / "page.html")
    assert done.exit_code == 2
    assert not (tmp_path / "page.html").exists()


def test_interrupted_writing_leaves_no_file(magazine, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        magazine.save(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_checked(magazine, tmp_path):
    with pytest.raises(dp.InputError, match=r"expected one of \.html"):
        magazine.save(tmp_path / "page.pdf")
    with pytest.raises(dp.InputError, match="user is given, but the source is read already"):
        dp.report(magazine.log, user="uid")
    with pytest.raises(dp.InputError, match="do not keep the order of steps"):
        dp.report(magazine.log.confirmed)
    with pytest.raises(dp.InputError, match="bootstrap is 3"):
        dp.report(magazine.log, bootstrap=3)
    with pytest.raises(dp.InputError, match="types"):
        dp.report(magazine.log, types=[])


def test_command_writes_page_policy_and_instance(tmp_path):
    make_log(2000, [[0.8, 0.2], [0.2, 0.7]], 0.5, 1).to_csv(tmp_path / "events.csv", index=False)
    options = ("--types", 2, "--bootstrap", 20, "-o", tmp_path / "page.html")
    files = ("--policy", tmp_path / "policy.json", "--instance", tmp_path / "fitted.toml")
    values = json_output("report", tmp_path / "events.csv", *options, *files)
    assert values["verdict"]["kind"] == "recommend"
    assert values["decision"]["first"][0]["probability"] > 0.5
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    instance = dp.Instance.load(tmp_path / "fitted.toml")
    assert dp.load_policy(tmp_path / "policy.json").recommend(np.zeros((2, 4), int)) in (0, 1)
    assert instance.categories == ("c0", "c1")
    printed = output("report", tmp_path / "events.csv", *options)
    assert values["verdict"]["headline"] in printed


@pytest.mark.slow
def test_quickstart_is_a_report_on_the_sample_log(tmp_path):
    printed = output("quickstart", "-o", tmp_path / "page.html")
    assert "departing report YOUR_LOG.csv" in printed
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    Checker(text)
    assert "the best possible one 7.07" in text
    assert "news lovers" in text
    for word in ("regret", "UCB", "blog", "theorem"):
        assert word not in text


def test_users_who_differ_in_a_log_that_is_too_small_are_not_said_to_be_alike():
    site = dp.Instance([0.6, 0.4], [[0.55, 0.4], [0.4, 0.55], [0.45, 0.45], [0.4, 0.5]], 0.3)
    report = dp.report(model_log(site, 6000, seed=0), bootstrap=20)
    assert report.fit.hidden_types == 2
    assert report.verdict.kind == "fixed"
    assert report.verdict.sentences[0].startswith("Users differ, but this log has too few of them")
