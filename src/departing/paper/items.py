"""All items of the paper, in its order, and the extensions of it."""

import inspect
import tomllib
from difflib import get_close_matches
from importlib import resources
from typing import Any

from departing.model.errors import InputError
from departing.paper import (  # noqa: F401 (these register checks)
    appendix_a,
    appendix_d,
    appendix_e,
    extensions,
    horizon,
    learning,
    movielens,
    planning,
    returns,
    setting,
)
from departing.paper.item import CHECKS, Item

OWN_KINDS = ("repair", "extension")  # kinds of items that are not in the paper


def _item(key: str, fields: dict[str, Any]) -> Item:
    check = CHECKS.get(key)
    code = fields.pop("code", [])
    if check is not None:
        code = [f"{check.__module__}:{check.__name__}", *code]
    method = (inspect.getdoc(check) or "") if check is not None else ""
    return Item(key, **fields, code=tuple(code), method=method, check=check)


_TEXTS = tomllib.loads(resources.files("departing.paper").joinpath("items.toml").read_text(encoding="utf-8"))
ITEMS = tuple(_item(key, dict(fields)) for key, fields in _TEXTS.items())


def choose_items(keys: str | None) -> tuple[Item, ...]:
    """Items with the given keys, separated by commas, in the paper's order; all items without keys."""
    if keys is None:
        return ITEMS
    chosen = {key.strip() for key in keys.split(",")}
    unknown = sorted(chosen - {item.key for item in ITEMS})
    if unknown:
        similar = get_close_matches(unknown[0], [item.key for item in ITEMS], 1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        raise InputError(
            f"--only has unknown items: {', '.join(unknown)}; {hint}`departing paper --list` shows all keys."
        )
    return tuple(item for item in ITEMS if item.key in chosen)
