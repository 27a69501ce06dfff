"""Load test results as tables."""

from rich.markup import escape
from rich.table import Table

from departing.cli.tables.layout import new_table
from departing.formatting import MISSING, format_clicks, format_number, format_significant
from departing.loadtest.run import LoadTestResult


def loadtest_tables(result: LoadTestResult) -> list[Table]:
    """User ranges, and the service beside baseline policies."""
    users, unit = f"{len(result.regrets):,} users", result.instance.unit
    ranges = new_table(users, "users", f"{unit} per user", "±", "regret per user", "±", labels=0)
    for row in result.ranges():
        means = (row[name] for name in ("clicks_per_user", "clicks_stderr", "regret_per_user", "regret_stderr"))
        ranges.add_row(f"{row['first']:,} to {row['last']:,}", *map(_format, means))
    ranges.caption = f"Regret: expected {unit} lost compared with the optimal policy. ±: standard error."
    baselines = new_table(f"Expected {unit}", "", f"{unit} per user", f"regret of {users}")
    for row in result.baselines():
        cells = format_number(row["clicks_per_user"], 4), format_clicks(row["regret"])
        baselines.add_row(escape(row["policy"]), *cells)
    return [ranges, baselines]


def _format(value: float | None) -> str:
    return MISSING if value is None else "0" if abs(value) < 1e-6 else format_significant(value)
