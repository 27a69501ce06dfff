"""Claims of the paper and their checks for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import json_fields
from departing.paper.claim import HOLDS, MEASURED, REFUTED, SKIPPED, Findings

STYLES = {HOLDS: "green", REFUTED: "red", MEASURED: "cyan", SKIPPED: "dim"}


def paper_table(findings: Findings) -> RichTable:
    """One row per claim."""
    table = RichTable(title="Claims of the paper", title_justify="left", show_lines=True)
    for name in ("source", "claim", "result"):
        table.add_column(name)
    table.add_column("verdict", no_wrap=True)
    for claim, finding in findings:
        verdict = f"[{STYLES[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(*map(escape, (claim.source, claim.statement, finding.result)), verdict)
    return table


def paper_values(findings: Findings) -> list[dict[str, Any]]:
    """The same as JSON values."""
    return [
        json_fields(claim, "key", "source", "statement", "method")
        | json_fields(finding, "verdict", "result", "table", "seconds")
        for claim, finding in findings
    ]
