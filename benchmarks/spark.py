"""Logs on local Spark and in DuckDB: reading, checking and off-policy evaluation on the same cores, in one run.

SPARK_EVENTS (default: 20) sets the millions of events. BASELINE_SRC names the `src` folder of another checkout, whose
figures are then measured in the same run and printed beside.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Row

MILLIONS = int(os.environ.get("SPARK_EVENTS", "20"))
CORES = 2
MOST = 6.0  # times the time of DuckDB
BASE_USERS = 650_000  # of the log that is repeated with other users: 2.09 million events
WRITE = """
import sys, duckdb, departing as dp
site = dp.Instance(
    [0.5, 0.3, 0.2],
    [[0.7, 0.6, 0.4], [0.6, 0.75, 0.5], [0.5, 0.6, 0.8], [0.65, 0.5, 0.7], [0.3, 0.7, 0.6]],
    depart=0.75,
    categories=["news", "sport", "film", "music", "travel"],
)
path, users, events = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = dp.sample_log(site, users=users, seed=1, days=360, step_days=1.0)
log.save(path + ".base.parquet")
database = duckdb.connect(config={"memory_limit": "1 GB", "temp_directory": path + ".spill"})
database.execute("SET enable_progress_bar = false; SET preserve_insertion_order = false")
copies = round(events / len(log.user))
database.execute(
    f"COPY (SELECT i * {users} + \\"user\\" AS user, * EXCLUDE \\"user\\" FROM range({copies}) AS t(i), "
    f"read_parquet('{path}.base.parquet')) TO '{path}' (FORMAT parquet)"
)
print(copies * len(log.user))
"""
MEASURE = """
import hashlib, json, os, resource, sys, time
import departing as dp
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

def cpu():
    # CPU seconds of this process and all that it started
    parents, used = {}, {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(number)] = int(fields[1])
        used[int(number)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    own = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used.get(number, 0.0) for number in own)

results = {}
def timed(name, work):
    wall, before = time.perf_counter(), cpu()
    result = work()
    results[name] = [time.perf_counter() - wall, cpu() - before]
    return result

log = timed("read", lambda: dp.read_log(source, inactive_after="30 days", memory_limit=limit))
fit = dp.fit(log, types=2, n_init=2)
check = timed("check", fit.check)
value = timed("ope", lambda: dp.off_policy_value(log, "fixed:sport", fit=fit, bootstrap=20))
digest = hashlib.sha256()
for array in (log.counts, log.multiplicity, log.pending):
    digest.update(array.tobytes())
results["histories"] = digest.hexdigest()
results["check_result"] = repr([(test.family, test.response, test.p_value) for test in check.tests])
results["dr"] = value.dr.value
results["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(json.dumps(results))
"""
STAGES = ("read", "check", "ope")


def _measured(path, engine, limit="1 GB", source=None):
    environment = os.environ | ({"PYTHONPATH": source} if source else {})
    command = [sys.executable, "-c", MEASURE, str(path), engine, str(CORES), limit]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def _figures(result):
    return ", ".join(f"{stage} {result[stage][0]:.0f} s ({result[stage][1]:.0f} s CPU)" for stage in STAGES)


def rows(millions: int = MILLIONS) -> list[Row]:
    """Ratios of Spark to DuckDB, equality of results, and the memory of DuckDB."""
    baseline, results = os.environ.get("BASELINE_SRC"), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        command = [sys.executable, "-c", WRITE, str(path), str(BASE_USERS), str(millions * 10**6)]
        events = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        duck, spark = _measured(path, "duckdb"), _measured(path, "spark")
        before = {engine: _measured(path, engine, source=baseline) for engine in ("duckdb", "spark") if baseline}
    title = f"{events / 1e6:.1f} M events"
    for place, clock in enumerate(("wall", "CPU")):
        one, two = (sum(each[stage][place] for stage in STAGES) for each in (duck, spark))
        note = f"Spark: {_figures(spark)}; DuckDB: {_figures(duck)}"
        results.append(Row(f"Spark relative to DuckDB, {title}, {clock}", two / one, "×", MOST, False, note))
    for engine, result in before.items():
        new, old = (
            sum(each[stage][1] for stage in STAGES) for each in (duck if engine == "duckdb" else spark, result)
        )
        note = f"baseline: {_figures(result)}"
        results.append(Row(f"{engine} relative to the baseline, {title}, CPU", new / old, "×", 1.0, False, note))
    same = all(duck[name] == spark[name] for name in ("histories", "check_result"))
    results.append(Row("identical histograms and check results", float(same), "", 1))
    results.append(Row("relative difference of DR", abs(duck["dr"] / spark["dr"] - 1), "", 1e-9, at_least=False))
    note = f"baseline {before['duckdb']['peak']:.0f} MB" if before else ""
    results.append(Row("memory of DuckDB within 1 GB", duck["peak"], "MB", 1000, at_least=False, note=note))
    return results
