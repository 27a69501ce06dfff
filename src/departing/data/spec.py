"""What is asked of a log, what is found in it, and the rules about what is irregular, for every way of reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.data.columns import Columns
from departing.data.quality import Irregularity
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

KNOWN, PENDING, LOGGED, SILENT = range(4)  # how a user's log ends
PROBLEMS = (  # numbered from 1; the first that applies
    "user is missing",
    "time is missing",
    "time cannot be read",
    "category is missing",
    "category is not one of those asked for",
    "clicked is missing",
    "clicked cannot be read",
)
PRESENT = 4  # the first of the problems of rows whose user and time are known: somebody was there
DUPLICATE = "the same row again"
LATE = "after the user's departure"
NO_DEPARTED = ("departed is missing", "not known after the user's last event, else the user stayed")
BAD_DEPARTED = ("departed cannot be read", "taken as missing")
NO_PROPENSITY = ("propensity is missing", "used, but not where propensities are needed")
BAD_PROPENSITY = ("propensity is not above 0 and at most 1", "taken as missing")
SEEN_LATER = ("rejected row after the user's last event", "the user stayed after that event, and is censored there")
EXPECTED = {  # what to say where nothing can be read
    "time cannot be read": "times, dates or numbers",
    "clicked cannot be read": "true or false, 0 or 1, yes or no, or click or no click",
}
TIES = ("time of another event of the user", "a departure goes last, the others by category and click")


@dataclass(frozen=True)
class LogSpec:
    """What the caller asked of a log."""

    columns: Columns
    inactive_after: Any
    categories: tuple[str, ...] | None
    keep_duplicates: bool

    def fields(self, columns: Mapping[str, Any], where: str) -> dict[str, str]:
        """The names of the columns of every field that there is."""
        found = self.columns.found(columns, where)
        if found.departed is None and self.inactive_after is None:
            raise InputError(
                f"Nothing tells who departed: name a column of {where} as departed=, or say after which silence a "
                "user has left, such as inactive_after='30 days'."
            )
        return {field: name for field, name in vars(found).items() if name is not None}


@dataclass(frozen=True)
class LogSummary:
    """What a log holds: distinct histories with their last steps, and what was irregular.

    `steps[N, 2, K, 2]` counts no-clicks and clicks, first those early enough for a silence after them, then the
    recent ones. `ends[N]` tells how the users of a row end and `last[N]` at which step, 2 × category + click.
    """

    names: tuple[str, ...]
    steps: Integers
    ends: Integers
    last: Integers
    users: Integers
    events: int
    first: str
    final: str
    irregularities: tuple[Irregularity, ...]

    def counts(self) -> tuple[Integers, Integers]:
        """Counts `[N, K, 4]` and what is pending of them, `[N, K, 2]`."""
        places = [STAY, CLICK]
        counts = np.zeros((len(self.steps), len(self.names), 4), np.int64)
        counts[..., places] = self.steps.sum(axis=1)
        category, clicked = self.last // 2, self.last % 2
        left = np.flatnonzero(self.ends >= LOGGED)
        counts[left, category[left], np.where(clicked[left], CLICK, STAY)] -= 1
        counts[left, category[left], np.where(clicked[left], CLICK_DEPART, DEPART)] += 1
        pending = np.zeros((*counts.shape[:2], 2), np.int64)
        pending[..., places] = self.steps[:, 1] * (self.ends == PENDING)[:, None, None]
        open_ = np.flatnonzero((self.ends == PENDING) & ~pending.any(axis=(1, 2)))  # nothing is recent
        pending[open_, category[open_], np.where(clicked[open_], CLICK, STAY)] = 1
        return counts, pending


def not_a_flag(column: str, field: str, number: object) -> InputError:
    """The error about a number that is neither 0 nor 1."""
    return InputError(
        f"Column {column!r} for {field} holds {number}; expected 0 or 1, true or false, or yes or no: make such a "
        f"column first, for instance of {column} >= {number}."
    )


def nobody_flagged(column: str) -> InputError:
    """The error about a column of departures that says nothing."""
    return InputError(
        f"No value of column {column!r} says who departed; name another as departed=, or say after which silence a "
        "user has left, such as inactive_after='30 days'."
    )


def check_something_is_used(used: int, events: int, where: str, irregularities: Sequence[Irregularity]) -> None:
    """Raise if no event can be used, with the most frequent reason."""
    if events == 0:
        raise InputError(f"There are no events in {where}.")
    if used == 0:
        worst = max((each for each in irregularities if each.rejected), key=lambda each: each.count)
        expected = f"; expected {EXPECTED[worst.kind]}" if worst.kind in EXPECTED else ""
        raise InputError(
            f"None of the {events:,} events in {where} can be used: {worst.kind} in {worst.count:,} of them, such as "
            f"{worst.examples[0]!r}{expected}."
        )


def check_size(rows: int, n_categories: int, most_bytes: int) -> None:
    """Raise if the table of counts would not fit into the memory that there is."""
    size = rows * n_categories * 32
    if size > most_bytes:
        raise InputError(
            f"The log has {rows:,} distinct counts in {n_categories:,} categories, a table of {size / 1e9:.3g} GB, "
            f"but memory_limit is {most_bytes / 1e9:.3g} GB; name fewer categories as categories=[...], put them "
            "into fewer groups, or give a larger memory_limit."
        )
