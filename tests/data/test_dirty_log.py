"""A log with more than 30 kinds of dirt has the same report in every format and frame."""

import csv
import json
import sqlite3

import duckdb
import pytest

import departing as dp
from departing.model.tables import quoted
from helpers.dirty import COLUMNS, DIRT, ROW_DIRT, dirty_log
from helpers.logs import histories_of

SOURCES = ("csv", "tsv", "jsonl", "parquet", "duckdb", "sqlite", "pandas", "polars", "arrow", "ibis")


@pytest.fixture(scope="module")
def rows():
    return dirty_log()


def source(kind, rows, folder):
    path, columns = folder / f"events.{kind}", dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    listed = ", ".join(f"{quoted(name)} VARCHAR" for name in COLUMNS)
    if kind in ("csv", "tsv"):
        with open(path, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, delimiter="," if kind == "csv" else "\t").writerows([COLUMNS, *rows])
    elif kind == "jsonl":
        text = "\n".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in rows)
        path.write_text(text, encoding="utf-8")
    elif kind == "sqlite":
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE events ({listed})")
            database.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(COLUMNS))})", rows)
        database.close()
    elif kind == "duckdb":
        with duckdb.connect(str(path)) as database:
            database.execute(f"CREATE TABLE events ({listed})")
            database.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(COLUMNS))})", rows)
    elif kind == "pandas":
        return pytest.importorskip("pandas").DataFrame({name: list(values) for name, values in columns.items()})
    elif kind == "polars":
        return pytest.importorskip("polars").DataFrame({name: list(values) for name, values in columns.items()})
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({name: list(values) for name, values in columns.items()})
        if kind == "arrow":
            return table
        parquet = folder / "events.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(table, parquet)
        if kind == "ibis":
            return pytest.importorskip("ibis").duckdb.connect().read_parquet(parquet)
    return path


def outcome(given, **reading):
    log = dp.read_log(given, **reading)
    return log.categories, histories_of(log), vars(log.report) | {"source": None}, log.digest


@pytest.fixture(scope="module")
def expected(rows, tmp_path_factory):
    return outcome(source("csv", rows, tmp_path_factory.mktemp("csv")))


def test_there_are_thirty_kinds_of_dirt(expected):
    assert len(DIRT) + len(ROW_DIRT) >= 30
    _, _, report, _ = expected
    assert report["columns"] == dict(
        zip(("user", "time", "category", "clicked", "departed", "propensity"), COLUMNS, strict=False)
    )
    kinds = {each.kind: each.count for each in report["irregularities"]}
    assert kinds.pop("same time as another event of the user") >= 6
    kinds.pop("rejected row after the user's last event", None)
    assert kinds == {
        "user is missing": 6,
        "time is missing": 4,
        "time cannot be parsed": 6,
        "time far before all others": 2,
        "time far after all others": 2,
        "category is missing": 6,
        "clicked is missing": 4,
        "clicked cannot be parsed": 2,
        "departed is missing": 4,
        "departed cannot be parsed": 2,
        "propensity is missing": 2,
        "propensity is not in (0, 1]": 6,
        "time without a zone among times with a zone": report["events"] - 10 - 2,
        "duplicate row": 3,
        "event after the user's departure": 3,
    }
    notes = " ".join(report["notes"])
    assert "' news ' (2 events) and 'News' (2 events) and 'news'" in notes
    assert "Category 'sprot' (2 events) may be a misspelling of 'sport'" in notes
    assert "Rows with a time far after all others (2) are rejected: the log ends at 2024-04-01 00:00:00." in notes
    assert " are rare: their probabilities cannot be estimated. " in notes


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")  # of Ibis
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_of_a_dirty_log_gives_the_same_report(kind, rows, expected, tmp_path):
    assert outcome(source(kind, rows, tmp_path)) == expected
