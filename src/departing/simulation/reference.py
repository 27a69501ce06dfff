"""Reference engine: the loop that defines a run. Every other engine agrees with it in distribution."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from departing.model.counts import Integers, merge, steps
from departing.model.histories import Histories
from departing.model.instance import DEPART, Instance
from departing.model.sampling import sample_outcomes, sample_types
from departing.policy.protocol import Policy, recommended

UsersProgress = Callable[[int], None]  # called with the number of users who finished since the last call
# Rows collected before equal counts are merged: small next to any run's memory, large next to a call's fixed cost.
MERGE_AT = 2**16


def no_progress(users: int) -> None:
    """Report nothing."""


@dataclass
class Users:
    """Active users: their ids, hidden types and counts."""

    ids: Integers
    types: Integers
    counts: Integers

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Integers) -> "Users":
        """Users at `rows`, a mask or indices."""
        return Users(self.ids[rows], self.types[rows], self.counts[rows])

    @classmethod
    def concatenate(cls, *parts: "Users") -> "Users":
        """All users of the parts, in this order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def replace(self, rows: Integers, arrivals: "Users") -> None:
        """Put `arrivals` in the place of the users at `rows`; remove the rows that are left over."""
        n = len(arrivals)
        for name, column in list(vars(self).items()):
            column[rows[:n]] = getattr(arrivals, name)
            if n < len(rows):
                setattr(self, name, np.delete(column, rows[n:], axis=0))


@dataclass
class FinishedUsers:
    """Final counts of users who finished; equal ones are merged when they become many."""

    rows: list[Integers] = field(default_factory=list)
    multiplicities: list[Integers] = field(default_factory=list)
    unmerged: int = 0
    merge_at: float = MERGE_AT

    def add(self, counts: Integers, multiplicity: Integers | None = None) -> None:
        """Add `multiplicity[n]` users (one each by default) with `counts[n, K, 4]`."""
        if not len(counts):
            return
        self.rows.append(counts)
        self.multiplicities.append(np.ones(len(counts), np.int64) if multiplicity is None else multiplicity)
        self.unmerged += len(counts)
        if self.unmerged > self.merge_at + 2 * len(self.rows[0]):
            self.merge()

    def add_users(self, users: Users, rows: Integers) -> None:
        """Add the users at `rows`."""
        self.add(users.counts[rows])

    def depart(self, counts: Integers, categories: Integers, outcome: int, users: Integers) -> None:
        """Add `users[n]` who depart from `counts[n, K, 4]` by `outcome` of `categories[n]`."""
        some = users > 0
        if not some.any():
            return
        final = counts[some]
        final[np.arange(len(final)), categories[some], outcome] += 1
        self.add(final, users[some])

    def merge(self) -> None:
        """Merge equal counts."""
        counts, multiplicity = merge(np.concatenate(self.rows), np.concatenate(self.multiplicities))
        self.rows, self.multiplicities, self.unmerged = [counts], [multiplicity], 0

    def histories(self, n_categories: int, distinct: bool = False) -> Histories:
        """Histories of all finished users; `distinct` if no counts were added twice."""
        if not self.rows:
            return Histories(np.zeros((0, n_categories, 4), np.int64))
        if distinct:
            return Histories(np.concatenate(self.rows), np.concatenate(self.multiplicities))
        self.merge()
        return Histories(self.rows[0], self.multiplicities[0])


Recommend = Callable[[Users], Integers]  # categories of users by more than their counts
Record = Callable[[Users, int, Integers, Integers], None]  # users, time, and their categories and outcomes
Arrivals = Callable[[int], Users]  # maps a number to at most that many new users; none when all have arrived


def play(
    instance: Instance,
    policy: Policy | Recommend,
    arrivals: Arrivals,
    rng: np.random.Generator,
    open_users: int,
    max_steps: int | None,
    finished: FinishedUsers,
    progress: UsersProgress = no_progress,
    record: Record | None = None,
) -> None:
    """Play users to the end, at most `open_users` at once; at every time each active user takes one step.

    A user is recommended a category, by the counts if `policy` is a Policy, answers with one of the four outcomes,
    sampled by the probabilities of the hidden type, and is active until the outcome is a departure (terminated) or
    `max_steps` have been made (truncated). The next user to arrive takes the place of one who is no longer active.
    """
    users, time = arrivals(open_users), 0
    by_counts = cast(Policy, policy) if hasattr(policy, "recommend") else None
    while n := len(users):
        categories = cast(Recommend, policy)(users) if by_counts is None else recommended(by_counts, users.counts)
        outcomes = sample_outcomes(instance, categories, users.types, rng.random(n))
        users.counts[np.arange(n), categories, outcomes] += 1
        if record is not None:
            record(users, time, categories, outcomes)
        over = outcomes >= DEPART
        if max_steps is not None:
            over |= steps(users.counts) >= max_steps
        rows = over.nonzero()[0]
        if len(rows):
            finished.add_users(users, rows)
            progress(len(rows))
            users.replace(rows, arrivals(len(rows)))
        time += 1


def once(users: Users) -> Arrivals:
    """Arrival of all these users together."""
    waiting = [users]
    return lambda most: waiting.pop() if waiting else users.select(np.zeros(0, np.int64))


def new_users(instance: Instance, users: int, rng: np.random.Generator) -> Arrivals:
    """Arrivals of `users` users with empty counts and types sampled from the prior."""
    arrived = 0

    def arrive(most: int) -> Users:
        nonlocal arrived
        n = min(most, users - arrived)
        ids = np.arange(arrived, arrived + n)
        arrived += n
        types = sample_types(instance, n, rng)
        return Users(ids, types, np.zeros((n, instance.n_categories, 4), np.int64))

    return arrive
