import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

import departing as dp
from departing.plotting.figures import render
from departing.report.numbers import bracket, number, significant
from departing.report.plot import switching_values
from departing.report.quickstart import write_page
from departing.report.quickstart_demo import tell
from helpers.commands import told, values


@pytest.fixture(scope="module")
def story():
    parts = []
    told = tell(parts.append)
    assert sum(parts) == 5
    return told


def test_the_command_writes_its_page(story, tmp_path, monkeypatch):
    monkeypatch.setattr("departing.report.quickstart_demo.tell", lambda _: story)  # told once for all tests of it
    assert values("quickstart", "-o", tmp_path / "page.html")["best"] == "sports × 6, then economics"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in told("quickstart", "-o", tmp_path / "page.html")


def test_the_story_in_a_terminal(story, capsys):
    Console(width=120).print(story)
    text = capsys.readouterr().out
    for words in ("love news", "Show music first", "what the log did", "Bayes: ", "sports × 6, then economics"):
        assert words in text


def test_the_story_has_learners_who_learn(story):
    lost = {row["learner"]: row["regret"] for row in story.values()["learners"]}
    hybrid, lattice, bayes = lost.values()
    assert bayes < hybrid / 5
    assert lattice < hybrid / 3


def test_the_story_goes_from_a_log_to_a_policy(story):
    site = story.site
    assert site.fit.instance.n_types == site.truth.n_types
    assert [words.split(": ")[1].split(",")[0] for words in site.fit.words()] == [
        "love news",
        "love sport",
        "love music",
    ]
    assert 0.99 * site.best < site.planned <= site.best + 1e-3
    assert abs(site.run.mean - site.planned) < 4 * site.run.stderr
    assert site.planned > 2 * site.check.clicks
    assert site.check.clicks < site.learnt < site.best
    true = dict(zip(site.truth.categories, site.truth.depart[:, 0], strict=True))
    for name, found, error in zip(
        site.fit.instance.categories, site.fit.instance.depart, site.fit.errors.depart, strict=True
    ):
        assert (abs(found - true[name]) < 4.5 * error).all()


def test_the_story_finds_six_steps_and_the_exact_values(story):
    assert story.best == dp.Threshold(first=1, steps=6, then=0)
    values = {row["policy"]: row for row in story.values()["blog"]}
    assert values["sports × 6, then economics"]["lower"] == pytest.approx(0.6502905844, abs=1e-10)
    run, _ = story.runs[-1]
    assert run.users == 10**12
    assert abs(run.mean - 0.6502905844) < 4 * run.stderr


def test_the_page_is_whole_and_asks_for_nothing_from_the_network(story, tmp_path):
    write_page(story, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()

    class Checker(HTMLParser):
        """Collects tags left open and addresses that would be loaded."""

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


def test_other_endings_are_refused(story, tmp_path):
    with pytest.raises(dp.InputError, match=r"allowed endings are \.html"):
        write_page(story, tmp_path / "page.pdf")


def test_pictures_are_the_same_every_time():
    from departing.model.examples import blog
    from departing.report.plot import draw_switching

    assert render(draw_switching(blog(), 1, 0), "png")[:8] == b"\x89PNG\r\n\x1a\n"
    assert switching_values(blog(), 1, 0, 12).argmax() == 6


def test_numbers_are_written_for_people():
    assert number(float("nan")) == significant(float("nan")) == "–"
    assert number(1e-9) == "1e-09"
    assert bracket(2e7, 2e7) == "2e+07 to 2e+07"
