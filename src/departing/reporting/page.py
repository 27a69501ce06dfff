"""Building blocks of self-contained HTML pages."""

import html
from importlib import resources

STYLE = resources.files("departing.reporting").joinpath("page.css").read_text(encoding="utf-8")


def page(title: str, body: str) -> str:
    """Complete page around `body`."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def figure(svg: str, caption: str) -> str:
    """Plot with its caption; it scrolls if it is wider than the page."""
    return f"<figure><div class='scroll'>{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>"
