"""Tables of instances."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from departing.model.instance import Instance


def instance_tables(instance: Instance, width: int | None = None) -> Iterator[RichTable]:
    """Tables of the probabilities and fixed values, with as many types side by side as fit on the terminal."""
    first = max(26, *(len(name) + 3 for name in instance.categories)) + 4
    column = max(17, *(len(name) + 3 for name in instance.types))
    together = max(((width or Console().width) - first) // column, 1)
    for start in range(0, instance.n_types, together):
        yield _table(instance, range(start, min(start + together, instance.n_types)))


def _table(instance: Instance, types: range) -> RichTable:
    title = f"{instance.n_categories} categories, {instance.n_types} types"
    table = RichTable(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for x in types:
        table.add_column(f"{escape(instance.types[x])}\n{instance.prior[x]:.4g} of users", justify="right")
    rows = [("click", instance.click), ("depart after no click", instance.depart)]
    if instance.depart_on_click.any():
        rows.append(("depart after click", instance.depart_on_click))
    rows.append(("value of the fixed policy", instance.fixed_values))
    for label, array in rows:
        table.add_section()
        table.add_row(f"[bold]{label}")
        for name, row in zip(instance.categories, array, strict=True):
            table.add_row(f"  {escape(name)}", *(f"{row[x]:.4g}" for x in types))
    return table
