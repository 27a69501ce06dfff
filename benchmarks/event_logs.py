"""Large simulated event logs, and measurements in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SITE = """
import sys, departing as dp
site = dp.Instance(
    [0.5, 0.3, 0.2],
    [[0.7, 0.6, 0.4], [0.6, 0.75, 0.5], [0.5, 0.6, 0.8], [0.65, 0.5, 0.7], [0.3, 0.7, 0.6]],
    depart=0.75,
    categories=["news", "sport", "film", "music", "travel"],
)
"""
MEASURE = """
import json, os, resource, sys, time

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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    results[name] = [time.perf_counter() - wall, cpu() - before, peak]
    return result

def finish():
    print(json.dumps(results))
"""


def measured(code: str, *arguments: object, source: str | None = None) -> dict[str, Any]:
    """Results of `code` after `MEASURE`: wall seconds, CPU seconds and peak RSS in MB so far of all that is `timed`.

    `source` is the `src` folder of another checkout to measure.
    """
    return dict(json.loads(run(MEASURE + code, *arguments, source=source)))


def run(code: str, *arguments: object, source: str | None = None) -> str:
    """The last line that `code` prints in a process of its own."""
    repository = str(Path(__file__).parents[1])
    paths = [*([source] if source else []), *filter(None, [os.environ.get("PYTHONPATH")]), repository]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()[-1]
