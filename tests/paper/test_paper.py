"""Quick checks of the claims of the paper, and the page of their results."""

import importlib
import json

import numpy as np
import pytest

from departing.cli.tables.paper import paper_table, paper_values
from departing.paper.extensions import like_film_ratings
from departing.paper.item import HOLDS, IMPLEMENTED, NOT_COMPUTABLE, REFUTED, SKIPPED, VERDICTS, Finding, Item, Scale
from departing.paper.items import ITEMS, OWN_KINDS
from departing.paper.runner import check_all
from departing.reporting.paper import paper_page, summary
from helpers.commands import call, json_output, output

QUICK = Scale(quick=True)
SLOW = {"open-problems"}  # more than two seconds of CPU time in a new process
CHECKED = [
    pytest.param(item, id=item.key, marks=[pytest.mark.slow] if item.key in SLOW else [])
    for item in ITEMS
    if item.check is not None
]


@pytest.mark.parametrize("item", CHECKED)
def test_checks_give_the_recorded_verdicts(item):
    finding = item.check(QUICK)
    assert finding.verdict in (item.verdict, SKIPPED), finding.evidence
    assert finding.evidence.endswith(".")
    assert all(len(row) == len(finding.table[0]) for row in finding.table)


def test_items_are_complete():
    for item in ITEMS:
        assert item.verdict in VERDICTS
        assert item.verdict != SKIPPED
        assert item.statement.endswith(".")
        assert item.check or item.verdict in (IMPLEMENTED, NOT_COMPUTABLE), item.key
        assert item.note if item.verdict == NOT_COMPUTABLE else item.code, item.key
        assert item.note or item.verdict != REFUTED, f"{item.key} does not say what survives"


def test_code_of_items_exists():
    for item in ITEMS:
        for place in item.code:
            module, _, name = place.partition(":")
            target = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
            assert target is not None, place


def item(key, check, verdict=HOLDS):
    return Item(key, "Section 1", "statement", "Statement.", verdict, method="Method.", check=check)


def test_interrupted_runs_resume(tmp_path):
    calls = []

    def called(key, breaks=False):
        def check(_):
            calls.append(key)
            if breaks:
                raise KeyboardInterrupt
            return Finding.of(True, "Fine.", [["a"], ["b"]])

        return item(key, check)

    checkpoint = tmp_path / "checkpoint.json"
    with pytest.raises(KeyboardInterrupt):
        check_all([called("one"), called("two", breaks=True)], QUICK, checkpoint, lambda *_: None)
    findings = check_all([called("one"), called("two")], QUICK, checkpoint, lambda *_: None)
    assert calls == ["one", "two", "two"]
    assert [finding.evidence for _, finding in findings] == ["Fine.", "Fine."]
    check_all([called("one")], Scale(quick=False), checkpoint, lambda *_: None)  # another scale: nothing is reused
    assert calls[3:] == ["one"]
    checkpoint.write_text("{ damaged")
    check_all([called("one")], QUICK, checkpoint, lambda *_: None)
    assert calls[4:] == ["one"]


def test_page_shows_every_item():
    findings = [(item, Finding(HOLDS, "Shown <so>.", [["n"], ["<1>"]], "<svg></svg>", "c", 0.1)) for item in ITEMS]
    page = paper_page(findings, quick=True)
    assert page.count("class='item'") == len(ITEMS)
    assert page.index("<table") < page.index("class='item'")
    assert "Shown &lt;so&gt;." in page
    assert "http" not in page
    assert paper_table(findings).row_count == len(ITEMS)
    paper = sum(item.kind not in OWN_KINDS for item in ITEMS)
    assert summary(findings, True).startswith(f"{paper} items of the paper: {paper} hold. ")
    assert json.loads(json.dumps(paper_values(findings)))[0]["key"] == ITEMS[0].key


def test_list_shows_every_item_with_verdict_and_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = output("paper", "--list")
    listed = json_output("paper", "--list")["items"]
    assert [row["key"] for row in listed] == [item.key for item in ITEMS]
    assert all(row["verdict"] and (row["code"] or row["note"]) for row in listed)
    own = sum(item.kind in OWN_KINDS for item in ITEMS)
    assert f"{len(ITEMS) - own} items of the paper: " in printed
    assert f"{own} repairs and" in printed
    assert not list(tmp_path.iterdir())


def test_command_writes_a_page_and_prints_its_path(tmp_path):
    keys = "first-step,example-gaps,example-switch"
    printed = output("paper", "--quick", "--only", keys, "-o", tmp_path / "report.html")
    assert "3 items of the paper: 2 hold, 1 refuted" in printed
    assert "report.html" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    values = json_output("paper", "--quick", "--only", keys, "-o", tmp_path / "report.html")
    assert [row["verdict"] for row in values["items"]] == [HOLDS, HOLDS, REFUTED]
    assert values["changed"] == []


def test_single_items_and_json_write_no_page_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "1 item of the paper: 1 holds" in output("paper", "--quick", "--only", "first-step")
    assert json_output("paper", "--quick", "--only", "first-step")["changed"] == []
    assert not list(tmp_path.iterdir())


def test_unknown_items_are_rejected(tmp_path):
    done = call("paper", "--only", "first-step,nothing", "-o", tmp_path / "report.html")
    assert done.exit_code == 2
    assert "unknown items: nothing; `departing paper --list` shows all" in done.stderr
    assert "did you mean 'one-type'?" in call("paper", "--only", "one-typ").stderr


def test_changed_verdict_is_reported(tmp_path, monkeypatch):
    changed = item("changed", lambda _: Finding.of(False, "Wrong."))
    monkeypatch.setattr("departing.paper.items.ITEMS", (changed,))
    done = call("paper", "-o", tmp_path / "report.html")
    assert done.exit_code == 1
    assert "Verdicts that differ from the recorded ones: changed." in done.stdout


def test_invalid_output_is_rejected_before_the_checks(tmp_path):
    done = call("paper", "-o", tmp_path / "report.pdf")
    assert done.exit_code == 2
    assert "expected one of .html" in done.stderr


def test_invalid_movielens_path_is_rejected_before_the_checks(tmp_path):
    done = call("paper", "-o", tmp_path / "report.html", "--movielens", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "nowhere" in done.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_reports_how_to_resume(tmp_path, monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "departing.paper.items.ITEMS",
        (item("finished", lambda _: Finding.of(True, "Fine.")), item("stopped", stopped)),
    )
    (tmp_path / "report.html").write_text("an old one")
    done = call("paper", "--quick", "-o", tmp_path / "report.html")
    assert done.exit_code == 130
    assert done.stderr.strip() == "Interrupted. Finished checks are kept; run the same command to resume."
    assert (tmp_path / "report.html").read_text() == "an old one"
    assert (tmp_path / ".report-unfinished.json").exists()


def test_instances_like_film_ratings_have_the_variances_of_film_ratings():
    instances = [like_film_ratings(seed) for seed in range(300)]
    click = np.array([instance.click for instance in instances])
    generous = click.mean(axis=1).std(axis=1).mean()
    genres = click.mean(axis=2).std(axis=1).mean()
    assert 0.05 < generous < 0.08  # the three types of latest-small have 0.083 over all choices of genres
    assert 0.01 < genres < 0.025
