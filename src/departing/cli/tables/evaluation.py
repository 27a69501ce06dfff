"""Evaluations, runs and comparisons as tables for a person and as plain values for a program."""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import Evaluation
from departing.formatting import finite_or_none, format_bounds, format_number, format_significant
from departing.model.instance import Instance
from departing.simulation.compare import Comparison
from departing.simulation.run import Run

BY_TYPE = 5  # decimals of values by type
Rows = list[tuple[str, Evaluation]]


def ranked(rows: Rows) -> Rows:
    """The policies, the one with the largest guaranteed value first."""
    return sorted(rows, key=lambda row: -row[1].lower)


def behind(found: Bounds, others: list[Bounds], best: Bounds | None) -> str:
    """How far a policy is behind the best of the `others`, as far as the bounds tell; None for the best itself.

    >>> one, two, wide = Bounds(1.0, 1.0), Bounds(1.5, 1.5), Bounds(1.2, 1.6)
    >>> behind(one, [two], two), behind(two, [one], None), behind(two, [wide], None), behind(wide, [two], two)
    ('-0.500000', 'best', 'undecided', 'undecided')
    """
    if best is None:
        return "best" if all(other.upper < found.lower for other in others) else "undecided"
    if found.upper >= best.lower:
        return "undecided"
    least, most = found.lower - best.upper, found.upper - best.lower
    return format_number(found.value - best.value) if most - least < 1e-6 else f"{least:.6g} to {most:.6g}"


class EvaluationTable:
    """Policies with what they are worth, best first; by type in columns where these fit, else in rows."""

    def __init__(self, instance: Instance, rows: Rows) -> None:
        self.instance, self.rows = instance, ranked(rows)

    def _table(self, *columns: str) -> RichTable:
        table = RichTable(title="Expected clicks per user", title_justify="left")
        table.add_column("policy", overflow="fold", min_width=12)
        for name in columns:
            table.add_column(escape(name), justify="right", no_wrap=True)
        return table

    def _lines(self) -> list[list[str]]:
        best = self.rows[0][1]
        return [
            [
                escape(words),
                format_bounds(found.lower, found.upper),
                behind(found, [other for _, other in self.rows[:i] + self.rows[i + 1 :]], best if i else None),
            ]
            for i, (words, found) in enumerate(self.rows)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._table("clicks", "to the best", *self.instance.types)
        for line, (_, found) in zip(self._lines(), self.rows, strict=True):
            wide.add_row(*line, *(format_bounds(by.lower, by.upper, BY_TYPE) for by in found.by_type))
        if Measurement.get(console, options.update(max_width=10_000), wide).maximum <= options.max_width:
            yield wide
            return
        table = self._table("clicks", "to the best")
        for line in self._lines():
            table.add_row(*line)
        yield table
        table = self._table("type", "clicks")
        table.title = "By type"
        for words, found in self.rows:
            table.add_section()
            for i, (name, by) in enumerate(zip(self.instance.types, found.by_type, strict=True)):
                table.add_row("" if i else escape(words), escape(name), format_bounds(by.lower, by.upper, BY_TYPE))
        yield table


def evaluation_notes(rows: Rows, tolerance: float) -> list[str]:
    """A sentence for every policy whose bounds are further apart than was asked for."""
    wide = [(words, found) for words, found in rows if found.gap > max(tolerance, 1e-9 * found.upper)]
    return [
        f"The bounds of {words} are {format_significant(found.gap)} apart: more --nodes would bring them closer."
        for words, found in wide
    ]


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


def distribution_table(words: str, found: Evaluation, most: int = 20) -> RichTable:
    """The chance of every number of clicks and of steps, and of being still here."""
    seen = found.distribution
    columns = (seen.returns, seen.steps, seen.survival)
    longest = max(map(len, columns))
    table = RichTable(title=escape(words), title_justify="left", caption_justify="left")
    for name in ("n", "exactly n clicks", "exactly n steps", "still here after n"):
        table.add_column(name, justify="right", no_wrap=True)
    for n in range(min(most, longest)):
        table.add_row(
            str(n),
            *(format_number(float(c[n])) if n < len(c) else f"≤ {format_significant(seen.left)}" for c in columns),
        )
    captions = [f"{longest - most} more rows with --json."] if longest > most else []
    if seen.left > 1e-6:
        captions.append(f"{format_significant(seen.left)} of the users are truncated; raise --nodes.")
    table.caption = " ".join(captions) or None
    return table


def pairs(title: str) -> RichTable:
    """An empty table of words and numbers, without a head."""
    table = RichTable(title=escape(title), title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    return table


def run_table(words: str, run: Run, confidence: float, seconds: float) -> RichTable:
    """A run, line by line."""
    table = pairs(words)
    low, high = run.interval(confidence)
    table.add_row("users", f"{run.users:,}")
    table.add_row("clicks", f"{run.clicks:,}")
    table.add_row("steps", f"{run.steps:,}")
    if run.truncated:
        table.add_row("truncated users", f"{run.truncated:,}")
    table.add_row("clicks per user", format_number(run.mean, 8))
    table.add_row("standard error", format_significant(run.stderr))
    table.add_row(f"{confidence:.4g} confidence", f"{format_number(low, 8)} to {format_number(high, 8)}")
    table.add_row("engine", run.engine)
    table.add_row("time", f"{seconds:.3g} s, {run.steps / max(seconds, 1e-9):.3g} steps/s")
    return table


def run_values(words: str, run: Run, confidence: float, seconds: float) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "policy": words,
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


def comparison_table(first: str, second: str, result: Comparison, confidence: float) -> RichTable:
    """Two policies on the same users."""
    table = pairs(f"The same {result.users:,} users under both policies")
    low, high = result.interval(confidence)
    table.add_row(escape(first), format_number(result.first))
    table.add_row(escape(second), format_number(result.second))
    table.add_row("difference", format_number(result.difference))
    table.add_row(f"{confidence:.4g} confidence", f"{format_number(low)} to {format_number(high)}")
    table.add_row("standard error", format_significant(result.stderr))
    table.add_row("on different users", format_significant(result.unpaired_stderr))
    return table


def comparison_values(first: str, second: str, result: Comparison, confidence: float) -> dict[str, Any]:
    """A comparison as plain values."""
    return {
        "policies": [first, second],
        "users": result.users,
        "means": [result.first, result.second],
        "difference": result.difference,
        "stderr": finite_or_none(result.stderr),
        "unpaired_stderr": finite_or_none(result.unpaired_stderr),
        "confidence": confidence,
        "interval": [finite_or_none(end) for end in result.interval(confidence)],
    }
