"""Segments of users from columns of a log.

The segment of a user is that of the first used event. A later event is not used even if the first one has no value:
users who stay longer have more events, so their segments would be known more often, and unknown segments would look
like a type that departs early. Of several events at the first time, the first known segment in order counts.

SQL columns: `s` code of an event's segment, `segment` code of the user's segment. The largest code is that of unknown
segments.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.data.flags import MISSING_WORDS
from departing.data.spec import LogSpec, sort_categories
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.names import list_names
from departing.model.segments import SEPARATOR
from departing.model.tables import literal

MAX_VALUES = 100_000  # distinct values that the driver receives from each partition: tens of MB
# Largest share of events whose segments are beyond `max_segments`: more are a sign of a column of IDs.
MAX_OTHERS = 0.1
NAMIBIA = "NA"  # the country code is also a word for a missing value


@dataclass(frozen=True)
class SegmentCodes:
    """Codes of segments: the values of the columns that have each, and its index among the `names`.

    `values` are tuples of the values in the source, each followed by a code. `index[code]` is an index of `names`, or
    -1; it has one more entry than there are codes, for unknown segments.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    index: tuple[int, ...]

    @property
    def unknown(self) -> int:
        """The code of unknown segments."""
        return len(self.index) - 1

    def table(self) -> str:
        """The table `segment_values`: values `v0`, `v1`, … and the code `code` of each."""
        columns = ", ".join(f"v{i}" for i in range(len(self.columns)))
        rows = ", ".join(
            f"({', '.join('NULL' if value is None else literal(value) for value in values)}, {code})"
            for *values, code in self.values
        )
        typed = ", ".join(f"v{i}::VARCHAR AS v{i}" for i in range(len(self.columns)))
        return (
            f"CREATE OR REPLACE TABLE segment_values AS SELECT {typed}, code::USMALLINT AS code "
            f"FROM (VALUES {rows}) AS given({columns}, code)"
        )

    def join(self) -> str:
        """Join of the view `raw` to `segment_values`."""
        equal = " AND ".join(f"segment_{i}_ IS NOT DISTINCT FROM v{i}" for i in range(len(self.columns)))
        return f" LEFT JOIN segment_values ON {equal}"

    def code(self) -> str:
        """SQL of the code of an event, given `join`."""
        return f"coalesce(segment_values.code, {self.unknown})::USMALLINT"

    def index_of(self, code: str) -> str:
        """SQL of the index among the `names` for SQL of a code, -1 if the segment is unknown."""
        if self.index == (*range(self.unknown), -1):
            return f"CASE WHEN {code} < {self.unknown} THEN {code}::SMALLINT ELSE -1 END"
        return f"([{', '.join(map(str, self.index))}]::SMALLINT[])[{code} + 1]"

    def keep(self, is_used: Sequence[bool]) -> "SegmentCodes":
        """The same codes, with the names of the segments that are used only."""
        names = tuple(name for name, used in zip(self.names, is_used, strict=True) if used)
        index = np.where(is_used, np.cumsum(is_used) - 1, -1).tolist()
        return SegmentCodes(self.columns, names, self.values, (*index, -1))

    def reindex(self, index: Integers) -> Integers:
        """Indices of the kept names for indices of all names."""
        return np.array(self.index)[index]


def value_counts(n: int) -> str:
    """Query for the number of used rows with each combination of values of n columns."""
    columns = ", ".join(f"segment_{i}_" for i in range(n))
    return f"SELECT {columns}, count(*) FROM checked WHERE rejection_code IS NULL GROUP BY ALL LIMIT {MAX_VALUES + 1}"


def find_segments(
    parts: Iterable[tuple[Any, ...]], spec: LogSpec, source: str
) -> tuple[SegmentCodes, int, tuple[str, ...]]:
    """Segments of a log from the rows of `value_counts`, the number of events without one, and sentences on them."""
    counts: defaultdict[tuple[str | None, ...], int] = defaultdict(int)
    for row in parts:
        counts[row[:-1]] += row[-1]
    columns = spec.segments
    if len(counts) > MAX_VALUES:
        raise InputError(
            f"{_columns(columns)} of {source} {_verb(columns, 'has', 'have')} more than {MAX_VALUES:,} distinct "
            "values; expected a feature with few values, such as a country: group the values, or name another column "
            "as `segment`.",
            "segment",
        )
    labels = _labels(counts, spec.missing_segment)
    numbers: defaultdict[str, int] = defaultdict(int)
    for values, name in labels.items():
        numbers[name] += counts[values]
    events, missing = sum(counts.values()), sum(counts.values()) - sum(numbers.values())
    if not numbers:
        raise InputError(
            f"{_columns(columns)} of {source} {_verb(columns, 'holds', 'hold')} no values; name another column as "
            "`segment`, or omit it.",
            "segment",
        )
    largest = sorted(numbers, key=lambda name: (-numbers[name], name))[: spec.max_segments]
    names = sort_categories(largest)
    others = sum(numbers.values()) - sum(numbers[name] for name in names)
    sentences = _others(numbers, names, others, events, spec, source)
    code = {name: i for i, name in enumerate(names)}
    coded = tuple((*each, code[name]) for each, name in sorted(labels.items(), key=str) if name in code)
    return SegmentCodes(columns, names, coded, (*range(len(names)), -1)), missing, sentences


def _others(
    numbers: dict[str, int], names: Sequence[str], others: int, events: int, spec: LogSpec, source: str
) -> tuple[str, ...]:
    """Sentence about segments beyond the largest number of them; raise if these have too many events."""
    if not others:
        return ()
    found = f"{_columns(spec.segments)} of {source} {_verb(spec.segments, 'has', 'have')} {len(numbers):,} segments"
    share = f"{others / events:.1%} of the events"
    if others > MAX_OTHERS * events:
        raise InputError(
            f"{found}, and those beyond the {spec.max_segments:,} largest have {share}; expected at most "
            f"{MAX_OTHERS:.0%}: group the values, name fewer columns as `segment`, or raise `max_segments`.",
            "max_segments",
        )
    return (f"{found}; the {len(names):,} largest are used, the segments of the other events ({share}) are unknown.",)


def _labels(counts: Iterable[tuple[str | None, ...]], missing: str | None) -> dict[tuple[str | None, ...], str]:
    """Name of the segment for every combination of values that has one.

    Surrounding whitespace does not matter. A missing value has the name `missing`, if that is given.
    """
    rows = [tuple(None if value is None else value.strip() for value in values) for values in counts]
    words = [_missing_words({row[i] for row in rows}) for i in range(len(rows[0]) if rows else 0)]
    labels, combinations = dict[tuple[str | None, ...], str](), dict[str, tuple[str, ...]]()
    for values, row in zip(counts, rows, strict=True):
        parts = tuple(
            missing if value is None or value in unused else value for value, unused in zip(row, words, strict=True)
        )
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts):
            continue
        name = SEPARATOR.join(known)
        if combinations.setdefault(name, known) != known:
            raise InputError(
                f"The values {list_names(known)} and {list_names(combinations[name])} have the same name {name!r} as "
                f"segments; expected values without {SEPARATOR!r}: replace it by another character.",
                "segment",
            )
        labels[values] = name
    return labels


def _missing_words(values: set[str | None]) -> set[str]:
    """Text that is missing in a column with these values: NA is a country among codes of two letters."""
    others = [value for value in values if value and value not in MISSING_WORDS]
    is_code = len(others) > 1 and all(len(value) == 2 and value.isalpha() and value.isupper() for value in others)
    return {"", *MISSING_WORDS} - ({NAMIBIA} if is_code else set())


def _columns(columns: Sequence[str]) -> str:
    return f"Column {columns[0]!r}" if len(columns) == 1 else f"Columns {list_names(columns)}"


def _verb(columns: Sequence[str], one: str, many: str) -> str:
    return one if len(columns) == 1 else many
