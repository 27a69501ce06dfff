"""What a policy would have earned on a log, as tables for a person and as plain values for a program."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import format_number
from departing.offpolicy.off_policy_value import Estimate, OffPolicyValue

SHOWN = 8  # steps of the overlap that are shown
MEANING = {
    "model": "under the fitted instance",
    "weighted": "from the log, by weights",
    "doubly robust": "from the log, the model takes out luck",
}


def value_table(words: str, found: OffPolicyValue) -> RichTable:
    """The estimates, one a row."""
    table = RichTable(title=escape(f"Clicks per user of {words}"), title_justify="left")
    table.add_column("estimate")
    for name in ("clicks", "error", f"{found.confidence:.0%} interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it rests on")
    for name, estimate in _estimates(found).items():
        table.add_row(
            name,
            format_number(estimate.value, 4),
            format_number(estimate.stderr, 4),
            f"{format_number(estimate.lower, 4)} to {format_number(estimate.upper, 4)}",
            MEANING[name],
        )
    return table


def overlap_table(found: OffPolicyValue) -> RichTable:
    """How many users were shown what the policy shows, by step."""
    table = RichTable(title="Users who were shown what the policy shows", title_justify="left")
    for name in ("up to step", "users", "worth", "of its clicks"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found.overlap[:SHOWN]:
        used = "" if each.step < found.steps else "dim"
        cells = (str(each.step + 1), f"{each.following:,}", f"{each.effective:,.0f}", f"{each.share:.1%}")
        table.add_row(*cells, style=used)
    return table


def ranking_table(words: Sequence[str], found: Sequence[OffPolicyValue], seen: float | None) -> RichTable:
    """The best estimate of every policy, best first, beside what the log did, `seen`."""
    table = RichTable(title="Side by side", title_justify="left")
    table.add_column("policy")
    for name in ("clicks", f"{found[0].confidence:.0%} interval", "times the log"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: list[tuple[str, float, Estimate | None]] = [
        (name, each.best.value, each.best) for name, each in zip(words, found, strict=True)
    ]
    if seen is not None:
        rows.append(("what the log did", seen, None))
    for name, value, best in sorted(rows, key=lambda row: -row[1]):
        interval = "" if best is None else f"{format_number(best.lower, 4)} to {format_number(best.upper, 4)}"
        times = "" if seen is None or best is None or seen == 0 else f"{value / seen:.2f}"
        table.add_row(escape(name), format_number(value, 4), interval, times)
    return table


def value_values(words: str, found: OffPolicyValue) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "policy": words,
        "confidence": found.confidence,
        "users": found.users,
        "estimates": {name: vars(estimate) for name, estimate in _estimates(found).items()},
        "steps": found.steps,
        "beyond": found.beyond,
        "effective": found.effective,
        "overlap": [vars(each) for each in found.overlap],
        "warnings": list(found.warnings),
    }


def _estimates(found: OffPolicyValue) -> dict[str, Estimate]:
    named = {"model": found.model, "weighted": found.weighted, "doubly robust": found.robust}
    return {name: estimate for name, estimate in named.items() if estimate is not None}
