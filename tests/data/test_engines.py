"""DuckDB and a real Spark read the same dirty logs to the same counts and reports, or raise the same error."""

import math
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pytest

import departing as dp
from departing.data.reader import PLAIN_BYTES, LogReader
from departing.data.sources import LogSource
from departing.data.spec import LogSpec
from helpers.dirty import COLUMNS, dirty_log
from helpers.logs import histories_of, steps_of

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Spark's own packages

JUST = {"inactive_after": 3}
DAYS = {"inactive_after": "20 days"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java.")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # Jobs of milliseconds: compiling them to fast code takes most of the time, in Spark and in the JVM.
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",  # it would merge these small partitions into one
        "spark.sql.session.timeZone": "America/New_York",  # must not matter
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    session = sql.SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def log_of(**columns):
    """A small regular log of four users, with the given columns in place of its own, repeated to equal lengths."""
    regular = {
        "user": ["ann", "ann", "bob", "bob", "cid", "cid", "cid", "dan"],
        "time": [1, 2, 2, 7, 1, 3, 9, 10],
        "category": ["news", "sport", "news", "film", "sport", "news", "news", "film"],
        "clicked": [True, False, True, False, True, True, False, True],
        "departed": [False, True, False, False, False, False, True, False],
    }
    n = max([8, *(len(values) for values in columns.values())])
    regular = {name: (values * n)[:n] for name, values in (regular | columns).items()}
    return arrow.table({name: values for name, values in regular.items() if values[0] is not ...})


def texts(**columns):
    return log_of(**{name: arrow.array(values, arrow.string()).to_pylist() for name, values in columns.items()})


def moments(*values):
    return [datetime.fromisoformat(value) if value else None for value in values]


def random_log(seed, text=False):
    """A log with everything that may be wrong at once; all columns are text if `text`."""
    random = np.random.default_rng(seed)
    n = 200

    def draw(*values):
        return [values[i] for i in random.integers(0, len(values), n)]

    times = [datetime(2024, 1, 1) + timedelta(hours=6 * int(i)) for i in random.integers(0, 200, n)]
    table = {
        "user": draw(*range(30), None),
        "time": [None if random.random() < 0.02 else time for time in times],
        "category": draw("news", "sport", "film", "news", "sport", "film", "news", " ", None),
        "clicked": draw("yes", " No", "click", "1", "0.0", "f", "?", "", None),
        "departed": draw(*[False] * 20, True, None),
        "propensity": draw(0.5, 0.25, 0.0, float("nan"), None),
        "item": draw("x", "y"),
    }
    if text:
        table |= {name: [None if v is None else str(v) for v in values] for name, values in table.items()}
        table["time"] = [v and random.choice([v, v + "Z", v + "+02:00", "soon"]) for v in table["time"]]
    rows = list(zip(*table.values(), strict=True))
    rows += rows[: n // 10]
    return arrow.table(dict(zip(table, map(list, zip(*rows, strict=True)), strict=True)))


def write(table, path):
    """Write an Arrow table, or the result of an SQL query, to a Parquet file."""
    if isinstance(table, str):
        duckdb.connect().execute(f"COPY ({table}) TO '{path}'")
    else:
        parquet.write_table(table, path)
    return path


INF, NAN = math.inf, math.nan
CASES = {
    # flags
    "text flag 3": (texts(clicked=["1", "3", "0"]), {}),
    "text flag -1": (texts(clicked=["1", "-1", "0"]), {}),
    "text flag 0.5": (texts(clicked=["1", "0.5", "0"]), {}),
    "text departed 2": (texts(departed=["0", "2", "1"]), {}),
    "text flags 0.00, 1e0, +1, 01": (texts(clicked=["0.00", "1e0", "+1", "01", "1.", ".0", "1e-400"]), {}),
    "text flags in Spark's number syntax": (texts(clicked=["1d", "1f", "1D", "0L", "1_0", "0x1"]), {}),
    "text flags inf and nan": (texts(clicked=["inf", "nan", "Infinity", "-inf", "NaN", "1"]), {}),
    "flag words in any case": (texts(clicked=["YES", " no ", "Clicked", "NO CLICK", "t", "F", "\tyes\n"]), {}),
    "flag words in other scripts": (texts(clicked=["ｙｅｓ", "да", "１", "İ", "yes"]), {}),
    "unreadable flags": (texts(clicked=["yes", "maybe", "", " ", "NULL", "None"]), {}),
    "no readable flag": (texts(clicked=["maybe"]), {}),
    "integer flag 2": (log_of(clicked=[0, 1, 2]), {}),
    "float flags": (log_of(clicked=[0.0, 1.0, NAN, None, INF, -INF]), {}),
    "float flag 0.5": (log_of(clicked=[0.0, 0.5]), {}),
    "decimal flags": (log_of(clicked=[Decimal("0.0"), Decimal("1.0"), None]), {}),
    "decimal flag 1.5": (log_of(clicked=[Decimal("0.0"), Decimal("1.5")]), {}),
    "flags of type date": (log_of(clicked=[date(2024, 1, 1)]), {}),
    "departed unreadable everywhere": (texts(departed=["perhaps", "?", ""]), {}),
    "departed unreadable or missing": (texts(departed=["perhaps", "left", "", "stayed", None]), {}),
    # times
    "float times inf and nan": (log_of(time=[1.0, INF, 2.0, NAN, -INF, 7.5, None]), JUST),
    "time 1e22": (log_of(time=[1.0, 1e22, 2.0, -1e22, 7.5]), JUST),
    "times 1e-9 apart": (log_of(time=[1.0, 1.000000001, 1.000000002, 5.0]), JUST),
    "decimal times": (log_of(time=[Decimal("1.5"), Decimal("2.25"), None, Decimal("9.75")]), JUST),
    "decimal times with many digits": (
        (
            "SELECT 'u' || i % 3 AS user, (i * 1e9)::DECIMAL(38, 9) AS time, 'a' AS category, i % 2 AS clicked, "
            "false AS departed FROM range(9) r(i)"
        ),
        {},
    ),
    "unsigned times": (
        (
            "SELECT i % 3 AS user, (i + 18446744073709551600)::UBIGINT AS time, 'a' AS category, i % 2 AS clicked, "
            "false AS departed FROM range(9) r(i)"
        ),
        JUST,
    ),
    "timestamps infinity": (
        (
            "SELECT i % 3 AS user, CASE i % 4 WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' ELSE '2024-01-01' END"
            "::TIMESTAMP + to_days(i::INTEGER) AS time, 'a' AS category, i % 2 AS clicked FROM range(12) r(i)"
        ),
        DAYS,
    ),
    "timestamps with a zone": (
        log_of(time=[datetime(2024, 1, 1, tzinfo=UTC), None, datetime(2024, 3, 1, tzinfo=UTC)], departed=[...]),
        DAYS,
    ),
    "timestamps without a zone": (
        log_of(time=moments("2024-03-10T02:30", "2024-11-03T01:30", "2024-02-29"), departed=[...]),
        DAYS,
    ),
    "dates": (log_of(time=[date(2024, 1, 1), date(2024, 2, 1), None, date(2024, 3, 1)], departed=[...]), DAYS),
    "times before 1970": (log_of(time=moments("1900-01-01", "1969-12-31T23:59:59.999999", "1970-01-01")), DAYS),
    "text times with and without zones": (
        texts(
            time=["2024-01-01", "2024-01-01T02:00:00+02:00", "2024-02-01 10:00Z", "yesterday", "", "2024-13-01", None]
        ),
        DAYS,
    ),
    "text times in Spark's syntax": (
        texts(
            time=[
                "2024",
                "2024-01",
                "2024-1-5",
                "now",
                "epoch",
                "2024-01-01 10:00 UTC",
                "2024-01-01T00:00:00.123456789",
                "2024-01-01",
            ]
        ),
        DAYS,
    ),
    "text times that are numbers": (texts(time=["1", " 2 ", "3.5", "1e1", "-4", "0x10", "1d", "1_0", "soon"]), JUST),
    "text times that are integers": (texts(time=["1", "2", "61", "", "9"]), JUST),
    "text times inf and 1e22": (texts(time=["1.5", "inf", "nan", "1e22", "2"]), JUST),
    "no readable time": (texts(time=["soon", "later", ""]), DAYS),
    "times of type boolean": (log_of(time=[True, False]), {}),
    "a number as inactivity period of timestamps": (log_of(time=moments("2024-01-01", "2024-02-01")), JUST),
    # categories
    "blank categories": (texts(category=["news", "\t", "", " ", "  \n", "sport", "\r", None]), {}),
    "only blank categories": (texts(category=["\t", " ", ""]), {}),
    "categories in other scripts": (
        texts(category=["новости", "ニュース", "עברית", "é", "e\u0301", "Ａ", "𝔄", "\u00df"]),
        {},
    ),
    "categories that differ in case and blanks": (texts(category=["News", "news", " news ", "news\t"]), {}),
    "categories with quotes": (texts(category=["it's", 'a "b"', "c, d", "`e`", "\\f", "g;--"]), {}),
    "integer categories": (log_of(category=[10, 9, None, 1, -2]), {}),
    "float categories": (log_of(category=[0.1, 1e22, -0.0, 0.0, 1e-7, NAN, INF, 123456789.125]), {}),
    "decimal categories": (log_of(category=[Decimal("1.50"), Decimal("2.00"), None]), {}),
    "boolean categories": (log_of(category=[True, False, None]), {}),
    "date categories": (log_of(category=[date(2024, 1, 2), date(2023, 1, 1), None]), {}),
    "timestamp categories": (log_of(category=[datetime(2024, 1, 2, 3, 4, 5, 600000), datetime(1969, 1, 1)]), {}),
    "listed categories": (texts(category=["news", "sport", "opera", ""]), {"categories": ["sport", "news", "never"]}),
    "no listed category": (texts(category=["news", "sport"]), {"categories": ["opera"]}),
    "too many categories": (log_of(category=[str(i) for i in range(1500)]), {}),
    # users
    "missing users": (log_of(user=["ann", None, "", " ", "\t", "bob"]), {}),
    "float users": (log_of(user=[1.0, NAN, None, 2.0, 1e300]), {}),
    "users in other scripts": (log_of(user=["ann", "Ann", "ann ", "анна", "安", "\U0001f600"]), {}),
    "boolean users": (log_of(user=[True, False, None]), {}),
    # rows
    "duplicates": (
        log_of(user=["ann", "ann", "bob"], time=[1], category=["a"], clicked=[True], departed=[False]),
        {},
    ),
    "duplicates that are kept": (log_of(user=["ann", "bob"], time=[1], category=["a"]), {"duplicates": "keep"}),
    "duplicates but for another column": (
        log_of(user=["ann"], time=[1], category=["a"], clicked=[True], departed=[False], item=["x", "y"]),
        {},
    ),
    "ties": (log_of(user=["ann", "bob"], time=[1, 1, 2]), {}),
    "events after a departure": (log_of(user=["ann", "bob"], departed=[False, False, True, False]), {}),
    "rejected rows after the last event": (
        log_of(user=["ann", "bob"], time=list(range(8)), clicked=["1", "0", "1", "0", "0", "0", "?", ""]),
        {},
    ),
    "propensities": (log_of(propensity=[0.5, 0.0, 1.0, -1.0, NAN, None, 1.5, INF]), {}),
    "text propensities": (texts(propensity=["0.5", "1", "0", "", "?", "1e-3", " 0.5 ", "1.5"]), {}),
    "decimal propensities": (log_of(propensity=[Decimal("0.5"), Decimal("0.0"), None]), {}),
    "all values missing": (
        log_of(clicked=arrow.array([None] * 8, arrow.bool_()).to_pylist()).set_column(
            3, "clicked", arrow.array([None] * 8, arrow.bool_())
        ),
        {},
    ),
    "no rows": (log_of().slice(0, 0), {}),
    "no rows of text": (texts(time=["1"]).slice(0, 0), JUST),
    "one row": (log_of().slice(0, 1), {}),
    "unusual column names": (
        log_of().rename_columns(["u.v", "it's `t`", 'c "x"', "source_row", "full_row"]),
        {"user": "u.v", "time": "it's `t`", "category": 'c "x"', "clicked": "source_row", "departed": "full_row"},
    ),
    "missing columns": (log_of().drop(["clicked"]), {}),
    "nested columns": (log_of(category=[["news"], ["news", "sport"], None]), {}),
    **{
        f"random {seed}": (random_log(seed), reading)
        for seed, reading in enumerate(
            [
                DAYS,
                {"inactive_after": timedelta(days=20), "categories": ["sport", "news"]},
                {"departed": None, "propensity": None, "inactive_after": "20 days", "duplicates": "keep"},
            ]
        )
    },
    "random with a horizon": (random_log(4), DAYS | {"horizon": 9}),
    "random text": (random_log(3, text=True), {"inactive_after": "20 days"}),
}


def outcome(source, reading):
    """All results of a reading in comparable form, or its error without the name of the source."""
    try:
        log = dp.read_log(source, **{"max_rejected": 1} | reading)
    except dp.InputError as error:
        name = str(source) if isinstance(source, os.PathLike) else "the pyspark DataFrame"
        return str(error).replace(repr(name), "SOURCE").replace(name, "SOURCE")
    report = vars(log.report) | {"source": None}
    sample = {name: values.tobytes() for name, values in vars(log.sample).items() if values is not None}
    steps = Counter(map(repr, steps_of(log, users=3)))  # Spark has no order of users
    return log.categories, histories_of(log), report, steps, log.digest, sample


@pytest.mark.parametrize("case", CASES)
def test_spark_reads_a_dirty_log_as_duckdb_does(spark, tmp_path, case):
    table, reading = CASES[case]
    path = write(table, tmp_path / "events.parquet")
    frame = spark.read.parquet(str(path)).repartition(2)
    assert outcome(frame, reading) == outcome(path, reading)


def test_there_are_enough_cases():
    assert len(CASES) >= 40


def test_mixed_values_of_python_are_read_alike(spark):
    import pandas

    rows = [("a", "1", 1), (1, "2", "0"), ("1", 3, "yes"), (2.5, 4.5, True), (None, "5", None)]
    rows = [(*row, "news", "0") for row in rows]
    names = ["user", "time", "clicked", "category", "departed"]
    text = [tuple(None if value is None else str(value) for value in row) for row in rows]
    frame = spark.createDataFrame(text, ", ".join(f"{name} string" for name in names))
    mixed = dp.read_log(pandas.DataFrame(rows, columns=names, dtype=object), max_rejected=1)
    log = dp.read_log(frame, max_rejected=1)
    assert histories_of(log) == histories_of(mixed)
    assert vars(log.report) | {"source": None} == vars(mixed.report) | {"source": None}


def test_a_log_with_thirty_kinds_of_dirt_is_read_alike(spark, tmp_path):
    rows = dirty_log()
    path = write(
        arrow.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))), tmp_path / "a.parquet"
    )
    expected = outcome(path, {"max_rejected": 0.05})
    assert expected[2]["columns"]["user"] == "uid"
    assert outcome(spark.read.parquet(str(path)).repartition(3), {"max_rejected": 0.05}) == expected


@pytest.mark.parametrize(
    "columns",
    [
        {"time": ["13/01/2024 10:00", "02/03/2024 11:00"]},
        {"time": ["01/13/2024", "02/03/2024 11:00"]},
        {"time": ["01/02/2024"]},
        {"time": ["13/01/2024", "01/13/2024"]},
        {"time": ["1.2.2024 10:00", "3.2.2024 11:00"]},
        {"time": ["1704103200", "1704103200000"]},
        {"time": [str(1704103200 + i * 86400) for i in range(8)]},
        {"clicked": ["click", "impression"]},
        {"departed": ["churned", "active"]},
        {"category": ["news", "nws", "NaN"]},
        {"category": ["['news']"]},
    ],
)
def test_text_is_inferred_alike(spark, tmp_path, columns):
    path = write(texts(**columns), tmp_path / "events.parquet")
    frame = spark.read.parquet(str(path)).repartition(2)
    reading = {"max_rejected": 0.05} | ({} if "departed" in columns else {"inactive_after": "1 day"})
    assert outcome(frame, reading) == outcome(path, reading)


def test_return_times_are_read_alike(spark, tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.2, 0.7], [0.4, 0.6]])
    path = tmp_path / "events.parquet"
    dp.sample_log(site, users=1000, seed=1, days=40, step_days=1.0).save(path)
    one, two = dp.suggest_inactivity(path), dp.suggest_inactivity(spark.read.parquet(str(path)).repartition(3))
    assert one.to_dict() | {"source": None} == two.to_dict() | {"source": None}
    assert outcome(spark.read.parquet(str(path)), {"inactive_after": "auto"}) == outcome(
        path, {"inactive_after": "auto"}
    )


def test_partitions_are_merged(spark, tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.2, 0.7], [0.4, 0.6]])
    dp.sample_log(site, users=3000, seed=1, days=40, step_days=1.0).save(tmp_path / "events.parquet")
    reading = {"inactive_after": "14 days"}
    log = dp.read_log(tmp_path / "events.parquet", **reading)
    frame = spark.read.parquet(str(tmp_path / "events.parquet"))
    other = dp.read_log(frame, **reading)
    assert (other.counts == log.counts).all()
    assert (other.multiplicity == log.multiplicity).all()
    assert (other.pending == log.pending).all()
    assert Counter(map(repr, steps_of(other, users=700))) == Counter(map(repr, steps_of(log, users=700)))
    model = dp.fit(log, types=2)
    one, two = model.check(), dp.fit(other, types=2).check()
    assert (two.tests, two.p_value) == (one.tests, one.p_value)
    for policy in ("fixed:category 0", "greedy"):
        one, two = (dp.off_policy_value(each, policy, fit=model, bootstrap=20) for each in (log, other))
        assert two.horizon == one.horizon
        assert two.warnings == one.warnings
        for name, estimate in one.estimates.items():
            for field, value in vars(estimate).items():
                assert getattr(two.estimates[name], field) == pytest.approx(value, rel=1e-9)


def test_the_log_of_a_changed_table_is_refused(spark, tmp_path):
    path = tmp_path / "events.parquet"
    parquet.write_table(log_of(), path)
    log = dp.read_log(spark.read.parquet(str(path)))
    parquet.write_table(log_of(clicked=[True]), path)
    spark.catalog.clearCache()
    spark.sql("SELECT 1").collect()
    log.source.source._jdf.sparkSession().catalog().refreshByPath(str(path))
    with pytest.raises(dp.InputError, match=r"pyspark DataFrame changed since they were read; call read_log again"):
        list(log.episodes())


def test_arguments_for_files_are_refused(spark, tmp_path):
    frame = spark.createDataFrame([("a", 1, "x", 1, 0)], ["user", "time", "category", "clicked", "departed"])
    with pytest.raises(dp.InputError, match="expected None for a Spark DataFrame"):
        dp.read_log(frame, rejects=tmp_path / "bad.csv")
    with pytest.raises(dp.InputError, match="only a database file has tables"):
        dp.read_log(frame, table="events")
    assert list(tmp_path.iterdir()) == []


def test_workers_without_duckdb_are_named(spark):
    frame = spark.createDataFrame([("a", 1, "x", 1, 0)], ["user", "time", "category", "clicked", "departed"])

    def broken(batches):
        raise ImportError("No module named 'duckdb'")
        yield from batches

    with pytest.raises(dp.InputError, match="workers need duckdb and pyarrow"):
        dp.read_log(frame.mapInArrow(broken, frame.schema))


def test_segments_rewards_and_weights_are_read_alike(spark, tmp_path):
    path = tmp_path / "events.parquet"
    table = random_log(7, text=True)
    rng = np.random.default_rng(7)
    n = len(table)
    table = table.append_column("country", arrow.array(rng.choice(["de", "fr", "us ", None], n).tolist()))
    table = table.append_column(
        "device", arrow.array(rng.choice(["mobile", "tv", "NA"], n, p=[0.6, 0.3, 0.1]).tolist())
    )
    table = table.append_column("revenue", arrow.array(rng.choice(["1.5", "20", "0", "x", None], n).tolist()))
    reading = DAYS | {"segment": ["country", "device"], "reward": "revenue", "unit": "euro", "max_rejected": 1}
    one = dp.read_log(write(table, path), **reading)
    two = dp.read_log(spark.read.parquet(str(path)).repartition(3), **reading)
    assert two.segments == one.segments
    reports = [vars(log.report) | {"source": None} for log in (one, two)]
    kinds = [[(each.kind, each.count) for each in report.pop("irregularities")] for report in reports]
    assert kinds[0] == kinds[1]  # not the examples: of two departures that differ in unused text, either may be late
    assert reports[0] == reports[1]
    for name in ("mean", "sd", "stderr", "clicks"):
        np.testing.assert_array_equal(getattr(two.rewards, name), getattr(one.rewards, name))
    recent = one.weighted("20 days"), two.weighted("20 days")
    for first, second in ((one, two), recent):
        for name in ("counts", "multiplicity", "pending", "segment"):
            np.testing.assert_array_equal(getattr(second, name), getattr(first, name))
    assert recent[1].weight == pytest.approx(recent[0].weight, rel=1e-12)
    assert recent[1].weight_squares == pytest.approx(recent[0].weight_squares, rel=1e-12)
    for name, values in vars(one.sample).items():
        np.testing.assert_array_equal(getattr(two.sample, name), values)
    rates, others = one.over_time(5), two.over_time(5)
    for name in ("start", "shown", "clicks", "at_risk", "departures", "arrivals", "segment_users", "mean_reward"):
        np.testing.assert_array_equal(getattr(others, name), getattr(rates, name))
    (steps,), (other,) = one.episodes(), two.episodes()
    assert Counter(zip(steps.segment, steps.reward.astype(str), steps.category, strict=True)) == Counter(
        zip(other.segment, other.reward.astype(str), other.category, strict=True)
    )


def test_ibis_tables_are_read(spark, tmp_path):
    ibis = pytest.importorskip("ibis")
    path = tmp_path / "events.parquet"
    parquet.write_table(random_log(5), path)
    expected = outcome(path, DAYS)
    assert outcome(ibis.duckdb.connect().read_parquet(path), DAYS) == expected
    table = ibis.pyspark.connect(spark).read_parquet(str(path))
    assert outcome(table.filter(table.item.isin(["x", "y"])), DAYS) == expected


@pytest.mark.parametrize("case", ["random 0", "random text"])
def test_users_are_assigned_to_types_as_by_duckdb(spark, tmp_path, case):
    table, reading = CASES[case]
    path = write(table, tmp_path / "events.parquet")
    site = dp.Instance(
        [0.7, 0.3], [[0.8, 0.3], [0.4, 0.6], [0.2, 0.9]], 0.5, 0.1, categories=["sport", "news", "film"]
    )
    log = dp.read_log(path, **{"max_rejected": 1} | reading)
    expected = dp.assign(log, site, "greedy", tmp_path / "one.parquet")
    rows = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    other = dp.read_log(spark.read.parquet(str(path)).repartition(3), **{"max_rejected": 1} | reading)
    users = dp.assign(other, site, "greedy", tmp_path / "two.parquet")
    assert users.summary() == expected.summary()
    users.save(tmp_path / "two.csv")
    frame = users.to_frame()
    assert type(frame).__module__.startswith("pyspark")
    written = [
        [row.asDict() for row in found.collect()]
        for found in (frame, spark.read.parquet(str(tmp_path / "two.parquet")))
    ]
    for found in written:
        assert sorted(found, key=lambda row: row["user"]) == rows
    assert spark.read.csv(str(tmp_path / "two.csv"), header=True).count() == len(rows)
    users.save(tmp_path / "two.csv")  # in place of the folder


def test_a_log_on_spark_is_reported(spark, tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.2, 0.7], [0.4, 0.6]], categories=["news", "film"])
    path = tmp_path / "events.parquet"
    dp.sample_log(site, users=2000, seed=1, days=40, step_days=1.0).save(path)
    options = {"inactive_after": "14 days", "types": 2, "bootstrap": 20}
    one, two = dp.report(path, **options), dp.report(spark.read.parquet(str(path)), **options)
    assert str(two.verdict) == str(one.verdict)
    assert (two.check.tests, two.check.p_value) == (one.check.tests, one.check.p_value)
    assert two.value.value == pytest.approx(one.value.value, rel=1e-9)
    two.save(tmp_path / "report.html")


def test_plans_have_no_single_partition_and_few_rows_reach_the_driver(spark, tmp_path, monkeypatch):
    """Everything is computed where the rows are: the source is read once, and cached; users are not collected."""
    from pyspark.sql.classic.dataframe import DataFrame

    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.2, 0.7], [0.4, 0.6]])
    path = tmp_path / "events.parquet"
    dp.sample_log(site, users=3000, seed=1, days=40, step_days=1.0).save(path)
    plans, collected, collect = [], [], DataFrame.collect

    def record(frame):
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        rows = collect(frame)
        collected.append(
            (len(rows), sum(len(value) for row in rows for value in row if isinstance(value, bytes | bytearray)))
        )
        return rows

    def refuse(*_, **__):
        raise AssertionError("Rows pass through the driver.")

    monkeypatch.setattr(DataFrame, "collect", record)
    for name in ("toLocalIterator", "toPandas", "toArrow"):
        monkeypatch.setattr(DataFrame, name, refuse)
    monkeypatch.setattr("departing.data.rules.SAMPLE_EVENTS", 100)
    log = dp.read_log(spark.read.parquet(str(path)), inactive_after="14 days")
    jobs = len(plans)
    assert jobs <= 4  # size, profile, times, histories
    model = dp.fit(log, types=2)
    model.check()
    assert len(plans) == jobs
    dp.off_policy_value(log, "fixed:category 0", fit=model, bootstrap=20)
    assert len(plans) == jobs + 2  # size, returns
    dp.assign(log, site, "greedy")
    for plan in plans:
        assert "SinglePartition" not in plan
        assert plan.count("FileScan") <= plan.count("InMemoryRelation")  # the source is below the cache only
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions"))
    assert max(n for n, _ in collected) < 10 * partitions  # of 3,000 users with more than 10,000 events
    histories = 200 * len(log)  # bytes of the distinct counts, with their ends and cells
    assert max(size for _, size in collected) < histories + 20_000
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == 0


def test_small_partitions_of_the_cache_are_coalesced(spark, tmp_path):
    """By adaptive execution, which Spark may disable for cached frames, and this module's session for all."""
    from departing.data.spark import SparkEngine

    path = tmp_path / "events.parquet"
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.2, 0.7], [0.4, 0.6]])
    dp.sample_log(site, users=3000, seed=1, days=40, step_days=1.0).save(path)
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.shuffle.partitions", "50")
    setting = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
    session.conf.set(setting, "false")
    frame = session.read.parquet(str(path))
    with closing(SparkEngine(frame, 10**9)) as engine:
        engine.by_user("user", frame.columns, whole_rows=False)
        ((*rows,),) = engine.rows("SELECT count(*) FROM source")
        assert sum(n for (n,) in rows) == frame.count()
        assert engine.packed.rdd.getNumPartitions() < 10
    log = dp.read_log(path, inactive_after="14 days")
    other = dp.read_log(frame, inactive_after="14 days")
    assert session.conf.get(setting) == "false"
    for name in ("counts", "multiplicity", "pending"):
        np.testing.assert_array_equal(getattr(other, name), getattr(log, name))
    for name, values in vars(log.sample).items():
        np.testing.assert_array_equal(getattr(other.sample, name), values)


def test_workers_need_no_departing(tmp_path):
    """The functions that Spark ships run where departing cannot be imported."""
    from pyspark import cloudpickle

    from departing.data import spark as engine
    from departing.offpolicy.importance_sampling import follower

    functions = [
        engine._pack("c0", ["c0"], ["c1"], 4),
        engine._merge({}, 10),
        engine._task({}, [], ["SELECT count(*) FROM partition_rows"], {}, None, follower(), {}),
    ]
    (tmp_path / "functions.pickle").write_bytes(cloudpickle.dumps(functions))
    (tmp_path / "departing.py").write_text("raise ImportError('departing')")
    code = """
import pickle, sys, pyarrow
pack, merge, task = pickle.load(open(sys.argv[1], "rb"))
rows = pyarrow.record_batch({"c0": ["a", None, "b", "a"], "c1": [1, 2, 3, 4]})
parts = list(pack(iter([rows])))
results = list(merge(iter(list(task(iter(parts))))))
print(sum(part.num_rows for part in parts), pickle.loads(results[0].column("value")[0].as_py()))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "functions.pickle"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert run.stdout.split(" ", 1)[1].strip() == "[[(4,)]]"


def test_too_many_histories_are_not_returned():
    """From a worker whose histories are far above their share of the memory limit, none reach the driver."""
    from departing.data import spark as engine

    rows = {
        "key": list(range(5000)),
        "history_end": [0] * 5000,
        "last_step": [0] * 5000,
        "age": [0] * 5000,
        "users": [1] * 5000,
        "cells": [[engine.CELL + 1]] * 5000,
    }
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, arrow.table(rows).schema) as stream:
        stream.write_table(arrow.table(rows))
    value = sink.getvalue().to_pybytes()
    batch = arrow.record_batch(
        {"bucket": arrow.array([0, 0], arrow.int32()), "kind": ["histories"] * 2, "value": [value] * 2}
    )
    for most, expected in ((10**6, 5000), (1000, 0)):
        (result,) = engine._merge({}, most)(iter([batch]))
        found = engine._arrays(pickle.loads(result.column("value")[0].as_py()))
        assert len(found.get("key", [])) == expected
        if expected:
            rows_of, cells = engine._split_cells([found])
            assert rows_of["users"].tolist() == [2] * 5000
            assert cells["n"].tolist() == [1] * 5000


EVENT_COLUMNS = ["user", "time", "category", "clicked", "departed"]


def test_a_log_is_refused_as_a_whole_if_one_partition_exceeds_the_memory_limit(spark):
    n = 400
    counts = [(user % 20 + 1, user // 20 + 1) for user in range(n)]  # clicks and no-clicks, all distinct
    events = [
        (user, float(step), "news", step < clicks, step == clicks + others - 1)
        for user, (clicks, others) in enumerate(counts)
        for step in range(clicks + others)
    ]
    frame = spark.createDataFrame(events, EVENT_COLUMNS).repartition(2)
    for rows in (n // 2 - 15, n // 2, n // 2 + 15):
        with LogSource.of(frame, None, 10**9).open() as engine:
            reader = LogReader(engine, LogSpec({name: name for name in EVENT_COLUMNS} | {"propensity": None}))
            with pytest.raises(dp.InputError, match="400 distinct counts in 1 categories"):
                reader.read(PLAIN_BYTES * rows)
