"""CPU time of a report on a million events, and on a log with 200 categories."""

import tempfile
import time
from pathlib import Path

import numpy as np

import departing as dp
from benchmarks.common import Row
from departing.model.examples import magazine

USERS = 272_000  # about a million events
LIMIT = 60  # seconds, once compiled; CPU time of one thread


def _seconds(site, users, compiled):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        dp.sample_log(site, users=users, seed=3, days=60).save(path)
        if not compiled:
            dp.report(path, inactive_after="14 days", types=range(1, 3), bootstrap=20)
        started = time.process_time()
        report = dp.report(path, Path(folder) / "report.html", inactive_after="14 days")
        return time.process_time() - started, report


def rows():
    seconds, report = _seconds(magazine(), USERS, compiled=False)
    rng = np.random.default_rng(1)
    wide = dp.Instance([0.5, 0.5], rng.uniform(0.1, 0.8, (200, 2)), 0.3)
    wide_seconds, wide_report = _seconds(wide, 6_000, compiled=True)
    return [
        Row(
            f"report, {name}",
            each,
            "s",
            LIMIT,
            at_least=False,
            note=f"{result.log.report.used:,} events of {result.log.report.users:,} users; {result.verdict.headline}",
        )
        for name, each, result in (
            ("3 categories", seconds, report),
            ("200 categories", wide_seconds, wide_report),
        )
    ]
