"""Rollout: the categories on offer, the published policy versions, and which version each user gets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import msgspec

from departing.model.errors import InputError
from departing.model.names import list_names
from departing.service.experiments.experiment import CALLER, LATEST, TREATMENT, Experiment
from departing.service.policy_version import PolicyVersion
from departing.service.segment_names import SegmentLimitError
from departing.service.store import queries
from departing.service.store.base import Transaction, Write
from departing.service.store.connection import Rows

NONE_PARSED: Mapping[int, PolicyVersion] = {}


class NotFoundError(InputError):
    """A name or number that does not exist."""


@dataclass(frozen=True)
class RolloutState:
    """The rollout at one moment; a transaction that fails restores the state before it."""

    names: list[str] = field(default_factory=list)  # of all categories, in the order of counts
    retired: frozenset[int] = frozenset()
    segments: frozenset[str] = frozenset()  # distinct names in requests
    versions: dict[int, PolicyVersion] = field(default_factory=dict)
    latest: int = -1  # version of new users after the trials
    trials: tuple[tuple[int, int], ...] = ()  # first user number after the trial, and its version
    pinned: int | None = None
    shadow: bool = False  # True if the caller decides
    horizon: int | None = None  # of the instance with which the service was started
    experiments: dict[int, Experiment] = field(default_factory=dict)

    @cached_property
    def running(self) -> Experiment | None:
        """The experiment that runs."""
        return next((experiment for experiment in self.experiments.values() if experiment.running), None)

    @cached_property
    def available(self) -> list[int]:
        """Categories that are not retired."""
        return [a for a in range(len(self.names)) if a not in self.retired]

    @property
    def current(self) -> PolicyVersion:
        """The version that new users get, trials apart."""
        return self.versions[self.pinned if self.pinned in self.versions else self.latest]

    def version_for(self, user_number: int) -> int:
        """Return the version of a new user: the pinned one, that of a running trial, or the latest."""
        if self.pinned is not None and self.pinned in self.versions:
            return self.pinned
        return self.latest_for(user_number)

    def version_in(self, experiment: Experiment, arm: str, user_number: int) -> int:
        """Return the version of a new user in an arm of an experiment."""
        policy = experiment.treatment if arm == TREATMENT else experiment.control
        if policy == LATEST:
            return self.latest_for(user_number)
        return self.version_for(user_number) if policy == CALLER else int(policy)

    def horizon_of(self, version: PolicyVersion) -> int | None:
        """Return how many recommendations a user of a version gets at most: none beyond the horizon of the site."""
        return min((each for each in (version.horizon, self.horizon) if each is not None), default=None)

    def latest_for(self, user_number: int) -> int:
        """Return the version of a new user who follows the trainer: that of a running trial, or the latest."""
        return next((version for end, version in self.trials if user_number < end), self.latest)


class Rollout:
    """Categories and policy versions, the same for all processes that serve from a store.

    Each process adopts the changes of others in `refresh`.
    """

    def __init__(self, max_categories: int, max_segments: int) -> None:
        self._max_categories, self._max_segments, self.state = max_categories, max_segments, RolloutState()
        self._epoch = 0  # of the store when the versions were read; a new one may hold others

    def category(self, tx: Transaction, name: str, field: str) -> int:
        """Return the index of a category; `field` of the request holds its name."""
        if name not in self.state.names and tx.store.shared:
            self._reload(tx)
        if name not in self.state.names:
            raise InputError(f"{field} is {name!r:.60}; expected one of {list_names(self.state.names)}.")
        return self.state.names.index(name)

    # Changes by other processes

    def new_rows(self, tx: Transaction) -> Rows:
        """Return the rows of versions that are not adopted yet."""
        known = self.state.versions if tx.store.epoch == self._epoch else {}
        return tx.rows(queries.POLICIES_AFTER, max(known, default=-1))

    def refresh(self, tx: Transaction, parsed: Mapping[int, PolicyVersion] = NONE_PARSED) -> bool:
        """Adopt the versions that a trainer published and changes of other processes; True if a version is new.

        Versions that are `parsed` already, by number, take no time here.
        """
        if tx.store.shared or not self.state.names:
            self._reload(tx)
        tx.store.notice_restore()
        before = self.state.versions
        known = before if tx.store.epoch == self._epoch else {}
        rows = self.new_rows(tx)
        tx.assign(vars(self), "_epoch", tx.store.epoch)
        if rows:
            new = {row[0]: parsed.get(row[0]) or PolicyVersion.from_row(*row) for row in rows}
            self._change(tx, versions=known | new)
            self._adopt_allocations(tx)
        return any(row[0] not in before for row in rows)

    def catch_up(self, tx: Transaction, version: int, n_categories: int, experiment: int | None = None) -> None:
        """Refresh if another process published this version, added categories, or started this experiment."""
        state = self.state
        known = version in state.versions and n_categories <= len(state.names)
        if not known or (experiment is not None and experiment not in state.experiments):
            self.refresh(tx)

    def _reload(self, tx: Transaction) -> None:
        rows, settings = tx.rows(queries.CATEGORIES), tx.settings()
        experiments = [_decode_experiment(document) for (document,) in tx.rows(queries.EXPERIMENTS)]
        self._change(
            tx,
            names=[name for name, _ in rows],
            segments=frozenset(name for (name,) in tx.rows(queries.SEGMENTS)),
            retired=frozenset(a for a, (_, retired_at) in enumerate(rows) if retired_at is not None),
            shadow=settings.get(queries.SHADOW_KEY) == "1",
            horizon=_decode_horizon(settings.get(queries.INSTANCE_KEY, "{}")),
            pinned=int(settings[queries.PINNED_KEY]) if queries.PINNED_KEY in settings else None,
            experiments={experiment.id: experiment for experiment in experiments},
        )

    def _adopt_allocations(self, tx: Transaction) -> None:
        """Start the published allocation of new users; the first process to do so decides from which user on."""
        rows = tx.rows(queries.ALLOCATIONS)
        if not rows or not {version for version, _ in rows} <= set(self.state.versions):
            return
        *trials, (latest, _) = rows
        key = queries.FIRST_USER_KEY.format(max(version for version, _ in rows))
        first = tx.settings().get(key)
        if first is None:
            first = str(tx.store.next_user_number())
            tx.write(queries.SET_IF_ABSENT, key, first)
            if tx.store.shared:
                first = tx.settings()[key]
        ends = accumulate((users for _, users in trials), initial=int(first))
        next(ends)
        self._change(tx, trials=tuple(zip(ends, (version for version, _ in trials), strict=True)), latest=latest)

    # Changes

    def _change(self, tx: Transaction, **fields: Any) -> None:
        tx.assign(vars(self), "state", replace(self.state, **fields))

    def publish(self, tx: Transaction, version: PolicyVersion) -> None:
        """Publish a version under the next number, for all new users."""
        version.number = max(self.state.versions, default=-1) + 1
        self._change(tx, versions=self.state.versions | {version.number: version}, latest=version.number, trials=())
        for query, values in publication([version], [], version.number):
            tx.write(query, *values)
        if version.from_instance:
            self._change(tx, horizon=version.horizon)
            tx.write(queries.SET, queries.INSTANCE_KEY, json.dumps(version.details["instance"]))

    def check_version(self, tx: Transaction, number: int, field: str = "version") -> None:
        """Raise unless a version is published; `field` of the request holds its number."""
        self.catch_up(tx, number, 0)
        if number not in self.state.versions:
            expected = f"expected the number of a published version, at most {max(self.state.versions)}"
            raise NotFoundError(f"{field} is {number}; {expected}; GET /v1/policies lists all.")

    def save_experiment(self, tx: Transaction, experiment: Experiment) -> None:
        """Write an experiment that is new or has changed."""
        self._change(tx, experiments=self.state.experiments | {experiment.id: experiment})
        tx.write(queries.SAVE_EXPERIMENT, experiment.id, experiment.started, msgspec.json.encode(experiment).decode())

    def reload(self, tx: Transaction) -> None:
        """Adopt the changes of other processes, which wait until this call ends."""
        if tx.store.shared:
            tx.lock_settings()
            self.refresh(tx)

    def pin(self, tx: Transaction, number: int | None) -> None:
        """Pin a version for new users; None follows the latest version again."""
        if number is not None:
            self.check_version(tx, number)
        self._change(tx, pinned=number)
        if number is None:
            tx.write(queries.UNSET, queries.PINNED_KEY)
        else:
            tx.write(queries.SET, queries.PINNED_KEY, str(number))

    def set_shadow(self, tx: Transaction, enabled: bool) -> None:
        """Turn shadow mode on or off."""
        self._change(tx, shadow=enabled)
        tx.write(queries.SET, queries.SHADOW_KEY, str(int(enabled)))

    def add_category(self, tx: Transaction, name: str, now: float) -> str | None:
        """Add a category, or restore a retired one; return "added" or "restored", None if it changes nothing."""
        self.reload(tx)
        names = self.state.names
        if name not in names:
            if len(names) >= self._max_categories:
                limit = f"the limit of {self._max_categories:,} categories, retired ones included, is reached"
                raise InputError(f"name is {name!r:.60}; {limit}. Serve more categories from another store.")
            self._change(tx, names=[*names, name])
            tx.write(queries.ADD_CATEGORY, len(names), name, now)
            return "added"
        if names.index(name) not in self.state.retired:
            return None
        self._change(tx, retired=self.state.retired - {names.index(name)})
        tx.write(queries.RETIRE_CATEGORY, None, name)
        return "restored"

    def add_segment(self, tx: Transaction, name: str, now: float) -> None:
        """Add a segment unless it is known."""
        if name in self.state.segments:
            return
        self.reload(tx)
        if name in self.state.segments:
            return
        if len(self.state.segments) >= self._max_segments:
            limit = f"the store has {self._max_segments:,} distinct segments, the most that are supported"
            raise SegmentLimitError(f"segment is {name!r:.60}; {limit}. Send coarser segments, or none.")
        self._change(tx, segments=self.state.segments | {name})
        tx.write(queries.ADD_SEGMENT, name, now)

    def retire_category(self, tx: Transaction, name: str, now: float) -> str | None:
        """Retire a category: it is not shown any more; return "retired", None if it was before."""
        self.reload(tx)
        category = self.category(tx, name, "name")
        if category in self.state.retired:
            return None
        retired = self.state.retired | {category}
        if len(retired) == len(self.state.names):
            raise InputError(f"name is {name!r:.60}; add another category before you retire the last available one.")
        self._check_arms(name, retired)
        self._change(tx, retired=retired)
        tx.write(queries.RETIRE_CATEGORY, now, name)
        return "retired"

    def _check_arms(self, name: str, retired: frozenset[int]) -> None:
        """Raise if an arm of the running experiment could show none of the categories of its policy any more."""
        running = self.state.running
        if running is None:
            return
        for arm, number in (("treatment", running.treatment), ("control", running.control)):
            version = self.state.versions.get(number) if isinstance(number, int) else None
            if version is not None and version.shows <= retired:
                raise InputError(
                    f"name is {name!r:.60}, the last category that version {number} shows, the {arm} of experiment "
                    f"{running.id}; stop or complete the experiment before you retire it."
                )


@lru_cache(maxsize=1000)
def _decode_experiment(document: str) -> Experiment:
    return msgspec.json.decode(document, type=Experiment)


@lru_cache(maxsize=10)  # the document of a large instance takes milliseconds
def _decode_horizon(document: str) -> int | None:
    """Return the horizon of the document of an instance."""
    horizon: int | None = json.loads(document).get("horizon")
    return horizon


def publication(versions: Sequence[PolicyVersion], trials: Sequence[tuple[int, int]], latest: int) -> list[Write]:
    """Return the writes that publish versions: each trial gets its number of new users, then all get `latest`."""
    allocations = enumerate([*trials, (latest, 0)])
    return [
        *((queries.ADD_POLICY, version.row()) for version in versions),
        (queries.CLEAR_ALLOCATIONS, ()),
        *((queries.ADD_ALLOCATION, (position, *allocation)) for position, allocation in allocations),
    ]
