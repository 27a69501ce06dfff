"""Items of the paper and their checks for the terminal and as JSON values."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import json_fields
from departing.paper.item import HOLDS, IMPLEMENTED, MEASURED, REFUTED, REPAIRED, Findings, Item

STYLES = {HOLDS: "green", REPAIRED: "yellow", REFUTED: "red", MEASURED: "cyan", IMPLEMENTED: "blue"}


def items_table(items: Sequence[Item]) -> RichTable:
    """One row per item, with its recorded verdict and its code."""
    rows = []
    for item in items:
        code = "\n".join(f"[dim]{escape(place.removeprefix('departing.'))}[/]" for place in item.code)
        rows.append(([_where(item), "\n".join(filter(None, (escape(item.statement), code)))], item.verdict))
    return _table(("source and key", "statement and code"), rows)


def paper_table(findings: Findings) -> RichTable:
    """One row per item, with the evidence of its check."""
    rows = [
        ([_where(item), escape(item.statement), escape(finding.evidence)], finding.verdict)
        for item, finding in findings
    ]
    return _table(("source and key", "statement", "evidence"), rows)


def _where(item: Item) -> str:
    return f"{escape(item.source)}\n[dim]{item.key}[/]"


def _table(columns: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> RichTable:
    table = RichTable(title="Items of the paper", title_justify="left", show_lines=True)
    for name in columns:
        table.add_column(name, overflow="fold", max_width=26 if name == columns[0] else None)
    table.add_column("verdict", min_width=len(IMPLEMENTED))
    for cells, verdict in rows:
        table.add_row(*cells, f"[{STYLES.get(verdict, 'dim')}]{verdict}[/]")
    return table


def item_values(item: Item) -> dict[str, Any]:
    """Fields of an item as JSON values."""
    fields = json_fields(item, "key", "source", "kind", "statement", "verdict", "note", "method")
    return fields | {"code": list(item.code)}


def paper_values(findings: Findings) -> list[dict[str, Any]]:
    """Items and the findings of their checks as JSON values."""
    return [
        item_values(item) | json_fields(finding, "verdict", "evidence", "table", "seconds")
        for item, finding in findings
    ]
