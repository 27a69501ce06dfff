"""Terminal tables and JSON values of off-policy evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.cli.tables.layout import new_table
from departing.formatting import format_number, json_fields
from departing.offpolicy.value import Estimate, OffPolicyValue

MAX_STEPS = 8  # rows of the overlap table
ESTIMATORS = {"dm": "direct method (DM)", "pdis": "importance sampling (PDIS)", "dr": "doubly robust (DR)"}


def ope_contents(
    policies: Sequence[str], values: Sequence[OffPolicyValue], log_value: float | None
) -> Iterator[RichTable | str]:
    """For every policy its estimates, overlap and warnings; then a comparison."""
    for policy, value in zip(policies, values, strict=True):
        yield value_table(policy, value)
        if value.by_segment:
            yield segment_table(_short(policy), value)
        if value.overlap:
            yield overlap_table(value)
        yield from value.warnings
    yield ranking_table(policies, values, log_value)


def value_table(policy: str, value: OffPolicyValue) -> RichTable:
    """Estimates of the value of a policy, one per row."""
    columns = ("estimator", value.unit, "std. error", f"{value.confidence:.0%} interval", "ESS")
    table = new_table(f"{value.unit.capitalize()} per user of {policy}", *columns)
    for name, estimate in value.estimates.items():
        stderr, ess = format_number(estimate.stderr, 4), f"{estimate.ess:,.0f}"
        table.add_row(ESTIMATORS[name], format_number(estimate.value, 4), stderr, _interval(estimate), ess)
    return table


def segment_table(policy: str, value: OffPolicyValue) -> RichTable:
    """Best estimate of the value for the users of each segment."""
    columns = ("segment", "users", "estimator", value.unit, f"{value.confidence:.0%} interval", "ESS")
    table = new_table(f"{value.unit.capitalize()} per user of {policy} by segment", *columns)
    for name, part in value.by_segment.items():
        best = part.best
        cells = format_number(best.value, 4), _interval(best), f"{best.ess:,.0f}"
        table.add_row(escape(name), f"{part.users:,}", part.best_name.upper(), *cells)
    return table


def _interval(estimate: Estimate) -> str:
    return f"{format_number(estimate.lower, 4)} to {format_number(estimate.upper, 4)}"


def overlap_table(value: OffPolicyValue) -> RichTable:
    """Overlap of the log with the policy by step; steps after the horizon are dimmed."""
    table = new_table("Overlap of log and policy", "up to step", "users", "ESS", f"share of {value.unit}", labels=0)
    for row in value.overlap[:MAX_STEPS]:
        cells = (str(row.step + 1), f"{row.users:,}", f"{row.ess:,.0f}", f"{row.click_share:.1%}")
        table.add_row(*cells, style="" if row.step < value.horizon else "dim")
    return table


def ranking_table(policies: Sequence[str], values: Sequence[OffPolicyValue], log_value: float | None) -> RichTable:
    """Best estimate of every policy in decreasing order, with the value of the policy of the log."""
    columns = ["policy", values[0].unit, f"{values[0].confidence:.0%} interval"]
    table = new_table("Comparison", *columns, *(["ratio to log"] if log_value else []))
    rows: list[tuple[str, float, Estimate | None]] = [
        (_short(name), value.best.value, value.best) for name, value in zip(policies, values, strict=True)
    ]
    if log_value is not None:
        rows.append(("policy of the log", log_value, None))
    for name, each, best in sorted(rows, key=lambda row: -row[1]):
        interval = "" if best is None else _interval(best)
        ratio = ["" if best is None else f"{each / log_value:.2f}"] if log_value else []
        table.add_row(escape(name), format_number(each, 4), interval, *ratio)
    return table


def _short(policy: str) -> str:
    """The file of a policy, without its description, or the description."""
    file, _, _ = policy.partition(": ")
    return file if file.endswith((".json", ".toml")) else policy


def ope_values(policy: str, value: OffPolicyValue) -> dict[str, Any]:
    """The same as JSON values."""
    others: dict[str, Any] = {"unit": value.unit} if "reward" in value.fit.instance.extensions else {}
    if value.by_segment:
        others["by_segment"] = {
            name: {"users": part.users, "estimates": _estimate_values(part)}
            for name, part in value.by_segment.items()
        }
    return {
        "policy": policy,
        **others,
        "estimates": _estimate_values(value),
        "overlap": [*map(json_fields, value.overlap)],
        "extrapolation": json_fields(value.extrapolation),
        **json_fields(value, "confidence", "users", "horizon", "tail_share", "warnings"),
    }


def _estimate_values(value: OffPolicyValue) -> dict[str, Any]:
    """Estimates as JSON values."""
    return {name: json_fields(estimate) for name, estimate in value.estimates.items()}
