import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

import departing as dp
from departing.cli.tables.quickstart import quickstart_tables, quickstart_values
from departing.fitting.type_description import describe_types
from departing.quickstart_demo import run_demo
from departing.reporting.quickstart import write_page
from helpers.commands import json_output, output

pytestmark = pytest.mark.slow  # all tests need the whole demonstration


@pytest.fixture(scope="module")
def demo():
    parts = []
    demo = run_demo(lambda *numbers: parts.append(numbers))
    assert parts == [(done, 5) for done in range(1, 6)]
    return demo


def test_command_writes_the_page(demo, tmp_path, monkeypatch):
    monkeypatch.setattr("departing.quickstart_demo.run_demo", lambda _: demo)  # computed once for all tests
    assert json_output("quickstart", "-o", tmp_path / "page.html")["best"] == "sports × 6, then economics"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in output("quickstart", "-o", tmp_path / "page.html")


def test_summary_is_printed(demo, capsys):
    Console(width=120).print(quickstart_tables(demo))
    text = capsys.readouterr().out
    for phrase in ("love news", "Show music first", "policy of the log", "Bayes: ", "sports × 6, then economics"):
        assert phrase in text


def test_learners_improve_on_ucb_hybrid(demo):
    regret = {row["learner"]: row["regret"] for row in quickstart_values(demo)["learners"]}
    hybrid, lattice, bayes = regret.values()
    assert bayes < hybrid / 5
    assert lattice < hybrid / 3


def test_policy_from_the_log_is_close_to_the_optimum(demo):
    log = demo.log
    assert log.fit.instance.n_types == log.truth.n_types
    assert [phrase.split(": ")[1].split(",")[0] for phrase in describe_types(log.fit.instance)] == [
        "love news",
        "love sport",
        "love music",
    ]
    assert 0.99 * log.optimum < log.policy_value <= log.optimum + 1e-3
    assert abs(log.run.mean - log.policy_value) < 4 * log.run.stderr
    assert log.policy_value > 2 * log.check.clicks_per_user
    assert log.check.clicks_per_user < log.learner_clicks < log.optimum
    true = dict(zip(log.truth.categories, log.truth.depart[:, 0], strict=True))
    for name, fitted, error in zip(
        log.fit.instance.categories, log.fit.instance.depart, log.fit.stderr.depart, strict=True
    ):
        assert (abs(fitted - true[name]) < 4.5 * error).all()


def test_best_threshold_has_six_steps_and_the_exact_value(demo):
    assert demo.blog.best == dp.Threshold(first=1, steps=6, then=0)
    values = {row["policy"]: row for row in quickstart_values(demo)["blog"]}
    assert values["sports × 6, then economics"]["lower"] == pytest.approx(0.6502905844, abs=1e-10)
    run, _ = demo.blog.runs[-1]
    assert run.users == 10**12
    assert abs(run.mean - 0.6502905844) < 4 * run.stderr


def test_page_is_well_formed_and_self_contained(demo, tmp_path):
    write_page(demo, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()

    class Checker(HTMLParser):
        """Collects open tags and the addresses of external resources."""

        def __init__(self):
            super().__init__()
            self.open, self.loads = [], []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br", "img", "link"):
                self.open.append(tag)
            self.loads += [
                v for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith(("#", "data:"))
            ]

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.loads == []
    assert "url(http" not in text
    assert "@import" not in text
    assert text.count("<svg") == 5
    assert "0.6502905844" in text
    assert not re.search(r"\$[a-z_]+", text)


def test_other_suffixes_are_rejected(demo, tmp_path):
    with pytest.raises(dp.InputError, match=r"expected one of \.html"):
        write_page(demo, tmp_path / "page.pdf")
