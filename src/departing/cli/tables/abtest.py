"""Terminal tables and JSON values of sample sizes and readouts of A/B tests."""

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.abtest.returns import Returns
from departing.abtest.sample_size import COLUMNS, SampleSize
from departing.cli.tables.layout import new_table
from departing.formatting import json_fields


def power_contents(size: SampleSize) -> Iterator[RichTable | str]:
    """The sample size in one sentence, both arms, and what it assumes."""
    yield size.describe()
    table = new_table("Arms", *COLUMNS, labels=2)
    for name, policy, *cells in size.rows():
        table.add_row(name, escape(policy), *cells)
    yield table
    yield from size.sentences()
    yield from size.notes


def power_values(size: SampleSize) -> dict[str, Any]:
    """The same as JSON values."""
    names = ("users", "users_per_arm", "treatment_users", "control_users", "share", "power", "requested_power")
    values = json_fields(
        size, *names, "significance", "difference", "lift", "detectable", "sequential_users", "notes"
    )
    return values | {"treatment": _arm_values(size.treatment), "control": _arm_values(size.control)}


def _arm_values(arm: Returns) -> dict[str, Any]:
    return {"policy": arm.name} | json_fields(arm, "mean", "variance", "skewness")
