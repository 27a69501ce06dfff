"""HTML page of the claims of the paper and their checks."""

import html
from collections.abc import Sequence

from departing import __version__
from departing.paper.claim import FAILS, HOLDS, SEEN, SKIPPED, Claim, Finding
from departing.paper.claims import BEYOND, NOT_CHECKED
from departing.report.page import figure, page, table

Findings = Sequence[tuple[Claim, Finding]]
MORE = """
.claim { border-top: 1px solid var(--line); padding: 0.9rem 0; }
.claim h3 { font-size: 1rem; margin: 0; }
.claim p { margin: 0.3rem 0; }
.where, .how { color: var(--soft); font-size: 0.9rem; }
.verdict { float: right; font-size: 0.85rem; font-weight: 600; padding: 0 0.5rem; border-radius: 0.6rem; }
.holds { background: var(--good); color: var(--good-ink); } .fails { background: var(--bad); color: var(--bad-ink); }
.seen { background: var(--note); color: var(--note-ink); } .skipped { background: var(--block); color: var(--soft); }
"""
CLASSES = {HOLDS: "holds", FAILS: "fails", SEEN: "seen", SKIPPED: "skipped"}


def paper_page(found: Findings, quick: bool) -> str:
    """The whole report as a page that needs no network."""
    own = [(claim, finding) for claim, finding in found if claim.key not in BEYOND]
    beyond = [(claim, finding) for claim, finding in found if claim.key in BEYOND]
    body = [
        "<h1>The paper, checked</h1>",
        "<p class='lead'>Every statement of <em>Modeling Attrition in Recommender Systems with Departing "
        "Bandits</em> that can be computed, checked by computing it; and what was found beyond it.</p>",
        f"<p>{html.escape(summary(found, quick))}</p>",
        "<h2>The statements of the paper</h2>",
        *(_claim(*each) for each in own),
        "<h2>Beyond the paper</h2>",
        *(_claim(*each) for each in beyond),
        "<h2>What cannot be checked by computing</h2>",
        table(["where", "statement", "why not"], NOT_CHECKED, words=True),
    ]
    return page("The paper, checked", f"<style>{MORE}</style>" + "\n".join(body))


def summary(found: Findings, quick: bool) -> str:
    """How many claims came out how."""
    counts = {verdict: sum(finding.verdict == verdict for _, finding in found) for verdict in CLASSES}
    words = {HOLDS: "hold", FAILS: "do not hold", SEEN: "measured", SKIPPED: "skipped"}
    shown = ", ".join(f"{n} {words[verdict]}" for verdict, n in counts.items() if n)
    seconds = sum(finding.seconds for _, finding in found)
    kind = "Only a quick look, in" if quick else "Checked in full, in"
    return f"Of {len(found)} statements {shown}. {kind} {seconds:.0f} s, by departing {__version__}."


def _claim(claim: Claim, finding: Finding) -> str:
    parts = [
        f"<div class='claim' id='{claim.key}'>",
        f"<span class='verdict {CLASSES[finding.verdict]}'>{finding.verdict}</span>",
        f"<h3>{html.escape(claim.claim)}</h3>",
        f"<p class='where'>{html.escape(claim.where)}</p>",
        f"<p>{html.escape(finding.result)}</p>",
    ]
    if finding.table:
        parts.append(table(finding.table[0], finding.table[1:]))
    if finding.picture:
        parts.append(figure(finding.picture, finding.caption))
    parts.append(f"<p class='how'>How: {html.escape(claim.how)} {finding.seconds:.1f} s.</p></div>")
    return "".join(parts)
