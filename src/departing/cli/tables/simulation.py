"""Simulated runs and comparisons for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import finite_or_none, format_number, format_percent, format_significant
from departing.simulation.compare import Comparison
from departing.simulation.run import Run


def key_value_table(title: str) -> RichTable:
    """Empty table of two columns without a header."""
    table = RichTable(title=escape(title), title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    return table


def run_table(policy: str, run: Run, confidence: float, seconds: float) -> RichTable:
    """Results of one run."""
    table = key_value_table(policy)
    table.add_row("users", f"{run.users:,}")
    table.add_row("clicks", f"{run.clicks:,}")
    table.add_row("steps", f"{run.steps:,}")
    if run.truncated:
        table.add_row("truncated users", f"{run.truncated:,}")
    table.add_row("clicks per user", format_number(run.mean, 8))
    table.add_row("standard error", format_significant(run.stderr))
    table.add_row(*_interval_row(run, confidence, 8))
    table.add_row("engine", run.engine)
    table.add_row("time", f"{seconds:.3g} s, {run.steps / max(seconds, 1e-9):.3g} steps/s")
    return table


def _interval_row(result: Run | Comparison, confidence: float, digits: int) -> tuple[str, str]:
    low, high = (format_number(end, digits) for end in result.interval(confidence))
    return f"{format_percent(confidence)} interval", f"{low} to {high}"


def run_values(policy: str, run: Run, confidence: float, seconds: float) -> dict[str, Any]:
    """One run as JSON values."""
    return {
        "policy": policy,
        "users": run.users,
        "clicks": run.clicks,
        "steps": run.steps,
        "truncated": run.truncated,
        "mean": run.mean,
        "stderr": finite_or_none(run.stderr),
        "confidence": confidence,
        "interval": [finite_or_none(end) for end in run.interval(confidence)],
        "engine": run.engine,
        "seed": run.seed,
        "seconds": seconds,
    }


def comparison_table(first: str, second: str, comparison: Comparison, confidence: float) -> RichTable:
    """Clicks per user of two policies on the same users, and their difference."""
    table = key_value_table(f"Clicks per user on the same {comparison.users:,} users")
    table.add_row(escape(first), format_number(comparison.first))
    table.add_row(escape(second), format_number(comparison.second))
    table.add_row("difference", format_number(comparison.difference))
    table.add_row(*_interval_row(comparison, confidence, 6))
    table.add_row("standard error", format_significant(comparison.stderr))
    table.add_row("standard error on different users", format_significant(comparison.unpaired_stderr))
    return table


def comparison_values(first: str, second: str, comparison: Comparison, confidence: float) -> dict[str, Any]:
    """One comparison as JSON values."""
    return {
        "policies": [first, second],
        "users": comparison.users,
        "means": [comparison.first, comparison.second],
        "difference": comparison.difference,
        "stderr": finite_or_none(comparison.stderr),
        "unpaired_stderr": finite_or_none(comparison.unpaired_stderr),
        "confidence": confidence,
        "interval": [finite_or_none(end) for end in comparison.interval(confidence)],
    }
