"""Assigning the users of a log of more than 20 million events to types, with short and with long histories."""

import os
import subprocess
import sys
import tempfile

from benchmarks.common import Row

SITE = """
import sys, departing as dp
site = dp.Instance(
    [0.5, 0.3, 0.2],
    [[0.7, 0.6, 0.4], [0.6, 0.75, 0.5], [0.5, 0.6, 0.8], [0.65, 0.5, 0.7], [0.3, 0.7, 0.6]],
    depart=float(sys.argv[2]),
    categories=["news", "sport", "film", "music", "travel"],
)
"""
SHORT = SITE + "print(dp.simulate(site, dp.Greedy(site), users=6_000_000, seed=1, log=sys.argv[1]).steps)"
LONG = (
    SITE
    + """
log = dp.sample_log(site, users=2_000_000, seed=1, days=360, step_days=1.0)
log.save(sys.argv[1])
print(len(log.user))
"""
)
ASSIGN = (
    SITE
    + """
import resource, time
options = {"inactive_after": "30 days"} if sys.argv[3] == "long" else {}
dp.plan(site, gap=0.01)  # compiles
started = time.process_time()
log = dp.read_log(sys.argv[1], **options)
read = time.process_time() - started
users = dp.assign(log, site, output=sys.argv[1] + ".users.parquet")
seconds = time.process_time() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(users), len(users.histories.users), read, seconds, peak, users.error)
"""
)


def _run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def rows():
    results = []
    for name, write, depart in (("short", SHORT, "0.75"), ("long", LONG, "0.22")):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "events.parquet")
            events = int(_run(write, path, depart)[0]) / 1e6
            users, histories, read, seconds, peak, error = map(float, _run(ASSIGN, path, depart, name))
        note = (
            f"{events:.1f} M events, {users / 1e6:.1f} M users, {int(histories):,} distinct histories; "
            f"{seconds:.0f} s CPU, of which read_log {read:.0f} s; mean error bound {error:.2g} clicks"
        )
        results.append(Row(f"events of a log with {name} histories", events, "M", 20))
        results.append(
            Row(f"memory while assigning users, {name} histories", peak * 1024 / 1e6, "MB", 2000, False, note)
        )
    return results
