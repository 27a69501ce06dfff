"""Writing event logs."""

import os
import resource
import subprocess
import sys
import tempfile

from benchmarks.common import Row

CODE = """
import sys, time, departing as dp
from departing.model.examples import magazine
greedy = dp.Greedy(magazine())
started = time.process_time()
run = dp.simulate(magazine(), greedy, users=1_200_000, seed=1, log=sys.argv[1])
print(run.steps, time.process_time() - started)
"""


def rows():
    results = []
    for ending in ("parquet", "csv"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"events.{ending}")
            done = subprocess.run([sys.executable, "-c", CODE, path], capture_output=True, text=True, check=True)
            events, seconds = done.stdout.split()
            size = os.path.getsize(path) / 1e6
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        note = f"{int(events) / 1e6:.1f} M events in {float(seconds):.1f} s CPU, {size:.0f} MB"
        results.append(Row(f"events of a .{ending} log", int(events) / 1e6, "M", 10, note=note))
        results.append(
            Row(f"memory while writing a .{ending} log", peak, "MB", 1500, at_least=False, note="peak RSS")
        )
    return results
