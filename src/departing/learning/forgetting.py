"""CohortCounts: transition counts by the age of users, so that older users can count less."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import inf, log, log2
from typing import Any

import numpy as np

from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, STAY, Floats
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
TESTED_STEPS = 4  # first steps of users that are tested for changes; few users reach the counts of later ones
SCORED_STEPS = 3  # first steps of users whose outcomes are predicted; those of later steps have few users each
# A cohort is compared with others when all but this share of the outcomes of first steps are usually observed at its
# age. Departures that are missing then look like a change if some 30 / share² users of that age are tested together:
# 300,000 users.
LATE_SHARE = 0.01
# Delays of earlier outcomes count less, by this factor per cohort, so that longer delays are noticed soon. Set by
# hand: about the last twenty cohorts count.
DELAY_DISCOUNT = 0.95
MAX_DELAY_BITS = 64  # delays are counted in bins that grow by the root of 2
PSEUDOCOUNT = 0.5  # of every outcome in predictions: Jeffreys' prior


def check_half_life(field: str, value: float | str | None) -> int | str | None:
    """Return `value` if it is a number of users, "auto" or None; "none" and an infinite half-life are None."""
    if value in (None, "none", inf):
        return None
    if value == AUTO:
        return AUTO
    try:
        return check_int(field, value, MIN_HALF_LIFE, MAX_USERS)  # type: ignore[arg-type]
    except InputError:
        expected = f"a number of users from {MIN_HALF_LIFE} to {MAX_USERS:.0e}, 'auto', or 'none' to forget nobody"
        raise InputError(f"{field} is {value!r:.40}; expected {expected}.", field) from None


@dataclass(frozen=True, eq=False)
class Cohort:
    """Transitions of the users who arrived from `start` to `end`.

    `outcomes[i, K, 4]` and `unresolved[i]` are their users at the nodes `nodes[i]`.
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
    """Transition counts by the time at which users arrived, in numbers of arrived users.

    `weigh` chooses the weights of the cohorts, by a half-life, a window, or a first user; `histogram` then counts
    users by these weights. A cohort ends when `close` is called. Outcomes of its users that are observed later are
    still added to it. Which outcomes are late may depend on what they are: departures are usually observed last. So
    cohorts are compared, and older users forgotten, only when the outcomes of a cohort are nearly complete.

    Attributes
    ----------
    cohorts : list of Cohort
        Ended cohorts, the oldest first.
    weights : array [C]
        Weight of each.
    settled : int
        Number of oldest users whose outcomes are nearly complete, the end of a cohort.
    """

    def __init__(self, categories: int, limit: int) -> None:
        super().__init__(categories, limit)
        self.cohorts: list[Cohort] = []
        self.weights: Floats = np.zeros(0)
        self.settled = 0
        self._observed = 0  # outcomes when a cohort ended last
        # Discounted number of outcomes that were observed before their cohort ended, and by the age of the cohort
        # when it was closest to their observation, in bins.
        self._delays = np.zeros(1 + 2 * MAX_DELAY_BITS)

    @property
    def end(self) -> int:
        """Number of users in ended cohorts."""
        return self.cohorts[-1].end if self.cohorts else 0

    def add(
        self, counts: Integers, categories: Integers, outcomes: Integers, arrivals: Integers | None = None
    ) -> None:
        """Add users as `TransitionCounts.add` does; `arrivals[n]` is the number of users who arrived before each."""
        super().add(counts, categories, outcomes)
        if arrivals is None or not (arrivals < self.end).any():
            return
        place = np.searchsorted([cohort.end for cohort in self.cohorts], arrivals, side="right")
        for index in np.unique(place[arrivals < self.end]).tolist():
            rows = place == index
            self._add_late(index, counts[rows], categories[rows], outcomes[rows])

    def _add_late(self, index: int, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        """Add outcomes to an ended cohort."""
        node, cohort = self.find(counts), self.cohorts[index]
        known = node >= 0  # of the first steps, which are added
        node, categories, outcomes = node[known], categories[known], outcomes[known]
        users, table = outcomes.sum(axis=1), np.zeros((3 * len(node), self.n_categories, 4), np.int64)
        table[np.arange(len(node)), categories] = outcomes
        nodes = np.concatenate([node, *self.child[node, categories].T])
        unresolved = np.concatenate([np.where(node > 0, -users, 0), *outcomes[:, [CLICK, STAY]].T])
        there = nodes >= 0
        late = Cohort(cohort.start, cohort.end, nodes[there], table[there], unresolved[there])
        self.cohorts[index] = cohort.join(late)
        age_bin = 1 + int(2 * log2(self.end - cohort.end + 1))
        self._delays[age_bin] += users[self.depth[node] < TESTED_STEPS].sum()

    def close(self, arrived: int, first: int = 0) -> bool:
        """End the cohort of the users up to `arrived`; return False if nothing was observed since the last one ended.

        Users before `first` are forgotten: their cohorts are not joined with those of later users.
        """
        observed = int(self.outcomes.sum())
        if observed == self._observed or arrived <= self.end:
            return False
        self._observed = observed
        on_time = self.end_cohort(arrived, first, self.settled)
        self._delays *= DELAY_DISCOUNT
        self._delays[0] += on_time.outcomes[self.depth[on_time.nodes] < TESTED_STEPS].sum()
        ends = [cohort.end for cohort in self.cohorts if arrived - cohort.end >= self._settling_age]
        self.settled = ends[-1] if ends else 0
        return True

    @property
    def _settling_age(self) -> float:
        """Age of a cohort, in users, from which on its outcomes are nearly complete."""
        late = self._delays[::-1].cumsum()[::-1]  # outcomes in this bin and later ones
        return max(2 ** (int((late > LATE_SHARE * late[0]).sum() - 1) / 2), 1.0) - 1

    def end_cohort(self, arrived: int, first: int, settled: int) -> Cohort:
        """End the cohort of the users up to `arrived` and return it; join cohorts of users before `settled`."""
        outcomes, unresolved = self.outcomes.copy(), self.unresolved_users.copy()
        for cohort in self.cohorts:
            outcomes[cohort.nodes] -= cohort.outcomes
            unresolved[cohort.nodes] -= cohort.unresolved
        nodes = np.flatnonzero(outcomes.any(axis=(1, 2)) | (unresolved != 0))
        ended = Cohort(self.end, arrived, nodes, outcomes[nodes], unresolved[nodes])
        self.cohorts.append(ended)
        self._join(arrived, first, settled)
        return ended

    def _join(self, arrived: int, first: int, settled: int) -> None:
        """Join old cohorts that are short for their age."""
        joined: list[Cohort] = []
        for cohort in self.cohorts:
            age = arrived - cohort.end
            alike = joined and (joined[-1].end <= first) == (cohort.end <= first) and cohort.end <= settled
            if alike and cohort.end - joined[-1].start < JOINED_SHARE * age:
                joined[-1] = joined[-1].join(cohort)
            else:
                joined.append(cohort)
        self.cohorts = joined

    def weigh(self, settled: int, half_life: float = inf, window: float = inf, first: int = 0) -> None:
        """Weigh cohorts by their age: 2^(-age / half_life), and 0 outside the `window` and before user `first`.

        If anyone is forgotten, users after the first `settled` do not count, and ages are those when user `settled`
        arrived: among few users, the missing outcomes of the latest would make departures look rare.
        """
        ends = np.array([cohort.end for cohort in self.cohorts])
        self.weights = np.ones(len(ends))
        if not settled or (half_life == window == inf and not first):
            return
        age = settled - np.array([(cohort.start + cohort.end) / 2 for cohort in self.cohorts])
        weights = 0.5 ** (np.maximum(age, 0.0) / half_life)
        weights[(weights < MIN_WEIGHT) | (age >= window) | (ends <= first) | (ends > settled)] = 0.0
        if not weights.any():
            weights[ends == settled] = 1.0
        self.weights = weights

    @property
    def users(self) -> float:
        """Number of users with an outcome, weighted."""
        if self._all_alike:
            return super().users
        roots = [cohort.outcomes[cohort.nodes == 0].sum() for cohort in self.cohorts]
        return float(self.weights @ np.array(roots))

    @property
    def _all_alike(self) -> bool:
        return bool((self.weights == 1).all())

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
        # In states of earlier releases, users who moved on later left with more weight than they have there.
        np.maximum(view.unresolved_users, 0.0, out=view.unresolved_users)
        return view

    def histogram(self, max_counts: int | None = None, depth: int | None = None) -> tuple[Integers, Any]:
        """Return distinct counts `[n, K, 4]` and the weighted number of users with each."""
        if self._all_alike:
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

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        cohorts = [dict(vars(cohort)) for cohort in self.cohorts]
        own = {"cohorts": cohorts, "weights": self.weights.copy(), "settled": self.settled}
        return super().state() | own | {"observed": self._observed, "delays": self._delays.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise `ValueError` if its arrays do not fit together."""
        super().restore(state)
        self.cohorts = [Cohort(**fields) for fields in state["cohorts"]]
        self.weights = state["weights"]
        # States of earlier releases have none of these: outcomes were taken to be observed at once.
        self.settled = state.get("settled", self.end)
        self._observed = state.get("observed", sum(int(cohort.outcomes.sum()) for cohort in self.cohorts))
        self._delays = state.get("delays", self._delays).copy()


class HalfLives:
    """Choice of a half-life by the predictive likelihood of recent blocks.

    Every block is predicted, before it is learned from, by the weighted frequencies of outcomes after the same counts
    and category under each half-life. `scores` are the sums of the log-likelihoods of recent blocks.
    """

    def __init__(self) -> None:
        self.scores: dict[float, float] = {inf: 0.0}
        self.first = 0  # oldest users who are forgotten for good
        self.scored = 0  # oldest users who have been predicted

    @property
    def best(self) -> float:
        """The half-life that predicts best; none (infinite) unless another is better by `MIN_EVIDENCE` nats."""
        best = max(self.scores, key=lambda half_life: self.scores[half_life])
        return best if self.scores[best] > self.scores[inf] + MIN_EVIDENCE else inf

    def update(self, parts: Sequence[CohortCounts], settled: int, first: int) -> None:
        """Score the latest cohorts of the first `settled` users by those before them, from user `first` on.

        `parts` are the counts of all users, or of each segment if they are recommended categories by segment.
        """
        longest = settled - first
        grid = FIRST_HALF_LIFE * HALF_LIFE_RATIO ** np.arange(max(int(log(max(longest / 500, 1), 4)) + 1, 0))
        known = [inf, *(float(each) for each in grid if each <= 2 * longest)]
        self.scores = {each: self.scores.get(each, self.scores[inf]) for each in known}
        ends = {cohort.end for counts in parts for cohort in counts.cohorts if self.scored < cohort.end <= settled}
        for end in sorted(ends):
            gains = dict.fromkeys(known, 0.0)
            for counts in parts:
                for half_life, gain in self._predictions(counts, end, known, first).items():
                    gains[half_life] += gain
            if any(gains.values()):
                self.scores = {each: SCORE_DISCOUNT * self.scores[each] + gains[each] for each in known}
        self.scored = max(self.scored, settled)
        if self.best < inf:
            self.first = max(self.first, int(settled - FORGOTTEN * self.best))

    def _predictions(
        self, counts: CohortCounts, end: int, half_lives: Sequence[float], first: int
    ) -> dict[float, float]:
        """Log-likelihood of the cohort with this `end` for every half-life, by those before it."""
        cohorts = [cohort for cohort in counts.cohorts if first < cohort.end <= end]
        if not cohorts or cohorts[-1].end != end:
            return {}
        latest, earlier = cohorts[-1], cohorts[:-1]
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
            "scored": self.scored,
            "half_lives": [each for each in self.scores if each < inf],
            "values": list(self.scores.values()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.first, self.scored = state["first"], state["scored"]
        self.scores = dict(zip([inf, *state["half_lives"]], state["values"], strict=True))


def _at(cohort: Cohort, nodes: Integers) -> Integers:
    """Outcomes `[n, K, 4]` of a cohort at `nodes[n]`, which are in increasing order like its own."""
    if not len(cohort.nodes):
        return np.zeros((len(nodes), *cohort.outcomes.shape[1:]), np.int64)
    place = np.minimum(np.searchsorted(cohort.nodes, nodes), len(cohort.nodes) - 1)
    return np.where((cohort.nodes[place] == nodes)[:, None, None], cohort.outcomes[place], 0)


def _log_prediction(expected: Floats, seen: Integers) -> float:
    """Log-likelihood of outcomes `seen[n, K, 4]` by smoothed frequencies of `expected[n, K, 4]`."""
    occurs = (expected > 0) | (seen > 0)
    smoothed = np.where(occurs, expected + PSEUDOCOUNT, 0.0)
    total = smoothed.sum(axis=2, keepdims=True)
    rate = np.where(occurs, smoothed / np.where(total > 0, total, 1.0), 1.0)
    return float((seen * np.log(rate)).sum())
