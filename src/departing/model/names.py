"""Names of categories and types: defaults, checks, lookup, and lists of names in error messages."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from departing.model.errors import InputError


def default_names(noun: str, n: int) -> list[str]:
    """Default names of categories or types."""
    return [f"{noun} {i}" for i in range(n)]


def check_names(field: str, names: Any, n: int | None = None) -> tuple[str, ...]:
    """Return `names` if they are distinct and not blank, and `n` in number if that is given.

    >>> check_names("categories", ["news", "sport", "news"])
    Traceback (most recent call last):
    departing.model.errors.InputError: categories has the name 'news' twice; expected distinct names.
    """
    listed = names.tolist() if isinstance(names, np.ndarray) else names
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str) and len(listed) > 0
    if not is_list or not all(isinstance(name, str) and name.strip() for name in listed):
        number = "" if n is None else f"{n} "
        raise InputError(f"{field} is {listed!r:.80}; expected {number}nonempty names.", field)
    if n is not None and len(listed) != n:
        raise InputError(f"{field} has {len(listed)} names; expected {n}.", field)
    if len(set(listed)) < len(listed):
        twice = next(name for i, name in enumerate(listed) if name in listed[:i])
        raise InputError(f"{field} has the name {twice!r} twice; expected distinct names.", field)
    return tuple(listed)


def find_category(name: str | int, names: Sequence[str]) -> int:
    """Index of a category in `names`, given by its name or index; "1" is an index where it is no name.

    >>> find_category("sprot", ["news", "sport"])
    Traceback (most recent call last):
    departing.model.errors.InputError: There is no category 'sprot'; did you mean 'sport'?
    """
    if isinstance(name, str) and name in names:
        return names.index(name)
    digits = isinstance(name, str) and name.isdecimal() and len(name) <= 18
    is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
    index = int(name) if digits or is_number else -1
    if not 0 <= index < len(names):
        similar = isinstance(name, str) and find_similar(name, names)
        expected = (
            f"did you mean {similar!r}?" if similar else f"expected one of {list_names(names)}, or an index from 0."
        )
        raise InputError(f"There is no category {name!r}; {expected}")
    return index


def list_names(names: Sequence[str]) -> str:
    """The first ten of `names` in quotes, or "none".

    >>> list_names(["news", "sport"])
    "'news', 'sport'"
    """
    return ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "") or "none"


def suggest(name: str, names: Sequence[str]) -> str:
    """End of a sentence about an unknown name: the most similar of `names`, or else the first of them.

    >>> suggest("Catgory", ["user", "category"])
    "did you mean 'category'?"
    >>> suggest("x", ["user", "category"])
    "expected one of 'user', 'category'."
    """
    similar = find_similar(name, names)
    return f"did you mean {similar!r}?" if similar else f"expected one of {list_names(names)}."


def find_similar(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is most similar to `name`, or None if none is."""
    lowered = {each.lower(): each for each in names}
    similar = get_close_matches(name.lower(), list(lowered), 1)
    return lowered[similar[0]] if similar else None
