"""The columns of a log: which they are, and how silence in them is measured."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from departing.data.sources import guess, some
from departing.model.errors import InputError

MOST_CATEGORIES = 1000
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
UNITS |= {unit[0]: seconds for unit, seconds in UNITS.items() if unit != "minute"}  # m could be months
YES = ("1", "true", "t", "yes", "y")
NO = ("0", "false", "f", "no", "n")
CLICKED = ((*YES, "click", "clicked"), (*NO, "no click", "no_click", "no-click", "not clicked"))
DEPARTED = ((*YES, "depart", "departed", "left"), (*NO, "stay", "stayed"))


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a log; the last two are None where there is no such column."""

    user: str
    time: str
    category: str
    clicked: str
    departed: str | None
    propensity: str | None

    def found(self, there: Mapping[str, Any], where: str) -> "Columns":
        """These columns, if they are `there`; `departed` and `propensity` are left out if they are not."""
        missing = {
            field: name
            for field, name in vars(self).items()
            if name is not None and name not in there and (name != field or field not in ("departed", "propensity"))
        }
        if len(missing) == 1:
            ((field, name),) = missing.items()
            raise InputError(f"There is no column {name!r} in {where} for {field}; {guess(name, list(there))}.")
        if missing:
            named = ", ".join(f"{name!r} for {field}" for field, name in missing.items())
            raise InputError(f"There are no columns {named} in {where}; it has{some(list(there), ' {}')}.")
        departed = self.departed if self.departed in there else None
        propensity = self.propensity if self.propensity in there else None
        return Columns(self.user, self.time, self.category, self.clicked, departed, propensity)


def as_columns(**names: str | None) -> Columns:
    """The columns named by the caller, each of them once."""
    for field, name in names.items():
        optional = field in ("departed", "propensity")
        if not (isinstance(name, str) and name) and not (optional and name is None):
            raise InputError(
                f"{field} is {name!r:.80}; expected the name of a column{' or None' if optional else ''}."
            )
    apart = [names[field] for field in ("user", "time", "category")]
    if twice := [name for i, name in enumerate(apart) if name in apart[:i]]:
        raise InputError(f"Column {twice[0]!r} is named for two of user, time and category; these must differ.")
    return Columns(**names)  # type: ignore[arg-type]


def check_categories(categories: Iterable[object] | None) -> tuple[str, ...] | None:
    """Names of categories as text, each once, or None where the log tells them."""
    if categories is None:
        return None
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        raise InputError(f"categories is {categories!r:.80}; expected a list of names.")
    names = tuple(map(str, categories))
    if not names or not all(name.strip() for name in names):
        raise InputError(f"categories is {list(names)!r:.80}; expected names that are not empty.")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"categories has the name {twice!r} twice; names must differ.")
    return _few_enough(names)


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Names of categories in a stable order: by their numbers if all are numbers, else by their letters.

    >>> in_order(["10", "9", "1"]), in_order(["10", "9", "a"])
    (('1', '9', '10'), ('10', '9', 'a'))
    """
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return tuple(sorted(names))
    if not np.isfinite(numbers).all():
        return tuple(sorted(names))
    return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))


def check_number_of_categories(n: int, column: str) -> None:
    """Raise if there are more categories than a table of counts has room for."""
    if n > MOST_CATEGORIES:
        raise InputError(
            f"Column {column!r} holds {n:,} categories; at most {MOST_CATEGORIES:,} are possible: name those that "
            "matter as categories=[...], or put them into fewer groups."
        )


def _few_enough(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > MOST_CATEGORIES:
        raise InputError(f"categories has {len(names):,} names; at most {MOST_CATEGORIES:,} are possible.")
    return names


def as_span(value: Any, clock: bool, column: str) -> float:
    """`inactive_after` in seconds if the time column is a clock, else in the unit of its numbers.

    >>> as_span("36 hours", True, "time"), as_span(5, False, "time")
    (129600.0, 5.0)
    """
    span: float | None = None
    if isinstance(value, timedelta):
        span = value.total_seconds() if clock else None
    elif isinstance(value, str) and clock:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]+?)s?\s*", value.lower())
        span = float(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else None
    elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and not clock:
        span = float(value)
    if span is None or not 0 < span < np.inf:
        wanted = (
            "a span such as '30 days', in seconds, minutes, hours, days or weeks, or a timedelta"
            if clock
            else f"a number larger than 0 in the unit of column {column!r}, which holds numbers"
        )
        raise InputError(f"inactive_after is {value!r:.80}; expected {wanted}.")
    return span


def as_bytes(value: str | int) -> int:
    """A limit of memory such as "500 MB" in bytes.

    >>> as_bytes("1.5 GB"), as_bytes(2_000_000_000)
    (1500000000, 2000000000)
    """
    size: float = -1
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b\s*", value.lower())
        size = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else -1
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 10**8 <= size < 10**18:
        raise InputError(f"memory_limit is {value!r:.80}; expected a size from '100 MB', such as '500 MB' or '2 GB'.")
    return int(size)
