"""Readings of a log whose profile is known: weights, rates over time, steps in order, and histories of all users."""

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from departing.data import rules
from departing.data.history_rows import UserHistories, log_histories, numbered_histories
from departing.data.history_rules import Profile
from departing.data.inactivity import return_ages
from departing.data.over_time import OverTime, Periods, ends_table, over_time, queries
from departing.data.reader import LogReader
from departing.data.rewards import RewardStats, weighted_reward_stats, weighted_sums_by_category
from departing.data.sources import Arrays, ChunkFunction
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Floats

Reduce = Callable[[ChunkFunction, Arrays], list[Arrays]]


class KnownLogReader(LogReader):
    """The reading of one open source that was read before; every method raises if its users have changed."""

    def _open(self, profile: Profile) -> None:
        """Define the rows and users of a log that was read before."""
        self.engine.define(self.rules.raw())
        self.engine.define(*self.rules.checked(profile.time, profile.categories, profile.segments))
        self.engine.define(*self.rules.users(profile))

    def weighted(self, profile: Profile, digest: int, half_life: float) -> Histories:
        """The histories with weights of users, in units of the time column; raise if the log has changed."""
        profile = replace(profile, half_life=half_life)
        self._open(profile)
        rows, cells = self.rules.histories(profile, max_rows=2**62)  # the log was read within the limit
        no_steps = "SELECT 0 AS step LIMIT 0"
        tables = self.engine.histories([rules.digest(profile)], rows, cells, no_steps, 2**62)
        self._check_digest(sum(row[0] for row in tables.results[0]), digest)
        return log_histories(profile, tables)[0]

    def weighted_rewards(self, profile: Profile, digest: int, half_life: float, unit: str) -> RewardStats:
        """Rewards of clicks with weights of users; raise if the log has changed."""
        self._open(profile)
        query = weighted_sums_by_category(profile.last, half_life)
        rows, digests = self.engine.rows(query, rules.digest(profile))
        self._check_digest(sum(row[0] for row in digests), digest)
        return weighted_reward_stats(rows, profile.categories, unit)

    def over_time(self, profile: Profile, digest: int, periods: Periods, unit: str) -> OverTime:
        """Rates of the log by calendar time; raise if the log has changed."""
        self._open(profile)
        self.engine.define(ends_table(profile, periods))
        *results, digests = self.engine.rows(*queries(profile, periods), rules.digest(profile))
        self._check_digest(sum(row[0] for row in digests), digest)
        return over_time(profile, periods, unit, *results)

    def episodes(self, profile: Profile, digest: int, users: int) -> Generator[Arrays]:
        """Yield the steps of all users in order, `users` users at a time; raise at the end if the log has changed."""
        self._open(profile)
        self.engine.define(self.rules.episodes(profile))
        self._check_digest((yield from self.engine.steps("episodes", users, rules.digest(profile))), digest)

    def walks(self, profile: Profile, digest: int, first: int | None) -> Reduce:
        """A function that applies another one to confirmed steps of users; it raises if the log has changed.

        The users are those whose first step shows the category `first`, or all.
        """
        self._open(profile)
        self.engine.define(*self.rules.walks(profile, first))

        def reduce(function: ChunkFunction, argument: Arrays) -> list[Arrays]:
            results, total = self.engine.reduce(function, argument, rules.digest(profile))
            self._check_digest(total, digest)
            return results

        return reduce

    def user_histories(self, profile: Profile, digest: int, events: int) -> UserHistories:
        """The histories of all users; raise if the log has changed. `events` is the number of rows used."""
        self.engine.define(self.rules.raw(), *self.rules.checked(profile.time, profile.categories, profile.segments))
        ages, not_returned = self._return_ages(profile, events)
        self.engine.define(*self.rules.users(profile))
        queries = self.rules.histories(profile, max_rows=2**62)  # the log was read within the limit
        users = self.rules.users_by_key(profile, ages.tolist())
        groups = self.engine.users(users, self.rules.histories_by_age(profile), *queries, rules.digest(profile))
        self._check_digest(groups.digest, digest)
        counts, unknown = numbered_histories(len(profile.categories), groups.rows, groups.cells)
        history, age, n, key = (groups.groups[each].astype(np.int64) for each in ("history", "age", "users", "key"))
        segment = groups.rows["segment"].astype(np.int64) if profile.segments else None
        return UserHistories(counts, unknown, ages, not_returned, history, age, n, key, groups.table, segment)

    def _return_ages(self, profile: Profile, events: int) -> tuple[Integers, Floats]:
        """`ages` and `not_returned` of `UserHistories`, from the return times of the log's users."""
        if profile.inactive is not None:
            with suppress(InputError):  # too few returns
                return return_ages(self._return_times(profile, events), profile.inactive, profile.time.units)
        return np.empty(0, np.int64), np.ones(1)

    def _check_digest(self, total: int, digest: int) -> None:
        if total % rules.DIGEST_MODULUS != digest:
            raise InputError(f"Rows of {self.engine.name} changed since they were read; call read_log again.")
