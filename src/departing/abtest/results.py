"""Results of an experiment, one row per user or per event, read into the clicks of every user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.data.checks import check_rejected
from departing.data.columns import USUAL_NAMES, usual_columns
from departing.data.flags import WHITESPACE, is_missing_text, parse_flag
from departing.data.quality import MAX_EXAMPLES, Irregularity
from departing.data.rules import MALFORMED, MALFORMED_EXAMPLES, column_kind
from departing.data.sources import DuckDBEngine, LogSource
from departing.data.spec import MAX_REJECTED
from departing.data.times import find_time_column
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats
from departing.model.names import list_names, suggest
from departing.model.tables import literal, quoted

MAX_ARMS = 20  # more are rather a wrong column, such as the user ID
ARM_NAMES = ("arm variant variation treatment experimentarm testarm abarm", "group bucket cohort testgroup abgroup")
NAMES = USUAL_NAMES | {"arm": ARM_NAMES, "clicks": ("clicks nclicks clickcount numclicks totalclicks clickstotal",)}
MAX_CLICKS = 10**9  # of one user; sums of third powers stay finite
NUMERIC = ("integer", "number", "text")


@dataclass(frozen=True)
class ResultsSpec:
    """Arguments of the reading: the column of every field, None to ignore an optional one."""

    columns: Mapping[str, str | None]
    clicked_values: tuple[str, ...] | None = None
    time_format: str | None = None
    max_rejected: float = MAX_REJECTED


@dataclass(frozen=True, eq=False)
class Results:
    """Clicks of every user of an experiment.

    Attributes
    ----------
    arms : tuple of str
        Names of the arms, sorted.
    arm : int array [N]
        Index of the arm of every user.
    clicks : float array [N]
        Clicks of every user.
    time : int array [N] or None
        Time of the first row of every user, in increasing order; None without a time column.
    active : int array [A] or None
        Users of every arm who have not departed; None without a column for departures.
    rows, used : int
        Number of rows, and of those used.
    irregularities : tuple of Irregularity
        Rejected rows by reason, with counts and examples.
    notes : tuple of str
        Columns that were guessed, and other facts about the reading.
    """

    arms: tuple[str, ...]
    arm: Integers
    clicks: Floats
    time: npt.NDArray[Any] | None
    active: Integers | None
    rows: int
    used: int
    irregularities: tuple[Irregularity, ...]
    notes: tuple[str, ...]


def read_results(source: Any, table: str | None, memory: int, spec: ResultsSpec) -> Results:
    """Read the results of an experiment from any source of `read_log` but Spark."""
    with LogSource.of(source, table, memory).open() as engine:
        if not isinstance(engine, DuckDBEngine):
            raise InputError(
                "results is a Spark DataFrame; aggregate it to one row per user and convert it by toPandas() first."
            )
        return _Reading(engine, spec).read()


@dataclass
class _Reading:
    engine: DuckDBEngine
    spec: ResultsSpec
    notes: list[str] = field(default_factory=list)

    def read(self) -> Results:
        self.fields = self._find_columns()
        self.types = {each: self.engine.columns[name] for each, name in self.fields.items()}
        self.kinds = {each: column_kind(column_type) for each, column_type in self.types.items()}
        self.engine.define(self._raw())
        self.engine.define(self._checked(), self._users())
        rows, used, irregularities = self._quality()
        arms = [row[0] for row in self._rows("SELECT DISTINCT a FROM users WHERE NOT twice ORDER BY a")]
        self._check_arms(arms)
        codes = ", ".join(map(literal, arms))
        order = "ORDER BY t" if "time" in self.fields else ""
        query = (
            f"SELECT (list_position([{codes}], a) - 1)::BIGINT AS arm, clicks::DOUBLE AS clicks, t, "
            f"coalesce(departed, false) AS departed FROM users WHERE NOT twice {order}"
        )
        columns = self.engine.arrays(query)
        arm, departed = columns["arm"].astype(np.int64), columns["departed"].astype(bool)
        active = np.bincount(arm[~departed], minlength=len(arms)) if "departed" in self.fields else None
        time = columns["t"].astype(np.float64) if "time" in self.fields else None
        clicks = columns["clicks"].astype(np.float64)
        return Results(tuple(arms), arm, clicks, time, active, rows, used, irregularities, tuple(self.notes))

    def _find_columns(self) -> dict[str, str]:
        """Column of every field: the named one, or one under a usual name where the default name is absent."""
        available, named = list(self.engine.columns), self.spec.columns
        found = {each: name for each, name in named.items() if name is not None and name in available}
        for each, name in named.items():
            if name is None or each in found:
                continue
            if name != each:
                step = suggest(name, available)
                raise InputError(f"There is no column {name!r} in {self.engine.name} for {each}; {step}")
            if each == "clicked" and "clicks" in found:
                continue
            free = [column for column in available if column not in found.values()]
            usual = usual_columns(each, free, NAMES)
            if len(usual) > 1:
                raise InputError(
                    f"Several columns of {self.engine.name} may be the {each}: {list_names(usual)}; name one, such "
                    f"as `{each}`={usual[0]!r}."
                )
            if usual:
                found[each] = usual[0]
                self.notes.append(f"Column {usual[0]!r} is used for {each}.")
        listed = list_names(available)
        if "arm" not in found:
            raise InputError(
                f"There is no column 'arm' in {self.engine.name}; its columns are {listed}. Name the column of the "
                "arms by `arm`=COLUMN."
            )
        if "clicks" in found:
            found.pop("clicked", None)
        elif "clicked" not in found:
            raise InputError(
                f"There is no column of clicks in {self.engine.name}; its columns are {listed}. Name the clicks per "
                "user by `clicks`=COLUMN, or the flag of each event by `clicked`=COLUMN."
            )
        if "clicked" in found and "user" not in found:
            raise InputError(
                f"There is no column 'user' in {self.engine.name}; its columns are {listed}. One row per event needs "
                "the user ID: name it by `user`=COLUMN."
            )
        return found

    def _raw(self) -> str:
        columns = [
            f"{quoted(name)}{'::VARCHAR' if self.kinds[each] == 'text' else ''} AS {each}_"
            for each, name in self.fields.items()
        ]
        return f"CREATE VIEW raw AS SELECT {', '.join(columns)} FROM source"

    def _checked(self) -> str:
        """The view `checked`: user, arm, clicks, time and departure of every row, and its rejection reason if any."""
        value = "clicks" if "clicks" in self.fields else "clicked"
        tests = [
            (self._missing(each), f"{each} is missing") for each in ("user", "arm", value) if each in self.fields
        ]
        if value == "clicks":
            if self.kinds["clicks"] not in NUMERIC:
                raise InputError(self._wrong_type("clicks", "a number of clicks"))
            number = "TRY_CAST(clicks_ AS DOUBLE)"
            clicks = f"CASE WHEN isfinite({number}) THEN {number} END"
            tests += [("y IS NULL", "clicks cannot be parsed"), ("y < 0", "clicks is negative")]
            tests.append((f"y > {MAX_CLICKS}", f"clicks is above {MAX_CLICKS:g}"))
        else:
            clicks = self._flag("clicked", self.spec.clicked_values)
            tests.append(("y IS NULL", "clicked cannot be parsed"))
        time = "NULL"
        if "time" in self.fields:
            found, sentences, _ = find_time_column(
                self._rows, self.fields["time"], self.types["time"], self.kinds["time"], self.spec.time_format
            )
            time = found.sql
            self.notes += sentences
            tests += [(self._missing("time"), "time is missing"), ("t IS NULL", "time cannot be parsed")]
        user = "user_" if "user" in self.fields else "NULL"
        departed = self._flag("departed", None) if "departed" in self.fields else "NULL::BOOLEAN"
        cases = " ".join(f"WHEN {test} THEN {literal(reason)}" for test, reason in tests)
        return (
            f"CREATE VIEW checked AS SELECT *, CASE {cases} END AS reason FROM (SELECT *, {user} AS u, "
            f"trim(arm_::VARCHAR, {WHITESPACE}) AS a, {clicks} AS y, {time} AS t, {departed} AS d FROM raw)"
        )

    def _users(self) -> str:
        """The table `users`: arm, clicks, first time and departure of every user; `twice` if in several arms."""
        if "user" not in self.fields:
            columns = "NULL AS u, a, y::DOUBLE AS clicks, t, d AS departed, false AS twice, 1 AS n"
            return f"CREATE TABLE users AS SELECT {columns} FROM checked WHERE reason IS NULL"
        return (
            "CREATE TABLE users AS SELECT u, min(a) AS a, sum(y::DOUBLE) AS clicks, min(t) AS t, "
            "bool_or(d) AS departed, min(a) < max(a) AS twice, count(*) AS n FROM checked "
            "WHERE reason IS NULL GROUP BY u"
        )

    def _quality(self) -> tuple[int, int, tuple[Irregularity, ...]]:
        """Number of rows and of used rows, and irregularities; raise if too many rows are rejected."""
        counts = dict(self._rows("SELECT reason, count(*) FROM checked GROUP BY reason"))
        good = counts.pop(None, 0)
        irregularities = [
            self._rejected(reason, n, f"SELECT {self._example()} FROM checked WHERE reason = {literal(reason)}")
            for reason, n in sorted(counts.items())
        ]
        ((malformed,),) = self._rows("SELECT count(*) FROM malformed")
        if malformed:
            irregularities.append(self._rejected(MALFORMED, malformed, MALFORMED_EXAMPLES))
        rows = good + sum(each.count for each in irregularities)
        if not rows:
            raise InputError(f"There are no rows in {self.engine.name}.")
        ((twice, affected),) = self._rows("SELECT count(*), coalesce(sum(n), 0)::BIGINT FROM users WHERE twice")
        if twice:
            kind = f"user in several arms ({twice:,} users)"
            example = "SELECT 'user ' || u::VARCHAR || ', ' || n || ' rows' FROM users WHERE twice"
            irregularities.append(self._rejected(kind, affected, example))
        check_rejected(self.engine.name, rows, irregularities, self.spec.max_rejected, "rows")
        if "clicks" in self.fields and "user" in self.fields:
            ((several,),) = self._rows("SELECT count(*) FROM users WHERE n > 1 AND NOT twice")
            if several:
                self.notes.append(f"{several:,} users have several rows; their clicks are added.")
        return rows, good - affected, tuple(irregularities)

    def _rejected(self, kind: str, n: int, examples: str) -> Irregularity:
        shown = tuple(
            row[0] for row in self._rows(f"SELECT DISTINCT * FROM ({examples}) ORDER BY 1 LIMIT {MAX_EXAMPLES}")
        )
        return Irregularity(kind, "rejected", n, shown, True)

    def _example(self) -> str:
        values = (
            f"{literal(name + ' ')} || coalesce({each}_::VARCHAR, 'missing')" for each, name in self.fields.items()
        )
        return f"concat_ws(', ', {', '.join(values)})"

    def _check_arms(self, arms: Sequence[str]) -> None:
        column = self.fields["arm"]
        if len(arms) > MAX_ARMS:
            raise InputError(
                f"Column {column!r} has {len(arms):,} distinct arms ({list_names(arms)}); expected 2 to {MAX_ARMS}. "
                "Name the column of the arms by `arm`=COLUMN."
            )
        lowered: dict[str, str] = {}
        for name in arms:
            if (other := lowered.setdefault(name.lower(), name)) != name:
                raise InputError(
                    f"Column {column!r} has the arms {other!r} and {name!r}, which differ in case only; write every "
                    "arm in one way."
                )
        if len(arms) < 2:
            raise InputError(
                f"Column {column!r} has the arms {list_names(arms)} only; expected at least two. Include the users "
                "of both arms, or name another column by `arm`=COLUMN."
            )

    def _missing(self, each: str) -> str:
        if self.kinds[each] == "text":
            return is_missing_text(f"{each}_")
        return f"{each}_ IS NULL" + (f" OR isnan({each}_)" if self.types[each] in ("FLOAT", "DOUBLE") else "")

    def _flag(self, each: str, values: tuple[str, ...] | None) -> str:
        if self.kinds[each] not in ("boolean", *NUMERIC):
            raise InputError(self._wrong_type(each, "true or false, 0 or 1, or yes or no"))
        return parse_flag(each, self.kinds[each], values, self._missing(each))[0]

    def _wrong_type(self, each: str, expected: str) -> str:
        return f"Column {self.fields[each]!r} for {each} is of type {self.types[each]}; expected {expected}."

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.engine.rows(query)[0]
