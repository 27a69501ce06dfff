"""A site that shows categories at random: an event log to learn from, with its truth known."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import duckdb
import numpy as np
import numpy.typing as npt

from departing.fitting.resampling import sample_outcomes
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.files import atomic_write
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, Floats, Instance
from departing.model.validation import check_float, check_instance, check_int, check_seed
from departing.simulation.event_log import copy_out, format_of

FIRST_DAY = np.datetime64("2026-01-01T00:00:00", "us")
DAY = 86_400_000_000  # microseconds
MOST_EVENTS = 2**31


@dataclass(frozen=True, eq=False)
class SampleLog:
    """Events in the order of time: which user was shown which category, when, and what came of it.

    `outcome` is the truth; a log has `clicked` only, for nobody says that they depart. `propensity` is the chance
    with which the category was shown.
    """

    instance: Instance
    user: Integers
    time: npt.NDArray[np.datetime64]
    category: Integers
    outcome: Integers
    propensity: Floats

    @property
    def clicked(self) -> npt.NDArray[np.bool_]:
        """Whether every event was a click."""
        return np.asarray((self.outcome == CLICK) | (self.outcome == CLICK_DEPART))

    @cached_property
    def histories(self) -> Histories:
        """The counts of users, with their departures as they truly were."""
        users, row = np.unique(self.user, return_inverse=True)
        counts = np.zeros((len(users), self.instance.n_categories, 4), np.int64)
        np.add.at(counts, (row, self.category, self.outcome), 1)
        return Histories(counts, categories=self.instance.categories).distinct

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """The columns of the log: user, time, category, clicked, propensity."""
        names = np.array(self.instance.categories)
        return {
            "user": self.user,
            "time": self.time,
            "category": names[self.category],
            "clicked": self.clicked,
            "propensity": self.propensity,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log, as Parquet or CSV by the ending of `path`."""
        form = format_of(path)
        with atomic_write(path) as part, duckdb.connect() as database:
            database.register("events", self.columns())
            copy_out(database, "events", part, form, path)


def sample_log(
    instance: Instance,
    users: int,
    seed: int = 0,
    *,
    shares: Sequence[float] | None = None,
    days: float = 90.0,
    gap: float = 1.0,
) -> SampleLog:
    """What a site sees that shows categories at random, with `shares` (equal ones unless told), for so many `days`.

    Users arrive at any time and come back after a `gap` of days on average, until they depart; those who would come
    back after the last day are still users when the log ends.

    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], depart=0.5)
    >>> log = sample_log(site, users=1000, seed=1)
    >>> log.histories
    <Histories of 1000 users, 46 of them censored, 319 distinct counts>
    """
    check_instance(instance)
    n, rng = check_int("users", users, 1, MOST_EVENTS), np.random.default_rng([check_seed(seed), 7])
    length = check_float("days", days, 1e-6, 1e5) * DAY
    pause = check_float("gap", gap, 1e-6, 1e5) * DAY
    chosen = _shares(shares, instance.n_categories)
    types = rng.choice(instance.n_types, n, p=instance.normalised_prior)
    here, now = np.arange(n), rng.random(n) * length
    events: list[tuple[Integers, Floats, Integers, Integers]] = []
    while len(here):
        category = rng.choice(instance.n_categories, len(here), p=chosen)
        outcome = sample_outcomes(instance, category, types[here], rng)
        events.append((here, now, category, outcome))
        now = now + rng.exponential(pause, len(here))
        going = (outcome < DEPART) & (now < length)
        here, now = here[going], now[going]
    user, time, category, outcome = (np.concatenate(column) for column in zip(*events, strict=True))
    order = np.lexsort((user, time))
    stamp = FIRST_DAY + time[order].astype(np.int64).astype("timedelta64[us]")
    return SampleLog(instance, user[order], stamp, category[order], outcome[order], chosen[category[order]])


def _shares(shares: Sequence[float] | None, n_categories: int) -> Floats:
    if shares is None:
        return np.full(n_categories, 1 / n_categories)
    try:
        found = np.asarray(shares, np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (n_categories,) or not (found >= 0).all() or abs(found.sum() - 1) > 1e-9:
        raise InputError(f"shares are {shares!s:.80}; expected {n_categories} chances that sum to 1.")
    return found
