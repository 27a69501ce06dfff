"""Results as tables for a person and as plain values for a program."""

import math
from typing import Any

from rich.table import Table as RichTable

from departing.evaluation.evaluate import Evaluation
from departing.model.instance import Instance
from departing.simulation.compare import Comparison
from departing.simulation.run import Run

BY_TYPE = 5  # decimals of values by type


def number(value: float, digits: int = 6) -> str:
    """A number with so many decimals, or significant digits where it is large or tiny.

    >>> number(0.65029058), number(12345678.9), number(0.0)
    ('0.650291', '1.23457e+07', '0.000000')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def significant(value: float) -> str:
    """Three significant digits.

    >>> significant(0.00103725)
    '0.00104'
    """
    return "–" if math.isnan(value) else f"{value:.3g}"


def bracket(lower: float, upper: float, digits: int = 10) -> str:
    """A bracket as the decimals (so many at most) both ends share in rounding, or as both ends.

    >>> bracket(0.65029058440749, 0.65029058440750), bracket(1.25, 1.5)
    ('0.6502905844', '1.25 … 1.5')
    """
    for shared in range(digits, 2, -1):
        if f"{lower:.{shared}f}" == f"{upper:.{shared}f}" and upper < 1e6:
            return f"{lower:.{shared}f}"
    return f"{lower:.6g} … {upper:.6g}"


def evaluation_table(instance: Instance, rows: list[tuple[str, Evaluation]]) -> RichTable:
    """Policies with what they are worth, best first."""
    table = RichTable(title="Expected clicks per user", title_justify="left")
    table.add_column("policy")
    for name in ("clicks", "to the best", *instance.types):
        table.add_column(name, justify="right", no_wrap=True)
    best = max(found.value for _, found in rows)
    for words, found in sorted(rows, key=lambda row: -row[1].value):
        behind = found.value - best
        table.add_row(
            words,
            bracket(found.lower, found.upper),
            "best" if behind == 0 else number(behind),
            *(bracket(by.lower, by.upper, BY_TYPE) for by in found.by_type),
        )
    return table


def evaluation_values(words: str, found: Evaluation, distribution: bool) -> dict[str, Any]:
    """An evaluation as plain values."""
    values: dict[str, Any] = {
        "policy": words,
        "lower": found.lower,
        "upper": found.upper,
        "by_type": [{"lower": by.lower, "upper": by.upper} for by in found.by_type],
    }
    if distribution:
        values |= {
            "returns": found.distribution.returns.tolist(),
            "steps": found.distribution.steps.tolist(),
            "survival": found.distribution.survival.tolist(),
            "left": found.distribution.left,
        }
    return values


def distribution_table(words: str, found: Evaluation, rows: int = 12) -> RichTable:
    """The chance of every number of clicks and of steps, and of being still here."""
    table = RichTable(title=words, title_justify="left")
    for name in ("n", "exactly n clicks", "exactly n steps", "still here after n"):
        table.add_column(name, justify="right")
    seen = found.distribution
    columns = (seen.returns, seen.steps, seen.survival)
    for n in range(min(rows, max(map(len, columns)))):
        table.add_row(str(n), *(number(float(c[n])) if n < len(c) else "0" for c in columns))
    return table


def run_table(words: str, run: Run, confidence: float, seconds: float) -> RichTable:
    """A run, line by line."""
    table = RichTable(title=words, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    low, high = run.interval(confidence)
    table.add_row("users", f"{run.users:,}")
    table.add_row("clicks", f"{run.clicks:,}")
    table.add_row("steps", f"{run.steps:,}")
    if run.truncated:
        table.add_row("truncated users", f"{run.truncated:,}")
    table.add_row("clicks per user", number(run.mean, 8))
    table.add_row("standard error", significant(run.stderr))
    table.add_row(f"{confidence:.4g} confidence", f"{number(low, 8)} to {number(high, 8)}")
    table.add_row("engine", run.engine)
    table.add_row("time", f"{seconds:.3g} s, {run.steps / max(seconds, 1e-9):.3g} steps/s")
    return table


def run_values(words: str, run: Run, confidence: float, seconds: float) -> dict[str, Any]:
    """A run as plain values."""
    low, high = run.interval(confidence)
    return {
        "policy": words,
        "users": run.users,
        "clicks": run.clicks,
        "steps": run.steps,
        "truncated": run.truncated,
        "mean": run.mean,
        "stderr": finite(run.stderr),
        "confidence": confidence,
        "interval": [finite(low), finite(high)],
        "engine": run.engine,
        "seed": run.seed,
        "seconds": seconds,
    }


def comparison_table(first: str, second: str, result: Comparison, confidence: float) -> RichTable:
    """Two policies on the same users."""
    table = RichTable(
        title=f"The same {result.users:,} users under both policies", title_justify="left", show_header=False
    )
    table.add_column()
    table.add_column(justify="right")
    low, high = result.interval(confidence)
    table.add_row(first, number(result.first))
    table.add_row(second, number(result.second))
    table.add_row("difference", number(result.difference))
    table.add_row(f"{confidence:.4g} confidence", f"{number(low)} to {number(high)}")
    table.add_row("standard error", significant(result.stderr))
    table.add_row("on different users", significant(result.unpaired_stderr))
    return table


def comparison_values(first: str, second: str, result: Comparison, confidence: float) -> dict[str, Any]:
    """A comparison as plain values."""
    return {
        "policies": [first, second],
        "users": result.users,
        "means": [result.first, result.second],
        "difference": result.difference,
        "stderr": finite(result.stderr),
        "unpaired_stderr": finite(result.unpaired_stderr),
        "confidence": confidence,
        "interval": [finite(end) for end in result.interval(confidence)],
    }


def finite(value: float) -> float | None:
    """`value`, or None where it is not a number, which JSON does not know."""
    return value if math.isfinite(value) else None
