"""Start-up time, first commands, and installed size."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.common import Row

MAIN = ("-m", "departing")
# First plan of a process with an empty cache: method, instance, and the CPU seconds of this command when every inner
# kernel was optimised by itself as well as with its callers.
COLD = [
    ("search", "dp.random_instance('uniform', 3, 3, seed=3002)", 18.1),
    ("lattice", "dp.Instance([.3, .3, .4], [[.5, .2, .3], [.2, .5, .1], [.3, .3, .6]])", 1.74),
    ("closed-form", "dp.Instance([.4, .6], [[.5, .28], [.4, .39]])", 0.12),
]
COLD_REPEATS = 3


def _cpu(*command, repeats=7, cache=None):
    """Median CPU time of a command, and the wall-clock time of its first run."""
    environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    seconds, wall = [], None
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            before, started = os.times(), time.perf_counter()
            subprocess.run(
                [sys.executable, *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
            )
            after = os.times()
            wall = wall or time.perf_counter() - started
            seconds.append(
                after.children_user + after.children_system - before.children_user - before.children_system
            )
    return median(seconds), wall


def _first_plan(method, instance, before):
    """CPU and wall-clock time of a process with an empty cache that plans once: the least of some."""
    code = f"import departing as dp; assert dp.plan({instance}).method == {method!r}"
    runs = []
    for _ in range(COLD_REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(_cpu("-c", code, repeats=1, cache=cache))
    seconds, wall = map(min, zip(*runs, strict=True))
    note = f"{wall:.1f} s wall-clock time; before: {before:g} CPU s"
    return Row(f"first plan with a cold cache, {method}", seconds, "CPU s", 10, at_least=False, note=note)


def _installed():
    """Bytes on disk of a fresh environment with the package and its dependencies, without pip."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", str(root)], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([*pip, "uninstall", "-y", "pip", "setuptools"], check=True, stderr=subprocess.DEVNULL)
        listed = subprocess.run(["du", "-sk", f"{folder}/lib"], capture_output=True, text=True, check=True)
        return int(listed.stdout.split()[0]) * 1024


def rows():
    bare, _ = _cpu("-c", "pass")
    imported, _ = _cpu("-c", "import departing")
    used, _ = _cpu("-c", "import departing as dp; dp.Instance([1.0], [[0.5]])")
    helped, _ = _cpu(*MAIN, "--help")
    with tempfile.TemporaryDirectory() as cache:
        cold, cold_wall = _cpu(*MAIN, "quickstart", repeats=1, cache=cache)
        warm, warm_wall = _cpu(*MAIN, "quickstart", repeats=3, cache=cache)
    return [
        Row(
            "import departing",
            imported,
            "s",
            0.3,
            at_least=False,
            note=f"Python alone {bare:.2g} s; first instance {used:.2g} s",
        ),
        *(_first_plan(*each) for each in COLD),
        Row("departing --help", helped, "s", 0.6, at_least=False),
        Row("quickstart, cold caches", cold, "s", 60, at_least=False, note=f"{cold_wall:.1f} s wall-clock time"),
        Row("quickstart, warm caches", warm, "s", 10, at_least=False, note=f"{warm_wall:.1f} s wall-clock time"),
        Row(
            "installed size", _installed() / 1e6, "MB", 600, at_least=False, note="with all dependencies, without pip"
        ),
    ]
