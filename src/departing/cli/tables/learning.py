"""Runs of learners and studies as tables for a person and as plain values for a program."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import finite_or_none, format_clicks, format_percent, format_significant
from departing.model.instance import Floats
from departing.simulation.regret_curve import Slope
from departing.studies.results import NOTHING, Curves, Record


def study_tables(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[RichTable]:
    """For every group of a study a table of what the runs of its learners came to."""
    groups = [(group, list(members)) for group, members in groupby(rows, key=lambda row: row["group"])]
    for i, (group, members) in enumerate(groups):
        words = f"{title}: {group}, {members[0]['runs']} runs each"
        table = RichTable(title=escape(words), title_justify="left", caption_justify="left")
        table.add_column("learner", overflow="fold", min_width=10)
        for name in ("median", "mean", "max", "of fixed\nloss", "slope", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in members:
            table.add_row(
                escape(row["learner"]),
                *(format_clicks(row[name]) for name in ("median", "mean", "max")),
                format_percent(row["share_of_fixed_loss"]),
                _slope(row["slope"], row["slope_stderr"]),
                f"{row['seconds']:.2f} s",
            )
        if i == len(groups) - 1:
            table.caption = (
                "Regret in clicks at the end of the runs; its mean as a share of what the best fixed category loses; "
                "its slope on log-log axes over the last two decades of users; the time of a run."
            )
        yield table


def _slope(value: float | None, stderr: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if stderr is None else f"{value:.2f} ± {stderr:.2f}"


def powers_of_ten(users: Floats) -> list[int]:
    """The checkpoints to show: powers of ten, and the last one.

    >>> powers_of_ten(np.array([1, 2, 10, 20, 100, 150]))
    [0, 2, 4, 5]
    """
    return [i for i, n in enumerate(users.tolist()) if math.log10(n).is_integer() or i == len(users) - 1]


def course_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Mean regret of some runs at the powers of ten, as plain values."""
    users = np.array(records[0]["users"])
    regret = None if records[0]["regret"] is None else np.mean([record["regret"] for record in records], axis=0)
    realised = np.mean([record["realised"] for record in records], axis=0)
    lost = records[0]["optimum"] - records[0]["fixed_value"]
    rows = []
    for i in powers_of_ten(users):
        counted = float(realised[i] if regret is None else regret[i])
        whole = lost * float(users[i])
        rows.append(
            {
                "users": int(users[i]),
                "regret": None if regret is None else float(regret[i]),
                "realised": float(realised[i]),
                "per_user": counted / float(users[i]),
                "share_of_fixed_loss": counted / whole if whole > NOTHING else None,
            }
        )
    return rows


def course_table(title: str, rows: Sequence[dict[str, Any]]) -> RichTable:
    """Regret at the powers of ten."""
    table = RichTable(title=escape(title), title_justify="left", caption_justify="left")
    table.caption = "Regret in clicks, expected and realised; as a share of what the best fixed category loses."
    for name in ("users", "regret", "realised", "regret per user", "share of fixed loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['users']:,}",
            format_clicks(math.nan if row["regret"] is None else row["regret"]),
            format_clicks(row["realised"]),
            format_significant(row["per_user"]) if abs(row["per_user"]) > 1e-12 else "0",
            format_percent(row["share_of_fixed_loss"]),
        )
    return table


def course_notes(curves: Curves, policy: str | None) -> list[str]:
    """How regret grows, and what most users get in the end."""
    steep = curves.slope
    notes = []
    if not math.isnan(steep.value):
        power = _slope(steep.value, finite_or_none(steep.stderr))
        notes.append(f"Regret grows like users to the power {power} over the last two decades.")
    if policy is not None:
        notes.append(f"In the end most users get: {policy}.")
    return notes


def optimum_notes(optimum: Record, last: dict[str, Any]) -> list[str]:
    """A sentence where the best policy is known less closely than a tenth of the regret at the end."""
    off = (optimum["upper"] - optimum["lower"]) / 2 * last["users"]
    if off < 0.1 * abs(last["per_user"] * last["users"]) or off < 1:
        return []
    worth = f"{optimum['lower']:.6g} to {optimum['upper']:.6g}"
    return [f"The optimum is {worth} clicks per user: regret may be off by {format_clicks(off)}."]


def learnt_values(curves: Curves, rows: Sequence[dict[str, Any]], policy: str | None) -> dict[str, Any]:
    """What came of learning, as plain values."""
    steep: Slope = curves.slope
    return {
        "learner": curves.learner,
        "runs": len(curves.final),
        "course": list(rows),
        "slope": finite_or_none(steep.value),
        "slope_stderr": finite_or_none(steep.stderr),
        "policy": policy,
        "seconds": curves.seconds,
    }
