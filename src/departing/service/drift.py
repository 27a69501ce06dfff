"""Drift: whether click and departure rates of first recommendations change over time.

The outcome of a user's first recommendation depends on the category and the segment, but not on the policy, which
knows nothing else yet. So the outcomes of each category and segment are independent with a constant probability as
long as the site does not change, however policies change meanwhile and whoever learns from them.

Against that hypothesis stands one change of a category at some time. The likelihood of the change, with mixtures
over its time and over the probabilities before and after it, divided by the largest likelihood of constant
probabilities, is an e-process: under the hypothesis the probability that it ever exceeds 1/α is at most α (Ville's
inequality; Ramdas, Grünwald, Vovk and Shafer 2023, Statistical Science 38). So the test can be repeated as often as
wanted.
"""

from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, logsumexp, xlogy

from departing.model.counts import Booleans, Integers
from departing.model.instance import Floats

Outcome = Literal["click", "departure"]
FALSE_ALARM = 0.01  # probability of any detection from one detection, or the start, to the next, without a change
FIRST_CHANGE, GRID_GROWTH = 50, 1.02  # users before the first time of change that is tried, and factor to the next
MAX_STRATA = 20  # segments, in order of appearance, that are kept apart; all later ones form one stratum
MIN_USERS = 100  # of a category; with fewer no change is detectable at this false-alarm rate
OUTCOMES: tuple[Outcome, ...] = ("click", "departure")


@dataclass(frozen=True)
class FirstOutcomes:
    """First recommendations in order of arrival: time, category, stratum of the segment, and both outcomes, `[n]`."""

    time: Floats
    category: Integers
    stratum: Integers
    clicked: Booleans
    departed: Booleans


@dataclass(frozen=True)
class Change:
    """A change that was detected.

    Attributes
    ----------
    category : int
        Category of the first recommendation.
    outcome : {"click", "departure"}
        Outcome whose rate changed.
    before, after : float
        Rates before and after the change.
    since : float
        Most likely time of the change.
    evidence : float
        Natural logarithm of the e-value.
    """

    category: int
    outcome: Outcome
    before: float
    after: float
    since: float
    evidence: float


def find_change(data: FirstOutcomes, level: int = 0) -> Change | None:
    """Return the change with most evidence, None if there is too little of it.

    `level` numbers the samples of users that have been looked at; each has its part of the false-alarm rate.
    """
    n = len(data.time)
    size = int(log(max(n / FIRST_CHANGE, 1.0)) / log(GRID_GROWTH)) + 1
    grid = np.unique(np.ceil(FIRST_CHANGE * GRID_GROWTH ** np.arange(size)).astype(np.int64))
    grid = grid[grid < n]
    changes = []
    for category in np.flatnonzero(np.bincount(data.category) >= MIN_USERS).tolist():
        chosen = np.flatnonzero(data.category == category)
        # α / (2^(level + 1) * 2 outcomes * (category + 1) * (category + 2)): these sum to α over all of them.
        needed = -log(FALSE_ALARM) + log(2 ** (level + 2) * (category + 1) * (category + 2))
        for outcome, values in zip(OUTCOMES, (data.clicked, data.departed), strict=True):
            total, position = _evidence(chosen, data.stratum[chosen], values[chosen], grid)
            if total >= needed:
                early = chosen < grid[position]
                rates = values[chosen][early].mean(), values[chosen][~early].mean()
                since = float(data.time[grid[position]])
                changes.append(Change(category, outcome, float(rates[0]), float(rates[1]), since, total - needed))
    return max(changes, key=lambda change: change.evidence, default=None)


def _evidence(index: Integers, stratum: Integers, values: npt.NDArray[np.bool_], grid: Integers) -> tuple[float, int]:
    """Return the logarithm of the e-value of a change, and the position in the grid of its most likely time.

    `index` are positions of these users among all users, at which `grid` lists the times of change.
    """
    ends = np.searchsorted(index, grid)
    changed, constant, largest = np.zeros(len(grid)), 0.0, 0.0
    for each in np.unique(stratum).tolist():
        inside = stratum == each
        users = np.concatenate([[0], np.cumsum(inside)])
        hits = np.concatenate([[0], np.cumsum(inside & values)])
        n, x = users[-1], hits[-1]
        changed += _mixture(users[ends], hits[ends]) + _mixture(n - users[ends], x - hits[ends])
        constant += float(_mixture(n, x))
        largest += float(xlogy(x, x / n) + xlogy(n - x, 1 - x / n))
    # Time j has the weight 1 / (j (j + 1)); those that are still to come have 1 / (J + 1) together.
    j = np.arange(1, len(grid) + 1)
    terms = np.append(changed - np.log(j * (j + 1.0)), constant - log(len(grid) + 1))
    position = int(np.argmax(terms[:-1])) if len(grid) else 0
    return float(logsumexp(terms)) - largest, position


def _mixture(n: npt.ArrayLike, x: npt.ArrayLike) -> Floats:
    """Return the log-likelihood of x of n outcomes in order, averaged over the probability by Jeffreys' prior."""
    n, x = np.asarray(n, float), np.asarray(x, float)
    return np.asarray(betaln(x + 0.5, n - x + 0.5) - betaln(0.5, 0.5))
