"""Reading event logs: 22 million events of 6 million users, compared with a hand-written GROUP BY."""

import os
import subprocess
import sys
import tempfile

from benchmarks.common import Row

USERS = 6_000_000
REPEATS = 3
WRITE = """
import sys, departing as dp
shop = dp.Instance(
    [0.5, 0.3, 0.2],
    [[0.7, 0.6, 0.4], [0.6, 0.75, 0.5], [0.5, 0.6, 0.8], [0.65, 0.5, 0.7], [0.3, 0.7, 0.6]],
    depart=0.75,
    categories=["news", "sport", "film", "music", "travel"],
)
run = dp.simulate(shop, dp.Greedy(shop), users=int(sys.argv[2]), seed=1, log=sys.argv[1])
print(run.steps)
"""
MEASURED = """
import resource, sys, time
wall, cpu = time.perf_counter(), time.process_time()
rows = work(sys.argv[1], sys.argv[2])
print(rows, time.perf_counter() - wall, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
BARE = (
    """
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
    + MEASURED
)
READ = (
    """
import departing as dp
from departing.data import log

def work(path, limit):
    return len(dp.read_log(path, memory_limit=limit))
"""
    + MEASURED
)


def _measured(code, path, limit):
    """Rows, wall seconds, CPU seconds and peak megabytes, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code, path, limit], capture_output=True, text=True, check=True)
    rows, wall, cpu, peak = done.stdout.split()
    return int(rows), float(wall), float(cpu), int(peak) * 1024 / 1e6


def rows():
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events.parquet")
        done = subprocess.run(
            [sys.executable, "-c", WRITE, path, str(USERS)], capture_output=True, text=True, check=True
        )
        events = int(done.stdout) / 1e6
        for limit, most in (("1 GB", 1500), ("500 MB", 600)):
            bare, mine = [], []
            for _ in range(REPEATS):  # alternating; the minimum is robust against other load
                bare.append(_measured(BARE, path, limit))
                mine.append(_measured(READ, path, limit))
            assert len({each[0] for each in bare + mine}) == 1
            for place, clock in ((1, "wall"), (2, "CPU")):
                hand, ours = (min(each[place] for each in some) for some in (bare, mine))
                note = f"{events:.1f} M events to {mine[0][0]:,} counts: {ours:.1f} s, by hand {hand:.1f} s"
                what = f"read_log within {limit}, {clock} time relative to a bare GROUP BY"
                results.append(Row(what, ours / hand, "×", 1.5, at_least=False, note=note))
            peak, hand = (max(each[3] for each in some) for some in (mine, bare))
            note = f"peak RSS; by hand {hand:.0f} MB"
            results.append(Row(f"memory of read_log within {limit}", peak, "MB", most, at_least=False, note=note))
    return results
