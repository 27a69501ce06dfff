"""Exact values of policies for the terminal and as JSON values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from departing.cli.tables.layout import new_table
from departing.evaluation.bounds import Bounds
from departing.evaluation.evaluate import Evaluation
from departing.formatting import format_bounds, format_number, format_significant, json_fields
from departing.model.instance import Instance

TYPE_DECIMALS = 5  # of values by type, so that several columns fit on a line
NEGLIGIBLE = 1e-6  # relative loss of a policy that counts as none, as in the table of a plan
Rows = list[tuple[str, Evaluation]]


def loss(value: Bounds, others: list[Bounds], best: Bounds | None) -> str:
    """Loss of a policy compared with the `best` of the others (None for the best itself), as far as bounds decide it.

    If bounds overlap and the loss is negligible, the values count as equal.

    >>> one, two, wide = Bounds(1.0, 1.0), Bounds(1.5, 1.5), Bounds(1.2, 1.6)
    >>> loss(one, [two], two), loss(two, [one], None), loss(two, [wide], None), loss(wide, [two], two)
    ('0.500000', 'best', 'undecided', 'undecided')
    >>> loss(one, [one], None), loss(one, [one], one)
    ('best', 'none')
    """
    if best is None:
        return "best" if all(other.upper < value.lower or _equal(other, value) for other in others) else "undecided"
    if value.upper >= best.lower:
        return "none" if _equal(value, best) else "undecided"
    lower, upper = best.lower - value.upper, best.upper - value.lower
    return format_number(best.value - value.value) if upper - lower < 1e-6 else f"{lower:.6g} to {upper:.6g}"


def _equal(one: Bounds, other: Bounds) -> bool:
    """True if values with these bounds differ by a negligible amount at most."""
    largest = max(one.upper, other.upper)
    return largest - min(one.lower, other.lower) <= NEGLIGIBLE * largest


class EvaluationTable:
    """Values of policies, highest lower bound first; values by type in columns where these fit, otherwise in rows."""

    def __init__(self, instance: Instance, rows: Rows) -> None:
        self.instance, self.rows = instance, sorted(rows, key=lambda row: -row[1].lower)

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
        unit = self.instance.unit
        title = f"Expected {unit} per user"
        types = (name if name.startswith("type") else f"type {name}" for name in self.instance.types)
        wide = new_table(title, "policy", unit, "loss", *types, min_width=12)
        for cells, (_, value) in zip(self._cells(), self.rows, strict=True):
            wide.add_row(*cells, *(format_bounds(by.lower, by.upper, TYPE_DECIMALS) for by in value.by_type))
        if Measurement.get(console, options.update(max_width=10_000), wide).maximum <= options.max_width:
            yield wide
            return
        table = new_table(title, "policy", unit, "loss", min_width=12)
        for cells in self._cells():
            table.add_row(*cells)
        yield table
        names = self.instance.types
        by_type = [(policy, dict(zip(names, value.by_type, strict=True))) for policy, value in self.rows]
        yield _parts_table("By type", "type", unit, by_type)


def _parts_table(title: str, part: str, unit: str, rows: Sequence[tuple[str, Mapping[str, Bounds]]]) -> RichTable:
    """Values of policies in parts of the users, such as types: a row for each policy and part."""
    table = new_table(title, "policy", part, unit, min_width=12)
    for policy, parts in rows:
        table.add_section()
        for i, (name, by) in enumerate(parts.items()):
            table.add_row("" if i else escape(policy), escape(name), format_bounds(by.lower, by.upper, TYPE_DECIMALS))
    return table


def evaluation_contents(
    instance: Instance, rows: Rows, gap: float, distribution: bool
) -> Iterator[EvaluationTable | RichTable | str]:
    """Values, a sentence for every policy whose gap is wider than requested, and distributions on request."""
    table = EvaluationTable(instance, rows)
    yield table
    if instance.segments is not None:
        by_segment = [(policy, value.by_segment) for policy, value in table.rows]
        yield _parts_table("By segment", "segment", instance.unit, by_segment)
    for policy, value in rows:
        if value.gap > max(gap, 1e-9 * value.upper):
            yield f"The gap of {policy} is {format_significant(value.gap)}; raise --nodes to reduce it."
    if distribution:
        yield from (distribution_table(*row) for row in rows)


def evaluation_values(policy: str, value: Evaluation, distribution: bool) -> dict[str, Any]:
    """One evaluation as JSON values."""
    values = {"policy": policy} | json_fields(value, "lower", "upper")
    values["by_type"] = [json_fields(by, "lower", "upper") for by in value.by_type]
    if value.by_segment:
        values["by_segment"] = {name: json_fields(by, "lower", "upper") for name, by in value.by_segment.items()}
    if "reward" in value.instance.extensions:
        values["unit"] = value.unit
    if distribution:
        values |= json_fields(value.distribution, "returns", "steps", "survival")
        values["truncated"] = value.distribution.remaining
    return values


def distribution_table(policy: str, value: Evaluation, max_rows: int = 20) -> RichTable:
    """Probabilities of every number of clicks and of steps, and of being active after each step."""
    distribution = value.distribution
    columns = (distribution.returns, distribution.steps, distribution.survival)
    longest, remainder = max(map(len, columns)), format_significant(distribution.remaining)
    table = new_table(policy, "n", "P(clicks = n)", "P(steps = n)", "P(active after n)", labels=0)
    for n in range(min(max_rows, longest)):
        table.add_row(str(n), *(format_number(float(c[n])) if n < len(c) else f"≤ {remainder}" for c in columns))
    notes = [f"Use --json for {longest - max_rows} more rows."] if longest > max_rows else []
    if distribution.remaining > 1e-6:
        notes.append(f"A share of {remainder} of the users is truncated; raise --nodes to reduce it.")
    table.caption = " ".join(notes) or None
    return table
