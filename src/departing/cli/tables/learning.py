"""Regret of learners and studies for the terminal and as JSON values."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table as RichTable

from departing.cli.tables.layout import new_table
from departing.formatting import MISSING, finite_or_none, first_few, format_clicks, format_percent, format_significant
from departing.model.instance import CLICKS, Floats
from departing.studies.results import NEGLIGIBLE_REGRET, Curves, Record

MAX_RUNS, MAX_CHANGES = 5, 5  # whose changes are listed


def study_tables(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[RichTable]:
    """One table per group of a study, with the regret of each learner."""
    groups = [(group, list(members)) for group, members in groupby(rows, key=lambda row: row["group"])]
    for i, (group, members) in enumerate(groups):
        heading = f"{title}: {group}, {members[0]['runs']} runs each"
        bounds = any(row["bound"] is not None for row in members)
        columns = ("learner", "median", "mean", "max", *(["lower\nbound"] if bounds else []))
        table = new_table(heading, *columns, "of fixed\nloss", "slope", "time", min_width=10)
        for row in members:
            table.add_row(
                escape(row["learner"]),
                *(format_clicks(row[name]) for name in ("median", "mean", "max")),
                *([format_clicks(math.nan if row["bound"] is None else row["bound"])] if bounds else []),
                format_percent(row["share_of_fixed_loss"]),
                _slope(row["slope"], row["slope_stderr"]),
                f"{row['seconds']:.2f} s",
            )
        if i == len(groups) - 1:
            bound = "; the mean lower bound of the instances" if bounds else ""
            table.caption = (
                f"Final regret in {members[0]['unit']}{bound}; its mean as a share of the loss of the best fixed "
                "category; its slope on log-log axes over the last two decades of users; the time per run."
            )
        yield table


def _slope(value: float | None, stderr: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.2f}" if stderr is None else f"{value:.2f} ± {stderr:.2f}"


def powers_of_ten(users: Floats) -> list[int]:
    """Indices of the checkpoints to show: powers of ten, and the last one.

    >>> powers_of_ten(np.array([1, 2, 10, 20, 100, 150]))
    [0, 2, 4, 5]
    """
    return [i for i, n in enumerate(users.tolist()) if math.log10(n).is_integer() or i == len(users) - 1]


def regret_rows(records: Sequence[Record], fixed: Floats, bound: Floats | None = None) -> list[dict[str, Any]]:
    """Mean regret of runs at the powers of ten, also relative to `fixed`, and its lower bound, as JSON values."""
    users = np.array(records[0]["users"])
    regret = None if records[0]["regret"] is None else np.mean([record["regret"] for record in records], axis=0)
    realised = np.mean([record["realised"] for record in records], axis=0)
    rows = []
    for i in powers_of_ten(users):
        reported = float(realised[i] if regret is None else regret[i])
        rows.append(
            {
                "users": int(users[i]),
                "regret": None if regret is None else float(regret[i]),
                "realised": float(realised[i]),
                "per_user": reported / float(users[i]),
                "share_of_fixed_loss": reported / float(fixed[i]) if fixed[i] > NEGLIGIBLE_REGRET else None,
                **({} if bound is None else {"bound": float(bound[i])}),
            }
        )
    return rows


def regret_table(title: str, rows: Sequence[dict[str, Any]], fixed: str, unit: str = CLICKS) -> RichTable:
    """Regret at the powers of ten, in a unit, and relative to a fixed category of this name."""
    bounds = "bound" in rows[0]
    columns = ["users", "regret", "realised", "regret per user", "share of fixed loss"]
    if bounds:
        columns = ["users", "regret", "lower\nbound", "realised", "regret\nper user", "share of\nfixed loss"]
    has_share = any(row["share_of_fixed_loss"] is not None for row in rows)
    table = new_table(title, *(columns if has_share else columns[:-1]), labels=0)
    share = f", and as a share of the loss of the {fixed}" if has_share else ""
    table.caption = f"Expected and realised regret in {unit}{share}."
    for row in rows:
        table.add_row(
            f"{row['users']:,}",
            format_clicks(math.nan if row["regret"] is None else row["regret"]),
            *([format_clicks(row["bound"])] if bounds else []),
            format_clicks(row["realised"]),
            format_significant(row["per_user"]) if abs(row["per_user"]) > 1e-12 else "0",
            *([format_percent(row["share_of_fixed_loss"])] if has_share else []),
        )
    return table


def learning_notes(curves: Curves, policy: str | None, is_moving: bool = False) -> list[str]:
    """Sentences about the growth of regret, unless the site changes, and the policy at the end."""
    slope = curves.slope
    notes = []
    if not math.isnan(slope.value) and not is_moving:
        power = _slope(slope.value, finite_or_none(slope.stderr))
        notes.append(f"Over the last two decades, regret grows like users to the power {power}.")
    if policy is not None:
        notes.append(f"Policy of most users at the end: {policy}.")
    return notes


def change_notes(changes: Sequence[int] | None, detected: Sequence[Sequence[int] | None]) -> list[str]:
    """Sentences about the changes of the site and those that each run of a learner detected.

    >>> change_notes([5000], [[5120]])
    ['The site changes after 5,000 users. Changes detected by the learner: after 5,120 users.']
    >>> change_notes(None, [None])
    []
    """
    sentences = [f"The site changes after {_numbers(changes)} users."] if changes else []
    runs = [each for each in detected if each is not None]
    if runs:
        texts = [f"after {_numbers(each)} users" if each else "none" for each in runs[:MAX_RUNS]]
        more = f"; and {len(runs) - MAX_RUNS} more runs" if len(runs) > MAX_RUNS else ""
        sentences.append(f"Changes detected by the learner: {'; '.join(texts)}{more}.")
    return [" ".join(sentences)] if sentences else []


def _numbers(users: Sequence[int]) -> str:
    return first_few([f"{n:,}" for n in users], MAX_CHANGES)


def optimum_notes(optimum: Record, last: dict[str, Any], unit: str = CLICKS) -> list[str]:
    """A sentence if the bounds of the optimum are wider than a tenth of the final regret."""
    error = (optimum["upper"] - optimum["lower"]) / 2 * last["users"]
    if error < 0.1 * abs(last["per_user"] * last["users"]) or error < 1:
        return []
    bounds = f"{optimum['lower']:.6g} to {optimum['upper']:.6g}"
    return [
        f"The optimum is only known to be {bounds} {unit} per user; the regret may be off by {format_clicks(error)}."
    ]


def learning_values(
    curves: Curves, rows: Sequence[dict[str, Any]], policy: str | None, is_moving: bool = False
) -> dict[str, Any]:
    """Results of a learner as JSON values; the slope is None if the site changes."""
    statistics = curves.statistics()
    chosen = {name: statistics[name] for name in ("learner", "runs", "slope", "slope_stderr", "seconds")}
    if is_moving:
        chosen |= {"slope": None, "slope_stderr": None}
    return chosen | {"regret_curve": list(rows), "policy": policy}
