"""`sample_log`: a synthetic event log of a site that shows random categories, with known truth."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from departing.html_tables import MAX_ROWS, html_repr
from departing.model import random_streams
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, EXTENSIONS, Floats, Instance
from departing.model.sampling import sample_outcomes
from departing.model.tables import write_table
from departing.model.validation import check_float, check_instance, check_int, check_seed

LOG_START = np.datetime64("2026-01-01T00:00:00", "us")
MICROSECONDS_PER_DAY = 86_400_000_000
COLUMNS = ("user", "category", "clicked", "propensity")  # of every log
MAX_LOG_USERS = 2**31  # beyond it the events would not fit into memory


@dataclass(frozen=True, eq=False, repr=False)
class SampleLog:
    """Synthetic event log, in order of time.

    Attributes
    ----------
    instance : Instance
        Users and categories that the log was sampled from.
    user : int array [n]
        User id of every event.
    time : datetime64 array [n]
    category : int array [n]
        Category shown.
    outcome : int array [n]
        True outcome: click, stay, depart, click and depart (0 to 3). A saved log has `clicked` only, because
        departures are not observed.
    propensity : float array [n]
        Probability with which the category was shown.
    segment : int array [n], optional
        Index of the segment of the user of every event, if the instance has segments.
    reward : float array [n], optional
        Reward of every event in the unit of the instance, 0 without a click; None if clicks have no rewards.
    time_column, reward_column : str
        Names of these columns in the saved log.
    """

    instance: Instance
    user: Integers
    time: npt.NDArray[np.datetime64]
    category: Integers
    outcome: Integers
    propensity: Floats
    segment: Integers | None = None
    reward: Floats | None = None
    time_column: str = "time"
    reward_column: str = "reward"

    @property
    def clicked(self) -> npt.NDArray[np.bool_]:
        """Clicks, `[n]`: true or false for every event."""
        return np.asarray((self.outcome == CLICK) | (self.outcome == CLICK_DEPART))

    @cached_property
    def histories(self) -> Histories:
        """Counts of all users, with their true departures."""
        users, row = np.unique(self.user, return_inverse=True)
        counts = np.zeros((len(users), self.instance.n_categories, 4), np.int64)
        np.add.at(counts, (row, self.category, self.outcome), 1)
        known: dict[str, Any] = {}
        if self.instance.segments is not None and self.segment is not None:
            segments, own = self.instance.segments, np.zeros(len(users), np.int64)
            own[row] = self.segment  # the same for all events of a user
            known = {
                "segment": own,
                "segments": segments.names,
                "segment_columns": segments.columns,
            }
        return Histories(counts, categories=self.instance.categories, **known).distinct.of_site(self.instance)

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Columns of the log: user, features of the segment, time, category, clicked, reward, propensity."""
        names = np.array(self.instance.categories)
        features: dict[str, Any] = {}
        if self.instance.segments is not None and self.segment is not None:
            from departing.simulation.segments import segment_columns

            columns = segment_columns(self.instance.segments, (*COLUMNS, self.time_column, self.reward_column))
            features = {name: np.array(values)[self.segment] for name, values in columns.items()}
        return {
            "user": self.user,
            **features,
            self.time_column: self.time,
            "category": names[self.category],
            "clicked": self.clicked,
            **({} if self.reward is None else {self.reward_column: self.reward}),
            "propensity": self.propensity,
        }

    def to_frame(self) -> Any:
        """Return the events as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each event: user, features of the segment, time, category, clicked, reward, propensity, as far
            as the instance has segments and rewards. `read_log` and `fit` read it.
        """
        return to_frame(self.columns())

    def describe(self) -> str:
        """Size of the log in one phrase."""
        return f"Sample log of {len(self.user):,} events of {len(np.unique(self.user)):,} users"

    def __repr__(self) -> str:
        return f"<{self.describe()}, {self.instance.n_categories} categories>"

    def _repr_html_(self) -> str:
        columns = self.columns()
        first = [column[: MAX_ROWS // 2].tolist() for column in columns.values()]
        cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in column] for column in first]
        rows = list(zip(*cells, strict=True))
        return html_repr(self.describe(), list(columns), rows, ["First events; to_frame() has all of them."])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to a file ending in .parquet or .csv."""
        with duckdb.connect() as database:
            database.register("events", self.columns())
            write_table(database, "FROM events", path)


def sample_log(
    instance: Instance,
    users: int,
    seed: int = 0,
    *,
    shares: Sequence[float] | None = None,
    days: float = 90.0,
    step_days: float = 1.0,
    reward_spread: float = 0.5,
    time_column: str = "time",
    reward_column: str = "reward",
) -> SampleLog:
    """Sample the event log of a site that shows random categories.

    Users arrive at uniform times and return after exponential pauses until they depart, or until the horizon of the
    instance. Users whose next event would be after the end of the log, and those at the horizon, are censored. The
    reward of a click is gamma-distributed around the mean of its category.

    Parameters
    ----------
    instance : Instance
        Users and categories.
    users : int
        Number of users.
    seed : int
        Seed of all random numbers.
    shares : sequence of float, optional
        Probability of showing each category, `[K]`. [default: equal]
    days : float
        Length of the log in days.
    step_days : float
        Mean time between two events of a user, in days.
    reward_spread : float
        Standard deviation of the reward of a click, relative to its mean; for an instance with rewards.
    time_column, reward_column : str
        Names of these columns.

    Returns
    -------
    SampleLog

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], depart=0.5)
    >>> log = sample_log(site, users=1000, seed=1)
    >>> log.histories
    <Histories of 1000 users, 46 of them censored, 319 distinct counts>
    """
    check_instance(instance, EXTENSIONS)
    n = check_int("users", users, 1, MAX_LOG_USERS)
    rng = np.random.default_rng([seed := check_seed(seed), random_streams.SAMPLE_LOG])
    length = check_float("days", days, 1e-6, 1e5) * MICROSECONDS_PER_DAY
    mean_pause = check_float("step_days", step_days, 1e-6, 1e5) * MICROSECONDS_PER_DAY
    probabilities = _check_shares(shares, instance.n_categories)
    if len({*COLUMNS, time_column, reward_column}) < len(COLUMNS) + 2:
        expected = f"two names other than {', '.join(COLUMNS)}"
        raise InputError(
            f"time_column is {time_column!r:.40} and reward_column {reward_column!r:.40}; expected {expected}."
        )
    spread = check_float("reward_spread", reward_spread, 0.0, 100.0)
    sampled = _joined(instance)
    types = rng.choice(sampled.n_types, n, p=sampled.normalised_prior)
    active, now = np.arange(n), rng.random(n) * length
    events: list[tuple[Integers, Floats, Integers, Integers]] = []
    while len(active):
        category = rng.choice(instance.n_categories, len(active), p=probabilities)
        outcome = sample_outcomes(sampled, category, types[active], rng.random(len(active)))
        events.append((active, now, category, outcome))
        now = now + rng.exponential(mean_pause, len(active))
        returning = (outcome < DEPART) & (now < length) & (len(events) != instance.horizon)
        active, now = active[returning], now[returning]
    user, time, category, outcome = (np.concatenate(column) for column in zip(*events, strict=True))
    order = np.lexsort((user, time))
    stamp = LOG_START + time[order].astype(np.int64).astype("timedelta64[us]")
    user, category, outcome = user[order], category[order], outcome[order]
    segment = None if instance.segments is None else types[user] // instance.n_types
    reward = None
    if "reward" in instance.extensions:
        reward = _sample_rewards(instance, category, outcome, spread, seed)
    columns = time_column, reward_column
    return SampleLog(instance, user, stamp, category, outcome, probabilities[category], segment, reward, *columns)


def _joined(instance: Instance) -> Instance:
    """Instance whose types are those of all segments."""
    if instance.segments is None:
        return instance
    from departing.simulation.segments import joined_instance

    return joined_instance(instance)


def _sample_rewards(instance: Instance, category: Integers, outcome: Integers, spread: float, seed: int) -> Floats:
    """Rewards of events, rounded to hundredths, or finer if the smallest mean is below 1."""
    rng = np.random.default_rng([seed, random_streams.SAMPLE_REWARDS])
    means = np.where((outcome == CLICK) | (outcome == CLICK_DEPART), instance.reward[category], 0.0)
    if spread > 0:
        means *= rng.gamma(spread**-2, spread**2, len(means))
    smallest = float(instance.reward[instance.reward > 0].min())
    return np.asarray(np.round(means, max(2 - int(np.floor(np.log10(smallest))), 2)), np.float64)


def _check_shares(shares: Sequence[float] | None, n_categories: int) -> Floats:
    if shares is None:
        return np.full(n_categories, 1 / n_categories)
    try:
        values = np.asarray(shares, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (n_categories,) or not (values >= 0).all() or abs(values.sum() - 1) > 1e-9:
        raise InputError(f"shares are {shares!s:.80}; expected {n_categories} probabilities that sum to 1.", "shares")
    return values
