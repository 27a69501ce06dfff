"""One HTML page that needs no network."""

import html

STYLE = """
:root { color-scheme: light; }
body { font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: #222; background: #fdfcfa; max-width: 46rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 1rem 0 0.5rem; }
h2 { font-size: 1.35rem; margin: 2.4rem 0 0.4rem; }
.lead { font-size: 1.15rem; color: #444; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
th, td { padding: 0.35rem 0.9rem 0.35rem 0; border-bottom: 1px solid #e3dfd8; }
th, td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: #555; }
figure { margin: 1.4rem 0; }
figure div { overflow-x: auto; }
figure svg { width: 100%; min-width: 40rem; height: auto; }
figcaption { color: #666; font-size: 0.9rem; }
pre { background: #f3f0ea; padding: 0.9rem 1rem; overflow-x: auto; font-size: 0.85rem; border-radius: 6px; }
"""


def page(title: str, body: str) -> str:
    """`body` as a whole page."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )
