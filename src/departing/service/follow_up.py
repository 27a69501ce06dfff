"""Users in the statistics of the dashboard, read from a snapshot of a store."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.instance import CLICK_DEPART, CLICKS, DEPART, Floats, Instance
from departing.service import messages as m
from departing.service.cohorts import CALLER, DAY, WINDOWS, ClicksGroup, Cohort, choose_window
from departing.service.store import queries
from departing.service.store.base import decode_user
from departing.service.store.connection import Database
from departing.service.user import counts_array

PERIOD = 90 * DAY  # of arrivals, three times the longest window
MAX_USERS = 20_000  # every n-th if there are more: standard errors of about 1 %
MAX_STEPS_READ = 50_000  # recommendations read one by one, for visits that are longer than the window
MAX_COUNTS = 1_000_000  # users times categories in the departure rates
MAX_SEGMENTS = 12  # of the dashboard, as many as fit on the page
PER_USER = (
    *("number", "arrived", "visited", "departed", "version", "clicks", "steps", "forgotten", "person", "segment"),
)
MAX_POINTS = 40  # of the survival curve


@dataclass(frozen=True, eq=False)
class UserSample:
    """Users who arrived within the period, or every n-th of them, by number, `[n]`."""

    snapshot: Database
    time: float  # up to which everything is known
    delay: float  # seconds of inactivity after which a departure is known, 0 if departures are reported
    first: int  # number of the first user
    every: int
    number: Integers
    arrived: Floats
    visited: Floats  # seconds from the arrival to the last activity
    departed: npt.NDArray[np.bool_]
    version: Integers
    clicks: Integers
    steps: Integers
    forgotten: npt.NDArray[np.bool_]
    person: Integers  # number that the visits of a person share
    segment: npt.NDArray[np.object_]  # name, or None
    unit: str = CLICKS  # of the values: clicks, or rewards
    window: float = WINDOWS[0]

    @classmethod
    def read(cls, snapshot: Database, time: float, delay: float, unit: str = CLICKS) -> "UserSample":
        """Read the users, and choose the window for which they are followed; `unit` is that of rewards or clicks."""
        ((last,),) = snapshot.execute(queries.LATEST_USER)
        starts = snapshot.execute(queries.FIRST_ARRIVAL_SINCE, time - PERIOD)
        first = starts[0][0] if starts else last + 1
        every = (last - first) // MAX_USERS + 1
        rows = snapshot.execute(queries.SAMPLED_USERS, first, every, last) if first <= last else []
        users = [decode_user(state) for state, *_ in rows]
        person = np.array([user.person for user in users], np.int64)
        segment = np.array([user.segment for user in users], object)
        columns = np.array([row[1:] for row in rows], float).reshape(-1, 8).T
        number, departed, version, clicks, steps = columns[[0, 3, 4, 5, 6]].astype(np.int64)
        arrived, visited = columns[1], columns[2] - columns[1]
        figures = (number, arrived, visited, departed > 0, version, clicks, steps, columns[7] > 0, person, segment)
        sample = cls(snapshot, time, delay, first, every, *figures, unit)
        if not rows:
            return sample
        window = choose_window(arrived, sample.visited, sample.departed, time, delay)
        return replace(sample, window=window)._thinned()

    def _thinned(self) -> "UserSample":
        """Return fewer users if otherwise too many recommendations would have to be read one by one."""
        counted = ~(self._contained & ~self.forgotten) if self.unit == CLICKS else True
        times = int(self.steps[self._over & counted].sum()) // MAX_STEPS_READ + 1
        if times == 1:
            return self
        kept = (self.number - self.first) % (self.every * times) == 0
        return replace(self, every=self.every * times, **{name: getattr(self, name)[kept] for name in PER_USER})

    @property
    def _over(self) -> npt.NDArray[np.bool_]:
        """Users whose window is over."""
        return np.asarray(self.arrived + self.window <= self.time)

    @property
    def _contained(self) -> npt.NDArray[np.bool_]:
        """Users whose visit ended within the window."""
        return np.asarray(self.departed & (self.visited <= self.window))

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query on the sampled users."""
        last = int(self.number[-1]) if len(self.number) else -1
        return self.snapshot.execute(query, self.first, self.every, last, *values) if last >= 0 else []

    def cohort(self) -> Cohort:
        """Return the users whose window is over, with what happened in it."""
        position = {number: i for i, number in enumerate(self.number.tolist())}
        steps, clicks, version = self.steps.copy(), self.clicks.astype(float), self.version.copy()
        window, until = self.window, self.time - self.window
        if self.snapshot.execute(queries.VERSIONS_CHANGE):
            for number, first_version in self._rows(queries.SAMPLED_VERSIONS, until):
                version[position[number]] = first_version
        for number, *counts in self._rows(queries.SAMPLED_STEPS, window, window, until, window):
            steps[position[number]], clicks[position[number]] = counts
        if self.unit != CLICKS:
            clicks[:] = 0.0
            for number, reward in self._rows(queries.SAMPLED_REWARDS, window, until):
                clicks[position[number]] = reward
        over = self._over
        arrived, person, segment = self.arrived[over], self.person[over], self.segment[over]
        return Cohort(arrived, version[over], steps[over], clicks[over], person, segment)

    def follow_up(self, cohort: Cohort, current: int) -> m.FollowUp:
        """Return the estimates for the dashboard; `current` is the version of new users, or `CALLER`."""
        known = self.arrived + self.window + self.delay <= self.time
        latest = cohort.latest(current)
        return m.FollowUp(
            self.window,
            self.every,
            len(cohort.arrived),
            len(self.arrived) - len(cohort.arrived),
            cohort.min_users,
            float(self._contained[known].mean()) if known.any() else None,
            [m.ClicksBin(_version(group), group.users, *group.clicks, group.time) for group in cohort.over_time()],
            None if latest is None else m.ClicksEstimate(_version(latest), latest.users, *latest.clicks),
            [m.SurvivalPoint(count, *share) for count, share in cohort.survival(MAX_POINTS)],
            self.unit,
        )

    def segments(self, cohort: Cohort, instance: Instance | None) -> list[m.SegmentActivity]:
        """Return the segments with most users, and the clicks of their users; empty if no user has a segment."""
        names, users = np.unique([name for name in self.segment.tolist() if name is not None], return_counts=True)
        priors = None if instance is None else instance.segments
        rows = []
        for i in np.argsort(-users, kind="stable")[:MAX_SEGMENTS].tolist():
            name = str(names[i])
            group = cohort.in_segment(name)
            estimate = None if group is None else m.ClicksEstimate(_version(group), group.users, *group.clicks)
            known = instance is not None and priors is not None and priors.index(name) is not None
            prior = None
            if known and instance is not None:
                prior = dict(zip(instance.types, instance.in_segment(name).prior.tolist(), strict=True))
            share = float(users[i]) / len(self.segment)
            rows.append(m.SegmentActivity(name, int(users[i]) * self.every, share, estimate, prior))
        return rows

    def outcomes(self, n_categories: int) -> list[tuple[int, int]]:
        """Return the known outcomes of each category, and the departures among them.

        Only users count who arrived so long ago that their departures are known. Of later users, stays would be known
        sooner than departures.
        """
        counts = np.zeros((n_categories, 4), np.int64)
        thin = len(self.number) * n_categories // MAX_COUNTS + 1
        sample = replace(self, every=self.every * thin)
        for blob, users in sample._rows(queries.ARRIVED_COUNTS, self.time - self.window - self.delay):
            counts += users * counts_array(msgspec.msgpack.decode(blob), n_categories)
        departures = counts[:, [DEPART, CLICK_DEPART]].sum(axis=1)
        return list(zip(counts.sum(axis=1).tolist(), departures.tolist(), strict=True))


def _version(group: ClicksGroup) -> int | Literal["caller"] | None:
    return "caller" if group.version == CALLER else group.version
