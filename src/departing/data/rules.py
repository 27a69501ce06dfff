"""The rules for reading a log, as DuckDB SQL: every rule exists once, for every engine.

Files, databases and frames are read by an embedded DuckDB. On Spark the same SQL runs in DuckDB inside the Python
workers, once per partition (`spark.py`). Two alternatives were measured on 5.0 million events in a Parquet file,
medians of three runs on one machine:

- Ibis for DuckDB as well as for Spark: 17.7 s of CPU and 859 MB instead of 1.45 s and 312 MB, and 29 MB to install
  besides PyArrow.
- One SQL text transpiled by sqlglot (9 MB): the same speed on DuckDB, but sqlglot translates syntax only. Engines
  differ in how they convert text to numbers and timestamps, and numbers to text, so the rules for flags, times and
  category names would have to be written once per engine.

SQL columns: `u` user, `t` time as an integer, `c` category name, `k` category index, `y` clicked, `d` departure flag
(0 stayed, 1 unknown, 2 departed), `p` propensity, `full_row` the complete source row as a struct.

A user's counts are represented by a sum of hashes, one per step, so that the cost of grouping users does not depend
on the number of categories; two different counts collide with probability 2^-64. The counts are then read from one
user of each group. Only *irregular* users (two events at one time, events after a departure) are sorted event by
event; `place` numbers their events.
"""

from collections.abc import Sequence

from departing.data.checks import TIME_BINS
from departing.data.columns import OPTIONAL, find_columns
from departing.data.flags import FLAG_WORDS, MISSING_WORDS, is_missing_text, is_value, label, parse_flag
from departing.data.history_rules import (
    WEIGHT,
    HistoryEnd,
    Profile,
    counted,
    first_segment,
    grouped,
    history_end,
    is_recent,
    placed,
    step,
    user_keys,
)
from departing.data.quality import MAX_EXAMPLES, OTHER_CATEGORY, TIED
from departing.data.sample import SAMPLE_EVENTS, SAMPLE_USERS
from departing.data.segments import SegmentCodes
from departing.data.sources import is_nested
from departing.data.spec import MAX_CATEGORIES, LogSpec
from departing.data.times import DAY, ZONED_NANOSECONDS, TimeColumn
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.model.tables import literal, quoted

CLICKED_MISSING = "clicked is missing"
REJECTION_REASONS = (  # codes from 1; a row is rejected for the first reason that applies
    "user is missing",
    "time is missing",
    "time cannot be parsed",
    "time far before all others",
    "time far after all others",
    "category is missing",
    OTHER_CATEGORY,
    CLICKED_MISSING,
    "clicked cannot be parsed",
)
FAR_BEFORE, FAR_AFTER = 4, 5  # codes of rows outside the bounds of the time column
USER_AND_TIME_KNOWN = 6  # the first code of rows whose user and time are known: the user was still active then
DUPLICATE = "duplicate row"
LATE = "event after the user's departure"
MALFORMED = "malformed line"
NO_ZONE = ("time without a zone among times with a zone", "read as UTC")
NO_DEPARTED = ("departed is missing", "unknown after the user's last event; after earlier events the user stayed")
BAD_DEPARTED = ("departed cannot be parsed", "treated as missing")
NO_PROPENSITY = ("propensity is missing", "used, except where propensities are required")
BAD_PROPENSITY = ("propensity is not in (0, 1]", "treated as missing")
SEEN_LATER = ("rejected row after the user's last event", "the user stayed after that event and is censored there")
TIES = (TIED, "their order is unknown: a departure goes last, the others are shuffled")

INTEGER = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
FLOATING = ("FLOAT", "DOUBLE")
MAX_INTEGER = 2**53  # from here on, floats do not have all integers
NULL = '"NULL"'  # type of a column without values
LARGE = ("UBIGINT", "HUGEINT", "UHUGEINT")
MALFORMED_EXAMPLES = f"SELECT unnest(min(line, {MAX_EXAMPLES})) FROM malformed"
TIES_EXAMPLES = f"SELECT u::VARCHAR, t, n_events || ' events' FROM ties ORDER BY ALL LIMIT {MAX_EXAMPLES}"
SEEN_LATER_EXAMPLES = f"SELECT u::VARCHAR, until, 'rejected row' FROM seen_later ORDER BY ALL LIMIT {MAX_EXAMPLES}"
PROFILE_COLUMNS = (
    *("n", "first", "last", "clicked_number", "departed_number"),
    *("departed_missing", "departed_unknown", "propensity_missing", "propensity_unknown", "midnights"),
)
REWARD_COLUMNS = ("clicks", "reward_missing", "reward_unknown", "reward_unclicked", "reward_largest")
TOTALS = ("duplicates", "late", "ties", "seen_later", "rows", "changed", "digest")
LATE_EVENTS = "sum(departures) > 1 OR min(t) FILTER (departures > 0) < max(t)"
DIGEST_MODULUS = 2**61 - 1


class Rules:
    """SQL for a log with the given column types; each method returns text and runs nothing."""

    def __init__(self, spec: LogSpec, columns: dict[str, str], source: str) -> None:
        self.spec, self.columns = spec, columns
        is_given = spec.inactive_after is not None
        self.fields, self.guessed = find_columns(spec.all_columns, list(columns), source, is_given)
        self.types = dict.fromkeys(OPTIONAL, "BOOLEAN") | {
            field: columns[name] for field, name in self.fields.items()
        }
        self.kinds = {field: column_kind(column_type) for field, column_type in self.types.items()}
        self._check_types()
        # Of missing categories, words are tested only where they occur: the test takes a tenth of a reading.
        self.missing_words: tuple[str, ...] = () if spec.categories is None else MISSING_WORDS
        self.profile_columns = PROFILE_COLUMNS + (REWARD_COLUMNS if spec.reward else ())

    def raw(self) -> str:
        """The view `raw`: the columns of the source under the names of their fields."""
        columns = []
        for field, name in self.fields.items():
            text = self.kinds[field] == "text" or is_segment(field)
            columns.append(f"{as_text(quoted(name), self.types[field]) if text else quoted(name)} AS {field}_")
        columns += [f"NULL::BOOLEAN AS {field}_" for field in OPTIONAL if field not in self.fields]
        alias = self.unused_name("source_row")
        return f"CREATE VIEW raw AS SELECT {alias} AS full_row, {', '.join(columns)} FROM source AS {alias}"

    def unused_name(self, name: str) -> str:
        """`name`, with underscores if the source has such a column."""
        while name in {column.lower() for column in self.columns}:
            name += "_"
        return name

    def checked(
        self, time: TimeColumn, categories: tuple[str, ...] | None, segments: SegmentCodes | None = None
    ) -> list[str]:
        """The view `checked`: every row in the columns of the rules, with a rejection code if it is rejected.

        Flags in text columns have few distinct values, so each value is parsed once, in a table of its own.
        """
        statements, joins = [] if categories is None else [category_type(categories)], ""
        clicked, clicked_number = self._flag("clicked")
        departed, departed_number = self._flag("departed")
        propensity = "TRY_CAST(propensity_ AS DOUBLE)"
        propensity = (
            f"CASE WHEN isfinite({propensity}) AND {propensity} > 0 AND {propensity} <= 1 THEN {propensity} END"
        )
        for field in FLAG_WORDS:
            if self.kinds[field] == "text":
                value, other = self._parse_flag(field)
                statements.append(
                    f"CREATE OR REPLACE TABLE {field}_values AS SELECT {field}_, {value} AS value, {other} AS other "
                    f"FROM (SELECT DISTINCT {field}_ FROM raw)"
                )
                joins += f" LEFT JOIN {field}_values USING ({field}_)"
        others = ""
        if segments is not None:
            statements.append(segments.table())
            joins += segments.join()
            others += f", {segments.code()} AS s"
        if self.spec.reward is not None:
            others += self._reward(clicked)
        tests = (
            self.missing("user"),
            self.missing("time"),
            "t IS NULL",
            "false" if time.first is None else f"t < {time.first}",
            "false" if time.last is None else f"t > {time.last}",
            self.missing("category"),
            "false" if categories is None else "TRY_CAST(c AS category) IS NULL",
            self.missing("clicked"),
            "y IS NULL",
        )
        cases = " ".join(f"WHEN {test} THEN {i}" for i, test in enumerate(tests, 1))
        statements.append(
            f"CREATE OR REPLACE VIEW checked AS SELECT *, (CASE {cases} END)::UTINYINT AS rejection_code FROM ("
            f"SELECT raw.*, user_ AS u, {time.sql} AS t, {self._category()} AS c, {clicked} AS y, "
            f"CASE {departed} WHEN true THEN 2 WHEN false THEN 0 ELSE 1 END AS d, {propensity} AS p, "
            f"{clicked_number} AS clicked_number, {departed_number} AS departed_number, "
            f"{self.missing('departed')} AS departed_missing, {self.missing('propensity')} AS propensity_missing"
            f"{others} FROM raw{joins})"
        )
        return statements

    def _reward(self, clicked: str) -> str:
        """Columns of the reward of a click."""
        number, missing = "TRY_CAST(reward_ AS DOUBLE)", self.missing("reward")
        return (
            f", CASE WHEN {clicked} AND isfinite({number}) AND {number} >= 0 THEN {number} END AS r, "
            f"coalesce({clicked} AND {missing}, false) AS reward_missing, "
            f"NOT {clicked} AND NOT {missing} AND coalesce({number} != 0, true) AS reward_unclicked"
        )

    def _check_types(self) -> None:
        for field, name in self.fields.items():
            kind, column_type = self.kinds[field], self.types[field]
            if is_nested(column_type) and field != "time":
                label = "segment" if is_segment(field) else field
                raise InputError(
                    f"Column {name!r} for {label} is of type {column_type}; expected one value per row: expand lists "
                    "to one row per recommendation first."
                )
            if field in FLAG_WORDS and kind not in ("boolean", "text", "integer", "number"):
                raise InputError(
                    f"Column {name!r} for {field} is of type {column_type}; expected true or false, 0 or 1, or yes "
                    "or no."
                )

    def missing(self, field: str) -> str:
        """Condition for a missing value; a category that the caller lists is never missing."""
        if self.kinds[field] == "text" and field == "category":
            listed = self.spec.categories or ()
            return is_missing_text("category_", [word for word in self.missing_words if word not in listed])
        if self.kinds[field] == "text":
            return is_missing_text(f"{field}_")
        if self.types[field] in FLOATING:
            return f"({field}_ IS NULL OR isnan({field}_))"
        return f"{field}_ IS NULL"

    def _flag(self, field: str) -> tuple[str, str]:
        """SQL of a flag as true, false or NULL, and of a number in its place that is neither 0 nor 1."""
        if self.kinds[field] == "text":
            return f"{field}_values.value", f"{field}_values.other"
        return self._parse_flag(field)

    def _parse_flag(self, field: str) -> tuple[str, str]:
        return parse_flag(field, self.kinds[field], self.spec.values.get(field), self.missing(field))

    def labels(self, field: str) -> str:
        """Query for the most frequent labels of a flag, with the number of rows and the flag of each."""
        flag, _ = self._parse_flag(field)
        return (
            f"SELECT {label(f'{field}_')}, count(*), any_value({flag}) FROM raw WHERE NOT {self.missing(field)} "
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 100"
        )

    def named_values(self, field: str) -> str:
        """Query for the number of rows with each value of a flag that the caller names."""
        number = f"TRY_CAST({field}_ AS DOUBLE)"
        values = (is_value(f"{field}_", number, value) for value in self.spec.values[field])
        return f"SELECT {', '.join(f'count(*) FILTER ({condition})' for condition in values)} FROM raw"

    def time_bins(self, time: TimeColumn, first: int, last: int) -> str:
        """Query for the rows in each of `TIME_BINS` intervals from `first` to `last`: number, first and last time."""
        return (
            f"SELECT floor((t - ({first}))::DOUBLE * {TIME_BINS / (last - first + 1)!r})::TINYINT, count(*), min(t), "
            f"max(t) FROM (SELECT {time.sql} AS t FROM raw) WHERE t BETWEEN {first} AND {last} GROUP BY 1"
        )

    def _category(self) -> str:
        return as_text("category_", self.types["category"])

    def category_counts(self) -> str:
        """Query for the most frequent categories of the source, with the number of rows of each."""
        return (
            f"SELECT {self._category()}, count(*) FROM raw WHERE NOT {self.missing('category')} GROUP BY 1 "
            f"ORDER BY 2 DESC, 1 LIMIT {MAX_CATEGORIES}"
        )

    def profile(self, time: TimeColumn) -> str:
        """Query with one row per rejection code and per used category, codes first, cut after too many categories.

        The columns are the code, the category and `PROFILE_COLUMNS`.
        """
        is_midnight = f"t % {DAY} = 0" if time.is_clock else "false"
        rewards = ""
        if self.spec.reward is not None:
            counts = ("y", "reward_missing", "y AND r IS NULL", "reward_unclicked")
            rewards = "".join(f", count(*) FILTER ({each})" for each in counts) + ", max(r)"
        return (
            "SELECT rejection_code, CASE WHEN rejection_code IS NULL THEN c END AS c, count(*), min(t), max(t), "
            "min(clicked_number), min(departed_number), count(*) FILTER (departed_missing), count(*) FILTER (d = 1), "
            f"count(*) FILTER (propensity_missing), count(*) FILTER (p IS NULL), count(*) FILTER ({is_midnight})"
            f"{rewards} FROM checked GROUP BY ALL "
            f"ORDER BY rejection_code NULLS LAST, c LIMIT {len(REJECTION_REASONS) + MAX_CATEGORIES + 1}"
        )

    def examples(self, relation: str, where: str) -> str:
        """Query for the alphabetically first rows of `relation` as text."""
        values = (
            f"{literal(name + ' ')} || coalesce(full_row[{literal(name)}]::VARCHAR, 'missing')"
            for name in dict.fromkeys(self.fields.values())
        )
        example = f"concat_ws(', ', {', '.join(values)})"
        return f"SELECT unnest(min({example}, {MAX_EXAMPLES})) FROM {relation} WHERE {where}"

    def open_rows(self, code: int) -> str:
        """Query for the number of users whose last row is rejected with this code."""
        return (
            "SELECT count(*) FROM (SELECT max(t) AS last, max(CASE WHEN rejection_code = "
            f"{code} THEN t END) AS latest FROM checked WHERE rejection_code IS NULL OR rejection_code >= "
            f"{USER_AND_TIME_KNOWN} GROUP BY u) AS ends WHERE latest = last"
        )

    def users(self, profile: Profile) -> list[str]:
        """Tables of users, given the type `category`.

        `events` are all used rows, `groups` users with equal counts and ends, irregular users each apart, `corrected`
        the events of users with duplicates or events after a departure, each with its rejection reason if it has one,
        and `histories` the groups after correction.
        """
        limit = "" if profile.has_rejected else "LIMIT 0"  # spares a pass over the source
        twice = "false" if self.spec.keep_duplicates else "max(n) > 1"
        copy = "1" if self.spec.keep_duplicates else "row_number() OVER (PARTITION BY u, t, full_row)"
        events = profile.event_columns
        sums = "".join(f"sum({name}) AS {name}, " for name in profile.history_sums)
        return [
            "CREATE TABLE rejected_users AS SELECT u, max(t) AS until FROM checked "
            f"WHERE rejection_code >= {USER_AND_TIME_KNOWN} GROUP BY u {limit}",
            f"CREATE VIEW events AS SELECT {events}, full_row FROM ("
            "SELECT *, enum_code(TRY_CAST(c AS category))::INTEGER AS k FROM checked WHERE rejection_code IS NULL)",
            f"CREATE TABLE candidate_groups AS {grouped(profile, 'events', 'CASE WHEN may_be_irregular THEN u END')}",
            f"CREATE TABLE irregular AS SELECT {events} FROM events SEMI JOIN candidate_groups ON u = irregular_user",
            "CREATE TABLE irregular_users AS SELECT u FROM ("
            "SELECT u, t, count(*) AS n, count(*) FILTER (d = 2) AS departures FROM irregular GROUP BY u, t) "
            f"GROUP BY u HAVING max(n) > 1 OR {LATE_EVENTS}",
            f"CREATE TABLE groups AS SELECT i.u AS irregular_user, {profile.history_columns}, "
            f"sum(users)::BIGINT AS users, {sums}min(sample_user) AS sample_user "
            "FROM candidate_groups LEFT JOIN irregular_users AS i ON i.u = irregular_user GROUP BY ALL",
            "DROP TABLE candidate_groups",
            "DELETE FROM irregular WHERE u NOT IN (FROM irregular_users)",
            "CREATE TABLE corrected_users AS SELECT u FROM ("
            "SELECT u, t, count(*) AS n, count(*) FILTER (d = 2) AS departures FROM irregular "
            f"GROUP BY u, t, k, y, d, p) GROUP BY u HAVING {twice} OR {LATE_EVENTS}",
            f"CREATE TABLE corrected AS SELECT *, CASE WHEN copy > 1 THEN {literal(DUPLICATE)} "
            f"WHEN place > departure THEN {literal(LATE)} END AS rejection_reason FROM ("
            "SELECT *, min(place) FILTER (d = 2 AND copy = 1) OVER (PARTITION BY u) AS departure FROM ("
            f"SELECT *, row_number() OVER (PARTITION BY u ORDER BY copy, t, d, k, y, p{profile.extra_columns}) "
            f"AS place FROM (SELECT *, {copy} AS copy FROM events SEMI JOIN corrected_users USING (u))))",
            "CREATE TABLE irregular_used AS "
            + placed(
                profile,
                f"SELECT {events} FROM irregular ANTI JOIN corrected_users USING (u) "
                f"UNION ALL SELECT {events} FROM corrected WHERE rejection_reason IS NULL",
            ),
            "DROP TABLE irregular",
            "CREATE VIEW ties AS SELECT u, t, count(*) AS n_events FROM irregular_used GROUP BY u, t "
            "HAVING count(*) > 1",
            "CREATE VIEW seen_later AS SELECT u, until FROM ("
            "SELECT u, max(t) AS t FROM events SEMI JOIN rejected_users USING (u) GROUP BY u HAVING max(d) < 2) "
            f"JOIN rejected_users USING (u) WHERE t < until AND NOT {is_recent(profile)}",
            "CREATE TABLE histories AS SELECT *, "
            f"row_number() OVER (ORDER BY is_irregular, {profile.history_columns}) - 1 "
            "AS history FROM ("
            "SELECT * EXCLUDE irregular_user, false AS is_irregular FROM groups WHERE irregular_user IS NULL "
            "UNION ALL BY NAME SELECT * EXCLUDE irregular_user, true AS is_irregular "
            f"FROM ({grouped(profile, 'irregular_used', 'NULL', is_placed=True)}))",
        ]

    def totals(self, profile: Profile) -> str:
        """Query for the `TOTALS` of a partition."""
        changed = "(SELECT coalesce(sum(changed), 0)::BIGINT FROM histories)" if profile.segments else "0"
        return (
            f"SELECT count(*) FILTER ({is_rejected_as(DUPLICATE)}), count(*) FILTER ({is_rejected_as(LATE)}), "
            "(SELECT coalesce(sum(n_events), 0)::BIGINT FROM ties), (SELECT count(*) FROM seen_later), "
            f"(SELECT count(*) FROM histories), {changed}, ({digest(profile)}) FROM corrected"
        )

    def histories(self, profile: Profile, max_rows: int) -> tuple[str, str]:
        """Queries for distinct histories in order, and for their cells; empty if there are more than `max_rows`."""
        if_small = f"(SELECT count(*) FROM histories) <= {max_rows}"
        return (
            f"SELECT {history_key(profile)} AS key, history_end, coalesce(last_step, 0) AS last_step, 0 AS age, "
            f"users, history{self._of_users(profile)} FROM histories WHERE {if_small} ORDER BY history",
            f"SELECT history, {step(profile)} AS code, count(*) AS n FROM ("
            "SELECT history, k, y, t FROM events JOIN histories ON u = sample_user WHERE NOT is_irregular UNION ALL "
            "SELECT history, k, y, t FROM irregular_used JOIN histories ON u = sample_user WHERE is_irregular) "
            f"WHERE {if_small} GROUP BY ALL",
        )

    @staticmethod
    def _of_users(profile: Profile) -> str:
        """Columns of segments and sums of weights of histories, if these are read."""
        columns = f", {profile.segments.index_of('segment')} AS segment" if profile.segments else ""
        if profile.half_life is not None:
            columns += f", weight::DOUBLE / {WEIGHT} AS weight"
            columns += f", weight_squares::DOUBLE / {WEIGHT**2} AS weight_squares"
        return columns

    def users_by_key(self, profile: Profile, ages: Sequence[int]) -> str:
        """Query for every user `u`: the `key` of the history, and `age`.

        `age` is the number of `ages` that the time since the last step of a user with a pending one has reached.
        """
        age = " + ".join([f"({profile.last} - t >= {each})::INTEGER" for each in ages] or ["0"])
        age = f"CASE WHEN history_end = {HistoryEnd.CENSORED_PENDING} THEN {age} ELSE 0 END"
        return (
            f"SELECT u, {history_key(profile)} AS key, {age} AS age FROM ("
            f"FROM ({user_keys(profile, 'events')}) ANTI JOIN groups ON u = irregular_user UNION ALL BY NAME "
            f"FROM ({user_keys(profile, 'irregular_used', is_placed=True)}))"
        )

    def histories_by_age(self, profile: Profile) -> str:
        """Query for distinct histories and ages of the table `users`, with the number of users of each."""
        return (
            "SELECT key, history_end, coalesce(last_step, 0) AS last_step, age, n AS users, history"
            f"{self._of_users(profile)} FROM (SELECT key, age, count(*) AS n FROM users GROUP BY ALL) "
            f"JOIN (SELECT {history_key(profile)} AS key, min(history) AS history FROM histories GROUP BY 1) "
            "USING (key) JOIN histories USING (history)"
        )

    def rejects(self) -> str:
        """Query for all rejected rows as they are in the source, each with its rejection reason."""
        cases = " ".join(f"WHEN {i} THEN {literal(reason)}" for i, reason in enumerate(REJECTION_REASONS, 1))
        name = self.unused_name("rejection_reason")
        return (
            f"SELECT unnest(full_row), CASE rejection_code {cases} END AS {name} FROM checked "
            "WHERE rejection_code IS NOT NULL "
            f"UNION ALL BY NAME SELECT unnest(full_row), rejection_reason AS {name} FROM corrected "
            "WHERE rejection_reason IS NOT NULL "
            f"UNION ALL BY NAME SELECT line AS {name} FROM malformed"
        )

    def steps(self, profile: Profile, users: str = "true", final: bool = False) -> str:
        """Query for the used steps of the users `u` with the property `users`, in no order.

        With `final` there is a column of that name: true for a pending step at the horizon if it is the only pending
        one of its user.

        The columns are `u`, `step`, `category`, `outcome`, `propensity`, `time`, `pending`, and if they are read the
        `segment` of the user and the `reward`. All windows are those of one user, so that users are never sorted
        among each other.
        """
        inner = outer = ""
        if profile.segments:
            key, modulus = first_segment(profile)
            inner += f", (min({key}) OVER whole % {modulus})::USMALLINT AS first_segment"
            outer += f", {profile.segments.index_of('first_segment')} AS segment"
        if profile.reward_scale is not None:
            inner += ", r"
            outer += ", CASE WHEN y THEN coalesce(r, 'nan') ELSE 0 END AS reward"
        if final:
            is_at_horizon = "false" if profile.horizon is None else f"n_events >= {profile.horizon}"
            inner += f", {is_at_horizon} AND NOT coalesce(lag({is_recent(profile)}) OVER steps, false) AS is_final"
            outer += ", is_last AND is_final AS final"
        events = (
            f"SELECT {profile.event_columns}, 0 AS place FROM events ANTI JOIN groups ON u = irregular_user "
            f"WHERE {users} UNION ALL BY NAME FROM irregular_used WHERE {users}"
        )
        outcome = f"CASE WHEN y THEN CASE WHEN departs THEN {CLICK_DEPART} ELSE {CLICK} END "
        outcome += f"WHEN departs THEN {DEPART} ELSE {STAY} END"
        return (
            f"SELECT u, step, k AS category, {outcome} AS outcome, coalesce(p, 'nan') AS propensity, "
            f"(t - ({profile.first}))::DOUBLE / {max(profile.last - profile.first, 1)} AS time, "
            f"user_end IN ({HistoryEnd.CENSORED_PENDING}, {HistoryEnd.DEPARTED_RECENT}) AND "
            f"(is_last OR {is_recent(profile)}) AS pending{outer} "
            f"FROM (SELECT *, user_end IN ({HistoryEnd.DEPARTED_LOGGED}, "
            f"{HistoryEnd.DEPARTED_INACTIVE}) AND is_last AS departs FROM ("
            f"SELECT u, k, y, p, t{inner}, row_number() OVER steps - 1 AS step, "
            f"lead(k) OVER steps IS NULL AS is_last, last_value({history_end(profile, 'd')}) OVER whole AS user_end "
            f"FROM ({counted(profile, events)}) LEFT JOIN rejected_users USING (u) "
            "WINDOW steps AS (PARTITION BY u ORDER BY t, place), whole AS (PARTITION BY u ORDER BY t, place "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)))"
        )

    def episodes(self, profile: Profile) -> str:
        """The table `episodes`: all used steps in order, users numbered from 0 in the order of the user column."""
        return (
            "CREATE TABLE episodes AS SELECT dense_rank() OVER (ORDER BY u) - 1 AS user, * EXCLUDE u "
            f"FROM ({self.steps(profile)})"
        )

    def sample(self, profile: Profile, events: int) -> str:
        """Query for the steps of a random sample of users, in the order of the hashes `h` of the users.

        Users are sampled before anything is sorted: those whose hash is below a share of all hashes. The share is for
        `SAMPLE_EVENTS`, and for more users than `SAMPLE_USERS`, by nine standard deviations.
        """
        share = min(SAMPLE_EVENTS / max(events, 1), 1.0)
        enough = SAMPLE_USERS + 9 * SAMPLE_USERS**0.5
        least = f"(SELECT least({share!r}, {enough!r} / greatest(sum(users), 1)) FROM groups)"
        return (
            "SELECT hash(u) AS h, step::UINTEGER AS step, category::USMALLINT AS category, "
            "outcome::UTINYINT AS outcome, propensity, time::FLOAT AS time, pending"
            f"{', segment' if profile.segments else ''}{', reward' if profile.reward_scale else ''} "
            f"FROM ({self.steps(profile, f'hash(u)::DOUBLE <= {2.0**64!r} * {least}')}) ORDER BY h, u, step"
        )

    def walks(self, profile: Profile, first: int | None) -> list[str]:
        """The table `walks`: steps of the users whose first step shows the category `first`, or of all.

        The steps are those of `Histories.confirmed`: confirmed ones, and the last one at the horizon.
        """
        statements, users = [], "true"
        if first is not None:
            statements.append(
                "CREATE TABLE first_users AS SELECT u FROM events ANTI JOIN groups ON u = irregular_user GROUP BY u "
                f"HAVING arg_min(k, t) = {first} "
                f"UNION ALL SELECT u FROM irregular_used GROUP BY u HAVING arg_min(k, place) = {first}"
            )
            users = "u IN (FROM first_users)"
        return [
            *statements,
            "CREATE TABLE walks AS SELECT u, step::UINTEGER AS step, category::USMALLINT AS category, "
            "outcome::UTINYINT AS outcome, propensity"
            f"{', segment' if profile.segments else ''}{', reward' if profile.reward_scale else ''} "
            f"FROM ({self.steps(profile, users, final=True)}) WHERE NOT pending OR final",
        ]


def category_type(categories: Sequence[str]) -> str:
    """The type `category`, whose codes are the indices of the categories."""
    return f"CREATE TYPE IF NOT EXISTS category AS ENUM ({', '.join(map(literal, categories))})"


def as_text(column: str, column_type: str) -> str:
    """SQL of a name in a column: integers have no decimals, also in a column of floats.

    A column of integers with missing values is one of floats in pandas.
    """
    text = f"{column}::VARCHAR"
    if column_type not in FLOATING:
        return text
    is_integer = f"{column} = trunc({column}) AND abs({column}) < {MAX_INTEGER}"
    return f"CASE WHEN {is_integer} THEN {column}::BIGINT::VARCHAR ELSE {text} END"


def is_segment(field: str) -> bool:
    """Return True for the field of a column of segments."""
    return field.startswith("segment_")


def history_hash(profile: Profile) -> str:
    """SQL of the hash of a history: of counts, end and segment."""
    return f"hash({profile.history_columns})"


def history_key(profile: Profile) -> str:
    """SQL of the key of histories with equal counts, ends and segments, in all partitions."""
    return f"({history_hash(profile)} >> 1)::BIGINT"


def digest(profile: Profile) -> str:
    """Query for the checksum of the users of a partition."""
    return (
        f"SELECT coalesce(sum(({history_hash(profile)} >> 32)::HUGEINT * users) "
        f"% {DIGEST_MODULUS}, 0)::BIGINT AS digest FROM histories"
    )


def is_rejected_as(reason: str) -> str:
    """Condition for a row of `corrected` with this rejection reason."""
    return f"rejection_reason = {literal(reason)}"


def column_kind(column_type: str) -> str:
    """The kind of a column by its type in DuckDB."""
    if column_type in INTEGER:
        return "integer"
    if column_type in FLOATING or column_type in LARGE or column_type.startswith("DECIMAL"):
        return "number"
    if column_type in ("TIMESTAMP WITH TIME ZONE", ZONED_NANOSECONDS):
        return "timestamptz"
    if column_type.startswith("TIMESTAMP") or column_type == "DATE":
        return "timestamp"
    if column_type in ("VARCHAR", NULL) or column_type.startswith("ENUM"):
        return "text"
    return "boolean" if column_type == "BOOLEAN" else column_type
