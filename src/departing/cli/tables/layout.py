"""Empty tables in the style of all commands."""

from rich.markup import escape
from rich.table import Table


def new_table(title: str, *columns: str, labels: int = 1, min_width: int | None = None, wrap: bool = False) -> Table:
    """Table whose first `labels` columns hold text and the others numbers, on one line unless `wrap`."""
    table = Table(title=escape(title), title_justify="left", caption_justify="left")
    for name in columns[:labels]:
        table.add_column(name, overflow="fold", min_width=min_width)
    for name in columns[labels:]:
        table.add_column(escape(name), justify="right", no_wrap=not wrap)
    return table


def key_value_table(title: str, *rows: tuple[str, str]) -> Table:
    """Table of two columns without a header."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for name, value in rows:
        table.add_row(escape(name), value)
    return table
