"""Section about segments: whether they are informative, their priors, and their decisions."""

import html
from typing import TYPE_CHECKING

import numpy as np

from departing.decision.decision import IGNORING
from departing.fitting.segment_test import SIGNIFICANCE
from departing.formatting import format_count, format_p_value, format_percent, format_share
from departing.reporting.page import collapsed, name_html, paragraphs, scroll_table, text_html
from departing.reporting.verdict import clicks, is_negligible

if TYPE_CHECKING:
    from departing.decision.decision import Decision
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
            "The segment is informative about the type of a user before the first click: it explains "
            f"{format_percent(test.explained)} of the entropy of the type ({format_p_value(test.p_value)})."
        )
    elif test is not None:
        text.append(
            f"No evidence that segments are informative ({format_p_value(test.p_value)}): the types have the same "
            "distribution in all of them."
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
    """Tests of several features."""
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
    head = ["feature", "informative about types", "test", "test beyond the other features"]
    return scroll_table(head, rows, kind="labelled")


def _unknown(report: "Report") -> str:
    unknown = report.log.report.unknown_segment
    if not unknown:
        return ""
    return f"The segment of {format_count(unknown, 'user')} is unknown; their types have the common distribution."


def _table(report: "Report", estimates: "SegmentEstimates") -> str:
    """Users, decision, and distribution of types with intervals, of every segment, the largest first."""
    prior, (low, high) = estimates.segments.prior, estimates.intervals()
    decisions = {} if report.decision is None else report.decision.by_segment
    share = estimates.segments.share / estimates.segments.share.sum()
    rows = []
    for i in np.argsort(-share, kind="stable").tolist():
        name = estimates.segments.names[i]
        types = [
            f"<span>{prior[i, x]:.0%} <small>{100 * low[i, x]:.0f}–{100 * high[i, x]:.0f}</small></span>"
            for x in range(prior.shape[1])
        ]
        shown = [*_decision_cells(decisions[name])] if decisions else []
        rows.append([name_html(name), f"{estimates.users[i]:,}", html.escape(format_share(share[i])), *shown, *types])
    head = ["segment", "users", "share of users"]
    head += ["show first", "best start with probability", f"{report.unit} per user"] if decisions else []
    head += report.type_names
    table = scroll_table(head, rows[:MAX_ROWS], kind="labelled")
    if len(rows) > MAX_ROWS:
        rest = rows[MAX_ROWS:]
        table += collapsed(f"{format_count(len(rest), 'smaller segment')}", scroll_table(head, rest, kind="labelled"))
    what = "Recommended start and types of users" if decisions else "Types of users"
    return f"<h3>{what} by segment, with 95% intervals</h3>{table}"


def _decision_cells(decision: "Decision") -> list[str]:
    """First category of a segment, the probability that it is optimal there, and the value of the policy."""
    value, probability = decision.value, decision.first_probability
    interval = f"<small>{clicks(value.lower)}–{clicks(value.upper)}</small>"
    return [
        name_html(decision.candidates[0].first),
        "&gt;99%" if probability > 0.99 else f"{probability:.0%}",
        f"<span>{clicks(value.value)} {interval}</span>",
    ]


def _decisions(report: "Report") -> list[str]:
    """Gain of knowing the segment, and what the values mean."""
    decision = report.decision
    gain = None if decision is None else next((each for each in decision.gains if each.name == IGNORING), None)
    if decision is None or gain is None:
        return []
    values = (
        "The values are those of the recommended policy in each segment, estimated from the model and corrected for "
        "optimism."
    )
    unknown = report.log.report.unknown_segment
    known = "Shares are those of users whose segment is known." if unknown else ""
    if is_negligible(gain.value, decision.value.value):
        return [" ".join(filter(None, (values, known))), "Knowing the segment is expected to add less than 1%."]
    ignoring = next(each.value for each in decision.values if each.name == IGNORING)
    return [
        " ".join(filter(None, (values, known))),
        f"Knowing the segment is expected to add {clicks(gain.value)} {report.unit} per user (95% interval "
        f"{clicks(gain.lower)} to {clicks(gain.upper)}), {format_percent(gain.value / ignoring)} of the value of the "
        "best policy that ignores it, under the fitted model and corrected for optimism.",
    ]
