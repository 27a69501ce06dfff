"""Segments in requests: a name, or features of which the name is composed."""

from collections.abc import Mapping, Sequence

from departing.model.errors import InputError
from departing.model.names import list_names
from departing.model.segments import SEPARATOR

MAX_NAME = 200  # characters of a name
# Distinct segments of a store: each has a prior of its own to estimate, and a policy in the memory of every version.
MAX_SEGMENTS = 1000


NAME = "segment"  # column of the exported log with the names
# Columns that say nothing about the features of a segment: none, or the column with the names.
UNNAMED = ((), (NAME,))


class SegmentLimitError(InputError):
    """A new segment beyond the maximum number of distinct ones."""


def segment_name(given: str | Mapping[str, str | None], columns: Sequence[str]) -> str | None:
    """Return the name of a segment: the features in the order of the columns, joined by "/"; None if one is missing.

    `columns` are those of `--segment`, or empty: a service without them accepts names only. Spaces around features
    and names are removed, as in `read_log`.

    >>> segment_name({"device": "mobile ", "country": "de"}, ["country", "device"])
    'de/mobile'
    >>> segment_name({"device": "mobile", "country": None}, ["country", "device"]) is None
    True
    """
    if isinstance(given, str):
        name = given.strip()
        if not name or len(columns) < 2:
            return name or None
        parts = [part.strip() for part in name.split(SEPARATOR)]
        if len(parts) != len(columns) or not all(parts):
            expected = f"expected {len(columns)} features joined by '/', {SEPARATOR.join(columns)}"
            raise InputError(f"segment is {given!r:.60}; {expected}.")
        return SEPARATOR.join(parts)
    if not columns:
        raise InputError("segment is an object; expected a name, or restart with --segment COLUMN,COLUMN.")
    if not given.keys() <= set(columns):
        raise InputError(
            f"segment has the features {list_names(sorted(given))}; expected {list_names(list(columns))}, as in "
            "--segment."
        )
    features = [(given.get(column) or "").strip() for column in columns]
    if len(columns) > 1:
        for column, feature in zip(columns, features, strict=True):
            if SEPARATOR in feature:
                raise InputError(f"segment.{column} is {feature!r:.60}; expected a value without '/'.")
    if not all(features):
        return None
    name = SEPARATOR.join(features)
    if len(name) > MAX_NAME:
        raise InputError(f"segment has {len(name)} characters; at most {MAX_NAME} are accepted.")
    return name


def segment_features(name: str | None, columns: Sequence[str]) -> dict[str, str | None]:
    """Return the features of a segment by column: null if the segment is unknown or composed of other columns.

    >>> segment_features("de/mobile", ["country", "device"]), segment_features("de/a", ["place"])
    ({'country': 'de', 'device': 'mobile'}, {'place': 'de/a'})
    >>> segment_features("mobile", ["country", "device"])
    {'country': None, 'device': None}
    """
    if name is None or not is_composed_of(name, columns):
        return dict.fromkeys(columns)
    return dict(zip(columns, name.split(SEPARATOR, len(columns) - 1), strict=True))


def is_composed_of(name: str, columns: Sequence[str]) -> bool:
    """Return whether the name of a segment may have a feature for each column."""
    return len(columns) == 1 or len(name.split(SEPARATOR)) == len(columns)
