"""Simulated runs and comparisons for the terminal and as JSON values."""

from typing import Any

from rich.table import Table as RichTable

from departing.cli.tables.layout import key_value_table
from departing.formatting import finite_or_none, format_number, format_percent, format_significant, json_fields
from departing.model.instance import CLICKS
from departing.simulation.compare import Comparison
from departing.simulation.run import Run


def run_table(policy: str, run: Run, confidence: float, seconds: float) -> RichTable:
    """Results of one run."""
    digits = 8 if run.unit == CLICKS else 4
    return key_value_table(
        policy,
        ("users", f"{run.users:,}"),
        ("clicks", f"{run.clicks:,}"),
        ("steps", f"{run.steps:,}"),
        *([("truncated users", f"{run.truncated:,}")] if run.truncated else []),
        *([(run.unit, f"{run.reward:,.2f}")] if run.unit != CLICKS else []),
        (f"{run.unit} per user", format_number(run.mean, digits)),
        ("standard error", format_significant(run.stderr)),
        _interval_row(run, confidence, digits),
        ("engine", run.engine),
        ("time", f"{seconds:.3g} s, {run.steps / max(seconds, 1e-9):.3g} steps/s"),
    )


def _interval_row(result: Run | Comparison, confidence: float, digits: int) -> tuple[str, str]:
    low, high = (format_number(end, digits) for end in result.interval(confidence))
    return f"{format_percent(confidence)} interval", f"{low} to {high}"


def run_values(policy: str, run: Run, confidence: float, seconds: float) -> dict[str, Any]:
    """One run as JSON values."""
    fields = json_fields(run, "users", "clicks", "steps", "truncated", "mean", "stderr", "engine", "seed")
    rewards = {} if run.unit == CLICKS else {"reward": run.reward, "unit": run.unit}
    return {"policy": policy, **fields, **rewards, **_interval_values(run, confidence), "seconds": seconds}


def _interval_values(result: Run | Comparison, confidence: float) -> dict[str, Any]:
    return {"confidence": confidence, "interval": [finite_or_none(end) for end in result.interval(confidence)]}


def comparison_table(first: str, second: str, comparison: Comparison, confidence: float) -> RichTable:
    """Clicks or reward per user of two policies on the same users, and their difference."""
    return key_value_table(
        f"{comparison.unit.capitalize()} per user on the same {comparison.users:,} users",
        (first, format_number(comparison.first)),
        (second, format_number(comparison.second)),
        ("difference", format_number(comparison.difference)),
        _interval_row(comparison, confidence, 6),
        ("standard error", format_significant(comparison.stderr)),
        ("standard error on different users", format_significant(comparison.unpaired_stderr)),
    )


def comparison_values(first: str, second: str, comparison: Comparison, confidence: float) -> dict[str, Any]:
    """One comparison as JSON values."""
    return {
        "policies": [first, second],
        "means": [comparison.first, comparison.second],
        **json_fields(comparison, "users", "difference", "stderr", "unpaired_stderr"),
        **_interval_values(comparison, confidence),
        **({} if comparison.unit == CLICKS else {"unit": comparison.unit}),
    }
