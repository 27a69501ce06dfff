"""Reading event logs: 22 million events of 6 million users, compared with a hand-written GROUP BY."""

import os
import tempfile

from benchmarks.common import Row
from benchmarks.event_logs import SITE, measured, run

USERS = 6_000_000
REPEATS = 3
WRITE = (
    SITE
    + """
print(dp.simulate(site, dp.Greedy(site), users=int(sys.argv[2]), seed=1, log=sys.argv[1]).steps)
"""
)
BARE = """
import duckdb
names = ["news", "sport", "film", "music", "travel"]

def work(path, limit):
    database = duckdb.connect(config={"memory_limit": limit, "temp_directory": path + ".spill"})
    database.execute("SET preserve_insertion_order = false; SET enable_progress_bar = false")
    columns = ", ".join(
        f"count(*) FILTER (category = '{name}' AND {click}clicked AND {gone}departed) AS n{i}_{j}{k}"
        for i, name in enumerate(names) for j, click in enumerate(("", "NOT ")) for k, gone in enumerate(("", "NOT "))
    )
    users = f'SELECT "user", {columns} FROM read_parquet($1) GROUP BY "user"'
    return len(database.execute(f'SELECT * EXCLUDE "user", count(*) FROM ({users}) GROUP BY ALL', [path]).fetchall())
"""
READ = """
import departing as dp
from departing.data import log

def work(path, limit):
    return len(dp.read_log(path, memory_limit=limit))
"""
SEGMENTED = """
import departing as dp

def work(path, limit):
    log = dp.read_log(path, memory_limit=limit, segment=["country", "device"], reward="revenue", unit="euro")
    return len(log.without_segments.distinct)
"""
ADD_FEATURES = """
import sys, duckdb
source, target = sys.argv[1:]
duckdb.execute(
    "SET preserve_insertion_order = false; COPY (SELECT *, "
    "chr((97 + hash(\\"user\\") % 20)::INTEGER) AS country, hash(\\"user\\") % 3 AS device, "
    "CASE WHEN clicked THEN round(1 + (hash(time) % 1000) / 100, 2) END AS revenue "
    f"FROM read_parquet('{source}')) TO '{target}' (FORMAT parquet)"
)
print(0)
"""
TIMED = """
results["rows"] = timed("work", lambda: work(*sys.argv[1:]))
finish()
"""


def rows():
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events.parquet")
        events = int(run(WRITE, path, USERS)) / 1e6
        for limit, most in (("1 GB", 1000), ("500 MB", 500)):
            bare, mine = [], []
            for _ in range(REPEATS):  # alternating; the minimum is robust against other load
                bare.append(measured(BARE + TIMED, path, limit))
                mine.append(measured(READ + TIMED, path, limit))
            (n,) = {each["rows"] for each in bare + mine}
            for place, clock in enumerate(("wall", "CPU")):
                hand, ours = (min(each["work"][place] for each in some) for some in (bare, mine))
                note = f"{events:.1f} M events to {n:,} counts: {ours:.1f} s, by hand {hand:.1f} s"
                what = f"read_log within {limit}, {clock} time relative to a bare GROUP BY"
                results.append(Row(what, ours / hand, "×", 1.5, at_least=False, note=note))
            peak, hand = (max(each["work"][2] for each in some) for some in (mine, bare))
            note = f"peak RSS; by hand {hand:.0f} MB"
            results.append(Row(f"memory of read_log within {limit}", peak, "MB", most, at_least=False, note=note))
        results += _extensions(path, os.path.join(folder, "features.parquet"))
    return results


def _extensions(path, with_features):
    """Segments of two columns and rewards, against the same file read without them."""
    run(ADD_FEATURES, path, with_features)
    plain, mine = [], []
    for _ in range(REPEATS):
        plain.append(measured(READ + TIMED, with_features, "1 GB"))
        mine.append(measured(SEGMENTED + TIMED, with_features, "1 GB"))
    ours, without = (min(each["work"][1] for each in some) for some in (mine, plain))
    note = f"60 segments; {ours:.1f} s, without {without:.1f} s"
    what = "CPU time of read_log with segments and rewards, relative to without"
    return [Row(what, ours / without, "×", 2.5, at_least=False, note=note)]
