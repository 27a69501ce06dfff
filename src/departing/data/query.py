"""From the events of a source to distinct counts, all in DuckDB: nothing about single users comes to Python.

A user's counts are told apart by a sum of hashes, one a step, so that grouping users costs the same for any number of
categories; two that differ have the same sum with a chance of 2^-64. The counts are then read from one user of every
group. Users in whose events something is odd (the same time twice, more after a departure) are set aside and
looked at one event at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from departing.data.columns import CLICKED, DEPARTED, as_span, check_number_of_categories, in_order
from departing.data.quality import EXAMPLES, Irregularity
from departing.data.sources import Opened, literal, quoted
from departing.data.spec import (
    BAD_DEPARTED,
    BAD_PROPENSITY,
    DUPLICATE,
    KNOWN,
    LATE,
    LOGGED,
    NO_DEPARTED,
    NO_PROPENSITY,
    PENDING,
    PRESENT,
    PROBLEMS,
    SEEN_LATER,
    SILENT,
    TIES,
    LogSpec,
    LogSummary,
    check_size,
    check_something_is_used,
    nobody_flagged,
    not_a_flag,
)
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
FLOATING = ("FLOAT", "DOUBLE")
LARGE = ("UBIGINT", "HUGEINT", "UHUGEINT")
ZONE = r":[0-9.]+\s*(z|[+-][0-9]{2}(:?[0-9]{2})?|[a-z]+(/[a-z_]+)*)\s*$"
MICRO = 10**6


@dataclass(frozen=True)
class Clock:
    """How the time column is read: the SQL of a whole number, its unit, and whether it is a clock or a number."""

    value: str
    per_unit: int
    clock: bool

    def shown(self, moment: int | None) -> str:
        """A moment as text."""
        if moment is None:
            return "?"
        if self.clock:
            return str(np.datetime64(int(moment), "us")).replace("T", " ").removesuffix(".000000")
        return f"{moment / self.per_unit:.15g}" if self.per_unit > 1 else str(moment)


class Query:
    """The views and tables of one reading, made in steps: `raw`, `checked`, `events`, `groups` and so on."""

    def __init__(self, opened: Opened, asked: LogSpec) -> None:
        self.opened, self.asked = opened, asked
        self.fields = asked.fields(opened.columns, opened.name)
        self.types = {field: opened.columns[name] for field, name in self.fields.items()}
        self.kinds = {field: _kind(of_type) for field, of_type in self.types.items()}
        self.irregularities: list[Irregularity] = []
        self._make_raw()
        check_something_is_used(1, int(self._one("SELECT count(*) FROM (FROM raw LIMIT 1)")[0]), opened.name, ())
        self.clock = self._clock()
        self.silence = None
        if asked.inactive_after is not None:
            span = as_span(asked.inactive_after, self.clock.clock, self.fields["time"])
            self.silence = round(span * self.clock.per_unit)
        if asked.categories is not None:
            self._name_categories(asked.categories)
        self._make_checked()
        self._read_through()
        self._make_groups()
        self._look_closer()

    def _run(self, query: str) -> None:
        self.opened.database.execute(query)

    def _one(self, query: str) -> tuple[Any, ...]:
        return self.opened.rows(query)[0]

    def _arrays(self, query: str) -> dict[str, Any]:
        return {name: np.ma.getdata(a) for name, a in self.opened.database.execute(query).fetchnumpy().items()}

    def _make_raw(self) -> None:
        """The view `raw`: the columns of the source under the names of their fields, and its rows as they are."""
        fields = ", ".join(
            f"{quoted(name)}{'::VARCHAR' if self.kinds[field] == 'text' else ''} AS {field}_"
            for field, name in self.fields.items()
        )
        self._run(f"CREATE VIEW raw AS SELECT departing_row AS whole, {fields} FROM source AS departing_row")

    def _missing(self, field: str) -> str:
        """The SQL of whether a field is missing."""
        if self.kinds[field] == "text":
            return f"({field}_ IS NULL OR ({field}_ < '!' AND trim({field}_) = ''))"  # few come to be trimmed
        if self.types[field] in FLOATING:
            return f"({field}_ IS NULL OR isnan({field}_))"
        return f"{field}_ IS NULL"

    def _clock(self) -> Clock:
        kind = self.kinds["time"]
        number = Clock(f"(TRY_CAST(time_ AS DECIMAL(26, 6)) * {MICRO})::HUGEINT", MICRO, False)
        if kind == "whole":
            return Clock("time_::BIGINT", 1, False)
        if kind == "number":
            return number
        if kind == "moment":
            return Clock("CASE WHEN isfinite(time_) THEN epoch_us(time_::TIMESTAMP) END", MICRO, True)
        if kind == "zoned":
            return Clock("CASE WHEN isfinite(time_) THEN epoch_us(time_) END", MICRO, True)
        if kind != "text":
            raise InputError(
                f"Column {self.fields['time']!r} for time is of type {self.types['time']}; expected times, dates or "
                "numbers."
            )
        moment, zone = "TRY_CAST(time_ AS TIMESTAMPTZ)", f"regexp_matches(time_, '{ZONE}', 'i')"
        numbers, whole, moments, zoned = self._one(
            "SELECT count(number), count(*) FILTER (number = TRY_CAST(time_ AS BIGINT)), count(moment), "
            f"count(*) FILTER (moment IS NOT NULL AND {zone}) FROM ("
            f"SELECT *, CASE WHEN number IS NULL THEN {moment} END AS moment FROM ("
            "SELECT time_, TRY_CAST(time_ AS DECIMAL(26, 6)) AS number FROM raw))"
        )
        if numbers >= moments:
            return Clock("TRY_CAST(time_ AS BIGINT)", 1, False) if whole == numbers else number
        if zoned:
            bare = f"{moment} IS NOT NULL AND NOT {zone}"
            self._decide("time without a zone beside times with one", "taken as UTC", moments - zoned, "raw", bare)
        return Clock(f"CASE WHEN isfinite({moment}) THEN epoch_us({moment}) END", MICRO, True)

    def _decide(
        self, kind: str, decision: str, count: int, relation: str, where: str, rejected: bool = False
    ) -> None:
        """Note an irregularity with so many rows of `relation`, and the first few of them in order."""
        if count:
            values = (
                f"{literal(name + ' ')} || coalesce(whole[{literal(name)}]::VARCHAR, 'missing')"
                for name in dict.fromkeys(self.fields.values())
            )
            example = f"concat_ws(', ', {', '.join(values)})"
            examples = self._one(f"SELECT min({example}, {EXAMPLES}) FROM {relation} WHERE {where}")[0]
            self.irregularities.append(Irregularity(kind, decision, count, tuple(examples), rejected))

    def _flag(self, field: str, words: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[str, str]:
        """The SQL of a field as true, false or nothing, and of a number in it that is neither 0 nor 1."""
        kind = self.kinds[field]
        if kind == "truth":
            return f"{field}_", "NULL"
        if kind not in ("whole", "number", "text"):
            raise InputError(
                f"Column {self.fields[field]!r} for {field} is of type {self.types[field]}; expected true or false, "
                "0 or 1, or yes or no."
            )
        number = f"TRY_CAST({field}_ AS DOUBLE)" if kind == "text" else f"{field}_"
        cases = f"WHEN {number} = 1 THEN true WHEN {number} = 0 THEN false"
        if kind == "text":
            for answer, those in zip(("true", "false"), words, strict=True):
                listed = ", ".join(map(literal, those))
                cases = f"WHEN lower(trim({field}_)) IN ({listed}) THEN {answer} {cases}"
        value = f"CASE {cases} END"
        other = f"CASE WHEN {value} IS NULL AND isfinite({number}::DOUBLE) THEN {field}_::VARCHAR END"
        if kind == "text":  # there are few words, and each is read once
            self._run(
                f"CREATE TABLE {field}_words AS SELECT {field}_, {value} AS value, {other} AS other "
                f"FROM (SELECT DISTINCT {field}_ FROM raw)"
            )
            value, other = f"{field}_words.value", f"{field}_words.other"
        return value, other

    def _name_categories(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._run(f"CREATE TYPE category AS ENUM ({', '.join(map(literal, names))})")

    def _make_checked(self) -> None:
        """The view `checked`: every row as it is read, with the number of its problem if it has one."""
        clicked, click_number = self._flag("clicked", CLICKED)
        departed, departed_number, departed_missing = "NULL::BOOLEAN", "NULL", "false"
        if "departed" in self.fields:
            departed, departed_number = self._flag("departed", DEPARTED)
            departed_missing = self._missing("departed")
        chance, chance_missing = "NULL::DOUBLE", "false"
        if "propensity" in self.fields:
            chance = "TRY_CAST(propensity_ AS DOUBLE)"
            chance = f"CASE WHEN isfinite({chance}) AND {chance} > 0 AND {chance} <= 1 THEN {chance} END"
            chance_missing = self._missing("propensity")
        tests = (
            self._missing("user"),
            self._missing("time"),
            "t IS NULL",
            self._missing("category"),
            "false" if self.asked.categories is None else "TRY_CAST(c AS category) IS NULL",
            self._missing("clicked"),
            "y IS NULL",
        )
        cases = " ".join(f"WHEN {test} THEN {i}" for i, test in enumerate(tests, 1))
        texts = [field for field in ("clicked", "departed") if self.kinds.get(field) == "text"]
        words = "".join(f" LEFT JOIN {field}_words USING ({field}_)" for field in texts)
        self._run(
            f"CREATE VIEW checked AS SELECT *, (CASE {cases} END)::UTINYINT AS problem FROM ("
            f"SELECT raw.*, user_ AS u, {self.clock.value} AS t, category_::VARCHAR AS c, {clicked} AS y, "
            f"CASE {departed} WHEN true THEN 2 WHEN false THEN 0 ELSE 1 END AS d, {chance} AS p, "
            f"{click_number} AS click_number, {departed_number} AS departed_number, "
            f"{departed_missing} AS departed_missing, {chance_missing} AS chance_missing FROM raw{words})"
        )

    def _read_through(self) -> None:
        """Read all rows once: how many have which problem, and which categories there are."""
        self._run(
            "CREATE TABLE profile AS SELECT CASE WHEN problem IS NULL THEN c END AS c, problem, count(*) AS n, "
            "min(t) AS first, max(t) AS last, min(click_number) AS click_number, "
            "min(departed_number) AS departed_number, "
            "count(*) FILTER (departed_missing) AS departed_missing, count(*) FILTER (d = 1) AS departed_unknown, "
            "count(*) FILTER (chance_missing) AS chance_missing, count(*) FILTER (p IS NULL) AS chance_unknown "
            "FROM checked GROUP BY ALL"
        )
        malformed = self._one("SELECT count(*) FROM malformed")[0]
        total, self.first, self.last, *numbers = self._one(
            "SELECT coalesce(sum(n), 0)::BIGINT, min(first), max(last), min(click_number), min(departed_number) "
            "FROM profile"
        )
        self.events = total + malformed
        for field, number in zip(("clicked", "departed"), numbers, strict=True):
            if number is not None:
                raise not_a_flag(self.fields[field], field, number)
        problems = self.opened.rows(
            "SELECT problem, sum(n)::BIGINT FROM profile WHERE problem IS NOT NULL GROUP BY 1 ORDER BY 1"
        )
        for problem, count in problems:
            self._decide(PROBLEMS[problem - 1], "rejected", count, "checked", f"problem = {problem}", True)
        unread = "" if any(problem >= PRESENT for problem, _ in problems) else "LIMIT 0"  # spares another reading
        self._run(
            "CREATE TABLE present AS SELECT u, max(t) AS until FROM checked "
            f"WHERE problem >= {PRESENT} GROUP BY u {unread}"
        )
        if malformed:
            examples = self._one(f"SELECT min(problem, {EXAMPLES}) FROM malformed")[0]
            self.irregularities.append(
                Irregularity("line that is no row", "rejected", malformed, tuple(examples), True)
            )
        self._read_what_is_used()

    def _read_what_is_used(self) -> None:
        used, departed_missing, departed_unknown, chance_missing, chance_unknown = self._one(
            "SELECT coalesce(sum(n), 0)::BIGINT, sum(departed_missing)::BIGINT, sum(departed_unknown)::BIGINT, "
            "sum(chance_missing)::BIGINT, sum(chance_unknown)::BIGINT FROM profile WHERE problem IS NULL"
        )
        check_something_is_used(used, self.events, self.opened.name, self.irregularities)
        relation = "(FROM checked WHERE problem IS NULL)"
        if "departed" in self.fields:
            if departed_unknown == used and self.silence is None:
                raise nobody_flagged(self.fields["departed"])
            self._decide(*NO_DEPARTED, departed_missing, relation, "departed_missing")
            where = "d = 1 AND NOT departed_missing"
            self._decide(*BAD_DEPARTED, departed_unknown - departed_missing, relation, where)
        if "propensity" in self.fields:
            self._decide(*NO_PROPENSITY, chance_missing, relation, "chance_missing")
            where = "p IS NULL AND NOT chance_missing"
            self._decide(*BAD_PROPENSITY, chance_unknown - chance_missing, relation, where)
        if self.asked.categories is None:
            n = self._one("SELECT count(*) FROM profile WHERE problem IS NULL")[0]
            check_number_of_categories(n, self.fields["category"])
            names = self.opened.rows("SELECT c FROM profile WHERE problem IS NULL")
            self._name_categories(in_order([name for (name,) in names]))

    def _make_groups(self) -> None:
        """The view `events` of all rows that are used, and the table `groups` of users with equal counts and ends."""
        self._run(
            "CREATE VIEW events AS SELECT u, t, enum_code(TRY_CAST(c AS category))::INTEGER AS k, y, d, p, whole "
            "FROM checked WHERE problem IS NULL"
        )
        self._run(f"CREATE TABLE groups AS {self._grouped('events', 'CASE WHEN is_odd THEN u END')}")

    def _ends(self, d: str, t: str) -> str:
        """The SQL of how a user ends who was flagged so at the last step, at such a time."""
        flagged, seen_later = f"WHEN {d} = 2 THEN {LOGGED}", f"WHEN {t} < until THEN {KNOWN}"
        if self.silence is None:
            return f"CASE {flagged} {seen_later} WHEN {d} = 1 THEN {PENDING} ELSE {KNOWN} END"
        return f"CASE {flagged} WHEN {t} > {self.last - self.silence} THEN {PENDING} {seen_later} ELSE {SILENT} END"

    @property
    def _recent(self) -> str:
        """The SQL of whether a step is too near the end of the log for a silence after it."""
        return "false" if self.silence is None else f"t > {self.last - self.silence}"

    @property
    def _step(self) -> str:
        """The SQL of the number of a step: whether it is recent, its category and its answer."""
        step = "k * 2 + y::INTEGER"
        return step if self.silence is None else f"{step} + {2 * len(self.names)} * ({self._recent})::INTEGER"

    def _grouped(self, relation: str, apart: str) -> str:
        """The SQL of groups of users of `relation` with equal counts and ends; users are told apart by `apart`.

        `f` and `n` stand for the counts. Times of a user that differ all fall on different bits of `a` or of `b`, or
        else the user is odd, as is one with a departure that is not the last event.
        """
        codes = 2 * len(self.names)
        base = 3 * codes  # flags × categories × answers
        small = (self.last - self.first + 1) * base < 2**63
        return f"""
            SELECT {apart} AS odd, f, n, ends, CASE WHEN ends > {KNOWN} THEN code % {codes} END AS last,
                count(*) AS users, min(u) AS one
            FROM (
                SELECT u, f, n, code, {self._ends(f"(code // {codes})", "t")} AS ends,
                    (bit_count(a) < n AND bit_count(b) < n) OR gone > 1 OR (gone = 1 AND code < {2 * codes}) AS is_odd
                FROM (
                    SELECT *, final // {base} + ({self.first}) AS t, (final % {base})::INTEGER AS code
                    FROM (
                        SELECT u, count(*) AS n, sum(hash({self._step} + 1)) AS f,
                            count(*) FILTER (d = 2) AS gone,
                            max((t::{"BIGINT" if small else "HUGEINT"} - ({self.first})) * {base}
                                + (d * {codes} + k * 2 + y::INTEGER)) AS final,
                            bit_or(1::BIGINT << (abs(t) % 61)::INTEGER) AS a,
                            bit_or(1::BIGINT << (abs(t) % 59)::INTEGER) AS b
                        FROM {relation} GROUP BY u
                    ) LEFT JOIN present USING (u)
                )
            )
            GROUP BY ALL"""

    def _look_closer(self) -> None:
        """Look at all events of odd users: `amended` are the events of those with some wrong, each with its fault."""
        self._run("CREATE TABLE odd_events AS SELECT u, t, k, y, d, p FROM events SEMI JOIN groups ON u = odd")
        twice = "false" if self.asked.keep_duplicates else "max(n) > 1"
        self._run(
            "CREATE TABLE wrong AS SELECT u FROM ("
            "SELECT u, t, d, count(*) AS n FROM odd_events GROUP BY u, t, k, y, d, p) "
            f"GROUP BY u HAVING {twice} OR sum(n) FILTER (d = 2) > 1 OR min(t) FILTER (d = 2) < max(t)"
        )
        again = "1" if self.asked.keep_duplicates else "row_number() OVER (PARTITION BY u, t, whole)"
        self._run(
            f"CREATE TABLE amended AS SELECT *, CASE WHEN again > 1 THEN {literal(DUPLICATE)} "
            f"WHEN place > leaving THEN {literal(LATE)} END AS fault FROM ("
            "SELECT *, min(place) FILTER (d = 2 AND again = 1) OVER (PARTITION BY u) AS leaving FROM ("
            "SELECT *, row_number() OVER (PARTITION BY u ORDER BY again, t, d, k, y, p) AS place FROM ("
            f"SELECT *, {again} AS again FROM events SEMI JOIN wrong USING (u))))"
        )
        for fault in (DUPLICATE, LATE):
            where = f"fault = {literal(fault)}"
            count = self._one(f"SELECT count(*) FROM amended WHERE {where}")[0]
            self._decide(fault, "rejected", count, "amended", where, True)
        self._run(
            "CREATE VIEW odd_kept AS SELECT u, t, k, y, d, p FROM odd_events ANTI JOIN wrong USING (u) "
            "UNION ALL SELECT u, t, k, y, d, p FROM amended WHERE fault IS NULL"
        )
        ties = "FROM (SELECT u, t, count(*) AS n FROM odd_kept GROUP BY u, t) WHERE n > 1"
        count = self._one(f"SELECT coalesce(sum(n), 0)::BIGINT {ties}")[0]
        if count:
            rows = self.opened.rows(f"SELECT u::VARCHAR, n, t {ties} ORDER BY u, t LIMIT {EXAMPLES}")
            examples = tuple(f"user {user}, {n} events at {self.clock.shown(t)}" for user, n, t in rows)
            self.irregularities.append(Irregularity(*TIES, count, examples))
        later = (
            "FROM (SELECT u, max(t) AS t FROM events SEMI JOIN present USING (u) GROUP BY u HAVING max(d) < 2) "
            f"JOIN present USING (u) WHERE t < until AND NOT {self._recent}"
        )
        count = self._one(f"SELECT count(*) {later}")[0]
        if count:
            rows = self.opened.rows(f"SELECT u::VARCHAR, until {later} ORDER BY u LIMIT {EXAMPLES}")
            examples = tuple(f"user {user}, at {self.clock.shown(t)}" for user, t in rows)
            self.irregularities.append(Irregularity(*SEEN_LATER, count, examples))

    def histogram(self, most_bytes: int) -> LogSummary:
        """The distinct histories of the log, in a table of at most so many bytes."""
        k = len(self.names)
        self._run(
            "CREATE TABLE chosen AS SELECT *, row_number() OVER (ORDER BY is_odd, f, n, ends, last) - 1 AS row FROM ("
            "SELECT * EXCLUDE odd, false AS is_odd FROM groups WHERE odd IS NULL UNION ALL BY NAME "
            f"SELECT * EXCLUDE odd, true AS is_odd FROM ({self._grouped('odd_kept', 'NULL')}))"
        )
        rows = self._one("SELECT count(*) FROM chosen")[0]
        check_size(rows, k, most_bytes)
        chosen = self._arrays("SELECT ends, coalesce(last, 0) AS last, users FROM chosen ORDER BY row")
        cells = self._arrays(
            f"SELECT row, {self._step} AS code, count(*) AS n FROM ("
            "SELECT row, k, y, t FROM events JOIN chosen ON u = one WHERE NOT is_odd "
            "UNION ALL SELECT row, k, y, t FROM odd_kept JOIN chosen ON u = one WHERE is_odd) GROUP BY ALL"
        )
        steps = np.zeros((rows, 4 * k), np.int64)
        steps[cells["row"], cells["code"]] = cells["n"]
        return LogSummary(
            names=self.names,
            steps=steps.reshape(rows, 2, k, 2),
            ends=chosen["ends"],
            last=chosen["last"],
            users=chosen["users"],
            events=self.events,
            first=self.clock.shown(self.first),
            final=self.clock.shown(self.last),
            irregularities=tuple(self.irregularities),
        )

    def write_rejects(self, path: Path) -> None:
        """Write all rows that are not used, as they stand in the source, with what is wrong with each."""
        cases = " ".join(f"WHEN {i} THEN {literal(problem)}" for i, problem in enumerate(PROBLEMS, 1))
        name = "problem"
        while name in {column.lower() for column in self.opened.columns}:
            name += "_"
        self._run(
            f"COPY (SELECT unnest(whole), CASE problem {cases} END AS {name} FROM checked WHERE problem IS NOT NULL "
            f"UNION ALL BY NAME SELECT unnest(whole), fault AS {name} FROM amended WHERE fault IS NOT NULL "
            f"UNION ALL BY NAME SELECT problem AS {name} FROM malformed) TO {literal(str(path))}"
        )

    def episodes(self, users: int) -> Iterator[dict[str, Any]]:
        """All steps in order, of so many users at a time."""
        outcome = f"CASE WHEN y THEN CASE WHEN gone THEN {CLICK_DEPART} ELSE {CLICK} END "
        outcome += f"WHEN gone THEN {DEPART} ELSE {STAY} END"
        self._run(
            f"CREATE TABLE episodes AS SELECT user, step, k, {outcome} AS outcome, p, "
            f"last_ends = {PENDING} AND (is_last OR {self._recent}) AS pending "
            f"FROM (SELECT *, last_ends >= {LOGGED} AND is_last AS gone FROM ("
            "SELECT *, max(ends) OVER (PARTITION BY user) AS last_ends FROM ("
            f"SELECT *, CASE WHEN is_last THEN {self._ends('d', 't')} END AS ends FROM ("
            "SELECT k, y, d, p, t, until, dense_rank() OVER (ORDER BY u) - 1 AS user, "
            "row_number() OVER steps - 1 AS step, lead(k) OVER steps IS NULL AS is_last FROM ("
            "SELECT u, t, k, y, d, p FROM events ANTI JOIN wrong USING (u) "
            "UNION ALL SELECT u, t, k, y, d, p FROM amended WHERE fault IS NULL) LEFT JOIN present USING (u) "
            "WINDOW steps AS (PARTITION BY u ORDER BY t, d, k, y, p))))) ORDER BY user, step"
        )
        total = self._one("SELECT max(user) + 1 FROM episodes")[0]
        for start in range(0, total, users):
            yield self._arrays(
                "SELECT user, step, k AS category, outcome, coalesce(p, 'nan') AS propensity, pending FROM episodes "
                f"WHERE user >= {start} AND user < {start + users} ORDER BY user, step"
            )


def _kind(of_type: str) -> str:
    """The kind of a column by its type in DuckDB."""
    if of_type in WHOLE:
        return "whole"
    if of_type in FLOATING or of_type in LARGE or of_type.startswith("DECIMAL"):
        return "number"
    if of_type == "TIMESTAMP WITH TIME ZONE":
        return "zoned"
    if of_type.startswith("TIMESTAMP") or of_type == "DATE":
        return "moment"
    if of_type == "VARCHAR" or of_type.startswith("ENUM"):
        return "text"
    return "truth" if of_type == "BOOLEAN" else of_type
