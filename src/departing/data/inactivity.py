"""Suggested inactivity period of a log, from the times after which its users return.

After each event a user either returns (the next event) or has not returned by the end of the log. The Kaplan-Meier
estimator gives the probability S(t) of no return within t: events close to the end of the log count as long as they
are observed. S falls to the probability that a user never returns, which is estimated by S(h) at the horizon h, half
of the length of the log. Of the users who are inactive for t, the share 1 - S(h) / S(t) returns later. The suggested
period is the shortest one for which this share is at most 5 %, rounded up to a customary duration. The share refers
to users who are inactive already, so sessions of many events in quick succession do not shorten the period.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.data.spec import SECONDS
from departing.html_tables import html_repr
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from departing.data.times import TimeColumn

LATER = 0.05  # accepted share of inactive users who return later; departures are overstated by at most about as much
BINS_PER_OCTAVE = 16  # bins of gaps, each 4.4 % longer than the one before: finer than the durations to choose from
MAX_SAMPLE = 4_000_000  # events whose gaps are computed; users are sampled above, which leaves shares to 0.1 % points
# Probabilities that a user who stayed has not returned, that divide users by their time of inactivity: steps
# of 5 %, and finer ones for users who are almost certain to have departed.
NOT_RETURNED = (*np.arange(19, 0, -1) / 20, 0.02, 0.01, 0.005, 0.002, 0.001)
MIN_RETURNS = 20  # with fewer, a share of 5 % is one return
SHOWN_LATER, LEAST_SHOWN = 0.9, 0.001  # shares that an overview shows: from the first falls to the last returns
PERIODS = {
    "minute": (1, 2, 5, 10, 15, 20, 30, 45),
    "hour": (1, 2, 3, 4, 6, 8, 12, 18),
    "day": (1, 2, 3, 4, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365, 540, 730),
}


@dataclass(frozen=True)
class ReturnTimes:
    """Times after which the users of a log return, and the inactivity period that they suggest.

    Attributes
    ----------
    period : str
        Suggested value of `inactive_after`, such as "14 days"; a number as text if the time column holds numbers.
    returning_later : float
        Estimated share of users inactive for `period` who return later.
    is_reliable : bool
        False if the log is too short: users still return after a quarter of its length.
    returns, users : int
        Number of returns and users from which the shares are estimated.
    source : str
        Name of the source.
    times, no_return : float arrays [B]
        Times since an event, in seconds or in the unit of the time column, and the estimated probability of no return
        within each.
    horizon : float
        Longest time considered: half of the length of the log.
    is_clock : bool
        True if times are in seconds.
    """

    period: str
    returning_later: float
    is_reliable: bool
    returns: int
    users: int
    source: str
    times: Floats = field(repr=False)
    no_return: Floats = field(repr=False)
    horizon: float
    is_clock: bool

    @property
    def value(self) -> str | float:
        """`period` as an argument `inactive_after`."""
        return self.period if self.is_clock else float(self.period)

    @property
    def later(self) -> Floats:
        """Share of users who return later, by the time for which they have been inactive, shape (B,)."""
        return np.asarray(1 - self.no_return[-1] / self.no_return)

    def describe(self) -> str:
        """Describe the suggested period in one sentence."""
        if not self.is_reliable:
            return f"The log is too short to suggest a reliable period: users still return after {self.period}."
        returns = f"estimated from {self.returns:,} returns of {self.users:,} users"
        return f"Of the users inactive for {self.period}, {self.returning_later:.1%} return later ({returns})."

    def summary(self) -> str:
        """Printed overview: the suggestion, and the shares of users who return later by inactivity period."""
        lines = [f"Suggested inactivity period of {self.source}: {self.period}", self.describe()]
        lines.append("Inactive for        return later")
        lines += [f"  {text:16} {later:12.1%}" for text, later in self._shares()]
        return "\n".join(lines)

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the shares as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each customary period: period, returning_later.
        """
        periods, shares = zip(*self._shares(), strict=True)
        return to_frame({"period": periods, "returning_later": shares})

    def _repr_html_(self) -> str:
        rows = [[text, f"{later:.1%}"] for text, later in self._shares()]
        title = f"Suggested inactivity period: {self.period}"
        return html_repr(title, ["inactive for", "return later"], rows, [self.describe()])

    def to_dict(self) -> dict[str, Any]:
        """Return the suggestion and the shares by period as plain values."""
        return {
            "source": self.source,
            "period": self.period,
            "returning_later": self.returning_later,
            "is_reliable": self.is_reliable,
            "returns": self.returns,
            "users": self.users,
            "periods": [{"period": text, "returning_later": later} for text, later in self._shares()],
        }

    def plot(self, path: Any = None) -> "Figure":
        """Plot the probability of no return, and the share of inactive users who return later.

        Parameters
        ----------
        path : path, optional
            File to write (.svg, .png or .pdf).

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.data.plot import draw_return_times
        from departing.plotting.figures import save

        return save(draw_return_times(self), path)

    def _shares(self) -> list[tuple[str, float]]:
        """Customary periods, each with the share of users inactive for it who return later."""
        periods = [pair for pair in _periods(self.is_clock, self.horizon) if pair[0] >= self.times[0]]
        places = np.searchsorted(self.times, [size for size, _ in periods], side="right") - 1
        shares = [float(self.later[place]) for place in places]
        first = sum(share > SHOWN_LATER * shares[0] for share in shares[:-1])  # before, hardly anybody has returned
        last = sum(share >= LEAST_SHOWN for share in shares) + 1
        return [(text, share) for (_, text), share in zip(periods, shares, strict=True)][max(first - 1, 0) : last]


def gaps_query(events: int, last: int) -> str:
    """Query for the gaps between events of users: bin, number of returns, gaps open at the end, and users."""
    sample = -(-events // MAX_SAMPLE)
    where = "" if sample == 1 else f" AND hash(u) % {sample} = 0"
    gap = f"coalesce(following, {last}) - t"
    return (
        f"SELECT CASE WHEN {gap} > 0 THEN 1 + floor(log2(({gap})::DOUBLE) * {BINS_PER_OCTAVE})::INTEGER ELSE 0 END, "
        "count(following), count(*) - count(following), 0 FROM ("
        "SELECT t, lead(t) OVER (PARTITION BY u ORDER BY t) AS following FROM checked "
        f"WHERE rejection_code IS NULL{where}) GROUP BY 1 "
        f"UNION ALL SELECT 0, 0, 0, count(DISTINCT u) FROM checked WHERE rejection_code IS NULL{where}"
    )


def return_times(
    rows: Sequence[tuple[int, int, int, int]], time: "TimeColumn", first: int, last: int, source: str
) -> ReturnTimes:
    """The return times of a log from the rows of `gaps_query`."""
    n_bins = max((row[0] for row in rows), default=0) + 1
    returned, open_ = np.zeros(n_bins), np.zeros(n_bins)
    for number, n_returned, n_open, _ in rows:
        returned[number] += n_returned
        open_[number] += n_open
    if returned.sum() < MIN_RETURNS:
        raise InputError(
            f"Only {int(returned.sum()):,} events in {source} follow another event of the same user, too few to "
            "suggest an inactivity period; state one, such as `inactive_after`='30 days'."
        )
    horizon = (last - first) / 2
    at_risk = np.cumsum((returned + open_)[::-1])[::-1] - open_ / 2  # of the open ones half leave before the returns
    no_return = np.cumprod(1 - np.divide(returned, at_risk, out=np.zeros(n_bins), where=at_risk > 0))
    ends = 2 ** (np.arange(n_bins) / BINS_PER_OCTAVE)
    kept = ends <= max(horizon, ends[0])
    ends, no_return = ends[kept] / time.units, np.maximum(no_return[kept], 1e-12)
    later = 1 - no_return[-1] / no_return
    enough = float(ends[int(np.argmax(later <= LATER))])
    periods = _periods(time.is_clock, np.inf)
    seconds, text = next(pair for pair in periods if pair[0] >= enough)
    reached = max(int(np.searchsorted(ends, seconds, side="right")) - 1, 0)
    return ReturnTimes(
        text,
        float(later[reached]),
        enough <= horizon / 2 / time.units,
        int(returned.sum()),
        sum(row[3] for row in rows),
        source,
        ends,
        no_return,
        horizon / time.units,
        time.is_clock,
    )


def return_ages(times: ReturnTimes, inactive: int, units: int) -> tuple[Integers, Floats]:
    """Times since the last step, and between them the probability that a user who stayed has not returned yet.

    Users who do not return within the inactivity period have departed. Of the others, the share that has not returned
    falls to the next of `NOT_RETURNED` from time to time. `inactive` and the times are in units of the time column.
    """
    end = max(int(np.searchsorted(times.times * units, inactive, side="right")), 1)
    no_return = times.no_return[:end]
    stayed = 1 - no_return[-1]
    if stayed <= 0:
        return np.empty(0, np.int64), np.ones(1)
    not_yet = (no_return - no_return[-1]) / stayed
    levels = np.array(NOT_RETURNED)
    reached = (not_yet <= levels[:, None]).argmax(axis=1)  # the last of `not_yet` is 0
    between = (np.append(1.0, levels) + np.append(levels, 0.0)) / 2
    return np.ceil(times.times[reached] * units).astype(np.int64), between


def _periods(is_clock: bool, most: float) -> list[tuple[float, str]]:
    """Customary periods up to `most`, as a number and as text."""
    if not is_clock:
        numbers = (digit * 10.0**power for power in range(-6, 16) for digit in (1, 1.5, 2, 3, 5, 7))
        return [(number, f"{number:.15g}") for number in numbers if number <= most]
    listed = [
        (n * SECONDS[unit], f"{n} {unit}{'' if n == 1 else 's'}") for unit, sizes in PERIODS.items() for n in sizes
    ]
    listed += [(n * SECONDS["day"], f"{n} days") for n in range(1095, 36500, 365)]
    return [pair for pair in listed if pair[0] <= most]
