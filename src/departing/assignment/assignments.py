"""`Assignments`: types of users as a table, one row per user."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from departing.assignment.histories import HistoryAssignments, group_keys
from departing.data.history_rows import UserHistories
from departing.data.log import Log
from departing.data.sources import GroupColumns
from departing.formatting import first_few, format_count, format_percent, format_significant
from departing.html_tables import html_repr
from departing.model.files import atomic_write, check_suffix
from departing.model.instance import Instance
from departing.model.tables import TABLE_SUFFIXES, literal
from departing.policy.library import describe
from departing.policy.protocol import Policy

POSTERIOR = "posterior_"  # prefix of the columns of the posterior, one per type


@dataclass(frozen=True)
class TypeSummary:
    """Users of one type.

    Attributes
    ----------
    type : str
        Name of the type.
    users : int
        Users whose most likely type it is.
    expected_users : float
        Sum of the posterior probabilities of the type over all users.
    departed : int
        Of `users`, those who departed.
    probability : float
        Mean posterior probability of the type over `users`; NaN if there are none.
    remaining : float
        Expected remaining reward of `users` in total, in the unit of the instance: clicks by default.
    """

    type: str
    users: int
    expected_users: float
    departed: int
    probability: float
    remaining: float


@dataclass(frozen=True, eq=False, repr=False)
class Assignments:
    """Types of the users of a log, as `assign` returns them.

    The assignments of distinct histories are in memory; the rows of single users are read from the source of the log
    when they are needed.

    Attributes
    ----------
    log : Log
        Log of the users.
    instance : Instance
        Model that gives the posterior.
    policy : Policy
        Policy that gives the next recommendation.
    histories : HistoryAssignments
        Assignments of distinct histories.
    """

    log: Log
    instance: Instance
    policy: Policy
    histories: HistoryAssignments = field(repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the table of users; underscores tell names apart that differ in case only."""
        columns = list(_COLUMNS)
        if self.log.segments is not None:
            columns.insert(1, "segment")
        if self.has_rewards:
            columns[-1] = "expected_remaining_reward"
        for name in self.instance.types:
            column = POSTERIOR + name
            while column.lower() in map(str.lower, columns):
                column += "_"
            columns.append(column)
        return tuple(columns)

    @property
    def has_rewards(self) -> bool:
        """True if the clicks of the instance have rewards other than one click each."""
        return "reward" in self.instance.extensions

    @property
    def types(self) -> tuple[TypeSummary, ...]:
        """Users by type, in the order of the instance's types."""
        rows, summaries = self.histories, []
        for x, name in enumerate(self.instance.types):
            own = rows.type == x
            users = int(rows.users[own].sum())
            probability = float(rows.users[own] @ rows.posterior[own, x]) / users if users else np.nan
            expected = float(rows.users @ np.nan_to_num(rows.posterior[:, x]))
            gone = int(rows.users[own & rows.departed].sum())
            remaining = float(rows.users[own] @ rows.remaining[own])
            summaries.append(TypeSummary(name, users, expected, gone, probability, remaining))
        return tuple(summaries)

    @property
    def impossible(self) -> int:
        """Number of users whose history has probability 0 under every type; they have no type."""
        return int(self.histories.users[self.histories.type < 0].sum())

    @property
    def error(self) -> float:
        """Mean over users of the certified bound on the error of the expected remaining clicks."""
        return float(self.histories.users @ self.histories.remaining_error) / max(len(self), 1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table of users to a .parquet or .csv file, in the order of the user column.

        The users of a Spark DataFrame are written by Spark to a folder of files, in no order.

        Raises
        ------
        InputError
            If the file cannot be written, or the source of the log changed since it was read.
        """
        check_suffix(path, TABLE_SUFFIXES)
        with table_file(self.log, path) as part, self.log.user_histories() as users:  # checked before renaming
            self.write(users, path, part)

    def write(self, users: UserHistories, path: str | os.PathLike[str], part: str | os.PathLike[str]) -> None:
        """Write the table of users to `part`, the temporary path of the file `path`."""
        users.table.write(self._columns(users), path, part)

    def to_frame(self) -> Any:
        """Return the table of users as a pandas DataFrame, or a polars one if pandas is not installed.

        For a log on Spark it is a Spark DataFrame, whose rows stay on the cluster. Columns are the user ID, `events`,
        `clicks`, `departed`, `censored`, `active_probability`, the most likely `type` and its `type_probability`, the
        next `recommendation`, `expected_remaining_clicks`, and `posterior_NAME` for every type. A log with segments
        has the column `segment` after the user ID, and an instance with rewards `expected_remaining_reward`.
        """
        with self.log.user_histories() as users:
            return users.table.frame(self._columns(users))

    def describe(self) -> str:
        """Describe the assignments in one sentence."""
        largest = max(self.types, key=lambda each: each.users)
        share = format_percent(largest.users / max(len(self), 1))
        return (
            f"{format_count(len(self), 'user')} of {format_count(len(self.types), 'type')}; "
            f"the most likely type of {share} is {largest.type}."
        )

    def summary(self) -> str:
        """Return a printed overview: users by type."""
        head, rows = self.table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))]
            )
            for row in (head, *rows)
        ]
        return "\n".join([self.describe(), *lines, *self.notes()])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the overview, as text."""
        head = ["type", "users", "expected users", "departed", "mean probability", f"remaining {self.instance.unit}"]
        rows = [
            [
                each.type,
                f"{each.users:,}",
                f"{each.expected_users:,.0f}",
                f"{each.departed:,}",
                format_significant(each.probability),
                f"{each.remaining:,.0f}",
            ]
            for each in self.types
        ]
        return head, rows

    def notes(self) -> list[str]:
        """Sentences below the overview: the policy, the accuracy, and users without a type."""
        notes = [
            f"Policy: {describe(self.policy, self.instance)}. "
            f"Expected remaining {self.instance.unit} are within {format_significant(self.error)} per user on "
            "average."
        ]
        segments = self.instance.segments
        if segments is not None and self.log.segments is None:
            notes.append("The log has no segments: beliefs start at the common prior. Read it with `segment`.")
        elif segments is not None and self.log.segments is not None:
            unseen = [name for name in self.log.segments if segments.index(name) is None]
            if unseen:
                notes.append(
                    f"Users in segments that the fit does not know start at the common prior: {first_few(unseen, 5)}."
                )
        if self.impossible:
            have = "user has a history that is" if self.impossible == 1 else "users have histories that are"
            notes.append(f"{self.impossible:,} {have} impossible under every type, and have no type.")
        return notes

    def _columns(self, users: UserHistories) -> GroupColumns:
        """Columns of the table of users by group.

        Histories are found by their keys, because the engine may number them differently when it reads them again.
        """
        rows, types = self.histories, self.instance.types
        arrays: dict[str, Any] = {
            "row": np.arange(len(rows.users)),
            "events": rows.events,
            "clicks": rows.clicks,
            "departed": rows.departed,
            "type": rows.type,
            "active": rows.active,
            "recommendation": rows.recommendation,
            "remaining": rows.remaining,
        }
        segments = self.log.segments
        if segments is not None and rows.segment is not None:
            arrays["segment"] = rows.segment
        arrays |= {f"p{x}": np.ascontiguousarray(rows.posterior[:, x]) for x in range(len(types))}
        groups = {"key": users.key, "age": users.age, "row": np.searchsorted(rows.key, group_keys(users))}
        posterior = [f"p{x}" for x in range(len(types))]
        own = () if segments is None else (f"CASE WHEN segment >= 0 THEN {_names(segments)}[segment + 1] END",)
        columns = (
            *own,
            "events",
            "clicks",
            "departed",
            "NOT departed",
            _known("active"),
            f"{_names(types)}[type + 1]",
            _known(f"greatest({', '.join(posterior)})"),
            f"CASE WHEN recommendation >= 0 THEN {_names(self.instance.categories)}[recommendation + 1] END",
            _known("remaining"),
            *map(_known, posterior),
        )
        user, *names = self.columns
        return GroupColumns(user, dict(zip(names, columns, strict=True)), groups, arrays)

    def __len__(self) -> int:
        return int(self.histories.users.sum())

    def __repr__(self) -> str:
        return f"<Assignments of {format_count(len(self), 'user')} to {format_count(len(self.types), 'type')}>"

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), *self.table(), notes=self.notes())


_COLUMNS = (
    *("user", "events", "clicks", "departed", "censored", "active_probability"),
    *("type", "type_probability", "recommendation", "expected_remaining_clicks"),
)


def _names(names: Sequence[str]) -> str:
    return f"([{', '.join(map(literal, names))}])"


def _known(sql: str) -> str:
    return f"CASE WHEN type >= 0 THEN {sql} END"


def table_file(log: Log, path: str | os.PathLike[str]) -> AbstractContextManager[str | os.PathLike[str]]:
    """The temporary path of a file that appears only when it is complete; `path` itself if Spark writes it."""
    return nullcontext(path) if log.source.is_distributed else atomic_write(path)
