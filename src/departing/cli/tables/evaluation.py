"""Exact values of policies for the terminal and as JSON values."""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import Evaluation
from departing.formatting import format_bounds, format_number, format_significant
from departing.model.instance import Instance

TYPE_DECIMALS = 5  # of values by type, so that several columns fit on a line
Rows = list[tuple[str, Evaluation]]


def loss(value: Bounds, others: list[Bounds], best: Bounds | None) -> str:
    """Loss of a policy compared with the `best` of the others (None for the best itself), as far as bounds decide it.

    >>> one, two, wide = Bounds(1.0, 1.0), Bounds(1.5, 1.5), Bounds(1.2, 1.6)
    >>> loss(one, [two], two), loss(two, [one], None), loss(two, [wide], None), loss(wide, [two], two)
    ('0.500000', 'best', 'undecided', 'undecided')
    """
    if best is None:
        return "best" if all(other.upper < value.lower for other in others) else "undecided"
    if value.upper >= best.lower:
        return "undecided"
    lower, upper = best.lower - value.upper, best.upper - value.lower
    return format_number(best.value - value.value) if upper - lower < 1e-6 else f"{lower:.6g} to {upper:.6g}"


class EvaluationTable:
    """Values of policies, highest lower bound first; values by type in columns where these fit, otherwise in rows."""

    def __init__(self, instance: Instance, rows: Rows) -> None:
        self.instance, self.rows = instance, sorted(rows, key=lambda row: -row[1].lower)

    def _table(self, title: str, *columns: str) -> RichTable:
        table = RichTable(title=title, title_justify="left")
        table.add_column("policy", overflow="fold", min_width=12)
        for name in columns:
            table.add_column(escape(name), justify="right", no_wrap=True)
        return table

    def _cells(self) -> list[list[str]]:
        best = self.rows[0][1]
        return [
            [
                escape(policy),
                format_bounds(value.lower, value.upper),
                loss(value, [other for _, other in self.rows[:i] + self.rows[i + 1 :]], best if i else None),
            ]
            for i, (policy, value) in enumerate(self.rows)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = "Expected clicks per user"
        wide = self._table(title, "clicks", "loss", *self.instance.types)
        for cells, (_, value) in zip(self._cells(), self.rows, strict=True):
            wide.add_row(*cells, *(format_bounds(by.lower, by.upper, TYPE_DECIMALS) for by in value.by_type))
        if Measurement.get(console, options.update(max_width=10_000), wide).maximum <= options.max_width:
            yield wide
            return
        table = self._table(title, "clicks", "loss")
        for cells in self._cells():
            table.add_row(*cells)
        yield table
        table = self._table("By type", "type", "clicks")
        for policy, value in self.rows:
            table.add_section()
            for i, (name, by) in enumerate(zip(self.instance.types, value.by_type, strict=True)):
                clicks = format_bounds(by.lower, by.upper, TYPE_DECIMALS)
                table.add_row("" if i else escape(policy), escape(name), clicks)
        yield table


def gap_notes(rows: Rows, gap: float) -> list[str]:
    """One sentence for every policy whose bounds are further apart than requested."""
    return [
        f"The gap of {policy} is {format_significant(value.gap)}; raise --nodes to reduce it."
        for policy, value in rows
        if value.gap > max(gap, 1e-9 * value.upper)
    ]


def evaluation_values(policy: str, value: Evaluation, distribution: bool) -> dict[str, Any]:
    """One evaluation as JSON values."""
    values: dict[str, Any] = {
        "policy": policy,
        "lower": value.lower,
        "upper": value.upper,
        "by_type": [{"lower": by.lower, "upper": by.upper} for by in value.by_type],
    }
    if distribution:
        values |= {
            "returns": value.distribution.returns.tolist(),
            "steps": value.distribution.steps.tolist(),
            "survival": value.distribution.survival.tolist(),
            "truncated": value.distribution.remaining,
        }
    return values


def distribution_table(policy: str, value: Evaluation, max_rows: int = 20) -> RichTable:
    """Probabilities of every number of clicks and of steps, and of being active after each step."""
    distribution = value.distribution
    columns = (distribution.returns, distribution.steps, distribution.survival)
    longest, remainder = max(map(len, columns)), format_significant(distribution.remaining)
    table = RichTable(title=escape(policy), title_justify="left", caption_justify="left")
    for name in ("n", "P(clicks = n)", "P(steps = n)", "P(active after n)"):
        table.add_column(name, justify="right", no_wrap=True)
    for n in range(min(max_rows, longest)):
        table.add_row(str(n), *(format_number(float(c[n])) if n < len(c) else f"≤ {remainder}" for c in columns))
    notes = [f"Use --json for {longest - max_rows} more rows."] if longest > max_rows else []
    if distribution.remaining > 1e-6:
        notes.append(f"A share of {remainder} of the users is truncated; raise --nodes to reduce it.")
    table.caption = " ".join(notes) or None
    return table
