"""Building blocks of self-contained HTML pages."""

import html
from collections.abc import Sequence
from importlib import resources

STYLE = resources.files("departing.report").joinpath("page.css").read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Complete page around `body`."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], wrap: bool = False) -> str:
    """Table that scrolls if it is wider than the page; `wrap` breaks the lines of cells with sentences."""
    return raw_table(head, [[html.escape(cell) for cell in row] for row in rows], wrap)


def raw_table(head: Sequence[str], rows: Sequence[Sequence[str]], wrap: bool = False) -> str:
    """Table whose cells are HTML."""
    body = "".join(_row(row, "td") for row in rows)
    style = " class='wrap'" if wrap else ""
    heads = _row([html.escape(name) for name in head], "th")
    return f"<div class='scroll'><table{style}><thead>{heads}</thead><tbody>{body}</tbody></table></div>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def figure(svg: str, caption: str) -> str:
    """Plot with its caption; it scrolls if it is wider than the page."""
    return f"<figure><div class='scroll'>{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>"
