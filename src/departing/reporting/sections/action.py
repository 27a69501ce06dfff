"""Sections about action: how to test the recommendation, and what to run next."""

import html
import shlex
from typing import TYPE_CHECKING

from departing.data.spec import AUTO
from departing.reporting.page import paragraphs

if TYPE_CHECKING:
    from departing.reporting.report import Report

DEFAULT_COLUMNS = ("user", "time", "category", "clicked", "departed", "propensity")


def log_arguments(report: "Report") -> str:
    """Arguments of a command that reads the same log in the same way."""
    spec, parts = report.log.spec, [report.log_name]
    for field in DEFAULT_COLUMNS:
        name = spec.columns.get(field)
        if name is not None and name != field:
            parts += [f"--{field}", name]
    if spec.inactive_after not in (None, AUTO):
        parts += ["--inactive-after", str(spec.inactive_after)]
    if spec.categories is not None:
        parts += ["--categories", ",".join(spec.categories)]
    if report.log.source.table is not None:
        parts += ["--table", report.log.source.table]
    return shlex.join(parts)


def commands(*lines: str) -> str:
    """Block of commands to copy."""
    return f"<pre><code>{html.escape(chr(10).join(lines))}</code></pre>"


def test_section(report: "Report") -> str:
    """Sample size of an A/B test against today, and its commands."""
    return paragraphs("…")


def next_section(report: "Report") -> str:
    """Commands to run next."""
    log = log_arguments(report)
    save = f"departing report {log} --policy policy.json --instance fitted.toml"
    if not report.verdict.recommends:
        return paragraphs("After the log has changed, run the report again:") + commands(f"departing report {log}")
    return commands(save)
