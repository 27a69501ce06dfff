"""Sections about the users: their types, and retention."""

import html
from typing import TYPE_CHECKING

import numpy as np

from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import FitCheck
from departing.fitting.likelihood import Parameters
from departing.formatting import format_count
from departing.model.instance import CLICK, CLICK_DEPART, Floats
from departing.reporting.charts import Line, bar_list, line_chart
from departing.reporting.page import collapsed, name_html, paragraphs, scroll_table
from departing.reporting.rare_categories import impressions

if TYPE_CHECKING:
    from departing.reporting.report import Report

MAX_BARS = 6  # categories of a type's card
MAX_ROWS = 12  # categories of a table before the rest is collapsed
# Ratio of the largest to the smallest departure rate after a no-click from which they are given by category.
NOTABLE_DEPARTURES = 1.25
NEGLIGIBLE_SURVIVAL = 0.005  # share of active users below which the retention curve ends
UNIDENTIFIED = "?"


def category_ranks(report: "Report") -> dict[int, int]:
    """Rank of every category by impressions, which gives its colour and its place in tables."""
    return {int(a): rank for rank, a in enumerate(np.argsort(-impressions(report.log), kind="stable"))}


def users_section(report: "Report") -> str:
    """Types of users as cards with bars, and a table with intervals."""
    fit = report.fit
    if fit is None:
        return paragraphs("Nothing can be said about types of users: " + report.failure)
    instance, low, high = fit.instance, *fit.intervals()
    ranks = category_ranks(report)
    if instance.n_types == 1:
        intro = "One type describes all users: the log shows no groups with different preferences."
        if fit.hidden_types is not None:
            intro = "Users differ, but the log has too few of them to tell their types apart; these are means of all."
    else:
        intro = (
            f"Users fall into {format_count(instance.n_types, 'type')} by what they click. Nobody's type is visible "
            "at first; it shows in the clicks."
        )
    cards = "".join(_card(report, x, ranks) for x in range(instance.n_types))
    table, unsure = _rates_table(report, low, high, ranks)
    legend = (
        f"<p class='legend'><b>{UNIDENTIFIED}</b> marks rates that this log does not determine: too few users, or "
        "types too much alike.</p>"
        if unsure
        else ""
    )
    return (
        f"{paragraphs(intro)}<div class='cards'>{cards}</div>{paragraphs(*_departure_sentences(fit, report))}"
        f"<h3>Click rates by category, with 95% intervals</h3>{table}{legend}"
        f"{_departure_table(report, low, high, ranks)}"
    )


def _card(report: "Report", x: int, ranks: dict[int, int]) -> str:
    """Card of a type: name, share and the click rates of its preferred categories."""
    fit = report.fit
    assert fit is not None
    instance, click = fit.instance, fit.instance.click[:, x]
    chosen = sorted(ranks, key=lambda a: ranks[a])
    if len(chosen) > MAX_BARS:
        known = report.known_clicks[:, x]  # others may have any rate
        chosen = np.argsort(-np.where(known, click, click - 1), kind="stable")[:MAX_BARS].tolist()
    rows = [
        (name_html(instance.categories[a]), float(click[a]), _rate(click[a], fit.identified.click[a, x]), ranks[a])
        for a in chosen
    ]
    mark = "" if fit.identified.prior[x] else f" {UNIDENTIFIED}"
    more = len(ranks) - len(chosen)
    rest = f"<p class='note'>and {format_count(more, 'more category', 'more categories')} in the table</p>" * bool(
        more
    )
    return (
        f"<div class='card'><p class='share'>{instance.prior[x]:.0%}{mark}</p>"
        f"<h3><bdi>{html.escape(report.type_names[x])}</bdi></h3><p class='note'>click rate by category</p>"
        f"{bar_list(rows)}{rest}</div>"
    )


def _rate(value: float, identified: bool) -> str:
    return f"{value:.0%}" if identified else f"{value:.0%} {UNIDENTIFIED}"


def _interval(value: float, low: float, high: float, identified: bool) -> str:
    if not identified:
        return f"{value:.1%} {UNIDENTIFIED}"
    if low == high:
        return f"{value:.1%}"
    return f"{value:.1%} <small>{100 * low:.1f}–{100 * high:.1f}</small>"


def _rates_table(report: "Report", low: Parameters, high: Parameters, ranks: dict[int, int]) -> tuple[str, bool]:
    """Shares and click rates by category and type with intervals, and True if some are not identified."""
    fit = report.fit
    assert fit is not None
    instance, known = fit.instance, fit.identified
    share = [
        _interval(instance.prior[x], low.prior[x], high.prior[x], bool(known.prior[x]))
        for x in range(instance.n_types)
    ]
    rows = [["<b>share of users</b>", *share]]
    rows += _category_rows(report, instance.click, low.click, high.click, known.click, ranks)
    head = ["", *report.type_names]
    parts = [known.prior, known.click, *([known.depart] if _departures_differ(fit) else [])]
    return _long_table(head, rows), not all(part.all() for part in parts)


def _category_rows(
    report: "Report", values: Floats, low: Floats, high: Floats, known: Floats, ranks: dict[int, int]
) -> list[list[str]]:
    categories = report.log.categories or ()
    return [
        [
            name_html(categories[a]),
            *(_interval(*cell[:3], bool(cell[3])) for cell in zip(values[a], low[a], high[a], known[a], strict=True)),
        ]
        for a in sorted(ranks, key=lambda a: ranks[a])
    ]


def _long_table(head: list[str], rows: list[list[str]]) -> str:
    """Table with the rows beyond the first ones collapsed."""
    table = scroll_table(head, rows[: MAX_ROWS + 1])
    if len(rows) > MAX_ROWS + 1:
        rest = rows[MAX_ROWS + 1 :]
        table += collapsed(f"{len(rest):,} more categories, by number of impressions", scroll_table(head, rest))
    return table


def _departures_differ(fit: Fit) -> bool:
    """True if departure rates after a no-click differ notably between categories or types."""
    if not len(fit.likelihood.depart_categories):
        return False
    rates = fit.instance.depart[fit.identified.depart]
    return bool(rates.size) and float(rates.max()) > NOTABLE_DEPARTURES * max(float(rates.min()), 0.01)


def _departure_sentences(fit: Fit, report: "Report") -> list[str]:
    """When users leave, without naming categories unless their rates differ notably."""
    if fit.histories.censored.all():
        return ["Nobody is known to have left, so departure rates are unknown."]
    if not len(fit.likelihood.depart_categories):
        return ["Users leave at the first recommendation that they do not click."]
    rates = fit.instance.depart
    sentences = []
    if _departures_differ(fit):
        sentences.append(
            "How often users leave after a recommendation that they do not click is in the second table."
        )
    else:
        shown = impressions(report.log)
        mean = float((rates @ fit.instance.normalised_prior) @ shown / shown.sum())
        sentences.append(
            f"After a recommendation that they do not click, about {mean:.0%} of users leave, with little difference "
            "between types and categories."
        )
    if len(fit.likelihood.depart_on_click_categories):
        sentences.append(_after_click(fit))
    return sentences


def _after_click(fit: Fit) -> str:
    """Sentence about departures after a click: the observed share, and the largest rate that is determined."""
    total = fit.histories.confirmed_totals.sum(axis=0)
    mean = float(total[CLICK_DEPART] / max(total[CLICK] + total[CLICK_DEPART], 1))
    rates = fit.instance.depart_on_click[fit.identified.depart_on_click]
    largest = float(rates.max()) if rates.size else 0.0
    differs = largest > max(NOTABLE_DEPARTURES * mean, 0.01)
    observed = f"about {mean:.1%}" if mean >= 0.0005 else "fewer than 0.1%"
    most = f", up to {largest:.1%} by type and category" if differs else ""
    return f"After a recommendation that they click, {observed} of users leave{most}."


def _departure_table(report: "Report", low: Parameters, high: Parameters, ranks: dict[int, int]) -> str:
    """Departure rates after a no-click by category and type, if they differ notably."""
    fit = report.fit
    assert fit is not None
    if not _departures_differ(fit):
        return ""
    rows = _category_rows(report, fit.instance.depart, low.depart, high.depart, fit.identified.depart, ranks)
    table = _long_table(["", *report.type_names], rows)
    return f"<h3>Share who leave after no click, with 95% intervals</h3>{table}"


def retention_section(report: "Report") -> str:
    """Observed and fitted retention curves."""
    check = report.check
    if check is None:
        return paragraphs("No retention curve: " + report.failure)
    observed, expected = check.survival, check.expected_survival
    n = min(int((observed > NEGLIGIBLE_SURVIVAL).sum()) + 1, len(observed))
    steps = np.arange(n, dtype=float)
    chart = line_chart(
        [
            Line("observed", steps, observed[:n], "observed", stepped=True),
            Line("model", steps, expected[:n], "fitted", stepped=True),
        ],
        "recommendations",
        "users still active",
    )
    return chart + paragraphs(_retention_sentence(check))


def _retention_sentence(check: FitCheck) -> str:
    """Share of active users after a few recommendations, and how closely the model follows."""
    at = [step for step in (1, 3, 5, 10) if step < len(check.survival)]
    shares = ", ".join(f"{check.survival[step]:.0%} after {step}" for step in at)
    gap = float(np.abs(check.survival - check.expected_survival).max())
    sentence = f"Still active: {shares}. The model differs from this by at most {100 * gap:.1f} percentage points."
    if check.truncated:
        sentence += (
            f" {check.survival[-1]:.0%} of users are still active after {len(check.survival) - 1} recommendations, "
            "the most that the log shows; everything later is extrapolated."
        )
    return sentence + " Users whom the log stops observing do not count as departed."
