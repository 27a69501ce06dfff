"""Terminal tables and JSON values of sample sizes and readouts of A/B tests."""

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.abtest.readout import COLUMNS as READOUT_COLUMNS
from departing.abtest.readout import ABTest, ArmComparison
from departing.abtest.returns import Returns
from departing.abtest.sample_size import COLUMNS, SampleSize
from departing.cli.tables.layout import new_table
from departing.formatting import json_fields

LABELS = {"interval": "fixed-sample interval", "sequence": "confidence sequence"}


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


def readout_contents(test: ABTest) -> Iterator[RichTable | str]:
    """Recommendations and warnings, both kinds of intervals, and how the results were read."""
    yield from test.recommendations
    yield from test.warnings
    rows = test.rows()
    arms = new_table("Arms", *READOUT_COLUMNS[:3])
    for name, *cells in rows:
        arms.add_row(escape(name), *cells[:2])
    yield arms
    table = new_table(f"Differences from {test.arms[0].name} in clicks per user", "", *(row[0] for row in rows[1:]))
    for i, label in enumerate(READOUT_COLUMNS[3:], 3):
        table.add_row(LABELS.get(label, label), *(row[i] for row in rows[1:]))
    yield table
    yield from test.sentences()


def readout_values(test: ABTest) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "arms": [json_fields(arm, "name", "users", "mean", "stderr", "active") for arm in test.arms],
        "comparisons": [_comparison_values(each) for each in test.comparisons],
        **json_fields(test, "confidence", "sample_ratio_p_value", "warnings", "notes"),
        "rejected": [json_fields(each, "kind", "count", "examples") for each in test.irregularities],
    }


def _comparison_values(comparison: ArmComparison) -> dict[str, Any]:
    names = (
        "difference",
        "lower",
        "upper",
        "p_value",
        "lift",
        "lift_lower",
        "lift_upper",
        "verdict",
        "recommendation",
    )
    sequence = comparison.sequence
    arms = {"treatment": comparison.treatment.name, "control": comparison.control.name}
    columns = json_fields(sequence, "users", "difference", "lower", "upper", "planned_users", "decided_at")
    return arms | json_fields(comparison, *names) | {"sequence": columns}
