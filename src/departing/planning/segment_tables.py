"""Rows about the segments of a plan: shares, bounds, first category and the best fixed policy."""

from typing import TYPE_CHECKING, Any

import numpy as np

from departing.formatting import format_limit, format_percent
from departing.policy.protocol import recommended

if TYPE_CHECKING:
    from departing.planning.plan import Plan

MAX_LISTED = 20  # segments in a printed overview


def segment_columns(plan: "Plan") -> dict[str, Any]:
    """Columns of a table with a row for each segment."""
    instance, segments = plan.instance, plan.instance.segments
    plans = list(plan.by_segment.values())
    allowed = list(plan.allowed)
    fixed = [instance.fixed_values[allowed] @ each.instance.normalised_prior for each in plans]
    return {
        "segment": list(plan.by_segment),
        "share": [] if segments is None else segments.share.tolist(),
        "first": [instance.categories[first_category(each)] for each in plans],
        "policy": [each.describe() for each in plans],
        "lower": [each.lower for each in plans],
        "upper": [each.upper for each in plans],
        "best_fixed": [instance.categories[allowed[int(values.argmax())]] for values in fixed],
        "best_fixed_value": [float(values.max()) for values in fixed],
    }


def first_category(plan: "Plan") -> int:
    """Category that a plan recommends first."""
    return int(recommended(plan.policy, np.zeros((1, plan.instance.n_categories, 4), np.int64))[0])


def segment_lines(plan: "Plan") -> list[str]:
    """A line for each segment; () without segments."""
    if not plan.by_segment:
        return []
    columns = segment_columns(plan)
    names = ("segment", "share", "first", "lower", "upper")
    rows = list(zip(*(columns[name] for name in names), strict=True))
    width = max(len(row[0]) for row in rows[:MAX_LISTED])
    lines = ["By segment:"]
    for name, share, first, lower, upper in rows[:MAX_LISTED]:
        within = format_limit(upper - lower)
        value = f"{lower + (upper - lower) / 2:.6f} {plan.instance.unit} (optimal within {within})"
        lines.append(f"  {name:{width}}  {format_percent(share):>6} of users  {value}, first {first}")
    if len(rows) > MAX_LISTED:
        lines.append(f"  and {len(rows) - MAX_LISTED:,} more")
    return lines
