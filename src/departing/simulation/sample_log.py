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
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Floats, Instance
from departing.model.sampling import sample_outcomes
from departing.model.tables import write_table
from departing.model.validation import check_float, check_instance, check_int, check_seed

LOG_START = np.datetime64("2026-01-01T00:00:00", "us")
MICROSECONDS_PER_DAY = 86_400_000_000
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
    """

    instance: Instance
    user: Integers
    time: npt.NDArray[np.datetime64]
    category: Integers
    outcome: Integers
    propensity: Floats

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
        return Histories(counts, categories=self.instance.categories).distinct

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Columns of the log: user, time, category, clicked, propensity."""
        names = np.array(self.instance.categories)
        return {
            "user": self.user,
            "time": self.time,
            "category": names[self.category],
            "clicked": self.clicked,
            "propensity": self.propensity,
        }

    def to_frame(self) -> Any:
        """Return the events as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each event: user, time, category, clicked, propensity. `read_log` and `fit` read it.
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
) -> SampleLog:
    """Sample the event log of a site that shows random categories.

    Users arrive at uniform times and return after exponential pauses until they depart. Users whose next event would
    be after the end of the log are censored.

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
    check_instance(instance)
    n = check_int("users", users, 1, MAX_LOG_USERS)
    rng = np.random.default_rng([check_seed(seed), random_streams.SAMPLE_LOG])
    length = check_float("days", days, 1e-6, 1e5) * MICROSECONDS_PER_DAY
    mean_pause = check_float("step_days", step_days, 1e-6, 1e5) * MICROSECONDS_PER_DAY
    probabilities = _check_shares(shares, instance.n_categories)
    types = rng.choice(instance.n_types, n, p=instance.normalised_prior)
    active, now = np.arange(n), rng.random(n) * length
    events: list[tuple[Integers, Floats, Integers, Integers]] = []
    while len(active):
        category = rng.choice(instance.n_categories, len(active), p=probabilities)
        outcome = sample_outcomes(instance, category, types[active], rng.random(len(active)))
        events.append((active, now, category, outcome))
        now = now + rng.exponential(mean_pause, len(active))
        returning = (outcome < DEPART) & (now < length)
        active, now = active[returning], now[returning]
    user, time, category, outcome = (np.concatenate(column) for column in zip(*events, strict=True))
    order = np.lexsort((user, time))
    stamp = LOG_START + time[order].astype(np.int64).astype("timedelta64[us]")
    return SampleLog(instance, user[order], stamp, category[order], outcome[order], probabilities[category[order]])


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
