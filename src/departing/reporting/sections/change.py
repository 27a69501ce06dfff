"""Section about changes over the time of the log, and the half-life of users."""

from typing import TYPE_CHECKING

from departing.data.over_time_plot import draw_over_time
from departing.plotting.figures import svg
from departing.reporting.page import paragraphs

if TYPE_CHECKING:
    from departing.reporting.report import Report

WIDTH = 5.2  # inches: text stays readable where a phone shows the plot smaller


def change_section(report: "Report") -> str:
    """Drift with its time, the half-life with the effective sample size, and rates over time."""
    fit, check = report.fit, report.check
    if fit is None or check is None:
        return ""
    text = [_half_life(report)]
    text.append(
        "No evidence that users change over the time of the log." if check.drift is None else check.drift.describe()
    )
    if check.drift is not None and fit.half_life is None:
        text.append(
            "Older users describe the present less well. Run the report again with a half-life, such as "
            "--half-life '30 days': users then count half for every 30 days before the end of the log that they "
            "arrived."
        )
    plot = ""
    if report.over_time is not None:
        drawn = svg(draw_over_time(report.over_time, WIDTH))
        plot = f"<figure class='over-time'>{drawn}<figcaption>{report.over_time.describe()}</figcaption></figure>"
    return paragraphs(*text) + plot


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
