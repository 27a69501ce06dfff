"""Tables of instances."""

from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from departing.formatting import format_count, format_percent
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
    if instance.horizon is not None:
        title += f", at most {format_count(instance.horizon, 'recommendation')} to a user"
    table = RichTable(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for x in types:
        table.add_column(f"{escape(instance.types[x])}\n{instance.prior[x]:.4g} of users", justify="right")
    rows = [("click", instance.click), ("depart after no click", instance.depart)]
    if instance.depart_on_click.any():
        rows.append(("depart after click", instance.depart_on_click))
    unit = ""
    if "reward" in instance.extensions:
        unit = f" in {escape(instance.unit)}"
        rows.append((f"reward of a click{unit}", np.tile(instance.reward[:, None], instance.n_types)))
    rows.append((f"value of the fixed policy{unit}", instance.fixed_values))
    names = {label: instance.categories for label, _ in rows}
    if (segments := instance.segments) is not None:
        shares = zip(segments.names, segments.share, strict=True)
        names["prior by segment"] = tuple(f"{name} ({format_percent(share)})" for name, share in shares)
        rows.append(("prior by segment", segments.prior))
    for label, array in rows:
        table.add_section()
        table.add_row(f"[bold]{label}")
        for name, row in zip(names[label], array, strict=True):
            table.add_row(f"  {escape(name)}", *(f"{row[x]:.4g}" for x in types))
    return table
