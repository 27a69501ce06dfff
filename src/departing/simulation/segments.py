"""Simulation of users in segments: each segment by itself, or all together with a type for each segment and type."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from departing.evaluation.evaluate import segment_shares
from departing.model import random_streams
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Instance
from departing.model.segments import Segments
from departing.policy.protocol import Policy, policy_in_segment, recommended
from departing.simulation.reference import FinishedUsers, Users
from departing.simulation.run import Run, merge_values


def segment_columns(segments: Segments, reserved: Collection[str] = ()) -> dict[str, list[str]]:
    """Columns of the features in a log: their values for every segment, under names that are not `reserved`.

    Without names of features, or if names of segments do not consist of one value for each, it is one column,
    `segment`.

    >>> segment_columns(Segments(["de/mobile", "fr/desktop"], [0.5, 0.5], [[1.0], [1.0]], ["country", "device"]))
    {'country': ['de', 'fr'], 'device': ['mobile', 'desktop']}
    """
    columns = segments.columns
    values = [name.split("/") if len(columns) > 1 else [name] for name in segments.names]
    if not columns or any(len(row) != len(columns) for row in values):
        columns, values = ("segment",), [[name] for name in segments.names]
    for column in columns:
        if column.casefold() in reserved:
            raise InputError(f"A feature is named {column!r}, like another column of the log; rename the feature.")
    return {column: [row[i] for row in values] for i, column in enumerate(columns)}


def segment_users(instance: Instance, users: int, seed: int) -> Integers:
    """Sample how many of `users` are in each segment, `[S]`."""
    shares = segment_shares(instance)
    order = np.argsort(shares)  # the last takes what is left after rounding, so it must not be a rare one
    counts = np.empty(len(shares), np.int64)
    counts[order] = np.random.default_rng([seed, random_streams.SEGMENTS]).multinomial(users, shares[order])
    return counts


def segment_seed(seed: int, segment: int) -> int:
    """Seed of the users of a segment; that of the first one is `seed`, so that one segment equals none."""
    if segment == 0:
        return seed
    return int(np.random.SeedSequence([seed, random_streams.SEGMENTS, segment]).generate_state(1, np.uint64)[0])


def joined_instance(instance: Instance) -> Instance:
    """Instance without segments whose type `s * M + x` is type x in segment s."""
    assert instance.segments is not None
    names, n = instance.segments.names, instance.n_types
    priors = np.array([instance.in_segment(name).normalised_prior for name in names])
    fields: dict[str, Any] = {
        name: np.tile(getattr(instance, name), len(names)) for name in ("click", "depart", "depart_on_click")
    }
    types = [f"{segment}, {name}" for segment in names for name in instance.types]
    return Instance(
        (segment_shares(instance)[:, None] * priors).reshape(len(names) * n),
        **fields,
        categories=instance.categories,
        types=types if len(set(types)) == len(types) else None,
        reward=instance.reward,
        unit=instance.unit,
        horizon=instance.horizon,
    )


@dataclass
class SegmentPolicies:
    """Policies of the users of a joined instance, by segment."""

    policies: list[Policy]
    n_types: int

    @classmethod
    def of(cls, instance: Instance, policy: Policy) -> "SegmentPolicies":
        """Policies of the segments of an instance."""
        assert instance.segments is not None
        return cls([policy_in_segment(policy, name) for name in instance.segments.names], instance.n_types)

    def __call__(self, users: Users) -> Integers:
        """Recommend a category to each user."""
        return self.choose(users.types, users.counts)

    def choose(self, types: Integers, counts: Integers) -> Integers:
        """Recommend a category to users of these types of the joined instance with these counts."""
        segment, categories = types // self.n_types, np.empty(len(types), np.int64)
        for s in np.unique(segment).tolist():
            rows = segment == s
            categories[rows] = recommended(self.policies[s], counts[rows])
        return categories


@dataclass
class FinishedInSegments(FinishedUsers):
    """Final counts of users of a joined instance who finished, by segment."""

    segments: Segments = field(kw_only=True)
    n_types: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self.parts = [FinishedUsers() for _ in self.segments.names]

    def add_users(self, users: Users, rows: Integers) -> None:
        """Add the users at `rows`."""
        segment = users.types[rows] // self.n_types
        for s in np.unique(segment).tolist():
            self.parts[s].add(users.counts[rows[segment == s]])

    def histories(self, n_categories: int, distinct: bool = False) -> Histories:
        """Histories of all finished users, with their segments."""
        return join_histories([part.histories(n_categories) for part in self.parts], self.segments)


def join_histories(parts: Sequence[Histories], segments: Segments) -> Histories:
    """Histories of the users of each segment, in one object."""
    segment = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Histories(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.multiplicity for part in parts]),
        segment=segment,
        segments=segments.names,
        segment_columns=segments.columns,
    )


@dataclass(frozen=True)
class JoinedHistories:
    """Histories of the runs of several segments, computed when called; an object, so that runs can be pickled."""

    runs: dict[int, Run]
    instance: Instance

    def __call__(self) -> Histories:
        """Return the histories of all runs."""
        assert self.instance.segments is not None
        nobody = Histories(np.zeros((0, self.instance.n_categories, 4), np.int64))
        names = self.instance.segments.names
        parts = [self.runs[s].histories if s in self.runs else nobody for s in range(len(names))]
        return join_histories(parts, self.instance.segments)


def simulate_segments(
    instance: Instance, users: int, seed: int, simulate: Callable[[str, int, int], Run]
) -> tuple[dict[int, Run], JoinedHistories]:
    """Runs of the segments that have users, by `simulate(name, users, seed)`, and their histories."""
    assert instance.segments is not None
    n = segment_users(instance, users, seed)
    runs = {
        s: simulate(name, int(n[s]), segment_seed(seed, s)) for s, name in enumerate(instance.segments.names) if n[s]
    }
    return runs, JoinedHistories(runs, instance)


def join_returns(runs: Sequence[Run]) -> tuple[Integers, Integers]:
    """Distinct numbers of clicks of the users of several runs, and the number of users with each."""
    return merge_values([run.returns for run in runs], [run.returns_users for run in runs])
