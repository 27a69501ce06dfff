"""Rates of a log by calendar time: clicks, departures, mean rewards, and the segments of users who arrive."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from departing.data.history_rules import HistoryEnd, Profile, is_recent, user_keys
from departing.data.rewards import sums
from departing.data.times import DAY
from departing.html_tables import html_repr
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Floats
from departing.model.validation import check_int

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUCKETS = 24  # two years by month, or a day by hour
MAX_BUCKETS = 1000  # more than the pixels of a plot of phone size
MAX_ROWS = 40  # of an overview


@dataclass(frozen=True, eq=False)
class OverTime:
    """Rates of a log in B calendar periods of equal length, as `Log.over_time` returns them.

    Attributes
    ----------
    categories : tuple of str
        Names of the K categories.
    segments : tuple of str
        Names of the S segments; empty for a log without segments.
    unit : str
        Unit of rewards.
    start : datetime64 or float array [B + 1]
        Start of every period, and the end of the last one.
    shown, clicks : int array [B, K]
        Recommendations in the period, and those that were clicked.
    at_risk, departures : int array [B, K]
        Recommendations after which it is known whether the user stayed, and those after which the user departed. The
        last inactivity period of the log has none.
    arrivals : int array [B]
        Users whose first event is in the period.
    segment_users : int array [B, S]
        Arrivals by segment, without those whose segment is unknown.
    mean_reward : float array [B, K] or None
        Mean reward of a click, NaN without clicks; None for a log without rewards.
    """

    categories: tuple[str, ...]
    segments: tuple[str, ...]
    unit: str
    start: npt.NDArray[Any]
    shown: Integers
    clicks: Integers
    at_risk: Integers
    departures: Integers
    arrivals: Integers
    segment_users: Integers
    mean_reward: Floats | None

    @property
    def click_rate(self) -> Floats:
        """Share of recommendations that were clicked, `[B, K]`; NaN without any."""
        return _ratio(self.clicks, self.shown)

    @property
    def departure_rate(self) -> Floats:
        """Share of recommendations after which the user departed, `[B, K]`; NaN without any."""
        return _ratio(self.departures, self.at_risk)

    @property
    def segment_share(self) -> Floats:
        """Share of each segment among the arriving users whose segment is known, `[B, S]`; NaN without any."""
        return _ratio(self.segment_users, self.segment_users.sum(axis=1, keepdims=True))

    def __len__(self) -> int:
        return len(self.shown)

    def columns(self) -> dict[str, Any]:
        """Columns of `to_frame`."""
        n, k = self.shown.shape
        columns: dict[str, Any] = {
            "start": np.repeat(self.start[:-1], k),
            "category": list(self.categories) * n,
        }
        names = ("shown", "clicks", "click_rate", "at_risk", "departures", "departure_rate")
        columns |= {name: getattr(self, name).reshape(-1) for name in names}
        return columns | ({} if self.mean_reward is None else {"mean_reward": self.mean_reward.reshape(-1)})

    def to_frame(self) -> Any:
        """Return the rates as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each period and category: start, category, shown, clicks, click_rate, at_risk, departures,
            departure_rate, and mean_reward if the log has rewards.
        """
        return to_frame(self.columns())

    def segment_frame(self) -> Any:
        """Return the arriving users by segment as a data frame.

        Returns
        -------
        DataFrame
            One row for each period and segment: start, segment, users, share.
        """
        n, s = self.segment_users.shape
        return to_frame(
            {
                "start": np.repeat(self.start[:-1], s),
                "segment": list(self.segments) * n,
                "users": self.segment_users.reshape(-1),
                "share": self.segment_share.reshape(-1),
            }
        )

    def describe(self) -> str:
        """Describe the periods in one sentence."""
        return (
            f"{len(self)} periods from {_text(self.start[0])} to {_text(self.start[-1])}: "
            f"{int(self.arrivals.sum()):,} users arrive and receive {int(self.shown.sum()):,} recommendations."
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot click rates, departure rates, mean rewards and shares of segments over time.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.data.over_time_plot import draw_over_time
        from departing.plotting.figures import save

        return save(draw_over_time(self), path)

    def _repr_html_(self) -> str:
        columns = self.columns()
        shown = [[_text(value) for value in row] for row in zip(*columns.values(), strict=True)][:MAX_ROWS]
        return html_repr(self.describe(), list(columns), shown, [])


@dataclass(frozen=True)
class Periods:
    """Periods of equal `width` from `first`, both in units of the time column."""

    first: int
    width: int
    n: int

    @classmethod
    def of(cls, profile: Profile, buckets: int | float | str | timedelta, column: str) -> "Periods":
        """Periods of a log: their number as an integer, or the length of each as a duration."""
        length = profile.last - profile.first + 1
        if isinstance(buckets, int | np.integer) and not isinstance(buckets, bool):
            n = check_int("buckets", buckets, most=MAX_BUCKETS)
            width = -(-length // n)
            return cls(profile.first, width, -(-length // width))
        width = max(round(profile.time.duration(buckets, column, "buckets")), 1)
        day = DAY * profile.time.units // 10**6
        first = profile.first
        if profile.time.is_clock and width >= day:
            first = first // day * day  # at midnight
        n = (profile.last - first) // width + 1
        if n > MAX_BUCKETS:
            raise InputError(
                f"buckets is {buckets!r:.80}, which makes {n:,} periods; expected at most {MAX_BUCKETS:,}: state a "
                "longer period, or their number.",
                "buckets",
            )
        return cls(first, width, n)

    def number(self, t: str) -> str:
        """SQL of the number of the period of a time."""
        return f"(({t} - ({self.first})) // {self.width})::INTEGER"

    def start(self, profile: Profile) -> npt.NDArray[Any]:
        """Start of every period, and the end of the last one, as `OverTime.start`."""
        edges = [self.first + i * self.width for i in range(self.n + 1)]
        if profile.time.is_clock:
            return np.array([edge * 10**6 // profile.time.units for edge in edges], "datetime64[us]")
        return np.array(edges, np.float64) / profile.time.units


def ends_table(profile: Profile, periods: Periods) -> str:
    """The table `user_ends`: users by segment, and period of arrival, and period, category and end of the last step.

    A departure in the last inactivity period is none: there it is not known of other users whether they stayed.
    """
    segment = profile.segments.index_of("segment") if profile.segments else "-1"
    regular = user_keys(profile, "events", arrivals=True)
    irregular = user_keys(profile, "irregular_used", is_placed=True, arrivals=True)
    ends = f"CASE WHEN {is_recent(profile)} THEN {HistoryEnd.CENSORED} ELSE history_end END"
    return (
        f"CREATE TABLE user_ends AS SELECT {periods.number('arrival')} AS arrived, {segment} AS segment, "
        f"{periods.number('t')} AS ended, last_step // 2 AS k, {ends} AS history_end, count(*) AS n FROM ("
        f"FROM ({regular}) ANTI JOIN groups ON u = irregular_user UNION ALL BY NAME FROM ({irregular})) GROUP BY ALL"
    )


def queries(profile: Profile, periods: Periods) -> tuple[str, str, str]:
    """Queries for events by period and category, for arrivals by period and segment, and for the ends of users."""
    columns = "t, k, y" + (", r" if profile.reward_scale else "")
    rewards = f", {sums(profile.reward_scale)}" if profile.reward_scale else ""
    return (
        f"SELECT {periods.number('t')} AS period, k, count(*), count(*) FILTER (y), "
        f"count(*) FILTER (NOT {is_recent(profile)}){rewards} FROM ("
        f"SELECT {columns} FROM events ANTI JOIN groups ON u = irregular_user "
        f"UNION ALL SELECT {columns} FROM irregular_used) GROUP BY 1, 2",
        "SELECT arrived, segment, sum(n)::BIGINT FROM user_ends GROUP BY ALL",
        f"SELECT ended, k, history_end, sum(n)::BIGINT FROM user_ends WHERE history_end > {HistoryEnd.CENSORED} "
        "GROUP BY ALL",
    )


def over_time(
    profile: Profile, periods: Periods, unit: str, events: Iterable[Any], arrivals: Iterable[Any], ends: Iterable[Any]
) -> OverTime:
    """Rates from the rows of `queries` of all partitions."""
    n, k = periods.n, len(profile.categories)
    segments = profile.segments.names if profile.segments else ()
    counts = np.zeros((3, n, k), np.int64)
    rewards, totals = np.zeros((n, k), np.int64), np.zeros((n, k), object)
    for period, category, *numbers in events:
        counts[:, period, category] += numbers[:3]
        if len(numbers) > 3:
            rewards[period, category] += numbers[3]
            totals[period, category] += int(numbers[4])
    arrived, of_segment = np.zeros(n, np.int64), np.zeros((n, len(segments)), np.int64)
    for period, segment, users in arrivals:
        arrived[period] += users
        if segment >= 0:
            of_segment[period, segment] += users
    departures = np.zeros((n, k), np.int64)
    for period, category, end, users in ends:
        if end in (HistoryEnd.CENSORED_PENDING, HistoryEnd.DEPARTED_RECENT):  # not recent, but at the horizon
            counts[2, period, category] -= users
        else:
            departures[period, category] += users
    mean = None
    if profile.reward_scale is not None:
        mean = _ratio(totals.astype(np.float64) / profile.reward_scale, rewards)
    shown, clicks, at_risk = counts
    start = periods.start(profile)
    return OverTime(
        profile.categories, segments, unit, start, shown, clicks, at_risk, departures, arrived, of_segment, mean
    )


def _ratio(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Floats:
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    ratio: Floats = np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator > 0)
    return ratio


def _text(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[m]")).replace("T", " ")
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, np.integer) else str(value)
