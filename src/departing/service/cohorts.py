"""Clicks and recommendations per user, estimated from users grouped by when they arrived.

Every user is followed for the same time after the arrival, the window, and only users whose window is over are used.
So nothing is censored: no figure depends on who departed already. Grouping users by departure, or counting the
recommendations of active users so far, is biased. A user who returns after a departure is another user of the same
person, so the definition of departure decides what a user is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from departing.model.counts import Integers
from departing.model.instance import Floats

CALLER = -1  # in place of a version, of users for whom the caller decided
CONFIDENCE = 0.95
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
WINDOWS = (
    *(1.0, 2.0, 5.0, 10.0, 30.0),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY),
)
ENDED = 0.995  # share of visits that end within the window; the clicks after it are then a few per cent at most
FOLLOWED = 2 / 3  # least share of users whose window is over, while the visits are longer: others are not shown yet
MIN_USERS = 50  # in a group with an interval
# Users per squared skewness in a group with an interval: from there on Hall's interval covers in 94 to 97 % of
# samples, also of rare clicks and of few users with most of the clicks (Cochran's rule for the t-interval has 25).
USERS_PER_SKEWNESS = 5
MAX_BINS = 30  # of arrival times
LATEST_USERS = 1000  # in the figure of the present: standard errors of a few per cent


class Interval(NamedTuple):
    """An estimate with the limits of its 95 % confidence interval."""

    estimate: float
    lower: float
    upper: float


def mean_interval(values: Floats, others: Floats) -> Interval:
    """Return the mean and its confidence interval, by Hall's transformation of the t-statistic.

    Clicks per user are skewed, so that t-intervals lie too low; the transformation (Hall 1992, J. R. Stat. Soc. B 54)
    corrects this to the first order. If the values, at least three, are all equal, their deviation and skewness are
    taken to be those of `others`, which are not.
    """
    n, mean, varied = len(values), float(values.mean()), values if values.min() < values.max() else others
    deviation, skewness = float(varied.std(ddof=1)), _skewness(varied)
    t = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) / sqrt(n)
    limits = [mean - deviation * _inverse_hall(y, skewness, n) for y in (t, -t)]
    return Interval(mean, limits[0], limits[1])


def _skewness(values: Floats) -> float:
    """Return the skewness, with the unbiased third central moment."""
    n, centred = len(values), values - values.mean()
    third = float((centred**3).sum()) * n / ((n - 1) * (n - 2))
    return third / float(values.std(ddof=1)) ** 3


def _inverse_hall(y: float, skewness: float, n: int) -> float:
    """Return the root T of T + gT²/3 + g²T³/27 + g/(6n) = y, where g is the skewness."""
    if abs(skewness) < 1e-9:
        return y
    return 3 * (float(np.cbrt(1 + skewness * (y - skewness / (6 * n)))) - 1) / skewness


def by_person(values: Floats, person: Integers) -> Floats:
    """Return one value per person, so that their mean is that of `values` and its error allows for repeated visits.

    A person's value is the mean plus the sum of the deviations from it, in units of visits per person: the
    linearisation of a ratio of sums of independent persons. If nobody returned, the values are returned as they are.

    >>> by_person(np.array([0.0, 1.0, 4.0, 3.0]), np.array([7, 7, 9, 8])).tolist()
    [-0.25, 2.75, 3.5]
    """
    persons, index = np.unique(person, return_inverse=True)
    if len(persons) == len(values):
        return values
    mean = values.mean()
    sums = np.bincount(index, values - mean)
    return np.asarray(mean + sums * len(persons) / len(values))


def share_interval(count: float, n: float) -> Interval:
    """Return a share and its confidence interval, by Wilson's score interval.

    >>> [round(x, 3) for x in share_interval(0, 50)]
    [0.0, 0.0, 0.071]
    """
    share, z2 = count / n, float(ndtri((1 + CONFIDENCE) / 2)) ** 2
    centre, margin = share + z2 / (2 * n), sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    scale = 1 + z2 / n
    return Interval(share, max((centre - margin) / scale, 0.0), min((centre + margin) / scale, 1.0))


def choose_window(
    arrived: Floats, visited: Floats, departed: npt.NDArray[np.bool_], now: float, delay: float
) -> float:
    """Return the time for which users are followed after their arrival, in seconds.

    The shortest window within which 99.5 % of the visits end; or, while there is none, the longest one that is over
    for two thirds of the users.

    Parameters
    ----------
    arrived : float array [n]
        Time of each user's first recommendation.
    visited : float array [n]
        Seconds from it to the last activity.
    departed : bool array [n]
        Whether the visit has ended.
    now : float
        The present time.
    delay : float
        Seconds of inactivity after which a departure is known, 0 if departures are reported.
    """
    age, longest = now - arrived, WINDOWS[0]
    for window in WINDOWS:
        if (age >= window).mean() < FOLLOWED:
            break
        longest = window
        known = age >= window + delay
        if known.sum() >= MIN_USERS and (departed & (visited <= window))[known].mean() >= ENDED:
            break
    return longest


class ClicksGroup(NamedTuple):
    """Users of one version, or None for several, who arrived about the same time, and their clicks in the window.

    The version is `CALLER` if the caller decided.
    """

    version: int | None
    users: int
    clicks: Interval
    time: float  # middle of the arrival times


@dataclass(frozen=True, eq=False)
class Cohort:
    """Users whose window is over, `[n]`: arrival time, first version, recommendations and clicks in it, segment.

    A user who returned after a departure is another user of the same `person`. Users are independent of each other
    only if they are different persons, so intervals are computed from one value per person.
    """

    arrived: Floats
    version: Integers
    steps: Integers
    clicks: Floats
    person: Integers
    segment: npt.NDArray[np.object_] | None = None  # names, None without any

    @cached_property
    def _persons(self) -> Floats:
        return by_person(self.clicks, self.person)

    @property
    def min_users(self) -> int:
        """Persons that a group must have for an interval; 0 if it cannot have one, because all users are alike."""
        if len(self._persons) < MIN_USERS:
            return MIN_USERS
        if self.clicks.min() == self.clicks.max() or self._persons.min() == self._persons.max():
            return 0
        # In a group that is shorter than the period most persons have one visit, so the skewness is that of users.
        skewness = max(abs(_skewness(self.clicks)), abs(_skewness(self._persons)))
        return max(MIN_USERS, ceil(USERS_PER_SKEWNESS * skewness**2))

    def _group(self, version: int | None, chosen: npt.NDArray[np.bool_]) -> ClicksGroup | None:
        """Return a group of users; None if they are too few for an interval."""
        minimum, values = self.min_users, by_person(self.clicks[chosen], self.person[chosen])
        if not 0 < minimum <= len(values):
            return None
        estimate, lower, upper = mean_interval(values, self._persons)
        middle = float(self.arrived[chosen].min() + self.arrived[chosen].max()) / 2
        return ClicksGroup(version, int(chosen.sum()), Interval(estimate, max(lower, 0.0), upper), middle)

    def over_time(self) -> Iterator[ClicksGroup]:
        """Yield groups by time of arrival and version; versions with too few users at a time form one group."""
        minimum, n = self.min_users, len(self.arrived)
        if not 0 < minimum <= n:
            return
        first, last = float(self.arrived.min()), float(self.arrived.max())
        n_bins = min(max(n // (2 * minimum), 1), MAX_BINS)  # twice the minimum, for a bin may hold several versions
        width = max(last - first, 1e-9) / n_bins
        bins = np.minimum((self.arrived - first) // width, n_bins - 1)
        for each in range(n_bins):
            inside = bins == each
            versions, users = np.unique(self.version[inside], return_counts=True)
            small = versions[users < minimum]
            groups = [(each, inside & (self.version == each)) for each in versions[users >= minimum].tolist()]
            for version, chosen in [*groups, (None, inside & np.isin(self.version, small))]:
                group = self._group(version, chosen)
                if group is not None:
                    yield group

    def latest(self, current: int) -> ClicksGroup | None:
        """Return the users of the current version or, while these are few, the latest users of all versions.

        Users for whom the caller decided count only if `current` is `CALLER`.
        """
        of_current = self.version == current
        if current == CALLER or of_current.sum() >= LATEST_USERS:
            return self._group(current, of_current)
        latest, decided = np.zeros(len(self.arrived), bool), np.flatnonzero(self.version != CALLER)
        order = np.argsort(self.arrived[decided], kind="stable")
        latest[decided[order[-max(LATEST_USERS, self.min_users) :]]] = True
        versions = set(self.version[latest].tolist())
        return self._group(versions.pop() if len(versions) == 1 else None, latest)

    def in_segment(self, name: str) -> ClicksGroup | None:
        """Return the users of a segment; None if they are too few for an interval."""
        chosen = np.asarray(self.segment == name, bool)
        return self._group(None, chosen) if chosen.any() else None

    def survival(self, points: int) -> list[tuple[int, Interval]]:
        """Return the share of users with at least 0, 1, … recommendations in the window, at most `points` of them."""
        n = len(self.steps)
        if n < MIN_USERS:
            return []
        longest = max(int(np.quantile(self.steps, 0.99)), 1)
        at = np.unique(np.linspace(0, longest, min(points, longest + 1)).round().astype(np.int64)).tolist()
        certain = Interval(1.0, 1.0, 1.0)  # everybody has a first recommendation
        return [(k, certain if k <= 1 else self._share(self.steps >= k)) for k in at]

    def _share(self, has: npt.NDArray[np.bool_]) -> Interval:
        """Return the share of users with a property; of the same persons, many count as one, by the design effect."""
        n, share = len(has), float(has.mean())
        values = by_person(has.astype(float), self.person)
        if len(values) in (1, n) or not 0 < share < 1:
            return share_interval(share * len(values), len(values))
        effect = max(float(values.var(ddof=1)) / len(values) / (share * (1 - share) / n), 1.0)
        return share_interval(share * n / effect, n / effect)
