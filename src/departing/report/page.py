"""Building blocks of self-contained HTML pages."""

import html
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #626262; --ground: #fdfcfa; --line: #e3dfd8; --block: #f3f0ea;
  --good: #dff0e3; --good-ink: #14532d; --bad: #fbe3dc; --bad-ink: #8a2408; --note: #e2edf5; --note-ink: #1c4a6b; }
body { font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: var(--ink); background: var(--ground); max-width: 50rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 1rem 0 0.5rem; }
h2 { font-size: 1.35rem; margin: 2.4rem 0 0.4rem; }
.lead { font-size: 1.15rem; color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.35rem 0.8rem 0.35rem 0; border-bottom: 1px solid var(--line); }
th, td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); white-space: normal; vertical-align: bottom; }
.wrap th, .wrap td { white-space: normal; text-align: left; vertical-align: top; }
figure { margin: 1.4rem 0; }
figure svg { width: 100%; min-width: 40rem; height: auto; }
figcaption { color: var(--soft); font-size: 0.9rem; }
pre { background: var(--block); padding: 0.9rem 1rem; overflow-x: auto; font-size: 0.85rem; border-radius: 6px; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e4e0; --soft: #a8a5a0; --ground: #1a1c1e; --line: #3b3e41; --block: #26292c;
    --good: #16361f; --good-ink: #a7e3b7; --bad: #46201a; --bad-ink: #ffbfae; --note: #17303f; --note-ink: #a9d3ee; }
  figure svg { background: #fdfcfa; border-radius: 6px; }
}
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --ground: #fff; --line: #bbb; --block: #f4f4f4; }
  body { font-size: 10.5pt; max-width: none; padding: 0; }
  figure svg { min-width: 0; }
  figure, table, pre { break-inside: avoid; }
  h1, h2, h3 { break-after: avoid; }
}
"""


def page(title: str, body: str) -> str:
    """Complete page around `body`."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], wrap: bool = False) -> str:
    """Table that scrolls if it is wider than the page; `wrap` breaks the lines of cells with sentences."""
    body = "".join(_row(row, "td") for row in rows)
    style = " class='wrap'" if wrap else ""
    return f"<div class='scroll'><table{style}><thead>{_row(head, 'th')}</thead><tbody>{body}</tbody></table></div>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def figure(svg: str, caption: str) -> str:
    """Plot with its caption; it scrolls if it is wider than the page."""
    return f"<figure><div class='scroll'>{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>"
