"""ChangeDetector: a sequential test whether users behave as before, with a stated false-alarm rate."""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaincc, xlogy
from scipy.stats import chi2

from departing.learning.forgetting import TESTED_STEPS, Cohort, CohortCounts
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats

# Probability that a stationary site ever raises an alarm, over all blocks together (and again after an alarm).
FALSE_ALARM = 0.01
# Smallest expected number in each cell of a two-by-two table for its likelihood ratio to be nearly chi-squared.
MIN_EXPECTED = 5.0
WINDOW_RATIO = 1.5  # recent windows that are tested: each at least this many times as long as the one before
MAX_WINDOW_SHARE = 0.8  # of the users since the last change; a later change point leaves too few users before it


class Change(NamedTuple):
    """A detected change: users from `first` on behave differently; the test had this p-value (log)."""

    first: int
    log_p_value: float


class ChangeDetector:
    """Generalised likelihood-ratio test of recent windows of users against those before.

    The outcome of recommending a category after given counts has the same distribution as long as users do not
    change, whatever the policy was. So for every node of the count graph and every category, three binomial
    frequencies are compared between the window and the users before it: a click, a departure after a no-click, and a
    departure after a click. Twice the log-likelihood ratio of each is nearly chi-squared with one degree of freedom.
    The sum over all tables and the largest one are tested, at a level that is divided among the windows and, by
    1 / (k (k + 1)), among the blocks k since the last change, so that all tests together have `FALSE_ALARM`.
    """

    def __init__(self) -> None:
        self.tests = 0  # blocks tested since the last change
        self.first = 0  # users who arrived before the last change
        self.changes: list[int] = []

    def update(self, counts: CohortCounts, parts: Sequence[CohortCounts] = ()) -> bool:
        """Test the latest windows of settled users; return True, and remember the change, if one is detected.

        `parts` are the counts of each segment, if users are recommended categories by segment: outcomes after the
        same counts then have the same distribution within a segment only.
        """
        cohorts = [cohort for cohort in counts.cohorts if self.first < cohort.end <= counts.settled]
        windows = _windows(cohorts)
        if not windows:
            return False
        self.tests += 1
        level = log(FALSE_ALARM) - log(self.tests * (self.tests + 1)) - log(len(windows))
        firsts = [cohorts[-n].start for n in windows]
        tests = (self._test(parts or [counts], first, counts.settled) for first in firsts)
        change = min(tests, key=lambda each: each.log_p_value)
        if change.log_p_value > level:
            return False
        self.first, self.tests = change.first, 0
        self.changes.append(change.first)
        return True

    def _test(self, parts: Sequence[CohortCounts], first: int, settled: int) -> Change:
        """Compare the users from `first` to `settled` with those before, since the last change."""
        found = []
        for counts in parts:
            recent = [cohort for cohort in counts.cohorts if first <= cohort.start < settled]
            earlier = [cohort for cohort in counts.cohorts if self.first < cohort.end <= first]
            tables = zip(_tables(_total(counts, recent)), _tables(_total(counts, earlier)), strict=True)
            found += [_ratios(*pair) for pair in tables]
        ratios = np.concatenate(found)
        if not len(ratios):
            return Change(first, 0.0)
        largest = log(len(ratios)) + _log_tail(float(ratios.max()), 1)
        together = _log_tail(float(ratios.sum()), len(ratios))
        return Change(first, min(log(2) + min(largest, together), 0.0))

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return {"tests": self.tests, "first": self.first, "changes": list(self.changes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.tests, self.first, self.changes = state["tests"], state["first"], list(state["changes"])


def _windows(cohorts: list[Cohort]) -> list[int]:
    """Numbers of latest cohorts that make up the tested windows, of geometrically increasing lengths."""
    if len(cohorts) < 2:
        return []
    end, total = cohorts[-1].end, cohorts[-1].end - cohorts[0].start
    windows, length = [], 0.0
    for n in range(1, len(cohorts)):
        users = end - cohorts[-n].start
        if users >= WINDOW_RATIO * length and users <= MAX_WINDOW_SHARE * total:
            windows.append(n)
            length = users
    return windows


def _total(counts: CohortCounts, cohorts: list[Cohort]) -> Integers:
    """Outcomes of consecutive cohorts at the first steps, `[nodes, K, 4]`."""
    total = np.zeros(counts.outcomes.shape, np.int64)
    for cohort in cohorts:
        total[cohort.nodes] += cohort.outcomes
    return total[counts.depth < TESTED_STEPS]


def _tables(outcomes: Integers) -> list[tuple[Integers, Integers]]:
    """Successes and trials of clicks, departures after a no-click and departures after a click, `[n, K]` each."""
    click, stay, depart, last = (outcomes[..., outcome] for outcome in (CLICK, STAY, DEPART, CLICK_DEPART))
    clicks, no_clicks = click + last, stay + depart
    return [(clicks, clicks + no_clicks), (depart, no_clicks), (last, clicks)]


def _ratios(window: tuple[Integers, Integers], before: tuple[Integers, Integers]) -> Floats:
    """Twice the log-likelihood ratios of the two-by-two tables that are large enough."""
    successes, trials = window[0] + before[0], window[1] + before[1]
    smaller = np.minimum(window[1], before[1]) / np.maximum(trials, 1)
    used = smaller * np.minimum(successes, trials - successes) >= MIN_EXPECTED
    parts = [_log_likelihood(s[used], n[used]) for s, n in (window, before)]
    return np.maximum(2 * (parts[0] + parts[1] - _log_likelihood(successes[used], trials[used])), 0.0)


def _log_likelihood(successes: Integers, trials: Integers) -> Floats:
    failures = trials - successes
    return np.asarray(xlogy(successes, successes / trials) + xlogy(failures, failures / trials))


def _log_tail(value: float, freedom: int) -> float:
    """Log of the probability that a chi-squared variable exceeds `value`."""
    tail = float(gammaincc(freedom / 2, value / 2))
    return log(tail) if tail > 1e-300 else float(chi2.logsf(value, freedom))
