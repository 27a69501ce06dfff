"""The Ibis expression gives what the SQL of DuckDB gives, on DuckDB and on a real Spark."""

import os
from datetime import datetime, timedelta

import duckdb
import numpy as np
import polars
import pytest

import departing as dp
from helpers.logs import as_slow, steps_of

ibis = pytest.importorskip("ibis")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages below

READINGS = [
    {},
    {"inactive_after": timedelta(days=20), "categories": ["sport", "news"]},
    {"departed": None, "propensity": None, "inactive_after": "20 days", "duplicates": "keep"},
]


def dirty_log(seed, n=300):
    """A log with everything that may be wrong in columns with types."""
    random = np.random.default_rng(seed)

    def some(values, chances=None):
        return [values[i] for i in random.choice(len(values), n, p=chances)]

    times = [datetime(2024, 1, 1) + timedelta(hours=6 * int(i)) for i in random.integers(0, 200, n)]
    frame = polars.DataFrame(
        {
            "user": some([*range(40), None]),
            "time": [None if random.random() < 0.02 else time for time in times],
            "category": some(["news", "sport", "film", " ", None], [0.4, 0.3, 0.26, 0.02, 0.02]),
            "clicked": some(["yes", " No", "click", "?", None], [0.4, 0.3, 0.26, 0.02, 0.02]),
            "departed": some([True, False, None], [0.04, 0.86, 0.1]),
            "propensity": some([0.5, 0.25, 0.0, float("nan"), None]),
            "t": some(["x", "y"]),
        }
    )
    return polars.concat([frame, frame[: n // 10]])


def check(log, table, reading, users):
    other = dp.read_log(table, **reading)
    assert other.categories == log.categories
    assert (other.counts == log.counts).all()
    assert (other.multiplicity == log.multiplicity).all()
    assert (other.pending == log.pending).all()
    mine, theirs = log.report, other.report
    assert [(each.kind, each.count) for each in mine.irregularities] == [
        (each.kind, each.count) for each in theirs.irregularities
    ]
    assert all(1 <= len(each.examples) <= 3 for each in theirs.irregularities)
    for field in ("events", "used", "users", "departed", "silent", "censored", "pending", "first", "last", "notes"):
        assert getattr(mine, field) == getattr(theirs, field), field

    assert steps_of(other, users=users) == steps_of(log)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reading", READINGS)
def test_ibis_on_duckdb_reads_the_same(tmp_path, seed, reading):
    path = tmp_path / "events.parquet"
    dirty_log(seed).write_parquet(path)
    check(dp.read_log(path, **reading), ibis.duckdb.connect().read_parquet(path), reading, users=7)


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMPTZ", "DOUBLE"])
def test_all_types_of_times(tmp_path, kind):
    path = tmp_path / "events.parquet"
    value = "i / 4" if kind == "DOUBLE" else "'2024-01-01'::TIMESTAMP + to_hours((6 * i)::INTEGER)"
    duckdb.sql(
        f"COPY (SELECT i % 7 AS user, ({value})::{kind} AS time, i % 3 AS category, i % 2 AS clicked "
        f"FROM range(60) r(i)) TO '{path}'"
    )
    reading = {"inactive_after": 1 if kind == "DOUBLE" else "1 day"}
    check(dp.read_log(path, **reading), ibis.duckdb.connect().read_parquet(path), reading, users=3)


def test_ibis_on_spark_reads_the_same(tmp_path):
    sql = pytest.importorskip("pyspark.sql")
    path = tmp_path / "events.parquet"
    dirty_log(1).write_parquet(path)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = sql.SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        table = ibis.pyspark.connect(spark).read_parquet(str(path))
        reading = {"inactive_after": "20 days"}
        check(dp.read_log(path, **reading), table, reading, users=25)
    finally:
        spark.stop()


def test_types_of_columns_and_numbers(tmp_path):
    table = ibis.memtable(
        {"user": [1.0, 1.0], "time": [1.5, 4.0], "category": [7, 8], "clicked": [0, 1], "rating": [3.5, 1.0]}
    )
    log = dp.read_log(table, inactive_after=2)
    assert as_slow(log) == {(((0, 1), (1, 0)), ((1, 0),)): 1}
    assert log.categories == ("7", "8")
    for arguments, words in (
        ({"clicked": "rating"}, "Column 'rating' for clicked holds 3.5"),
        ({"time": "name"}, "no column 'name'"),
        ({"category": "categry"}, "perhaps 'category' is meant"),
        ({"inactive_after": "2 days"}, "expected a number"),
        ({"inactive_after": None}, "Nothing tells who departed"),
        ({"table": "events"}, "one table already"),
        ({"categories": ["9"]}, "None of the 2 events in the ibis Table can be used"),
        ({"rejects": tmp_path / "bad.csv"}, "rejects is given"),
    ):
        with pytest.raises(dp.InputError, match=words):
            dp.read_log(table, **{"inactive_after": 2, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("column", ["time", "clicked", "propensity"])
def test_columns_of_a_wrong_type_are_named(column):
    values = {"user": [1], "time": [1], "category": ["a"], "clicked": [1], "propensity": [0.5]}
    wrong = datetime(2024, 1, 1) if column == "clicked" else "1"
    with pytest.raises(dp.InputError, match=f"Column '{column}' for {column} is of type"):
        dp.read_log(ibis.memtable(values | {column: [wrong]}), inactive_after=1)


def test_too_many_categories_are_refused():
    table = ibis.range(1500).unnest().name("category").as_table().mutate(user=1, time=1, clicked=True)
    with pytest.raises(dp.InputError, match="holds 1,500 categories"):
        dp.read_log(table, inactive_after=1)
