"""Arguments of `read_log` after validation, and the outcome of a reading before it becomes a `Log`."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from departing.data.columns import OPTIONAL
from departing.data.quality import LogReport
from departing.data.rewards import RewardStats
from departing.data.sample import Sample
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance_fields import check_unit
from departing.model.names import check_names

MAX_CATEGORIES = 1000  # bounds `counts[N, K, 4]`: one distinct row takes 32 kB at K = 1,000
MAX_REJECTED = 0.05  # default largest share of rejected rows: a few bad rows pass, a misread column does not
AUTO = "auto"  # `inactive_after` that is suggested from the log
# Default largest number of segments: more than the combinations of devices and most countries of a site. Every one of
# them has a prior, and users with equal counts are one row for each segment.
MAX_SEGMENTS = 200
MOST_SEGMENTS = 10_000  # codes of segments are integers of 16 bits
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
SECONDS |= {unit[0]: seconds for unit, seconds in SECONDS.items() if unit != "minute"}  # "m" may mean months
DURATION = "a duration such as '14 days' or '30 minutes' (seconds, minutes, hours, days or weeks; more than 0)"


@dataclass(frozen=True)
class LogSpec:
    """Validated arguments of `read_log`: the column of every field, and how to read them.

    `values` are the values of clicked and departed that mean a click and a departure, where the caller names them.
    `segments` are the columns of segments, and `missing_segment` the name of a missing value in them.
    """

    columns: Mapping[str, str | None]
    inactive_after: Any = None
    categories: tuple[str, ...] | None = None
    keep_duplicates: bool = False
    max_rejected: float = MAX_REJECTED
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    time_format: str | None = None
    segments: tuple[str, ...] = ()
    missing_segment: str | None = None
    max_segments: int = MAX_SEGMENTS
    reward: str | None = None
    unit: str | None = None
    horizon: int | None = None

    @property
    def all_columns(self) -> dict[str, str | None]:
        """The column of every field, those of segments and rewards included."""
        others = {f"segment_{i}": name for i, name in enumerate(self.segments)}
        return {**self.columns, **({"reward": self.reward} if self.reward else {}), **others}

    def __post_init__(self) -> None:
        for field_name, name in self.columns.items():
            optional = field_name in OPTIONAL
            if not (isinstance(name, str) and name) and not (optional and name is None):
                raise InputError(
                    f"{field_name} is {name!r:.80}; expected the name of a column{' or None' if optional else ''}."
                )
        distinct = [self.columns[each] for each in ("user", "time", "category")]
        if len(set(distinct)) < 3:
            name = next(name for i, name in enumerate(distinct) if name in distinct[:i])
            raise InputError(f"Column {name!r} is named for two of user, time and category; expected three columns.")
        for name in self.segments:
            others = [each for each, other in self.columns.items() if other == name]
            if others:
                raise InputError(
                    f"Column {name!r} is named for segment and for {others[0]}; expected a feature of users, such "
                    "as a country.",
                    "segment",
                )
        if self.reward is not None and self.reward in (self.columns["user"], self.columns["category"]):
            raise InputError(f"Column {self.reward!r} is named for reward and for another field.", "reward")


@dataclass(frozen=True)
class LogSummary:
    """Result of reading all rows: distinct histories, a report, a checksum of all users, and steps of some users."""

    histories: Histories
    report: LogReport
    digest: int
    sample: Sample
    rewards: RewardStats | None = None


def parse_categories(categories: Iterable[object] | None) -> tuple[str, ...] | None:
    """Category names as text, each once, or None where the log defines them."""
    if categories is None:
        return None
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        raise InputError(f"categories is {categories!r:.80}; expected a list of names.", "categories")
    names = check_names("categories", list(map(str, categories)))
    if len(names) > MAX_CATEGORIES:
        raise InputError(f"categories has {len(names):,} names; expected at most {MAX_CATEGORIES:,}.", "categories")
    return names


def parse_values(parameter: str, values: str | Iterable[object] | None) -> tuple[str, ...] | None:
    """Values that mean a click or a departure as text, or None where the known words apply.

    >>> parse_values("clicked_values", ["click", 4]), parse_values("clicked_values", "click")
    (('click', '4'), ('click',))
    """
    if values is None:
        return None
    if not isinstance(values, Iterable):
        raise InputError(f"{parameter} is {values!r:.80}; expected a list of values such as 'click'.", parameter)
    return check_names(parameter, [values] if isinstance(values, str) else list(map(str, values)))


def parse_segments(segment: str | Iterable[str] | None) -> tuple[str, ...]:
    """Columns of segments, none by default.

    >>> parse_segments("country"), parse_segments(["country", "device"]), parse_segments(None)
    (('country',), ('country', 'device'), ())
    """
    if segment is None:
        return ()
    if not isinstance(segment, Iterable):
        raise InputError(f"segment is {segment!r:.80}; expected the name of a column, or a list of them.", "segment")
    return check_names("segment", [segment] if isinstance(segment, str) else list(segment))


def check_reward(reward: str | None, unit: str | None) -> tuple[str | None, str | None]:
    """Column and unit of rewards; the unit is that of the column's name by default."""
    if reward is None:
        if unit is not None:
            raise InputError(f"unit is {unit!r:.80}, but there is no reward; name its column as `reward`.", "unit")
        return None, None
    if not isinstance(reward, str) or not reward:
        raise InputError(f"reward is {reward!r:.80}; expected the name of a column or None.", "reward")
    return reward, check_unit(reward if unit is None else unit)


def check_missing_segment(name: str | None) -> str | None:
    """Name of missing values of segments, or None."""
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InputError(
            f"missing_segment is {name!r:.80}; expected a name such as 'missing', or None.", "missing_segment"
        )
    return name


def sort_categories(names: Iterable[str]) -> tuple[str, ...]:
    """Category names in numerical order if all are finite numbers, else in alphabetical order.

    >>> sort_categories(["10", "9", "1"]), sort_categories(["10", "9", "a"])
    (('1', '9', '10'), ('10', '9', 'a'))
    """
    names = sorted(names)
    with suppress(ValueError):
        if np.isfinite([float(name) for name in names]).all():
            names.sort(key=float)
    return tuple(names)


def parse_inactivity(
    value: Any, is_clock: bool = True, column: str = "time", parameter: str = "inactive_after"
) -> float:
    """A period in seconds if the time column holds timestamps, else in the unit of its numbers.

    >>> parse_inactivity("36 hours"), parse_inactivity(5, is_clock=False)
    (129600.0, 5.0)
    """
    period: float | None = None
    if isinstance(value, timedelta):
        period = value.total_seconds() if is_clock else None
    elif isinstance(value, str) and is_clock:
        return parse_duration(parameter, value)
    elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and not is_clock:
        period = float(value)
    if period is None or not 0 < period < np.inf:
        expected = DURATION if is_clock else f"a number > 0 in the unit of column {column!r}, which holds numbers"
        raise InputError(f"{parameter} is {value!r:.80}; expected {expected}.", parameter)
    return period


def parse_duration(parameter: str, value: str) -> float:
    """Seconds of a duration such as "14 days".

    >>> parse_duration("grace_period", "1.5 hours")
    5400.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]+?)s?\s*", value.lower())
    seconds = float(match[1]) * SECONDS[match[2]] if match and match[2] in SECONDS else 0.0
    if not 0 < seconds < np.inf:
        raise InputError(f"{parameter} is {value!r:.80}; expected {DURATION}.", parameter)
    return seconds


def parse_bytes(value: str | int) -> int:
    """A memory limit such as "500 MB" in bytes.

    >>> parse_bytes("1.5 GB"), parse_bytes(2_000_000_000)
    (1500000000, 2000000000)
    """
    size: float = -1
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b\s*", value.lower())
        size = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else -1
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 10**8 <= size < 10**18:
        raise InputError(
            f"memory_limit is {value!r:.80}; expected a size of at least '100 MB', such as '500 MB' or '2 GB'.",
            "memory_limit",
        )
    return int(size)
