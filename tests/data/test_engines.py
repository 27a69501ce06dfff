"""DuckDB and a real Spark read the same dirty logs to the same counts and reports, or raise the same error."""

import math
import os
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pytest

import departing as dp
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
    return log.categories, histories_of(log), report, steps_of(log, users=3), log.digest


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
    for one, two in zip(other.episodes(700), log.episodes(700), strict=True):
        for name, values in vars(one).items():
            np.testing.assert_array_equal(values, getattr(two, name))
    model = dp.fit(log, types=2)
    assert dp.fit(other, types=2).check().p_value == model.check().p_value


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
    files = []
    for name, source in (("one", path), ("two", spark.read.parquet(str(path)).repartition(3))):
        log = dp.read_log(source, **{"max_rejected": 1} | reading)
        users = dp.assign(log, site, "greedy", tmp_path / f"{name}.parquet")
        users.save(tmp_path / f"{name}.csv")
        rows = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        files.append((rows, (tmp_path / f"{name}.csv").read_bytes()))
    assert len(rows) == len(users)
    assert files[0] == files[1]
