"""Commands `categories list`, `add` and `retire`, which talk to a running service."""

from collections.abc import Callable
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.experiment import LOCAL, Key, Url, connected
from departing.cli.output import present
from departing.cli.tables.layout import new_table

Name = Annotated[str, Argument(metavar="CATEGORY", help="Name of the category.")]


def list_categories(url: Url = LOCAL, key: Key = None, as_json: opt.Json = False) -> None:
    """List the categories of a running service."""
    with connected(url, key) as client:
        _present(as_json, client.categories())


def add(
    name: Name,
    reward: Annotated[
        float | None,
        Option(
            metavar="VALUE",
            help="Reward of a click that is assumed until clicks of the category have rewards.",
            show_default="that of the instance, else the mean of the other categories",
        ),
    ] = None,
    url: Url = LOCAL,
    key: Key = None,
    as_json: opt.Json = False,
) -> None:
    """Add a category to a running service, or restore a retired one."""
    with connected(url, key) as client:
        _present(as_json, client.add_category(name, reward))


def retire(name: Name, url: Url = LOCAL, key: Key = None, as_json: opt.Json = False) -> None:
    """Stop showing a category of a running service; its history stays."""
    with connected(url, key) as client:
        _present(as_json, client.retire_category(name))


def _present(as_json: bool, rows: list[dict[str, Any]]) -> None:
    from departing.formatting import MISSING

    table: Table = new_table("Categories", "name", "state", "assumed reward", labels=2)
    for row in rows:
        reward = MISSING if row["reward"] is None else f"{row['reward']:g}"
        table.add_row(escape(row["name"]), "retired" if row["retired"] else "available", reward)
    present(as_json, {"categories": rows}, [table])


CATEGORY_COMMANDS: dict[str, Callable[..., None]] = {"list": list_categories, "add": add, "retire": retire}
