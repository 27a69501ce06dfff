"""CohortCounts: transition counts by the age of users, so that older users can count less."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats
from departing.model.validation import MAX_USERS, check_int

AUTO = "auto"
MIN_HALF_LIFE = 10  # users; a sanity limit, far below any half-life that pays
# Cohorts of users are joined while both together span less than this share of their age. Within a joined cohort the
# weights of one half-life differ by at most 2^(age / 8 half-lives): 19 % at two half-lives, where they are 1/4.
JOINED_SHARE = 1 / 8
MIN_WEIGHT = 2.0**-7  # cohorts older than seven half-lives are left out: they are 1 % of the effective users
# Half-lives that "auto" chooses from, besides none: each four times the one before. The predictive likelihood is flat
# around its maximum, so that a finer grid would cost time only.
FIRST_HALF_LIFE, HALF_LIFE_RATIO = 1000, 4
# Users older than this many half-lives when one is chosen are forgotten for good: 1/8 of their weight is left.
FORGOTTEN = 3.0
# "auto" compares half-lives by the log-likelihood of recent blocks; older ones count less, by this factor per block.
# Set by hand: about the last twenty blocks count.
SCORE_DISCOUNT = 0.95
# Nats by which a half-life must predict better than none. Set by hand: with 4, one of two tuning runs on
# a stationary site took it for a moving one, since predictions are compared hundreds of times.
MIN_EVIDENCE = 8.0
SCORED_STEPS = 3  # first steps of users whose outcomes are predicted; those of later steps have few users each
PSEUDOCOUNT = 0.5  # of every outcome in predictions: Jeffreys' prior


def check_half_life(field: str, value: float | str | None) -> int | str | None:
    """Return `value` if it is a number of users, "auto" or None; an infinite half-life is None."""
    if value is None or value == inf:
        return None
    if value == AUTO:
        return AUTO
    try:
        return check_int(field, value, MIN_HALF_LIFE, MAX_USERS)  # type: ignore[arg-type]
    except InputError:
        expected = f"a number of users from {MIN_HALF_LIFE} to {MAX_USERS:.0e}, 'auto', or None for no forgetting"
        raise InputError(f"{field} is {value!r:.40}; expected {expected}.", field) from None


@dataclass(frozen=True, eq=False)
class Cohort:
    """Transitions that users made while the users from `start` to `end` arrived.

    `outcomes[i, K, 4]` and `unresolved[i]` are those added at the nodes `nodes[i]`.
    """

    start: int
    end: int
    nodes: Integers
    outcomes: Integers
    unresolved: Integers

    def join(self, later: "Cohort") -> "Cohort":
        """Return this cohort and a later one as one."""
        nodes, place = np.unique(np.concatenate([self.nodes, later.nodes]), return_inverse=True)
        outcomes = np.zeros((len(nodes), *self.outcomes.shape[1:]), np.int64)
        unresolved = np.zeros(len(nodes), np.int64)
        np.add.at(outcomes, place, np.concatenate([self.outcomes, later.outcomes]))
        np.add.at(unresolved, place, np.concatenate([self.unresolved, later.unresolved]))
        return Cohort(self.start, later.end, nodes, outcomes, unresolved)


class CohortCounts(TransitionCounts):
    """Transition counts that know when they were made, in numbers of arrived users.

    `weigh` chooses the weights of the cohorts, by a half-life, a window, or a first user; `histogram` then counts
    users by these weights. A cohort ends when `close` is called.

    Attributes
    ----------
    cohorts : list of Cohort
        Ended cohorts, the oldest first.
    weights : array [C]
        Weight of each.
    """

    def __init__(self, categories: int, limit: int) -> None:
        super().__init__(categories, limit)
        self.cohorts: list[Cohort] = []
        self.weights: Floats = np.zeros(0)
        self._remember()

    def _remember(self) -> None:
        """Keep the counts at the start of a cohort."""
        self._before = self.outcomes.copy(), self.unresolved_users.copy()

    def close(self, arrived: int, first: int = 0) -> Cohort | None:
        """End the cohort of the users up to `arrived` and return it, None if nothing was observed.

        Users before `first` are forgotten: their cohorts are not joined with those of later users.
        """
        outcomes, unresolved = self.outcomes.copy(), self.unresolved_users.copy()
        n = len(self._before[1])
        outcomes[:n] -= self._before[0]
        unresolved[:n] -= self._before[1]
        nodes = np.flatnonzero(outcomes.any(axis=(1, 2)) | (unresolved != 0))
        start = self.cohorts[-1].end if self.cohorts else 0
        if not len(nodes) or arrived <= start:
            return None
        cohort = Cohort(start, arrived, nodes, outcomes[nodes], unresolved[nodes])
        self.cohorts.append(cohort)
        self._remember()
        self._join(arrived, first)
        return cohort

    def _join(self, arrived: int, first: int) -> None:
        """Join old cohorts that are short for their age."""
        joined: list[Cohort] = []
        for cohort in self.cohorts:
            age = arrived - cohort.end
            alike = joined and (joined[-1].end <= first) == (cohort.end <= first)
            if alike and cohort.end - joined[-1].start < JOINED_SHARE * age:
                joined[-1] = joined[-1].join(cohort)
            else:
                joined.append(cohort)
        self.cohorts = joined

    def weigh(self, arrived: int, half_life: float = inf, window: float = inf, first: int = 0) -> None:
        """Weigh cohorts by their age: 2^(-age / half_life), and 0 outside the `window` and before user `first`."""
        middle = np.array([(cohort.start + cohort.end) / 2 for cohort in self.cohorts])
        ends = np.array([cohort.end for cohort in self.cohorts])
        age = arrived - middle
        weights = 0.5 ** (age / half_life)
        weights[(weights < MIN_WEIGHT) | (age >= window) | (ends <= first)] = 0.0
        if len(weights) and not weights.any():
            weights[-1] = 1.0
        self.weights = weights

    @property
    def memory(self) -> float:
        """Number of users, weighted."""
        spans = np.array([cohort.end - cohort.start for cohort in self.cohorts])
        return float(self.weights @ spans) if len(spans) else 0.0

    def weighted(self, weights: Floats) -> TransitionCounts:
        """Return the transition counts with these weights of the cohorts."""
        view = copy(self)
        view.outcomes = np.zeros(self.outcomes.shape)  # type: ignore[assignment]
        view.unresolved_users = np.zeros(self.size)  # type: ignore[assignment]
        for cohort, weight in zip(self.cohorts, weights.tolist(), strict=True):
            if weight:
                view.outcomes[cohort.nodes] += weight * cohort.outcomes
                view.unresolved_users[cohort.nodes] += weight * cohort.unresolved
        # Users who moved on in a later cohort leave with more weight than they have in the earlier one.
        np.maximum(view.unresolved_users, 0.0, out=view.unresolved_users)
        return view

    def histogram(self, max_counts: int | None = None, depth: int | None = None) -> tuple[Integers, Any]:
        """Return distinct counts `[n, K, 4]` and the weighted number of users with each."""
        if not self.cohorts or bool((self.weights == 1).all()):
            return super().histogram(max_counts, depth)
        return TransitionCounts.histogram(self.weighted(self.weights), max_counts, depth)

    def add_category(self) -> None:
        """Add a category that nobody has been shown."""
        super().add_category()
        pad = ((0, 0), (0, 1), (0, 0))
        self.cohorts = [
            Cohort(each.start, each.end, each.nodes, np.pad(each.outcomes, pad), each.unresolved)
            for each in self.cohorts
        ]
        self._before = np.pad(self._before[0], pad), self._before[1]

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        cohorts = [dict(vars(cohort)) for cohort in self.cohorts]
        before = {"before_outcomes": self._before[0].copy(), "before_unresolved": self._before[1].copy()}
        return super().state() | before | {"cohorts": cohorts, "weights": self.weights.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise `ValueError` if its arrays do not fit together."""
        super().restore(state)
        self.cohorts = [Cohort(**fields) for fields in state["cohorts"]]
        self.weights = state["weights"]
        self._before = state["before_outcomes"], state["before_unresolved"]


class HalfLives:
    """Choice of a half-life by the predictive likelihood of recent blocks.

    Every block is predicted, before it is learned from, by the weighted frequencies of outcomes after the same counts
    and category under each half-life. `scores` are the sums of the log-likelihoods of recent blocks.
    """

    def __init__(self) -> None:
        self.scores: dict[float, float] = {inf: 0.0}
        self.first = 0  # oldest users who are forgotten for good

    @property
    def best(self) -> float:
        """The half-life that predicts best; none (infinite) unless another is better by `MIN_EVIDENCE` nats."""
        best = max(self.scores, key=lambda half_life: self.scores[half_life])
        return best if self.scores[best] > self.scores[inf] + MIN_EVIDENCE else inf

    def update(self, parts: Sequence[CohortCounts], arrived: int, first: int) -> None:
        """Score the latest cohort by those before it, from user `first` on.

        `parts` are the counts of all users, or of each segment if they are recommended categories by segment.
        """
        longest = arrived - first
        grid = FIRST_HALF_LIFE * HALF_LIFE_RATIO ** np.arange(max(int(log(max(longest / 500, 1), 4)) + 1, 0))
        known = [inf, *(float(each) for each in grid if each <= 2 * longest)]
        self.scores = {each: self.scores.get(each, self.scores[inf]) for each in known}
        gains = dict.fromkeys(known, 0.0)
        for counts in parts:
            if counts.cohorts and counts.cohorts[-1].end == arrived:
                for half_life, gain in self._predictions(counts, known, first).items():
                    gains[half_life] += gain
        if any(gains.values()):
            self.scores = {each: SCORE_DISCOUNT * self.scores[each] + gains[each] for each in known}
        if self.best < inf:
            self.first = max(self.first, int(arrived - FORGOTTEN * self.best))

    def _predictions(self, counts: CohortCounts, half_lives: Sequence[float], first: int) -> dict[float, float]:
        """Log-likelihood of the latest cohort for every half-life."""
        latest, earlier = counts.cohorts[-1], [cohort for cohort in counts.cohorts[:-1] if cohort.end > first]
        scored = counts.depth[latest.nodes] < SCORED_STEPS
        if not earlier or not scored.any():
            return {}
        nodes, seen = latest.nodes[scored], latest.outcomes[scored]
        tables = np.array([_at(cohort, nodes) for cohort in earlier])
        age = np.array([latest.start - (cohort.start + cohort.end) / 2 for cohort in earlier])
        gains = {}
        for half_life in half_lives:
            weights = 0.5 ** (np.maximum(age, 0.0) / half_life)
            gains[half_life] = _log_prediction(np.tensordot(weights, tables, axes=1), seen)
        return gains

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return {
            "first": self.first,
            "half_lives": [each for each in self.scores if each < inf],
            "values": list(self.scores.values()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.first = state["first"]
        self.scores = dict(zip([inf, *state["half_lives"]], state["values"], strict=True))


def _at(cohort: Cohort, nodes: Integers) -> Integers:
    """Outcomes `[n, K, 4]` of a cohort at `nodes[n]`, which are in increasing order like its own."""
    place = np.minimum(np.searchsorted(cohort.nodes, nodes), len(cohort.nodes) - 1)
    return np.where((cohort.nodes[place] == nodes)[:, None, None], cohort.outcomes[place], 0)


def _log_prediction(expected: Floats, seen: Integers) -> float:
    """Log-likelihood of outcomes `seen[n, K, 4]` by smoothed frequencies of `expected[n, K, 4]`."""
    occurs = (expected > 0) | (seen > 0)
    smoothed = np.where(occurs, expected + PSEUDOCOUNT, 0.0)
    total = smoothed.sum(axis=2, keepdims=True)
    rate = np.where(occurs, smoothed / np.where(total > 0, total, 1.0), 1.0)
    return float((seen * np.log(rate)).sum())
