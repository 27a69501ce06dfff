"""Drift: rates that change over the time of a log, since when, and in which categories and segments.

Observed minus forecast responses are summed by the time of the step, for each category and each segment. Their sums
are compared with a jump and with a steady change, starting at each of the times: the largest standardised difference
is the statistic. The model was fitted to the whole log, so only differences between times count.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import erfc, exp, log, pi, sqrt
from typing import Any

import numpy as np

from departing.formatting import first_few, format_count, format_p_value, format_percent
from departing.model.instance import Floats

SIGNIFICANCE = 0.01  # of all series together
MIN_SHARE = 0.05  # of the variance on each side of a change: changes at the ends are too uncertain
MIN_ERROR = 0.1  # relative change that matters, as in `goodness_of_fit`
MIN_RESPONSES = 20.0  # expected responses and failures of a series: the normal approximation of its sums
MAX_CHANGES = 4  # in a sentence
MIN_LISTED = 0.1  # of the largest evidence, below which a change of a category is only counted
CONFIDENCE = 0.95  # of the interval of the time of a change
NOUNS = {
    "click": "click rate",
    "depart": "departure rate after a no-click",
    "depart_on_click": "departure rate after a click",
    "share": "share of users",
}


@dataclass(frozen=True)
class Series:
    """Observed and expected successes in `n[B]` trials by time, with their variance."""

    response: str
    kind: str
    name: str
    n: Floats = field(repr=False)
    observed: Floats = field(repr=False)
    expected: Floats = field(repr=False)
    variance: Floats = field(repr=False)


@dataclass(frozen=True)
class Change:
    """Change of one rate over the time of a log.

    Attributes
    ----------
    response : str
        Rate that changes: "click", "depart", "depart_on_click", "share" (of a segment in arriving users), or the
        share of a type, such as "type 0".
    kind : {"category", "segment", "type"}
        Kind of the group whose rate changes; "type" for the share of a type in all users.
    name : str
        Name of the category, segment or type.
    shape : {"jump", "trend"}
        A jump, or a steady change that starts then.
    since, earliest, latest : float
        Estimated start of the change and the ends of its 95% interval, from 0 (start of the log) to 1 (end).
    before, after : float
        Rate before the change, and at the end of the log.
    relative_error : float
        Size of the change as of misfits: about that of log-odds for clicks and shares, relative for departures.
    p_value : float
        p-value of the largest difference over all times, of this rate alone.
    scores : array [2, B]
        Standardised differences for a jump and for a steady change, by the period in which it starts.
    """

    response: str
    kind: str
    name: str
    shape: str
    since: float
    earliest: float
    latest: float
    before: float
    after: float
    relative_error: float
    p_value: float
    scores: Floats = field(repr=False)

    @property
    def evidence(self) -> float:
        """Largest squared standardised difference: twice the nats of evidence."""
        return float((self.scores**2).max())

    def describe(self) -> str:
        """Describe the change in one phrase."""
        rates = f"from {format_percent(self.before)} to {format_percent(self.after)}"
        if self.response in NOUNS:
            return f"{NOUNS[self.response]} of {self.kind} {self.name!r} {rates}"
        where = "" if self.kind == "type" else f" in {self.kind} {self.name!r}"
        return f"share of {self.response}{where} {rates}"


@dataclass(frozen=True)
class Drift:
    """Evidence that users change over the time of a log.

    Attributes
    ----------
    changes : tuple of Change
        Rates that change, the one with the most evidence first.
    p_value : float
        Smallest p-value of all rates, Bonferroni-corrected.
    shape : {"jump", "trend"}
        A jump, or a steady change: the shape that describes all changes together better.
    since, earliest, latest : str
        Estimated start of the changes, and the ends of its 95% interval, as text.
    start, interval : float, tuple of float
        The same from 0 at the start of the log to 1 at its end.
    """

    changes: tuple[Change, ...]
    p_value: float
    shape: str
    since: str
    earliest: str
    latest: str
    start: float
    interval: tuple[float, float]

    @property
    def main(self) -> Change:
        """Change with the most evidence."""
        return self.changes[0]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories whose rates change."""
        return self._names("category")

    @property
    def segments(self) -> tuple[str, ...]:
        """Segments whose rates or shares change."""
        return self._names("segment")

    def _names(self, kind: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(change.name for change in self.changes if change.kind == kind))

    @property
    def when(self) -> str:
        """Phrase for the start of the changes."""
        return f"since about {self.since}" if self.start else "since the start of the log"

    def describe(self) -> str:
        """Describe the drift in two or three sentences.

        If the rates of a category change, forecasts of other rates and the shares of types are off as well. So if a
        category has at least half of the largest evidence, the strongest changes of categories are listed, and the
        others are only counted.
        """
        shape = "a jump" if self.shape == "jump" else "a steady change"
        interval = f" (95% interval {self.earliest} to {self.latest})" if self.earliest != self.latest else ""
        largest = max(change.evidence for change in self.changes)
        listed = [each for each in self.changes if each.kind == "category" and each.evidence >= MIN_LISTED * largest]
        explained = any(each.evidence >= largest / 2 for each in listed)
        listed = listed[:MAX_CHANGES] if explained else list(self.changes)
        moved = first_few([change.describe() for change in listed], MAX_CHANGES)
        text = (
            f"Users change over the time of the log ({format_p_value(self.p_value)}): {shape} {self.when}{interval}. "
            f"Changed: {moved}."
        )
        if explained and (rest := len(self.changes) - len(listed)):
            text += f" {format_count(rest, 'other rate or share differs', 'other rates and shares differ')} as well, "
            text += "which may follow from this."
        return text

    __str__ = describe


def find_drift(series: Iterable[Series], date: Callable[[float], str], known: float | None = None) -> Drift | None:
    """Search series over equal periods for changes; None if there is no evidence of any.

    `date` returns the text of a time from 0 to 1. With the p-value `known` of a test that has found drift, the change
    with the most evidence is returned in any case.
    """
    scans = sorted(
        (scan for scan in map(_scan, series) if scan is not None), key=lambda each: (each.p_value, -each.evidence)
    )
    n = len(scans)
    found = [each for each in scans if each.p_value * n <= SIGNIFICANCE and each.relative_error >= MIN_ERROR]
    if not found and (known is None or not scans):
        return None
    main, p_value = (found or scans)[0], min(1.0, scans[0].p_value * n)
    changes = tuple(found or scans[:1])
    together = [each for each in changes if each.kind == main.kind]  # each step is of one category, and one segment
    shape, start, earliest, latest = _start(np.sum([each.scores**2 for each in together], axis=0))
    p_value = p_value if known is None else min(known, p_value)
    dates = date(start), date(earliest), date(latest)
    return Drift(changes, p_value, shape, *dates, start, (earliest, latest))


def _scan(series: Series) -> Change | None:
    """Best change of a series; None if there is too little data."""
    total = float(series.n.sum())
    if min(series.expected.sum(), total - series.expected.sum()) < MIN_RESPONSES:
        return None
    variance, bins = series.variance, len(series.n)
    residual = series.observed - series.expected
    share = np.append(0.0, variance.cumsum()[:-1]) / variance.sum()
    possible = (share >= MIN_SHARE) & (share <= 1 - MIN_SHARE)
    if not possible.any():
        return None
    period = np.arange(bins)
    shapes = np.stack(
        [(period >= period[:, None]).astype(np.float64), np.maximum(period - period[:, None] + 0.5, 0.0)]
    )
    centred = shapes - (shapes @ variance)[..., None] / variance.sum()
    information, score = (centred**2) @ variance, centred @ residual
    possible = np.stack([possible, possible | (period == 0)])  # a steady change may start with the log
    z = np.where(possible, score / np.sqrt(np.maximum(information, 1e-300)), 0.0)
    best = np.unravel_index(np.abs(z).argmax(), z.shape)
    largest = float(np.abs(z[best]))
    p_value = min(1.0, _largest_p_value(largest) + erfc(largest / sqrt(2)))
    shape, since, earliest, latest = _start(z**2)
    slope = score[best] / information[best]  # change of the logit for one unit of the shape
    rate = float(series.expected.sum() / total)
    height = slope * (shapes[best].max() - shapes[best].min())
    low = rate + rate * (1 - rate) * slope * float(shapes[best].min() - (shapes[best] @ series.n) / total)
    high = low + rate * (1 - rate) * height
    before, after = (float(np.clip(each, 0.0, 1.0)) for each in (low, high))
    scale = rate if series.response.startswith("depart") else rate * (1 - rate)
    relative = abs(high - low) / max(scale, 1e-12)
    times_and_rates = since, earliest, latest, before, after
    return Change(series.response, series.kind, series.name, shape, *times_and_rates, relative, p_value, z)


def _largest_p_value(z: float) -> float:
    """Probability that the largest standardised difference between before and after, over all times, exceeds z.

    Asymptotic formula for a Brownian bridge (James, James and Siegmund 1987), with `MIN_SHARE` left out at each end.
    """
    if z < 1:
        return 1.0
    density = exp(-(z**2) / 2) / sqrt(2 * pi)
    return min(1.0, density * ((z - 1 / z) * 2 * log((1 - MIN_SHARE) / MIN_SHARE) + 4 / z))


def _start(evidence: Floats) -> tuple[str, float, float, float]:
    """Shape of a change, its start and the ends of an interval, given twice the nats of evidence `[2, B]`.

    All starts have equal prior probabilities; the interval is that of the likeliest starts of the shape.
    """
    row, start = np.unravel_index(int(evidence.argmax()), evidence.shape)
    bins = evidence.shape[1]
    weight = np.where(evidence[row] > 0, np.exp((evidence[row] - evidence[row].max()) / 2), 0.0)
    order = np.argsort(-weight, kind="stable")
    enough = int(np.searchsorted(np.cumsum(weight[order]) / weight.sum(), CONFIDENCE)) + 1
    kept = order[:enough]
    earliest, latest = max(int(kept.min()) - 1, 0) / bins, min(int(kept.max()) + 1, bins) / bins
    return ("jump", "trend")[row], float(start) / bins, earliest, latest


def drift_series(
    names: Sequence[str], calendar: Floats, segments: Sequence[str], by_segment: Floats, arrivals: Floats
) -> Iterator[Series]:
    """Series of each response in each category and segment, and of the share of each segment.

    `calendar[3, B, C, 4]` are the sums of `forecast_cells` by response, period and category, `by_segment[S, 3, B, 4]`
    those by segment, and `arrivals[S, B]` the users who arrived.
    """
    groups: list[tuple[str, str, Any]] = [("category", name, calendar[:, :, c]) for c, name in enumerate(names)]
    groups += [("segment", name, by_segment[s]) for s, name in enumerate(segments)]
    for kind, name, sums in groups:
        for response, rows in zip(("click", "depart", "depart_on_click"), sums, strict=True):
            yield Series(response, kind, name, *rows.T)
    users = arrivals.sum(axis=0)
    for name, own in zip(segments, arrivals, strict=False):
        share = own.sum() / max(users.sum(), 1.0)
        yield Series("share", "segment", name, users, own, users * share, users * share * (1 - share))
