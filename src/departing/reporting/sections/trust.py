"""Sections about trust: whether the model fits, and data quality."""

import html
from typing import TYPE_CHECKING

import numpy as np

from departing.fitting.goodness_of_fit import Cell
from departing.formatting import format_count
from departing.reporting.charts import Line, Point, calibration_chart, line_chart
from departing.reporting.page import collapsed, name_html, paragraphs, scroll_table, text_html

if TYPE_CHECKING:
    from departing.reporting.report import Report

MAX_POINTS = 250  # of a calibration chart
MIN_STEPS = 30  # of a group, below which its rate is too noisy to be drawn
UNUSUAL_Z = 3.0  # standard errors
TITLES = {
    "click": ("Clicks", "click rate"),
    "depart": ("Departures after no click", "departure rate"),
    "depart_on_click": ("Departures after a click", "departure rate"),
}
MAX_CATEGORIES = 12  # rows of the table of categories before the rest is collapsed


def fit_section(report: "Report") -> str:
    """Goodness of fit: the test, calibration charts, and what is not identifiable."""
    check, fit = report.check, report.fit
    if check is None or fit is None:
        return paragraphs("No model was fitted: " + report.failure)
    cells = tuple(cell for test in check.tests for cell in test.cells)
    charts = "".join(_calibration(name, cells) for name in TITLES)
    warnings = fit.warnings if report.decision is None else report.decision.warnings
    unknown = "".join(f"<li>{text_html(report.with_type_names(text))}</li>" for text in dict.fromkeys(warnings))
    limits = f"<h3>What this log does not determine</h3><ul>{unknown}</ul>" if unknown else ""
    criteria = scroll_table(
        ["types", "parameters", "adjusted BIC", "held-out log-likelihood per user"],
        [
            [
                f"{'<b>' * best}{row.types}{'</b>' * best}",
                f"{row.parameters}",
                f"{row.sabic:,.0f}",
                "–" if np.isnan(row.held_out) else f"{row.held_out:.4f}",
            ]
            for row in fit.criteria
            for best in [row.types == fit.instance.n_types]
        ],
    )
    return (
        paragraphs(*map(report.with_type_names, (check.describe(), *check.reasons)))
        + f"<div class='charts'>{charts}</div>"
        + "<p class='legend'>Each point is a group of steps (by category, step, earlier clicks, and arrival); "
        "its size is the number of steps. On the diagonal the forecast is right. "
        f"<i class='point unusual key-point'></i> differs by more than {UNUSUAL_Z:g} standard errors.</p>"
        + limits
        + collapsed("How the number of types was chosen", criteria)
    )


def _calibration(response: str, cells: tuple[Cell, ...]) -> str:
    """Chart of observed against forecast rates of one response."""
    chosen = sorted((cell for cell in cells if cell.response == response and cell.n >= MIN_STEPS), key=_size)
    if not chosen:
        return ""
    points = [
        Point(
            cell.expected / cell.n,
            cell.observed / cell.n,
            cell.n,
            cell.testable and abs(cell.z) > UNUSUAL_Z,
            f"{cell.group}: {cell.observed:,} observed, {cell.expected:,.0f} forecast of {cell.n:,}",
        )
        for cell in chosen[:MAX_POINTS]
    ]
    title, rate = TITLES[response]
    return f"<div><h3>{title}</h3>{calibration_chart(points, f'forecast {rate}', f'observed {rate}')}</div>"


def _size(cell: Cell) -> tuple[bool, int]:
    """Order of cells: unusual ones first, then the largest."""
    return not (cell.testable and abs(cell.z) > UNUSUAL_Z), -cell.n


def data_section(report: "Report") -> str:
    """Data quality: rows used and rejected with reasons and examples, departures, and impressions by category."""
    facts = report.log.report
    rejected = [each for each in facts.irregularities if each.rejected]
    others = [each for each in facts.irregularities if not each.rejected]
    rows = [
        ["rows used", f"{facts.used:,} of {facts.events:,}"],
        ["rows rejected", f"{facts.rejected:,} ({facts.rejected / max(facts.events, 1):.1%})"],
        ["users", f"{facts.users:,}"],
        ["departed", f"{facts.departed:,}" + (f" ({facts.inactive:,} by inactivity)" if facts.inactive else "")],
        ["still observed (censored)", f"{facts.censored:,}"],
        ["time", f"{html.escape(facts.first[:19])} to {html.escape(facts.last[:19])}"],
        ["source", name_html(report.source_name)],
    ]
    named = [[html.escape(field), name_html(name)] for field, name in facts.columns.items()]
    columns = collapsed("Columns", scroll_table(["field", "column"], named, kind="facts"))
    parts = [scroll_table(["", ""], rows, kind="facts"), columns]
    for title, group in (("Rejected rows", rejected), ("Other irregular rows", others)):
        if group:
            table = scroll_table(
                ["reason", "rows", "what was done", "examples"],
                [
                    [
                        text_html(each.kind),
                        f"{each.count:,}",
                        text_html(each.decision),
                        "<br>".join(
                            f"<code>{html.escape(' '.join(example.split()))}</code>" for example in each.examples
                        ),
                    ]
                    for each in group
                ],
                kind="sentences",
            )
            parts.append(f"<h3>{title}</h3>{table}")
    if not facts.irregularities:
        parts.append(paragraphs("No row is irregular."))
    notes = "".join(f"<li>{text_html(note)}</li>" for note in (*facts.guessed, *facts.notes))
    parts.append(f"<ul>{notes}</ul>" if notes else "")
    parts.append(_return_chart(report))
    return "".join(parts) + _impressions(report)


def _return_chart(report: "Report") -> str:
    """Share of inactive users who return later, by the length of their inactivity."""
    times = report.return_times
    if times is None or report.log.profile.inactive is None:
        return ""
    period = report.log.profile.inactive / report.log.profile.time.units
    seconds, unit = (86400, "days") if times.horizon >= 5 * 86400 else (3600, "hours")
    if not times.is_clock:
        seconds, unit = 1, "time without events"
    shown = times.times <= max(3 * period, times.horizon / 4)
    line = Line("users who return later", times.times[shown] / seconds, times.later[shown], "observed")
    later = float(np.interp(period, times.times, times.later))
    chart = line_chart([line], f"{unit} without events", "return later", [(period / seconds, "counts as departed")])
    share = f"an estimated {later:.1%}" if later >= 0.0005 else "fewer than 0.1%"
    text = (
        f"Users without events for {period / seconds:,.3g} {unit} count as departed; {share} of "
        f"them return later. The log itself suggests {times.period}."
    )
    return f"<h3>Inactivity</h3>{paragraphs(text)}{chart}"


def _impressions(report: "Report") -> str:
    """Impressions and clicks by category."""
    log = report.log
    total = log.totals
    order = sorted(range(len(total)), key=lambda a: -int(total[a].sum()))
    names = log.categories or ()
    rows = [
        [name_html(names[a]), f"{n:,}", f"{clicked / n:.1%}" if n else "–"]
        for a in order
        for n, clicked in [(int(total[a].sum()), int(total[a, 0] + total[a, 3]))]
    ]
    head = ["category", "impressions", "click rate"]
    table = scroll_table(head, rows[:MAX_CATEGORIES])
    if len(rows) > MAX_CATEGORIES:
        table += collapsed(
            format_count(len(rows) - MAX_CATEGORIES, "more category", "more categories"),
            scroll_table(head, rows[MAX_CATEGORIES:]),
        )
    return f"<h3>Categories</h3>{table}"
