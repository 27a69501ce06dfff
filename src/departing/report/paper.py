"""HTML page of the claims of the paper and their checks."""

import html

from departing import __version__
from departing.paper.claim import HOLDS, VERDICTS, Claim, Finding, Findings
from departing.paper.claims import EXTENSIONS, NOT_COMPUTABLE
from departing.report.page import figure, page, table


def paper_page(findings: Findings, quick: bool) -> str:
    """Self-contained page with all claims and their findings."""
    body = [
        "<h1>Claims of the paper and their checks</h1>",
        "<p class='lead'>Every claim of <em>Modeling Attrition in Recommender Systems with Departing Bandits</em> "
        "that can be computed, with the result of the computation; and extensions of the paper.</p>",
        f"<p>{html.escape(summary(findings, quick))}</p>",
        "<h2>Claims</h2>",
        *(_claim(*pair) for pair in findings if pair[0].key not in EXTENSIONS),
        "<h2>Extensions</h2>",
        *(_claim(*pair) for pair in findings if pair[0].key in EXTENSIONS),
        "<h2>Statements that cannot be computed</h2>",
        table(["source", "statement", "reason"], NOT_COMPUTABLE, wrap=True),
    ]
    return page("Claims of the paper and their checks", "\n".join(body))


def summary(findings: Findings, quick: bool) -> str:
    """Number of claims by verdict, and the duration."""
    verdicts = [finding.verdict for _, finding in findings]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)
    counts = counts.replace(HOLDS, "hold", 1)
    seconds = sum(finding.seconds for _, finding in findings)
    scale = "Quick check" if quick else "Full check"
    return f"{len(findings)} claims: {counts}. {scale} in {seconds:.0f} s with departing {__version__}."


def _claim(claim: Claim, finding: Finding) -> str:
    parts = [
        f"<div class='claim' id='{claim.key}'>",
        f"<span class='verdict {finding.verdict}'>{finding.verdict}</span>",
        f"<h3>{html.escape(claim.statement)}</h3>",
        f"<p class='source'>{html.escape(claim.source)}</p>",
        f"<p>{html.escape(finding.result)}</p>",
    ]
    if finding.table:
        parts.append(table(finding.table[0], finding.table[1:]))
    if finding.plot:
        parts.append(figure(finding.plot, finding.caption))
    parts.append(f"<p class='method'>Method: {html.escape(claim.method)} {finding.seconds:.1f} s.</p></div>")
    return "".join(parts)
