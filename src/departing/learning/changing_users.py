"""ChangingUsers: learners that forget old users, and that detect changes."""

from collections.abc import Iterable
from math import inf, log
from typing import Any

import numpy as np

from departing.learning.blocks import ALL_USERS
from departing.learning.catalogue import ChangingCatalogue
from departing.learning.change_detection import ChangeDetector
from departing.learning.exploration import ExplorationBudget
from departing.learning.forgetting import AUTO, CohortCounts, HalfLives
from departing.learning.model_learner import MAX_STEPS
from departing.learning.protocol import AssignedPolicy
from departing.learning.segment_counts import SegmentCounts
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Fixed

# With change detection, this times the root of the users since the last change try each category that is hardly shown
# otherwise: changes of a category that nobody is shown cannot be detected. Set by hand: on a stationary site their
# regret is of the order of the root of the users.
PROBES = 1.0
# What exploration finds out is forgotten again: it pays over this many times the effective users. Set by hand.
MEMORY_HORIZON = 3.0

# Users are tested for changes this often, as a share of the users since the last change, and at most after so many
# users. Set by hand: a tenth of the default block size, so that a block that becomes wrong ends early.
TEST_SHARE, MIN_TEST_USERS = 0.01, 100


def check_flag(field: str, value: bool | str) -> bool:
    """Return `value` as a Boolean; "true" and "false" are accepted."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    raise InputError(f"{field} is {value!r:.40}; expected true or false.", field)


class ChangingUsers(ChangingCatalogue):
    """A learner that infers an instance of users who may change over time."""

    saved = (*ChangingCatalogue.saved, "_half_lives", "_detector", "_arrivals")
    _budget: ExplorationBudget
    window: float = inf  # users who count, the latest ones

    def _start_forgetting(self, half_life: int | str | None, change_detection: bool) -> None:
        """Initialise the attributes; transition counts by age are kept only if they are needed."""
        self.half_life, self.change_detection = half_life, change_detection
        self._half_lives = HalfLives() if half_life == AUTO else None
        self._detector = ChangeDetector() if change_detection else None
        self._arrivals = np.zeros(0, np.int64)  # of each active user: number of users before; empty without cohorts
        if half_life is not None or change_detection or self.window < inf:
            self.transitions = CohortCounts(self.n_categories, MAX_STEPS)
            n = len(self._by_segment.parts) - 1
            self._by_segment = SegmentCounts(self.n_categories, MAX_STEPS, n, CohortCounts)

    @property
    def current_half_life(self) -> float:
        """The half-life in users, infinite without one; that chosen for the last block if it is "auto"."""
        if self._half_lives is not None:
            return self._half_lives.best
        return inf if self.half_life is None else float(self.half_life)

    @property
    def changes(self) -> list[int]:
        """The detected changes: the number of users before each."""
        return [] if self._detector is None else list(self._detector.changes)

    @property
    def effective_users(self) -> float:
        """The number of users that count, older ones less."""
        counts = self.transitions
        return min(self.arrived, counts.memory) if isinstance(counts, CohortCounts) else self.arrived

    @property
    def _first(self) -> int:
        """The number of oldest users that are forgotten for good."""
        detected = 0 if self._detector is None else self._detector.first
        return detected if self._half_lives is None else max(detected, self._half_lives.first)

    def _forget(self) -> bool:
        """Weigh the users so far by their age; return True if users were found to change."""
        counts = self.transitions
        if not isinstance(counts, CohortCounts):
            return False
        parts, settled = [part for part in self._by_segment.parts if isinstance(part, CohortCounts)], counts.settled
        if not counts.close(self.arrived, self._first):
            return False
        for part in parts:
            part.end_cohort(self.arrived, self._first, settled)
        tested = parts if self.distinguishes_segments else [counts]
        changed = self._detector is not None and self._detector.update(counts, tested)
        if self._half_lives is not None:
            before = self._half_lives.best
            self._half_lives.update(tested, counts.settled, self._first)
            changed |= self._half_lives.best < before
        for each in (counts, *parts):
            each.weigh(counts.settled, self.current_half_life, self.window, self._first)
        if changed:
            self._budget.spent, self._budget.advantages = 0.0, {}
            self._segment_budget.reset()
        return changed

    def _admit(self, ids: list[int | str], versions: Integers) -> None:
        super()._admit(ids, versions)
        if isinstance(self.transitions, CohortCounts):
            more = len(self._version) - len(self._arrivals)
            self._arrivals = np.concatenate([self._arrivals, np.zeros(more, np.int64)])
            self._arrivals[self._rows(ids)] = np.arange(self.arrived - len(ids), self.arrived)

    def _learn_rows(self, rows: Integers, categories: Integers, outcomes: Integers) -> None:
        """Learn from active users, who belong to the cohort in which they arrived."""
        if not isinstance(self.transitions, CohortCounts):
            super()._learn_rows(rows, categories, outcomes)
            return
        segments = np.full(len(rows), -1) if self.segments is None else self._segment[rows]
        for segment in np.unique(segments).tolist():
            group = segments == segment
            users = rows[group]
            arrivals = self._arrivals[users]
            self.learn(self._counts[users], categories[group], outcomes[group], segment, arrivals)

    def admit(self, max_users: int) -> tuple[AssignedPolicy, int]:
        """Return the policy of the next users and their number, from 1 to `max_users`; test for changes before."""
        return super().admit(min(max_users, self._test()))

    def _assign(self, n: int) -> Integers:
        # Nothing is observed while the users of one call are assigned, so one test before the first is enough.
        self._test()
        return super()._assign(n)

    def _test(self) -> int:
        """End the block if users are found to change; return the number of users until the next test."""
        counts = self.transitions
        if (self._detector is None and self._half_lives is None) or not isinstance(counts, CohortCounts):
            return ALL_USERS
        interval = max(MIN_TEST_USERS, int(TEST_SHARE * (self.arrived - self._first)))
        untested = self.arrived - counts.end
        if self._queue and untested >= interval:
            if self._forget():
                self._end_block()
            untested = 0
        return max(interval - untested, 1)

    def _block_size(self) -> int:
        return max(1, min(super()._block_size(), int(self.effective_users * self.growth)))

    def _horizon(self) -> float:
        """Number of users to come for whom what is learned now is of use."""
        forgetful = isinstance(self.transitions, CohortCounts) and self.current_half_life < inf
        return MEMORY_HORIZON * self.current_half_life / log(2) if forgetful else inf

    def _probes(self, greedy: Iterable[Policy], n: int) -> list[tuple[Policy, int]]:
        """Return fixed policies for a few of the next n users, who try what none of `greedy` shows first."""
        if self._detector is None:
            return []
        new = np.zeros((1, self.n_categories, 4), np.int64)
        first = {int(recommended(policy, new)[0]) for policy in greedy}
        since = self.arrived - self._first
        users = int(PROBES * (since + n) ** 0.5) - int(PROBES * since**0.5)
        every = range(self.n_categories) if self.allowed is None else self.allowed
        others = [category for category in every if category not in first]
        users = min(users, n // (4 * max(len(others), 1)))
        return [(Fixed(category), users) for category in others if users]

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        # States of earlier releases have no arrivals: their active users belong to the cohort that has not ended.
        arrivals = np.full(len(state["version"]) if "cohorts" in state["transitions"] else 0, state["arrived"])
        state = {"half_lives": None, "detector": None, "arrivals": arrivals} | state
        if state["half_lives"] is not None:
            ended = [cohort["end"] for cohort in state["transitions"]["cohorts"]]
            state["half_lives"] = {"scored": max([0, *ended])} | state["half_lives"]
        super().restore(state)
