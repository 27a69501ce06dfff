"""CPU time relative to the last version without segments, rewards, horizons and change: what unused features cost.

The version before is extracted from the history of this repository. Both run the same code in processes of their own,
in turn.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import Row

ROOT = Path(__file__).parents[1]
BEFORE = "3f05d23"  # commit
ROUNDS = 7
# What runs once; each work is then timed some times, and the least time counts.
SETUP = """
import departing as dp
from departing.model.examples import blog, magazine as example
magazine = example()
log = dp.sample_log(magazine, 300_000, seed=1)
log.save("events.parquet")
small = dp.sample_log(magazine, 20_000, seed=1)
small.save("small.parquet")
read = dp.read_log("events.parquet", inactive_after="5 days")
read_small = dp.read_log("small.parquet", inactive_after="5 days")
fit = dp.fit(read, types=3, seed=0)
small_fit = dp.fit(read_small, types=3, seed=0)
stays = dp.random_instance("uniform", 5, 10, seed=0)
sure = dp.random_instance("uniform", 5, 5, seed=0).replace(depart=1.0)
adaptive = dp.plan(magazine).policy
"""
WORKS = {
    "read_log": (3, 'dp.read_log("events.parquet", inactive_after="5 days")'),
    "fit": (5, "dp.fit(read, types=3, seed=0)"),
    "check": (3, "fit.check()"),
    "off_policy_value": (3, 'dp.off_policy_value(read_small, "greedy", fit=small_fit)'),
    "plan, search": (5, "dp.plan(stays, 1e-4)"),
    "plan, lattice": (20, "dp.plan(sure, 1e-4)"),
    "plan, closed form": (200, "dp.plan(blog())"),
    "evaluate": (20, "dp.evaluate(magazine, adaptive)"),
    "simulate, aggregate": (20, "dp.simulate(magazine, adaptive, 10**6)"),
    "simulate, lanes": (3, 'dp.simulate(magazine, adaptive, 10**6, engine="lanes")'),
    "Bayes": (1, "dp.simulate(magazine, dp.Bayes(3, 3, seed=1), 10**5)"),
    "LatticeUCB": (1, "dp.simulate(magazine, dp.LatticeUCB(3, 10**5), 10**5)"),
}
MEASURE = """
import json, time
seconds = {}
for name, (repeats, work) in works.items():
    eval(work)
    times = []
    for _ in range(max(repeats, 2)):
        started = time.process_time()
        eval(work)
        times.append(time.process_time() - started)
    seconds[name] = min(times)
print(json.dumps(seconds))
"""
SERVE = """
import json, tempfile
from pathlib import Path
from benchmarks.serve import PLAN, SERVER_CORE, load, serving
with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "s.sqlite", *PLAN, core=SERVER_CORE) as port:
    events = Path(folder) / "events.json"
    load(port, "recommend", 20_000, events=events)
    print(json.dumps({"service, recommend": load(port, "recommend", 60_000, events=events)["cpu"]}))
"""


def _run(tree, code, folder, cache):
    """The JSON that `code` prints with the package and benchmarks of `tree`."""
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def rows():
    """One row for every part: the median over the rounds of the ratio of both versions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(["git", "-C", ROOT, "archive", BEFORE, "src", "benchmarks"], capture_output=True)
        if archive.returncode:
            print(f"Commit {BEFORE} is not in this clone; unused features need its whole history.", file=sys.stderr)
            return []
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder / "before", filter="data")
        ratios, last = {}, {}
        code = f"works = {WORKS!r}\n{SETUP}{MEASURE}"
        for _ in range(ROUNDS):
            now, before = (
                _run(tree, code, folder, folder / f"numba-{i}") | _run(tree, SERVE, folder, folder / f"numba-{i}")
                for i, tree in enumerate((ROOT, folder / "before"))
            )
            for part, seconds in now.items():
                ratios.setdefault(part, []).append(seconds / before[part])
                last[part] = seconds, before[part]
    return [
        Row(
            f"{part}: CPU time relative to {BEFORE}",
            median(each),
            "times",
            1.02,
            at_least=False,
            note=f"{min(each):.3f} to {max(each):.3f}; last {last[part][0]:.4g} and {last[part][1]:.4g} s",
        )
        for part, each in ratios.items()
    ]
