"""The time column of a log as SQL: timestamps, dates, epochs and other numbers, and text in several orders.

Text is parsed as ISO 8601 first. Other text is rewritten as ISO 8601, with the order of day and month that the values
of the column determine; the rest of a value, its time of day and its zone, is parsed alike in every order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np

from departing.data.spec import parse_inactivity
from departing.model.errors import InputError
from departing.model.tables import literal

MICRO = 10**6
ZONED_NANOSECONDS = "TIMESTAMPTZ_NS"  # a type that few functions of DuckDB accept
DAY = 86400 * MICRO
EPOCHS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
# Numbers in this range count as an epoch of the unit; the ranges of different units are disjoint.
EPOCH_RANGE = (631_152_000, 4_102_444_800)  # 1990 to 2100, in seconds
FIRST_DATE = 19_700_101  # least number that counts as a date, of which the digits are in one of these formats
DATE_NUMBERS = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
HAS_ZONE = r"regexp_matches(time_, ':[0-9.]+\s*(z|[+-][0-9]{2}(:?[0-9]{2})?|[a-z]+(/[a-z_]+)*)\s*$', 'i')"
ISO = "TRY_CAST(time_ AS TIMESTAMPTZ)"
FULL_YEAR = "TIMESTAMPTZ '1000-01-01'"  # DuckDB reads 31-12-24 as a day of the year 31
YEAR_LAST = r"^\s*([0-9]{1,2})([/.-])([0-9]{1,2})[/.-]([0-9]{4})\b,?"
TWELVE_HOURS = tuple(f"%Y-%m-%d %I:%M{seconds} %p" for seconds in ("", ":%S", ":%S.%f"))
NAMED_MONTHS = tuple(
    f"{date}{time}"
    for date in ("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y")
    for time in ("", " %H:%M", " %H:%M:%S")
)
ORDERS = {"day": r"\4-\3-\1", "month": r"\4-\1-\3"}  # by what comes first; replacement of YEAR_LAST
COUNTS = (
    *("rows", "numbers", "integers", "timestamps", "zoned", "others"),
    *("year_last", "day_first", "month_first", "dotted"),
)


@dataclass(frozen=True)
class TimeColumn:
    """The time column as an integer: its SQL, units per second or per 1, and true if it holds timestamps.

    Times before `first` and after `last` are far from all others; None if there are none.
    """

    sql: str
    units: int
    is_clock: bool
    first: int | None = None
    last: int | None = None

    def format(self, t: int | None) -> str:
        """One time as text."""
        if t is None:
            return "?"
        if self.is_clock:
            micro = t * MICRO // self.units
            return str(np.datetime64(int(micro), "us")).replace("T", " ").removesuffix(".000000")
        return f"{t / self.units:.15g}" if self.units > 1 else str(t)

    def period(self, value: Any, column: str) -> int:
        """An inactivity period in units of the column."""
        return round(parse_inactivity(value, self.is_clock, column) * self.units)

    def duration(self, value: Any, column: str, parameter: str) -> float:
        """A duration in units of the column."""
        return parse_inactivity(value, self.is_clock, column, parameter) * self.units


def find_time_column(
    rows: Callable[[str], list[tuple[Any, ...]]], column: str, column_type: str, kind: str, time_format: str | None
) -> tuple[TimeColumn, tuple[str, ...], int]:
    """The time column of the view `raw`, sentences on what was inferred, and the number of times without a zone.

    Parameters
    ----------
    rows : callable
        Returns the rows of a query, of all partitions.
    column, column_type, kind : str
        Name, type in DuckDB, and kind of the column, whose values are `time_` in `raw`.
    time_format : str or None
        Format that the caller states.

    Returns
    -------
    time : TimeColumn
    sentences : tuple of str
    without_zone : int
        Number of timestamps that lack the zone that others have.
    """
    if time_format is not None:
        if kind not in ("text", "integer"):
            raise InputError(
                f"time_format is {time_format!r}, but column {column!r} for time is of type {column_type}, not text; "
                "leave it out.",
                "time_format",
            )
        return formatted_column(time_format), (), 0
    if kind != "text":
        return typed_column(kind, column, column_type), (), 0
    counts = dict(zip(COUNTS, map(sum, zip((0,) * len(COUNTS), *rows(time_counts()), strict=True)), strict=True))
    example = ""
    if counts["year_last"]:
        example = min(row[0] for row in rows(year_last_example()) if row[0] is not None)
    time, sentences = text_column(counts, column, example)
    moments = counts["timestamps"] + counts["others"] + counts["year_last"]
    return time, sentences, moments - counts["zoned"] if time.is_clock and counts["zoned"] else 0


def time_counts() -> str:
    """Query for a time column of text: the numbers of values that `COUNTS` names.

    Only text that is neither a number nor ISO 8601 is matched with other orders.
    """
    order = f"CASE WHEN other IS NOT NULL THEN nullif(regexp_extract(time_, '{YEAR_LAST}', "
    return (
        "SELECT count(*), count(number), count(*) FILTER (number = TRY_CAST(time_ AS BIGINT)), count(moment), "
        f"count(*) FILTER (coalesce(moment, other) IS NOT NULL AND {HAS_ZONE}), count(other) - count(one), "
        "count(one), count(*) FILTER (one > 12), count(*) FILTER (two > 12), count(*) FILTER (sign = '.') FROM ("
        f"SELECT *, TRY_CAST({order}1), '') END AS INTEGER) AS one, TRY_CAST({order}3), '') END AS INTEGER) AS two, "
        f"{order}2), '') END AS sign FROM (SELECT *, CASE WHEN number IS NULL AND moment IS NULL "
        f"THEN coalesce({_rewritten('day')}, {_rewritten('month')}) END AS other FROM ("
        f"SELECT *, CASE WHEN number IS NULL AND {ISO} >= {FULL_YEAR} THEN {ISO} END AS moment FROM ("
        "SELECT time_, TRY_CAST(time_ AS DECIMAL(26, 6)) AS number FROM raw))))"
    )


def year_last_example() -> str:
    """Query for a value of a text column with the year last."""
    return f"SELECT min(time_) FROM raw WHERE regexp_matches(time_, '{YEAR_LAST}')"


def text_column(counts: dict[str, int], column: str, example: str) -> tuple[TimeColumn, tuple[str, ...]]:
    """The time column of text with these counts, and sentences on what was inferred; `example` has the year last."""
    moments = counts["timestamps"] + counts["others"] + counts["year_last"]
    if counts["numbers"] >= moments:
        if counts["integers"] == counts["numbers"]:
            return TimeColumn("TRY_CAST(time_ AS BIGINT)", 1, False), ()
        return TimeColumn(f"(TRY_CAST(time_ AS DECIMAL(26, 6)) * {MICRO})::HUGEINT", MICRO, False), ()
    if moments == counts["timestamps"]:
        return _clock(f"CASE WHEN {ISO} >= {FULL_YEAR} THEN {ISO} END"), ()
    first: str = "day"
    sentences: tuple[str, ...] = ()
    if counts["year_last"]:
        first = _order(counts, column, example)
        reason = "a day above 12 occurs" if counts[f"{first}_first"] else "that is the order with dots"
        sentences = (f"Dates in column {column!r} are read with the {first} first, because {reason}.",)
    iso = f"CASE WHEN {ISO} >= {FULL_YEAR} THEN {ISO} END"
    return _clock(f"coalesce({iso}, {_rewritten(first)})"), sentences


def typed_column(kind: str, column: str, column_type: str) -> TimeColumn:
    """The time column of another type than text."""
    if kind == "integer":
        return TimeColumn("time_::BIGINT", 1, False)
    if kind == "number":
        return TimeColumn(f"(TRY_CAST(time_ AS DECIMAL(26, 6)) * {MICRO})::HUGEINT", MICRO, False)
    if kind not in ("timestamp", "timestamptz"):
        raise InputError(
            f"Column {column!r} for time is of type {column_type}; expected timestamps, dates or numbers."
        )
    if column_type == ZONED_NANOSECONDS:
        return _clock("time_::TIMESTAMPTZ")
    return _clock("time_", "time_::TIMESTAMP" if kind == "timestamp" else "time_")


def formatted_column(time_format: str) -> TimeColumn:
    """The time column in a format that the caller states."""
    return _clock(f"try_strptime(trim(time_::VARCHAR), {literal(time_format)})")


def epoch_counts(time: TimeColumn, last: int | None) -> str | None:
    """Query for the number of times, and of those in the range of an epoch of each unit; None if there is none."""
    if time.is_clock or last is None or last < EPOCH_RANGE[0] * time.units:
        return None
    ranges = ([end * unit * time.units for end in EPOCH_RANGE] for unit in EPOCHS.values())
    counts = ", ".join(f"count(*) FILTER (t BETWEEN {first} AND {last})" for first, last in ranges)
    return f"SELECT count(t), {counts} FROM (SELECT {time.sql} AS t FROM raw)"


def as_epoch(time: TimeColumn, counts: Sequence[int], column: str) -> tuple[TimeColumn, tuple[str, ...]]:
    """The column as timestamps if most of its numbers are in the range of an epoch, given `epoch_counts`."""
    numbers, *by_unit = counts
    units = {unit: n for unit, n in zip(EPOCHS, by_unit, strict=True) if n}
    if not units or sum(by_unit) * 2 < numbers:
        return time, ()
    if len(units) > 1:
        listed = " and ".join(f"{unit} ({n:,} rows)" for unit, n in units.items())
        raise InputError(
            f"Column {column!r} for time mixes times since 1970 in {listed}; convert all of them to one unit first."
        )
    (unit,) = units
    sentence = f"Numbers in column {column!r} are read as {unit} since 1970."
    if EPOCHS[unit] >= MICRO:  # no more decimals: periods in units of the column have to fit into 64 bits
        return TimeColumn(_whole(time.sql, time.units), EPOCHS[unit], True), (sentence,)
    return replace(time, units=time.units * EPOCHS[unit], is_clock=True), (sentence,)


def date_counts(time: TimeColumn, last: int | None) -> str | None:
    """Query for the number of times, and of those whose digits are a date, by format; None if there is none."""
    if time.is_clock or last is None or last < FIRST_DATE * time.units:
        return None
    dates = ", ".join(f"count(*) FILTER ({_date('t', time.units, form)} IS NOT NULL)" for form in DATE_NUMBERS)
    return f"SELECT count(t), {dates} FROM (SELECT {time.sql} AS t FROM raw)"


def as_date(time: TimeColumn, counts: Sequence[int], column: str) -> tuple[TimeColumn, tuple[str, ...]]:
    """The column as timestamps if most of its numbers are dates in one format, given `date_counts`."""
    numbers, *by_format = counts
    most = max(by_format)
    if most * 2 < numbers:
        return time, ()
    form = DATE_NUMBERS[by_format.index(most)]
    sentence = f"Numbers in column {column!r} are read as dates in the format {form!r}."
    return _clock(_date(time.sql, time.units, form)), (sentence,)


def _date(time: str, units: int, form: str) -> str:
    """SQL of a time whose digits are a date in this format, since 1970; floats may be off by a fraction."""
    number = _whole(time, units)
    date = f"try_strptime(({number})::VARCHAR, {literal(form)})"
    return f"CASE WHEN {number} >= {FIRST_DATE} AND {date} >= TIMESTAMP '1970-01-01' THEN {date} END"


def _whole(time: str, units: int) -> str:
    """SQL of a time as an integer."""
    return time if units == 1 else f"({time} + {units // 2}) // {units}"


def check_format(time_format: str | None) -> str | None:
    """`time_format` if DuckDB can parse times with it."""
    if time_format is None:
        return None
    expected = "expected a format such as '%d/%m/%Y %H:%M' or '%Y%m%d'"
    if not isinstance(time_format, str) or "%" not in time_format:
        raise InputError(f"time_format is {time_format!r:.80}; {expected}.", "time_format")
    try:
        with duckdb.connect() as database:
            database.execute(f"SELECT try_strptime('', {literal(time_format)})::VARCHAR")
    except duckdb.Error as error:
        raise InputError(f"time_format is {time_format!r:.80}; {expected}.", "time_format") from error
    return time_format


def _clock(value: str, instant: str | None = None) -> TimeColumn:
    return TimeColumn(f"CASE WHEN isfinite({value}) THEN epoch_us({instant or value}) END", MICRO, True)


def _rewritten(first: str) -> str:
    """SQL of text that is not ISO 8601 as a timestamp; `first` of day and month comes first if the year is last."""
    text = f"regexp_replace(trim(time_), '{YEAR_LAST}', '{ORDERS[first]}')"
    text = rf"regexp_replace({text}, '^([0-9]{{4}})\.([0-9]{{1,2}})\.([0-9]{{1,2}})', '\1-\2-\3')"
    text = rf"regexp_replace({text}, '(:[0-9]+),([0-9]+)', '\1.\2')"
    text = rf"regexp_replace({text}, '([0-9])\s+([+-])([0-9]{{2}}):?([0-9]{{2}})$', '\1\2\3:\4')"
    cast = f"TRY_CAST({text} AS TIMESTAMPTZ)"
    formats = ", ".join(map(literal, (*TWELVE_HOURS, *NAMED_MONTHS)))
    other = f"try_strptime({text}, [{formats}])"
    return f"coalesce(CASE WHEN {cast} >= {FULL_YEAR} THEN {cast} END, {other}::TIMESTAMPTZ)"


def _order(counts: dict[str, int], column: str, example: str) -> str:
    """First part of dates with the year last: day or month."""
    day, month = counts["day_first"], counts["month_first"]
    rest = example.partition(" ")[2]
    time = {0: "", 1: " %H:%M", 2: " %H:%M:%S"}.get(rest.count(":"), "")
    sign = next((each for each in example if each in "/.-"), "/")
    formats = [f"'{sign.join(order)}{time}'" for order in (("%d", "%m", "%Y"), ("%m", "%d", "%Y"))]
    step = f"give `time_format`={formats[0]} or `time_format`={formats[1]}"
    if day and month:
        raise InputError(
            f"Column {column!r} for time mixes dates with the day first ({day:,} rows at least) and with the month "
            f"first ({month:,} rows at least), such as {example!r}; {step}, which rejects the others."
        )
    if not day and not month and counts["dotted"] < counts["year_last"]:
        raise InputError(
            f"Column {column!r} for time holds dates such as {example!r}, in which the order of day and month is "
            f"ambiguous; {step}."
        )
    return "month" if month else "day"
