"""Section about changes over the time of the log, and the half-life of users."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from departing.data.over_time_plot import draw_over_time
from departing.data.sources import FORMATS
from departing.fitting.drift import Drift
from departing.model.tables import literal, quoted
from departing.plotting.figures import svg
from departing.reporting.page import paragraphs
from departing.reporting.sections.action import commands, log_arguments

if TYPE_CHECKING:
    from departing.reporting.report import Report

RECENT = "recent"  # name of the log of users after a jump
WIDTH = 5.2  # inches: text stays readable where a phone shows the plot smaller


def change_section(report: "Report") -> str:
    """Drift with its time, the half-life with the effective sample size, and rates over time."""
    fit, check = report.fit, report.check
    if fit is None or check is None:
        return ""
    text, advice = [_half_life(report)], ""
    if check.drift is None:
        text.append("No evidence that users change over the time of the log.")
    else:
        text.append(report.with_type_names(check.drift.describe()))
        advice = _after_jump(report, check.drift) if check.drift.shape == "jump" else _half_life_advice(report)
    plot = ""
    if report.over_time is not None:
        drawn = svg(draw_over_time(report.over_time, WIDTH))
        plot = f"<figure class='over-time'>{drawn}<figcaption>{report.over_time.describe()}</figcaption></figure>"
    return paragraphs(*text) + advice + plot


def _half_life(report: "Report") -> str:
    """Sentence on the half-life."""
    fit = report.fit
    assert fit is not None
    if fit.half_life is None:
        return ""
    return (
        f"Users count half for every {fit.half_life} between their first event and the end of the log: "
        f"{fit.histories.users:,} users count as {fit.histories.effective_users:,.0f} (effective sample size)."
    )


def _half_life_advice(report: "Report") -> str:
    """Half-life for a steady change."""
    assert report.fit is not None
    if report.fit.half_life is not None:
        return ""
    return paragraphs(
        "Older users describe the present less well. Run the report again with a half-life, such as "
        "--half-life '30 days': users then count half for every 30 days before the end of the log that they arrived."
    )


def _after_jump(report: "Report", drift: Drift) -> str:
    """Filter of the log for users who arrived after a jump, with commands if the log is a file of timestamps."""
    columns, spec, time = report.log.report.columns, report.log.spec, report.log.profile.time
    user, column = columns["user"], columns["time"]
    text = paragraphs(
        f"Users who arrived before {drift.since} do not describe the present. Keep the rows of users whose first "
        f"event is at that time or later (a filter on the column {column}), and run the report on these."
    )
    suffix = Path(report.log_name).suffix.lower()
    if FORMATS.get(suffix) not in ("csv", "parquet") or not (time.is_clock and "TIMESTAMP" in time.sql):
        return text
    name = literal(report.log_name)
    source = name if FORMATS[suffix] == "parquet" else f"read_csv({name}, all_varchar = true)"
    value = f"TRY_CAST({quoted(column)} AS TIMESTAMP)"
    if spec.time_format is not None:
        value = f"try_strptime({quoted(column)}, {literal(spec.time_format)})"
    recent = RECENT + suffix
    query = (
        f"COPY (FROM {source} QUALIFY min({value}) OVER (PARTITION BY {quoted(user)}) >= '{drift.since}')\n"
        f"TO {literal(recent)}"
    )
    again = " ".join(["departing report", log_arguments(replace(report, log_name=recent)), *report.options])
    return (
        text
        + paragraphs("In Python:")
        + commands("import duckdb", f'duckdb.sql("""{query}""")')
        + paragraphs("Then:")
        + commands(again)
    )
