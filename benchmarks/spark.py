"""Logs on local Spark and in DuckDB: read, fit, check and off-policy evaluation on the same cores, in one run.

SPARK_EVENTS (default: 20) lists millions of events, such as 4,20,60. BASELINE_SRC names the `src` folder of another
checkout, which is measured in the same run.
"""

import os
import tempfile
from pathlib import Path

from benchmarks.common import Row
from benchmarks.event_logs import SITE, measured, run

MILLIONS = tuple(map(int, os.environ.get("SPARK_EVENTS", "20").split(",")))
CORES = 2
MOST = 6.0  # times the time of DuckDB
BASE_USERS = 650_000  # of the log that is repeated with other users: 2.08 million events
WRITE = (
    SITE
    + """
import duckdb
path, users, events = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = dp.sample_log(site, users=users, seed=1, days=360, step_days=1.0)
log.save(path + ".base.parquet")
database = duckdb.connect(config={"memory_limit": "1 GB", "temp_directory": path + ".spill"})
database.execute("SET enable_progress_bar = false; SET preserve_insertion_order = false")
copies = round(events / len(log.user))
# The column "copy" is not used: it only tells rows apart, as other columns of real logs do.
database.execute(
    f"COPY (SELECT copy * {users} + \\"user\\" AS user, * EXCLUDE \\"user\\" FROM range({copies}) AS copies(copy), "
    f"read_parquet('{path}.base.parquet')) TO '{path}' (FORMAT parquet)"
)
print(copies * len(log.user))
"""
)
STAGES = ("read", "fit", "check", "ope")
READ = """
import hashlib, departing as dp
path, engine, cores, limit = sys.argv[1:5]
if engine == "spark":
    from pyspark.sql import SparkSession
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g",
                "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
                "spark.local.dir": os.path.dirname(path)}
    session = SparkSession.builder.master(f"local[{cores}]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    source = session.read.parquet(path)
    source.limit(10).mapInArrow(lambda batches: batches, source.schema).collect()  # starts workers
else:
    source = path
log = timed("read", lambda: dp.read_log(source, inactive_after="30 days", memory_limit=limit))
digest = hashlib.sha256()
for array in (log.counts, log.multiplicity, log.pending):
    digest.update(array.tobytes())
results["histories"] = digest.hexdigest()
"""
USE = """
fit = timed("fit", lambda: dp.fit(log, types=2, n_init=2))
check = timed("check", fit.check)
value = timed("ope", lambda: dp.off_policy_value(log, "fixed:sport", fit=fit, bootstrap=20))
results["check_result"] = repr([(test.family, test.response, test.p_value) for test in check.tests])
results["dr"] = value.dr.value
"""


def rows(millions: tuple[int, ...] = MILLIONS) -> list[Row]:
    """Ratios of Spark to DuckDB, equality of results, and the memory of DuckDB."""
    return [row for each in millions for row in _rows(each)]


def _rows(millions: int) -> list[Row]:
    results, baseline, both = [], os.environ.get("BASELINE_SRC"), READ + USE + "finish()"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        title = f"{int(run(WRITE, path, BASE_USERS, millions * 10**6)) / 1e6:.1f} M events"
        for source in (None, baseline) if baseline else (None,):  # compile
            measured(both, f"{path}.base.parquet", "duckdb", CORES, "1 GB", source=source)
        duck = measured(both, path, "duckdb", CORES, "1 GB")
        spark = measured(both, path, "spark", CORES, "1 GB")
        small = measured(READ + "finish()", path, "duckdb", CORES, "500 MB")
        before = measured(both, path, "duckdb", CORES, "1 GB", source=baseline) if baseline else None
    note = f"Spark: {_figures(spark)}; DuckDB: {_figures(duck)}"
    for place, clock in enumerate(("wall", "CPU")):
        ratio = _total(spark, place) / _total(duck, place)
        results.append(Row(f"Spark relative to DuckDB, {title}, {clock}", ratio, "×", MOST, False, note))
    same = duck["histories"] == spark["histories"] == small["histories"]
    same = same and duck["check_result"] == spark["check_result"]
    results.append(Row(f"identical histograms and check results, {title}", float(same), "", 1))
    results.append(Row("relative difference of DR", abs(duck["dr"] / spark["dr"] - 1), "", 1e-9, at_least=False))
    for limit, most, result in (("1 GB", 1000, duck), ("500 MB", 500, small)):
        wall, cpu, peak = result["read"]
        note = f"peak RSS; {wall:.1f} s ({cpu:.1f} s CPU)"
        results.append(Row(f"reading within {limit}, {title}", peak, "MB", most, at_least=False, note=note))
    if before:
        ratio = _total(duck, 1) / _total(before, 1)
        name = f"DuckDB relative to the baseline, {title}, CPU"
        results.append(Row(name, ratio, "×", 1.0, False, f"baseline: {_figures(before)}"))
    return results


def _total(result, place):
    return sum(result[stage][place] for stage in STAGES)


def _figures(result):
    stages = (f"{stage} {result[stage][0]:.1f} s ({result[stage][1]:.1f} s CPU)" for stage in STAGES)
    return f"{', '.join(stages)}, {result['ope'][2]:.0f} MB"
