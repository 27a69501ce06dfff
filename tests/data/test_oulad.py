"""The bundled dataset: its facts, the script that makes it, and the fit."""

import runpy
from importlib.resources import files
from pathlib import Path

import duckdb
import numpy as np
import pytest

import departing as dp
from departing.fitting.type_description import describe_types
from helpers.commands import call, json_output

ROOT = Path(__file__).parents[2]
SOURCE = ROOT.parent / "shared" / "data" / "oulad" / "episodes_derived.csv"
PACKAGED = files("departing.data") / "oulad.parquet"


@pytest.fixture(scope="module")
def log():
    return dp.oulad()


def test_the_log_is_that_of_the_source(log):
    report = log.report
    assert (report.users, report.events, report.used, report.departed) == (27_851, 217_223, 217_223, 5_330)
    assert report.irregularities == ()
    assert report.pending == 0
    assert log.categories == ("CMA", "TMA")
    click, stay, depart, last = log.multiplicity @ log.counts.sum(axis=1)
    assert (click + last, depart, last) == (165_471, 3_431, 1_899)
    assert (click + last) / report.used == pytest.approx(0.762, abs=5e-4)
    assert depart / (stay + depart) == pytest.approx(0.066, abs=5e-4)
    assert last / (click + last) == pytest.approx(0.0115, abs=5e-5)


def test_steps_come_in_the_order_of_the_file(log):
    user, time, category, clicked, departed = (
        duckdb.sql(f"SELECT user, time, category, clicked, departed FROM '{PACKAGED}'").fetchnumpy().values()
    )
    parts = list(log.episodes())
    assert (np.concatenate([part.step for part in parts]) == time).all()
    assert (np.concatenate([part.user for part in parts]) == user).all()
    assert (np.concatenate([part.category for part in parts]) == (category == "TMA")).all()
    outcome = np.concatenate([part.outcome for part in parts])
    assert (np.isin(outcome, [0, 3]) == clicked).all()
    assert ((outcome >= 2) == departed).all()


def test_modules_can_be_categories():
    log = dp.oulad("module")
    assert log.categories == ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG")
    assert log.report.used == 217_223
    assert ((log.counts.sum(axis=2) > 0).sum(axis=1) == 1).all()
    found = dp.fit(log, types=2, n_init=2)
    assert any(
        sentence.startswith("No user connects all categories, such as 'FFF' and 'AAA'") for sentence in found.warnings
    )
    with pytest.raises(dp.InputError, match="no column 'modul' for category in OULAD"):
        dp.oulad("modul")


@pytest.mark.skipif(not SOURCE.exists(), reason="the source of the log is not here")
def test_the_file_is_what_the_script_makes(tmp_path):
    runpy.run_path(str(ROOT / "scripts" / "make_oulad.py"))["make"](SOURCE, tmp_path / "oulad.parquet")
    made, kept = (duckdb.read_parquet(str(path)) for path in (tmp_path / "oulad.parquet", PACKAGED))
    assert made.columns == kept.columns
    assert made.types == kept.types
    assert made.fetchall() == kept.fetchall()


def test_the_file_is_small_and_says_whose_it_is():
    assert len(PACKAGED.read_bytes()) < 60_000
    licence = (files("departing.data") / "OULAD-LICENCE.txt").read_text(encoding="utf-8")
    for words in ("Kuzilek", "Hlosta", "Zdrahal", "10.1038/sdata.2017.171", "CC BY 4.0", "What was changed"):
        assert words in licence


def test_a_fit_says_that_the_model_is_wrong_and_the_log_cut_short(log):
    found = dp.fit(log, types=3)
    assert describe_types(found.instance) == [
        "63% of users: love CMA and TMA, seldom leave",
        "21% of users: love CMA, leave after TMA",
        "16% of users: like best TMA, seldom leave",
    ]
    assert found.warnings[0].startswith("1899 of 5330 departures follow a click")
    check = found.check()
    assert check.p_value < 1e-15
    assert "The model does not fit (p < 1e-15)" in str(check)
    assert [reason.split(":")[0] for reason in check.reasons] == [
        "Departures after a no-click change over the time of the log",
        "Clicks depend on the previous response",
        "Departures after a click change over the time of the log",
        "Users change over the time of the log (p < 1e-15)",
    ]
    assert check.truncated
    assert "76% of users are still active after 13 steps" in str(check)


def test_the_command_takes_the_word():
    told = json_output("fit", "oulad", "--types", "2", "--bootstrap", "0")
    assert (told["users"], told["types"], told["check"]["truncated"]) == (27_851, 2, True)
    assert call("fit", "oulat").exit_code != 0
