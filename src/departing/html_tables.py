"""HTML tables, shared by pages and by the representations of results in notebooks. All text is escaped."""

import html
from collections.abc import Sequence

MAX_ROWS = 10  # of a representation in a notebook: it fits on a screen together with the cell that shows it
# Colours are inherited, so that the text is legible on light and dark notebooks.
NOTEBOOK_STYLE = (
    ".departing table{border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums}"
    ".departing th,.departing td{padding:.2em .9em .2em 0;text-align:right;white-space:nowrap;"
    "border:0;border-bottom:1px solid rgba(128,128,128,.35)}"
    ".departing th:first-child,.departing td:first-child{text-align:left}"
    ".departing p{margin:.2em 0}.departing .scroll{overflow-x:auto}"
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], wrap: bool = False) -> str:
    """Table that scrolls if it is wider than the page; `wrap` breaks the lines of cells with sentences.

    >>> table(["name"], [["<b>"]])
    "<div class='scroll'><table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr>...
    """
    return raw_table(head, [[html.escape(cell) for cell in row] for row in rows], wrap)


def raw_table(head: Sequence[str], rows: Sequence[Sequence[str]], wrap: bool = False) -> str:
    """Table whose cells are HTML; without a head if all its names are empty."""
    body = "".join(_row(row, "td") for row in rows)
    style = " class='wrap'" if wrap else ""
    heads = f"<thead>{_row([html.escape(name) for name in head], 'th')}</thead>" if any(head) else ""
    return f"<div class='scroll'><table{style}>{heads}<tbody>{body}</tbody></table></div>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def html_repr(
    title: str, head: Sequence[str] = (), rows: Sequence[Sequence[str]] = (), notes: Sequence[str] = ()
) -> str:
    """HTML of a result in a notebook: a title line, a table of at most ten rows, and notes.

    Parameters
    ----------
    title : str
        One line, such as the result of `describe()`.
    head, rows : sequence of str, sequence of such
        Table; without rows there is none.
    notes : sequence of str
        Sentences below the table, such as warnings.
    """
    parts = [f"<p><strong>{html.escape(title)}</strong></p>"]
    if rows:
        parts.append(table(head, rows[:MAX_ROWS]))
    if len(rows) > MAX_ROWS:
        parts.append(f"<p>… {len(rows) - MAX_ROWS:,} more rows</p>")
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    return f"<div class='departing'><style>{NOTEBOOK_STYLE}</style>{''.join(parts)}</div>"
