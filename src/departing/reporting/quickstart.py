"""Report on the bundled sample log: a simulated magazine, so that the page can be compared with the truth."""

import tempfile
from dataclasses import replace
from pathlib import Path

from departing.evaluation.evaluate import evaluate
from departing.model.examples import magazine
from departing.planning.plan import plan
from departing.reporting.report import Report, StageProgress, report
from departing.reporting.verdict import clicks
from departing.simulation.sample_log import sample_log

USERS, DAYS, SEED = 50_000, 60, 2
INACTIVE_AFTER = "14 days"
GAP = 1e-3  # of the true values, in clicks per user: the page shows two decimals
LOG_NAME = "events.csv"
# Writes the same log, so that the commands of the page can be tried.
SAMPLE_COMMAND = f"departing sample-log magazine -o {LOG_NAME} --users {USERS} --days {DAYS} --seed {SEED}"


def quickstart_report(progress: StageProgress | None = None) -> Report:
    """Report on a log of 50,000 readers of the example `magazine`, with the true value of its policy as a note."""
    truth = magazine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        sample_log(truth, USERS, seed=SEED, days=DAYS).save(path)
        result = report(path, inactive_after=INACTIVE_AFTER, progress=progress)
    assert result.fit is not None
    assert result.decision is not None
    order = [truth.category_index(name) for name in result.fit.instance.categories]
    value = evaluate(truth.relabel(order), result.decision.policy, GAP).value
    note = (
        f"This is the sample log of a simulated magazine that recommended at random for {DAYS} days, so the truth is "
        f"known: the recommended policy brings {clicks(value)} clicks per user, the best possible one "
        f"{clicks(plan(truth, GAP).value)}."
    )
    return replace(result, log_name=LOG_NAME, source_name="Sample log", note=note, before_commands=(SAMPLE_COMMAND,))
