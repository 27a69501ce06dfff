"""Section about segments: whether they tell anything, their priors, and their decisions."""

import html
from typing import TYPE_CHECKING

import numpy as np

from departing.fitting.segment_test import SIGNIFICANCE
from departing.fitting.type_names import shorten_name
from departing.formatting import format_count, format_p_value, format_percent
from departing.reporting.page import collapsed, name_html, paragraphs, scroll_table, text_html
from departing.reporting.verdict import MIN_GAIN, clicks

if TYPE_CHECKING:
    from departing.fitting.segment_estimates import SegmentEstimates
    from departing.fitting.segment_test import SegmentTest
    from departing.reporting.report import Report

MAX_ROWS = 12  # segments before the rest is collapsed


def segments_section(report: "Report") -> str:
    """Test of the segments, their priors with intervals, and what to show first; nothing for a log without any."""
    fit, facts = report.fit, report.log.report
    if fit is None or fit.segments is None:
        return ""
    estimates, columns = fit.segments, " and ".join(report.log.segment_columns)
    text = [f"{format_count(len(estimates.segments.names), 'segment')} by {columns}. {_unknown(report)}".strip()]
    test = fit.segment_test
    if test is not None and test.informative:
        text.append(
            "The segment tells something about a user before the first click: it removes "
            f"{format_percent(test.explained)} of what is unknown about the type ({format_p_value(test.p_value)})."
        )
    elif test is not None:
        text.append(
            f"No evidence that segments tell anything about users ({format_p_value(test.p_value)}): their types have "
            "the same distribution in all segments."
        )
    changed = next((each.count for each in facts.irregularities if each.kind.startswith("user with events in")), 0)
    if changed:
        text.append(
            f"{format_count(changed, 'user')} ({format_percent(changed / facts.users)}) had events in several "
            "segments; the first event decides."
        )
    tests = "" if test is None else _features(test)
    decisions = "".join(f"<p>{text_html(sentence)}</p>" for sentence in _decisions(report))
    return paragraphs(*text) + tests + _table(report, estimates) + decisions


def _features(test: "SegmentTest") -> str:
    """Which of several features tell something about types."""
    if not test.columns:
        return ""
    rows = [
        [
            name_html(each.column),
            "yes" if each.p_value <= SIGNIFICANCE else "no evidence",
            html.escape(format_p_value(each.p_value)),
            "–" if each.added_p_value is None else html.escape(format_p_value(each.added_p_value)),
        ]
        for each in test.columns
    ]
    head = ["feature", "tells about types", "test", "test beyond the other features"]
    return scroll_table(head, rows)


def _unknown(report: "Report") -> str:
    unknown = report.log.report.unknown_segment
    if not unknown:
        return ""
    return f"The segment of {format_count(unknown, 'user')} is unknown; their types have the common distribution."


def _table(report: "Report", estimates: "SegmentEstimates") -> str:
    """Users, distribution of types with intervals, and decision of every segment, the largest first."""
    prior, (low, high) = estimates.segments.prior, estimates.intervals()
    plans = report.segments
    planned = {} if plans is None else {i: row for row, i in enumerate(plans.index)}
    order = np.argsort(-estimates.users, kind="stable").tolist()
    rows = []
    for i in order:
        shares = [
            f"{prior[i, x]:.0%} <small>{100 * low[i, x]:.0f}–{100 * high[i, x]:.0f}</small>"
            for x in range(prior.shape[1])
        ]
        decision = []
        if plans is not None:
            row = planned.get(i)
            decision = ["–", "–"] if row is None else [name_html(plans.first[row]), clicks(plans.values[row])]
        share = f"{estimates.segments.share[i]:.0%}"
        rows.append([name_html(estimates.segments.names[i]), f"{estimates.users[i]:,}", share, *shares, *decision])
    head = ["segment", "users", "share", *report.type_names]
    head += [] if plans is None else ["show first", f"{report.unit} per user"]
    table = scroll_table(head, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        rest = rows[MAX_ROWS:]
        table += collapsed(f"{format_count(len(rest), 'smaller segment')}", scroll_table(head, rest))
    return f"<h3>Types of users by segment, with 95% intervals</h3>{table}"


def _decisions(report: "Report") -> list[str]:
    """Whether to show different categories to different segments, and what that adds."""
    plans = report.segments
    if plans is None:
        return []
    gain, value = plans.gain, plans.common_value
    if gain < MIN_GAIN * value:
        return ["A policy for each segment would add less than 1%: the same policy serves all of them."]
    names = sorted(set(plans.first), key=plans.first.index)
    starts = (
        f"they differ in the first category ({', '.join(map(shorten_name, names))})"
        if len(names) > 1
        else "they start alike and differ later"
    )
    return [
        f"A policy for each segment is expected to bring {clicks(value + gain)} instead of {clicks(value)} "
        f"{report.unit} per user ({format_percent(gain / value)} more) under the fitted model; {starts}. The "
        "recommended policy has one for each segment; the section on what to show describes that for users whose "
        "segment is unknown."
    ]
