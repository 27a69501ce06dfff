"""Page of a report: the verdict, then the sections in the order in which a reader asks."""

import html
from typing import TYPE_CHECKING

from departing import __version__
from departing.formatting import format_count
from departing.reporting.charts import Interval, interval_chart
from departing.reporting.page import page
from departing.reporting.rare_categories import rare_sentence
from departing.reporting.sections.action import next_section, test_section
from departing.reporting.sections.change import change_section
from departing.reporting.sections.policy import gain_section, policy_section
from departing.reporting.sections.segments import segments_section
from departing.reporting.sections.trust import data_section, fit_section
from departing.reporting.sections.users import retention_section, users_section
from departing.reporting.verdict import clicks

if TYPE_CHECKING:
    from departing.reporting.report import Report

SECTIONS = (  # a section without content is left out
    ("users", "Who the users are", users_section),
    ("segments", "Segments", segments_section),
    ("retention", "How long they stay", retention_section),
    ("policy", "What to show", policy_section),
    ("gain", "What it is expected to gain", gain_section),
    ("fit", "Whether the model fits", fit_section),
    ("change", "Change over time", change_section),
    ("data", "Data quality", data_section),
    ("test", "How to test it", test_section),
    ("next", "What to do next", next_section),
)


def log_page(report: "Report") -> str:
    """Self-contained page of a report."""
    facts = report.log.report
    title = f"Report on {report.source_name}"
    made = [(key, html.escape(name), section(report)) for key, name, section in SECTIONS]
    links = "".join(f"<a href='#{key}'>{name}</a>" for key, name, content in made if content)
    sections = "".join(
        f"<section id='{key}'><h2>{name}</h2>{content}</section>" for key, name, content in made if content
    )
    footer = (
        f"<footer>Made with departing {__version__} from {format_count(facts.used, 'event')} of "
        f"{format_count(facts.users, 'user')}.</footer>"
    )
    return page(title, f"<main>{_hero(report)}<nav>{links}</nav>{sections}{footer}</main>", "report.css")


def _hero(report: "Report") -> str:
    """First screen: the verdict in a few sentences, and today against the recommendation."""
    verdict, facts = report.verdict, report.log.report
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in verdict.sentences)
    notes = (report.note, rare_sentence(report))
    note = "".join(f"<p class='note'>{html.escape(text)}</p>" for text in notes if text)
    return (
        f"<header class='hero {verdict.kind}'><p class='eyebrow'><bdi>{html.escape(report.source_name)}</bdi> · "
        f"{format_count(facts.users, 'user')} · {html.escape(facts.first[:10])} to {html.escape(facts.last[:10])}</p>"
        f"<h1>{html.escape(verdict.headline)}</h1><div class='lead'>{sentences}</div>"
        f"{_comparison(report)}{note}</header>"
    )


def _comparison(report: "Report") -> str:
    """Reward per user, clicks by default, today and with the recommendation."""
    if not report.verdict.recommends or report.decision is None:
        return ""
    value, today = report.value, next((v for v in report.decision.values if v.name == "policy of the log"), None)
    rows = [Interval("recommended", value.value, value.lower, value.upper, clicks(value.value), strong=True)]
    if today is not None:
        rows.insert(0, Interval("today (the log)", today.value, today.lower, today.upper, clicks(today.value)))
    per_user = f"{report.unit} per user"
    chart = interval_chart(rows, f"{per_user} today and with the recommendation")
    title = html.escape(per_user[0].upper() + per_user[1:])
    return f"<div class='compare'><p class='note'>{title}</p>{chart}</div>" if len(rows) > 1 else ""
