"""HTML page of the items of the paper and their checks."""

import html
from collections.abc import Sequence

from departing import __version__
from departing.html_tables import raw_table, table
from departing.paper.item import HOLDS, VERDICTS, Finding, Findings, Item
from departing.paper.items import OWN_KINDS
from departing.reporting.page import figure, page

TITLE = "The paper, checked"


def paper_page(findings: Findings, quick: bool) -> str:
    """Self-contained page: a table of all items in the paper's order, then the evidence of each."""
    body = [
        f"<h1>{TITLE}</h1>",
        "<p class='lead'>All items of <em>Modeling Attrition in Recommender Systems with Departing Bandits</em> in "
        "the paper's order: every statement that can be computed with the result of the computation, definitions "
        "and algorithms with their implementation, and those of which nothing can be computed.</p>",
        f"<p>{html.escape(summary(findings, quick))}</p>",
    ]
    body += ["<h2>Items of the paper, repairs and extensions</h2>", _overview(findings)]
    body += ["<h2>Evidence</h2>", *(_details(*pair) for pair in findings)]
    return page(TITLE, "\n".join(body))


def summary(findings: Findings, quick: bool) -> str:
    """Number of items by verdict, and the duration."""
    seconds = sum(finding.seconds for _, finding in findings)
    scale = "Quick check" if quick else "Full check"
    counts = count_verdicts([(item, finding.verdict) for item, finding in findings])
    return f"{counts} {scale} in {seconds:.0f} s with departing {__version__}."


def count_verdicts(verdicts: Sequence[tuple[Item, str]]) -> str:
    """Numbers of items by verdict, in the paper and of our own, as sentences."""
    sentences = []
    for own, name, plural in (
        (False, "item of the paper", "items of the paper"),
        (True, "repair or extension", "repairs and extensions"),
    ):
        chosen = [verdict for item, verdict in verdicts if (item.kind in OWN_KINDS) == own]
        counts = [(chosen.count(verdict), verdict) for verdict in VERDICTS if verdict in chosen]
        text = ", ".join(f"{n} {'hold' if verdict == HOLDS and n > 1 else verdict}" for n, verdict in counts)
        sentences += [f"{len(chosen)} {name if len(chosen) == 1 else plural}: {text}."] * bool(chosen)
    return " ".join(sentences)


def _overview(findings: Findings) -> str:
    rows = [
        [
            f"<a href='#{item.key}'>{html.escape(item.statement)}</a>",
            html.escape(item.source),
            _badge(finding.verdict),
            html.escape(finding.evidence or item.note),
        ]
        for item, finding in findings
    ]
    return raw_table(["statement", "source", "verdict", "evidence"], rows, wrap=True)


def _badge(verdict: str) -> str:
    return f"<span class='verdict {verdict.replace(' ', '-')}'>{verdict}</span>"


def _details(item: Item, finding: Finding) -> str:
    parts = [
        f"<div class='item' id='{item.key}'>",
        _badge(finding.verdict),
        f"<h3>{html.escape(item.statement)}</h3>",
        f"<p class='source'>{html.escape(item.source)} ({item.kind}); key {item.key}</p>",
        *(f"<p>{html.escape(text)}</p>" for text in dict.fromkeys((finding.evidence, item.note)) if text),
    ]
    if finding.table:
        parts.append(table(finding.table[0], finding.table[1:]))
    if finding.plot:
        parts.append(figure(finding.plot, finding.caption))
    if item.method:
        parts.append(f"<p class='method'>Method: {html.escape(item.method)} {finding.seconds:.1f} s.</p>")
    if item.code:
        parts.append(f"<p class='method'>Code: {html.escape(', '.join(item.code))}</p>")
    return "".join([*parts, "</div>"])
