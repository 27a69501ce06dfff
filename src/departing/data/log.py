"""Event logs as histories: one row per recommendation, from files, databases, frames and Spark."""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.data.columns import USUAL_NAMES
from departing.data.history_rows import UserHistories
from departing.data.history_rules import Profile
from departing.data.inactivity import ReturnTimes
from departing.data.known_log import KnownLogReader, Reduce
from departing.data.over_time import BUCKETS, OverTime, Periods
from departing.data.quality import LogReport
from departing.data.reader import LogReader
from departing.data.rewards import RewardStats
from departing.data.sample import Episodes as Episodes
from departing.data.sample import Sample
from departing.data.sources import DuckDBEngine, LogSource
from departing.data.spec import (
    MAX_REJECTED,
    MAX_SEGMENTS,
    MOST_SEGMENTS,
    LogSpec,
    LogSummary,
    check_missing_segment,
    check_reward,
    parse_bytes,
    parse_categories,
    parse_segments,
    parse_values,
)
from departing.data.times import check_format
from departing.model.errors import InputError
from departing.model.files import check_suffix
from departing.model.histories import Histories
from departing.model.instance import CLICKS, Floats
from departing.model.instance_fields import check_horizon
from departing.model.names import suggest
from departing.model.tables import TABLE_SUFFIXES, write_table
from departing.model.validation import check_choice, check_float, check_int

FIELDS = tuple(USUAL_NAMES)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Log(Histories):
    """Histories of the users of an event log, as `read_log` returns them.

    Attributes
    ----------
    counts : int array [N, K, 4]
        Distinct counts of users: clicks, stays, departures, and clicks with departure by category.
    multiplicity : int array [N]
        Number of users with these counts.
    pending : int array [N, K, 2]
        Number of clicks and stays after which it is unknown whether the user stayed.
    categories : tuple of str
        Names of the K categories.
    report : LogReport
        Data quality: rows used and rejected, irregularities, notes.
    source : LogSource
        Origin of the log, with a fingerprint of its files.
    spec, profile, digest : LogSpec, Profile, int
        Arguments, facts and checksum of the reading, with which `episodes` reads the source again.
    sample : Sample
        Steps of a random sample of users in order, kept for `Fit.check`.
    segment, segments, segment_columns
        Index of the segment of each row, names of the segments, and the columns they are from; see `Histories`.
    rewards : RewardStats or None
        Mean reward of a click by category; None for a log without rewards.
    """

    report: LogReport
    source: LogSource
    spec: LogSpec
    profile: Profile
    digest: int
    sample: Sample
    rewards: RewardStats | None = None

    def __init__(self, summary: LogSummary, profile: Profile, source: LogSource, spec: LogSpec) -> None:
        rows = summary.histories
        vars(self).update(  # the base class is frozen
            counts=rows.counts,
            multiplicity=rows.multiplicity,
            ids=None,
            pending=rows.pending,
            categories=rows.categories,
            report=summary.report,
            source=source,
            spec=spec,
            profile=profile,
            digest=summary.digest,
            sample=summary.sample,
            segment=rows.segment,
            segments=rows.segments,
            segment_columns=rows.segment_columns,
            rewards=summary.rewards,
        )

    @property
    def unit(self) -> str:
        """Unit of rewards; "clicks" for a log without rewards."""
        return CLICKS if self.rewards is None else self.rewards.unit

    @property
    def reward(self) -> Floats | None:
        """Mean reward of a click in each category, `[K]`; None for a log without rewards."""
        return None if self.rewards is None else self.rewards.mean

    @property
    def horizon(self) -> int | None:
        """Largest number of recommendations to a user; None without a horizon."""
        return self.spec.horizon

    def sample_episodes(self, users: int, chunk: int) -> Iterator[Episodes]:
        """Yield the steps of a random sample of at most `users` users, `chunk` users at a time.

        The sample is kept from the reading of the log: at most 200,000 users, with about 2 million events. Users are
        sampled and ordered by a hash of their IDs, so that the sample is the same for every engine.
        """
        return self.sample.episodes(check_int("users", users), chunk)

    @contextmanager
    def walks(self, first: int | None) -> Iterator[Reduce]:
        """Read the source again, to apply functions to the steps of users that a fit uses where the rows are.

        Parameters
        ----------
        first : int or None
            Category of the first step of the users; None for all users.

        Yields
        ------
        callable
            Given a function and an argument, applies the function to the steps of some users at a time, as arrays
            `step`, `category`, `outcome` and `propensity` in order, and the argument; returns a list of its results.
            With segments and rewards there are the arrays `segment` and `reward`, as in `Episodes`.
            Spark ships the function to its workers: it must not refer to anything but built-in types and NumPy.
        """
        with self.source.open() as engine:
            yield KnownLogReader(engine, self.spec).walks(self.profile, self.digest, first)

    def episodes(self, users: int = 100_000) -> Iterator[Episodes]:
        """Read the source again and yield all steps in order.

        Parameters
        ----------
        users : int
            Number of users per item.

        Yields
        ------
        Episodes
            Steps of the next `users` users, in the order of the user column, each user's steps by time.

        Raises
        ------
        InputError
            If the source changed since the log was read: a file by its size or modification time, which is checked
            first and last; a frame or table by its counts, which are checked after the last item.
        """
        users = check_int("users", users)
        with self.source.open() as engine:
            for part in KnownLogReader(engine, self.spec).episodes(self.profile, self.digest, users):
                category, outcome = part["category"].astype(np.int64), part["outcome"].astype(np.int64)
                yield Episodes(
                    part["user"],
                    part["step"],
                    category,
                    outcome,
                    part["propensity"],
                    part["pending"],
                    part["time"],
                    part["segment"].astype(np.int64) if "segment" in part else None,
                    part.get("reward"),
                )

    def weighted(self, half_life: str | float | timedelta) -> Histories:
        """Read the source again for histories in which users who arrived earlier count less.

        The weight of a user is 0.5 ** (age / half_life), where the age is the time from the user's first event to the
        end of the log. Weights by the last event would count users more who stayed longer, and so bias departure
        probabilities.

        Parameters
        ----------
        half_life : str, float or timedelta
            Time in which the weight of users halves, such as "30 days"; a number in the unit of the time column if
            that holds numbers. Infinity for equal weights.

        Returns
        -------
        Histories
            Distinct counts with the sums of weights of their users; `effective_users` is the effective sample size.

        Raises
        ------
        InputError
            If the half-life is not a duration, or the source changed since the log was read.
        """
        with self.source.open() as engine:
            reader = KnownLogReader(engine, self.spec)
            return self._same_site(reader.weighted(self.profile, self.digest, self._half_life(half_life)))

    def weighted_rewards(self, half_life: str | float | timedelta) -> RewardStats | None:
        """Read the source again for the mean rewards if users who arrived earlier count less, as in `weighted`.

        Parameters
        ----------
        half_life : str, float or timedelta
            As in `weighted`.

        Returns
        -------
        RewardStats or None
            None for a log without rewards.
        """
        if self.rewards is None:
            return None
        units = self._half_life(half_life)
        with self.source.open() as engine:
            reader = KnownLogReader(engine, self.spec)
            return reader.weighted_rewards(self.profile, self.digest, units, self.unit)

    def _half_life(self, half_life: str | float | timedelta) -> float:
        """A half-life in units of the time column."""
        if half_life == math.inf:
            return math.inf
        return self.profile.time.duration(half_life, self.report.columns["time"], "half_life")

    def over_time(self, buckets: int | float | str | timedelta = BUCKETS) -> OverTime:
        """Read the source again for the rates of the log by calendar time.

        Parameters
        ----------
        buckets : int, float, str or timedelta
            Number of periods of equal length as an integer, or the length of each as a duration such as "7 days", or
            as a float in the unit of the time column if that holds numbers. Periods of days start at midnight UTC.

        Returns
        -------
        OverTime
            Click rates, departure rates and mean rewards by category, and arriving users by segment, with
            `to_frame()`, `segment_frame()` and `plot()`.

        Raises
        ------
        InputError
            If there are more than 1,000 periods, or the source changed since the log was read.

        Examples
        --------
        >>> import tempfile, departing as dp
        >>> site = dp.Instance([0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], 0.5, categories=["news", "film"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dp.sample_log(site, users=1000, seed=1).save(f"{folder}/log.parquet")
        ...     rates = dp.read_log(f"{folder}/log.parquet", inactive_after="14 days").over_time("30 days")
        >>> rates.click_rate.shape
        (3, 2)
        """
        periods = Periods.of(self.profile, buckets, self.report.columns["time"])
        with self.source.open() as engine:
            return KnownLogReader(engine, self.spec).over_time(self.profile, self.digest, periods, self.unit)

    def date(self, fraction: float) -> str:
        """Return the text of a time, from 0 at the first event of the log to 1 at its last one."""
        time = round(self.profile.first + fraction * (self.profile.last - self.profile.first))
        return self.profile.time.format(time)[: len("2026-01-01 00:00")]

    def half_life_fraction(self, half_life: str | float | timedelta) -> float:
        """Return a half-life as a fraction of the length of the log."""
        units = self.profile.time.duration(half_life, self.report.columns["time"], "half_life")
        return units / max(self.profile.last - self.profile.first, 1)

    @contextmanager
    def user_histories(self) -> Iterator[UserHistories]:
        """Read the source again and open the history of every user.

        Yields
        ------
        UserHistories
            Numbered histories, and the table of all users with their groups, valid within the context.

        Raises
        ------
        InputError
            If the source changed since the log was read, when the context is entered or left.
        """
        with self.source.open() as engine:
            yield KnownLogReader(engine, self.spec).user_histories(self.profile, self.digest, self.report.used)

    def summary(self) -> str:
        """Printed overview: one line about the histories, then the data quality report."""
        return f"{self!r}\n{self.report.summary()}"

    __str__ = summary

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot retention, and click and departure rates by category.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.data.log_plot import draw_log
        from departing.plotting.figures import save

        return save(draw_log(self), path)

    def _repr_html_(self) -> str:
        return self._html([*self.report.guessed, *self.report.notes])

    def __repr__(self) -> str:
        report, k = self.report, self.counts.shape[1]
        text = f"{report.users:,} users, {report.censored:,} of them censored, with {report.used:,} events in {k:,} "
        text += f"{'category' if k == 1 else 'categories'}, {len(self):,} distinct counts"
        return f"<Log of {text}" + (f"; {report.rejected:,} events rejected>" if report.rejected else ">")


def read_log(
    source: Any,
    *,
    user: str = "user",
    time: str = "time",
    category: str = "category",
    clicked: str = "clicked",
    departed: str | None = "departed",
    propensity: str | None = "propensity",
    segment: str | Iterable[str] | None = None,
    reward: str | None = None,
    unit: str | None = None,
    horizon: int | None = None,
    inactive_after: str | float | timedelta | None = None,
    categories: Iterable[object] | None = None,
    duplicates: str = "drop",
    clicked_values: str | Iterable[object] | None = None,
    departed_values: str | Iterable[object] | None = None,
    time_format: str | None = None,
    max_rejected: float = MAX_REJECTED,
    missing_segment: str | None = None,
    max_segments: int = MAX_SEGMENTS,
    table: str | None = None,
    rejects: str | os.PathLike[str] | None = None,
    memory_limit: str | int = "1 GB",
) -> Log:
    """Read an event log, one row per recommendation, into the histories of its users.

    Columns are found under their usual names if the default ones are missing; `Log.report.guessed` says which.
    Irregular rows are handled by fixed rules and counted in `Log.report`; the rules are the same for every source.

    Parameters
    ----------
    source : path or table
        A Parquet, CSV or JSON file, a folder or glob pattern of them, a DuckDB or SQLite file, a pandas or Polars
        frame, a PyArrow table, a Spark DataFrame, or an Ibis table.
    user : str
        Column of the user ID. Values of any type; rows without one are rejected.
    time : str
        Column of the time of the recommendation: timestamps, dates or numbers. Times without a zone are UTC.
    category : str
        Column of the recommended category: names or numbers, at most 1,000 distinct ones.
    clicked : str
        Column that is true if the user clicked the recommendation: Booleans, 0 or 1, or words such as yes and no.
    departed : str or None
        Column that is true at the event after which the user departed. None, or a source without a column of the
        default name: departures are not logged.
    propensity : str or None
        Column of the probability with which the category was recommended, in (0, 1]. Optional like `departed`.
    segment : str or list of str, optional
        Columns of features that are known when a user arrives, such as ["country", "device"]. The segment of a user
        is the value in the first used event, and the values of several columns joined by "/". Values that differ in
        case or surrounding space are one, in the most frequent spelling.
    reward : str, optional
        Column of the reward of a click, numbers ≥ 0; no-clicks have none. `Log.rewards` has the mean by category.
    unit : str, optional
        Unit of rewards, such as "euro" [default: the name of the column].
    horizon : int, optional
        Largest number of recommendations to a user. Nobody returns after so many, so inactivity does not tell who
        departed after the last one: that step is pending, and evidence about its click alone. `fit` has the horizon
        in its instance [default: none].
    inactive_after : str, float or timedelta, optional
        Inactivity period after which a user counts as departed, such as "14 days" or "30 minutes"; a number in the
        unit of the time column if that holds numbers; or "auto", the period that `suggest_inactivity` suggests where
        there is no departure column. The period must end before the latest time of the log. Users active later are
        censored, and their steps in the last such period of the log are pending.
    categories : list of str, optional
        Categories in order; rows with others are rejected. Default: all categories of the log, sorted.
    duplicates : {"drop", "keep"}
        Treatment of rows that are equal in all columns of the source: count them once or each.
    clicked_values, departed_values : str or list, optional
        Values that mean a click or a departure, such as "click" or [4, 5]; all other values that are not missing mean
        the opposite. Text is compared without case and surrounding spaces, numbers by value. Default: known words,
        0 and 1.
    time_format : str, optional
        Format of times in a column of text or integers, such as "%d/%m/%Y %H:%M" or "%Y%m%d". Needed where the order
        of day and month is ambiguous.
    max_rejected : float
        Largest accepted share of rejected rows, and of clicks without a reward. Above its default, listed categories
        may also be absent.
    missing_segment : str, optional
        Name of a missing value in a column of segments [default: the segment of the user is unknown].
    max_segments : int
        Largest number of segments, which are those with the most events. The segments of other users are unknown.
    table : str, optional
        Table of a database file; needed if there are several.
    rejects : path, optional
        Write rejected rows with a column `rejection_reason` to this .parquet or .csv file. Not available for Spark.
    memory_limit : str or int
        Memory to use, such as "500 MB", or bytes; spill to disk above this limit. On Spark it applies to each task.

    Returns
    -------
    Log
        Distinct counts `[N, K, 4]` with the number of users of each, and a data quality report.

    Raises
    ------
    InputError
        If the source cannot be read, a column is missing or ambiguous, departures are unknown, a listed category does
        not occur, or more than `max_rejected` of the rows are rejected.

    Examples
    --------
    >>> import tempfile, departing as dp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shop = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["news", "sport"])
    ...     run = dp.simulate(shop, dp.Walk([0], then=1), users=1000, seed=1, log=f"{folder}/events.csv")
    ...     log = read_log(f"{folder}/events.csv")
    >>> log
    <Log of 1,000 users, 0 of them censored, with 1,661 events in 2 categories, 8 distinct counts>
    """
    spec = _spec(
        user=user,
        time=time,
        category=category,
        clicked=clicked,
        departed=departed,
        propensity=propensity,
        segment=segment,
        reward=reward,
        unit=unit,
        horizon=horizon,
        inactive_after=inactive_after,
        categories=categories,
        duplicates=duplicates,
        clicked_values=clicked_values,
        departed_values=departed_values,
        time_format=time_format,
        max_rejected=max_rejected,
        missing_segment=missing_segment,
        max_segments=max_segments,
    )
    if rejects is not None:
        check_suffix(rejects, TABLE_SUFFIXES)
    origin = LogSource.of(source, table, parse_bytes(memory_limit))
    with origin.open() as engine:
        reader = LogReader(engine, spec)
        if rejects is not None and not isinstance(engine, DuckDBEngine):
            raise InputError(f"rejects is {str(rejects)!r:.80}; expected None for a Spark DataFrame.", "rejects")
        profile, summary = reader.read(origin.memory)
        if rejects is not None and isinstance(engine, DuckDBEngine):
            write_table(engine.database, reader.rules.rejects(), rejects)
    return Log(summary, profile, origin, spec)


def _spec(
    inactive_after: Any = None,
    categories: Iterable[object] | None = None,
    duplicates: str = "drop",
    clicked_values: str | Iterable[object] | None = None,
    departed_values: str | Iterable[object] | None = None,
    time_format: str | None = None,
    max_rejected: float = MAX_REJECTED,
    segment: str | Iterable[str] | None = None,
    reward: str | None = None,
    unit: str | None = None,
    horizon: int | None = None,
    missing_segment: str | None = None,
    max_segments: int = MAX_SEGMENTS,
    **columns: str | None,
) -> LogSpec:
    """Validated arguments of a reading; `columns` that are left out have their default names."""
    for name in columns:
        if name not in FIELDS:
            raise InputError(f"There is no argument {name!r}; {suggest(name, FIELDS)}")
    check_choice("duplicates", duplicates, ("drop", "keep"))
    values = {
        "clicked": parse_values("clicked_values", clicked_values),
        "departed": parse_values("departed_values", departed_values),
    }
    return LogSpec(
        {field: columns.get(field, field) for field in FIELDS},
        inactive_after,
        parse_categories(categories),
        duplicates == "keep",
        check_float("max_rejected", max_rejected, 0.0, 1.0),
        {field: named for field, named in values.items() if named is not None},
        check_format(time_format),
        parse_segments(segment),
        check_missing_segment(missing_segment),
        check_int("max_segments", max_segments, most=MOST_SEGMENTS),
        *check_reward(reward, unit),
        check_horizon(horizon),
    )


def suggest_inactivity(
    source: Any, *, table: str | None = None, memory_limit: str | int = "1 GB", **reading: Any
) -> ReturnTimes:
    """Suggest an inactivity period from the times after which the users of a log return.

    The period is the shortest customary one such that at most 5 % of the users who are inactive for it return later;
    see "Read a log" in the documentation.

    Parameters
    ----------
    source : path, table or Log
        Any source of `read_log`, or a log that was read.
    table, memory_limit
        As in `read_log`.
    **reading
        Columns and other arguments of `read_log`: `user`, `time`, `category`, `clicked`, `categories`,
        `clicked_values`, `time_format` and `max_rejected`.

    Returns
    -------
    ReturnTimes
        The suggested `period` and the share of users `returning_later`, with `describe()`, `summary()` and `plot()`.

    Raises
    ------
    InputError
        If the log cannot be read, or has too few events of returning users.

    Examples
    --------
    >>> import tempfile, departing as dp
    >>> shop = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dp.sample_log(shop, users=2000, seed=1).save(f"{folder}/events.parquet")
    ...     times = suggest_inactivity(f"{folder}/events.parquet")
    >>> times.period
    '3 days'
    """
    if isinstance(source, Log):
        origin, spec = source.source, source.spec
    else:
        origin = LogSource.of(source, table, parse_bytes(memory_limit))
        spec = _spec(**{"departed": None} | reading)
    with origin.open() as engine:
        return LogReader(engine, spec).return_times()
