"""The loop that defines what a run is. Every other engine agrees with it in distribution."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from departing.model.counts import Integers, merge, steps
from departing.model.histories import Histories
from departing.model.instance import DEPART, Floats, Instance
from departing.policy.protocol import Policy, recommended

# user, time, category, outcome of every recommendation made at one time
Record = Callable[[Integers, int, Integers, Integers], None]
MERGE_AT = 2**16


@dataclass
class Users:
    """Users who are here now: who they are, their hidden types and their counts."""

    ids: Integers
    types: Integers
    counts: Integers

    def __len__(self) -> int:
        return len(self.ids)

    def replace(self, rows: Integers, arrivals: "Users") -> None:
        """Put `arrivals` in the place of the users at `rows`; those beyond the arrivals just leave."""
        n = len(arrivals)
        self.ids[rows[:n]] = arrivals.ids
        self.types[rows[:n]] = arrivals.types
        self.counts[rows[:n]] = arrivals.counts
        if n < len(rows):
            self.ids = np.delete(self.ids, rows[n:])
            self.types = np.delete(self.types, rows[n:])
            self.counts = np.delete(self.counts, rows[n:], axis=0)


@dataclass
class Finished:
    """The counts of users who finished, merged when they become many."""

    rows: list[Integers] = field(default_factory=list)
    times: list[Integers] = field(default_factory=list)
    waiting: int = 0

    def add(self, counts: Integers, multiplicity: Integers | None = None) -> None:
        """Add users with `counts[n, K, 4]`, one of each unless told."""
        if not len(counts):
            return
        self.rows.append(counts)
        self.times.append(np.ones(len(counts), np.int64) if multiplicity is None else multiplicity)
        self.waiting += len(counts)
        if self.waiting > MERGE_AT + 2 * len(self.rows[0]):
            self.merge()

    def merge(self) -> None:
        """Bring equal counts together."""
        counts, times = merge(np.concatenate(self.rows), np.concatenate(self.times))
        self.rows, self.times, self.waiting = [counts], [times], 0

    def histories(self, n_categories: int) -> Histories:
        """All finished users."""
        if not self.rows:
            return Histories(np.zeros((0, n_categories, 4), np.int64))
        self.merge()
        return Histories(self.rows[0], self.times[0])


Arrive = Callable[[int], Users]  # at most so many new users; none when all have come


def play(
    instance: Instance,
    policy: Policy,
    arrive: Arrive,
    rng: np.random.Generator,
    open_users: int,
    max_steps: int | None,
    finished: Finished,
    record: Record | None = None,
) -> None:
    """Play users to the end, at most `open_users` at once; at every time each open user takes one step.

    A user is recommended a category by the counts, answers by one of the four outcomes drawn from the
    chances of the hidden type, and is here until the outcome is a departure (terminated) or `max_steps` have
    been made (truncated). Whoever is no longer here makes room for the next to arrive.
    """
    cumulative = instance.outcome_probabilities.cumsum(axis=1)[:, :3]
    users, time = arrive(open_users), 0
    while len(users):
        categories = recommended(policy, users.counts)
        outcomes = draw_outcomes(cumulative, categories, users.types, rng.random(len(users)))
        users.counts[np.arange(len(users)), categories, outcomes] += 1
        if record is not None:
            record(users.ids, time, categories, outcomes)
        over = outcomes >= DEPART
        if max_steps is not None:
            over |= steps(users.counts) >= max_steps
        rows = np.flatnonzero(over)
        if len(rows):
            finished.add(users.counts[rows])
            users.replace(rows, arrive(len(rows)))
        time += 1


def draw_outcomes(cumulative: Floats, categories: Integers, types: Integers, uniforms: Floats) -> Integers:
    """The outcome of every user, `[n]`, from `cumulative[K, 3, M]` chances and one uniform number each."""
    thresholds = cumulative[categories, :, types]
    return np.asarray((uniforms[:, None] >= thresholds).sum(axis=1))


def draw_types(instance: Instance, n: int, rng: np.random.Generator) -> Integers:
    """The types of n new users, from the prior."""
    sums = instance.prior.cumsum()
    return np.searchsorted(sums / sums[-1], rng.random(n), side="right")


def deal_types(instance: Instance, users: int, rng: np.random.Generator) -> Integers:
    """How many of `users` are of each type, `[M]`."""
    order = np.argsort(instance.prior)  # the last takes what is left, so it must not be a rare one
    dealt = np.empty(instance.n_types, np.int64)
    dealt[order] = rng.multinomial(users, instance.normalised_prior[order])
    return dealt


def new_users(instance: Instance, users: int, rng: np.random.Generator) -> Arrive:
    """Arrivals of `users` users with fresh counts and types drawn from the prior."""
    come = 0

    def arrive(most: int) -> Users:
        nonlocal come
        n = min(most, users - come)
        ids = np.arange(come, come + n)
        come += n
        types = draw_types(instance, n, rng)
        return Users(ids, types, np.zeros((n, instance.n_categories, 4), np.int64))

    return arrive
