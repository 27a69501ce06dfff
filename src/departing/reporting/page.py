"""Building blocks of self-contained HTML pages."""

import html
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

MAX_NAME = 60  # letters of a name before it is cut; the whole name is in its tooltip


@cache
def _style(name: str) -> str:
    return resources.files("departing.reporting").joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, *styles: str) -> str:
    """Complete page around `body`, with the shared style sheet and further ones by file name."""
    style = "".join(_style(name) for name in ("page.css", *styles))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def figure(svg: str, caption: str) -> str:
    """Plot with its caption; it scrolls if it is wider than the page."""
    return f"<figure><div class='scroll'>{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def paragraphs(*sentences: str) -> str:
    """Paragraphs of text, escaped."""
    return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences if sentence)


def text_html(text: str) -> str:
    """Text of a message, escaped; names of arguments in backticks become code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def name_html(name: str) -> str:
    """Name in any script: escaped, isolated from the direction of the text around it, and cut if it is very long."""
    line = " ".join(name.split())
    if len(line) <= MAX_NAME:
        return f"<bdi>{html.escape(line)}</bdi>"
    return f"<bdi title='{html.escape(line)}'>{html.escape(line[: MAX_NAME - 1])}…</bdi>"


def scroll_table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Table of HTML cells with row labels that stay in place while it scrolls.

    The kinds "sentences" and "facts" break lines instead. On phones, the cells of a row are stacked in the kinds
    "sentences" and "labelled", in the latter each with the name of its column.
    """
    labels = [f" data-label='{html.escape(name, quote=True)}'" if kind == "labelled" else "" for name in head]
    heads = "".join(f"<th scope='col'>{name_html(name)}</th>" for name in head)
    lines = "".join(
        f"<tr><th scope='row'>{row[0]}</th>"
        f"{''.join(f'<td{label}>{cell}</td>' for label, cell in zip(labels[1:], row[1:], strict=True))}</tr>"
        for row in rows
    )
    style = f" class='{kind}'" if kind else ""
    return (
        f"<div class='scroll' tabindex='0'><table{style}><thead><tr>{heads}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def collapsed(title: str, body: str) -> str:
    """Part of a page that opens on a click."""
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"
