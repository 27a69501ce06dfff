"""Segments of users from columns of a log.

The segment of a user is that of the first used event. A later event is not used even if the first one has no value:
users who stay longer have more events, so their segments would be known more often, and unknown segments would look
like a type that departs early. Of several events at the first time, the first known segment in order counts.

SQL columns: `s` code of an event's segment, `segment` code of the user's segment. The largest code is that of unknown
segments.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.data.flags import MISSING_WORDS
from departing.data.quality import MAX_EXAMPLES, Irregularity
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
# Words for missing values in lower case: those of all columns, and others that websites and analytics tools write.
UNKNOWN_WORDS = {word.casefold() for word in MISSING_WORDS if word != NAMIBIA} | {
    *("unknown", "(unknown)", "undefined", "(not set)", "not set", "-", "?")
}
NO_SEGMENT = ("segment is missing", "the segment of users whose first event it is, is unknown")
MERGED_SEGMENT = (
    "segment value in another spelling",
    "values that differ in case or surrounding space are one, in the most frequent spelling",
)


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
) -> tuple[SegmentCodes, tuple[Irregularity, ...], tuple[str, ...]]:
    """Segments of a log from the rows of `value_counts`, values that are missing or merged, and sentences on them."""
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
    labels, irregularities = _labels(counts, spec.missing_segment)
    numbers: defaultdict[str, int] = defaultdict(int)
    for values, name in labels.items():
        numbers[name] += counts[values]
    events = sum(counts.values())
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
    return SegmentCodes(columns, names, coded, (*range(len(names)), -1)), irregularities, sentences


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


def _labels(
    counts: Mapping[tuple[str | None, ...], int], missing: str | None
) -> tuple[dict[tuple[str | None, ...], str], tuple[Irregularity, ...]]:
    """Name of the segment for every combination of values that has one, and values that are missing or merged.

    A missing value has the name `missing`, if that is given.
    """
    width = len(next(iter(counts), ()))
    spellings = [_spellings((values[i], n) for values, n in counts.items()) for i in range(width)]
    labels, combinations = dict[tuple[str | None, ...], str](), dict[str, tuple[str, ...]]()
    for values in counts:
        parts = tuple(spelling[value] for value, spelling in zip(values, spellings, strict=True))
        known = tuple(part for part in (missing if part is None else part for part in parts) if part is not None)
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
    absent, merged = defaultdict[str, int](int), defaultdict[str, int](int)
    n_absent = n_merged = 0
    for values, n in counts.items():
        pairs = [(value, spelling[value]) for value, spelling in zip(values, spellings, strict=True)]
        if values not in labels:
            n_absent += n
            for text in {repr(value) if value else "no value" for value, name in pairs if name is None}:
                absent[text] += n
        if other := {f"{value!r} is {name!r}" for value, name in pairs if name is not None and value != name}:
            n_merged += n
            for text in other:
                merged[text] += n
    found = ((NO_SEGMENT, n_absent, absent), (MERGED_SEGMENT, n_merged, merged))
    return labels, tuple(Irregularity(*kind, n, _examples(texts)) for kind, n, texts in found if n)


def _examples(texts: Mapping[str, int]) -> tuple[str, ...]:
    """The most frequent of some texts, each with its number of events."""
    listed = sorted(texts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(f"{text} ({n:,} {'event' if n == 1 else 'events'})" for text, n in listed[:MAX_EXAMPLES])


def _spellings(counts: Iterable[tuple[str | None, int]]) -> dict[str | None, str | None]:
    """Value of a column for every spelling of it, None if it is missing.

    Values that differ in case or surrounding space are one, in the most frequent spelling.

    >>> _spellings([("de", 9), (" DE", 2), ("unknown", 1), (None, 3)])
    {'de': 'de', ' DE': 'de', 'unknown': None, None: None}
    """
    numbers: defaultdict[str | None, int] = defaultdict(int)
    for value, n in counts:
        numbers[value] += n
    folded: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for value, n in numbers.items():
        if value is not None and not _is_missing(value.strip()):
            folded[value.strip().casefold()][value.strip()] += n
    names = {key: min(same, key=lambda text: (-same[text], text)) for key, same in folded.items()}
    # NA is a country among codes of two letters.
    is_code = len(names) > 1 and all(len(name) == 2 and name.isalpha() and name.isupper() for name in names.values())
    spellings: dict[str | None, str | None] = dict.fromkeys(numbers)
    for value in numbers:
        if value is not None and value.strip() == NAMIBIA and is_code:
            spellings[value] = NAMIBIA
        elif value is not None and not _is_missing(value.strip()):
            spellings[value] = names[value.strip().casefold()]
    return spellings


def _is_missing(value: str) -> bool:
    """True for words that mean a missing value; NA is one in capital letters only."""
    return value in ("", NAMIBIA) or value.casefold() in UNKNOWN_WORDS


def _columns(columns: Sequence[str]) -> str:
    return f"Column {columns[0]!r}" if len(columns) == 1 else f"Columns {list_names(columns)}"


def _verb(columns: Sequence[str], one: str, many: str) -> str:
    return one if len(columns) == 1 else many
