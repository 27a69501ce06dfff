"""Users by type for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from departing.assignment.assignments import Assignments
from departing.cli.tables.layout import new_table
from departing.formatting import finite_or_none
from departing.policy.library import describe


def assignment_table(users: Assignments) -> Table:
    """Users by most likely type."""
    head, rows = users.table()
    table = new_table(f"{len(users):,} users by most likely type", *head, min_width=8, wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def assignment_values(users: Assignments) -> dict[str, Any]:
    """Users by type as JSON values."""
    return {
        "users": len(users),
        "types": [vars(each) | {"probability": finite_or_none(each.probability)} for each in users.types],
        "impossible": users.impossible,
        "policy": describe(users.policy, users.instance),
        "error": users.error,
    }
