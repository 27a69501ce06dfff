"""Histories from the rows that the engine returns: distinct ones for a log, numbered ones for its users."""

from dataclasses import dataclass

import numpy as np

from departing.data.history_rules import HistoryEnd, Profile
from departing.data.sources import Arrays, HistoryTables, UserTable
from departing.model.counts import Booleans, Integers
from departing.model.histories import Histories, distinct_histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats
from departing.model.packing import PackedTable, is_large

OUTCOME_BY_CLICK = [STAY, CLICK]  # of a step after which the user does not depart


@dataclass(frozen=True)
class UserHistories:
    """Numbered histories, and the users who have them.

    Attributes
    ----------
    counts : int array [N, K, 4]
        Counts of each history, of the smallest integer type that holds them.
    unknown : int array [N]
        2 × category + click of the last step if it is unknown whether the user stayed after it, else -1. The counts
        contain that step as a click or stay.
    ages : int array [A]
        Increasing times since the last step, in units of the time column; empty if they say nothing about departures.
    not_returned : float array [A + 1]
        Probability that a user who stayed has not returned yet, by the number of `ages` reached.
    history, age, users : int array [G]
        Groups of users: index of the history, number of `ages` reached since a last step after which it is unknown
        whether the user stayed (else 0), and number of users.
    key : int array [G]
        Hash that identifies, together with `age`, the users of a group in `table`.
    table : UserTable
        All users with the `key` and `age` of their groups.
    segment : int array [N] or None
        Index of the segment of the users of each history, -1 if it is unknown; None for a log without segments.
    """

    counts: Integers
    unknown: Integers
    ages: Integers
    not_returned: Floats
    history: Integers
    age: Integers
    users: Integers
    key: Integers
    table: UserTable
    segment: Integers | None = None


def log_histories(profile: Profile, tables: HistoryTables) -> tuple[Histories, Integers]:
    """Distinct histories of a log, and the numbers of users by `HistoryEnd`."""
    categories, segments = profile.categories, profile.segments
    ends, k = np.zeros(len(HistoryEnd), np.int64), len(categories)
    parts = (_part(k, rows, cells, ends) for rows, cells in tables.parts)
    names = segments.names if segments else None
    columns = segments.columns if segments else ()
    if is_large((tables.n, k, 4)):
        flags = {"has_segments": segments is not None, "has_weights": profile.half_life is not None}
        table = PackedTable(tables.n, 6 * k, tables.most, **flags)
        for part in parts:
            flat = [part.pop(name).reshape(len(part["users"]), -1) for name in ("counts", "pending")]
            table.add(np.concatenate(flat, axis=1), **part)
        return Histories.from_table(table, k, categories, names, columns), ends
    listed = list(parts)
    arrays = {name: np.concatenate([part[name] for part in listed]) for name in listed[0]}
    users = arrays.pop("users")
    histories = distinct_histories(
        multiplicity=users, categories=categories, segments=names, segment_columns=columns, **arrays
    )
    return histories, ends


def _part(k: int, rows: Arrays, cells: Arrays, ends: Integers) -> Arrays:
    """Counts, pending steps and users of some histories; adds the users by the end of their history to `ends`.

    With segments and weights of users there are `segment` and `weights`.
    """
    ends += np.bincount(rows["history_end"], rows["users"], len(ends)).astype(np.int64)
    counts, pending = _counts_and_pending(k, rows, cells)
    part = {"counts": counts, "pending": pending, "users": rows["users"]}
    if "segment" in rows:
        part["segment"] = rows["segment"].astype(np.int64)
    if "weight" in rows:
        part["weights"] = np.stack([rows["weight"], rows["weight_squares"]], axis=1)
    return part


def _counts_and_pending(k: int, rows: Arrays, cells: Arrays) -> tuple[Integers, Integers]:
    """Counts `[N, K, 4]` and pending steps `[N, K, 2]` from last steps and ends, and the cells of the counts."""
    ends = rows["history_end"]
    steps, counts = _counts(k, rows, cells, np.isin(ends, (HistoryEnd.DEPARTED_LOGGED, HistoryEnd.DEPARTED_INACTIVE)))
    category, clicked = rows["last_step"] // 2, rows["last_step"] % 2
    is_pending = np.isin(ends, (HistoryEnd.CENSORED_PENDING, HistoryEnd.DEPARTED_RECENT))
    pending = np.zeros((len(counts), k, 2), counts.dtype)
    pending[..., OUTCOME_BY_CLICK] = steps[:, 1] * is_pending[:, None, None]
    last_only = np.flatnonzero(is_pending & ~pending.any(axis=(1, 2)))  # no step is recent
    pending[last_only, category[last_only], np.where(clicked[last_only], CLICK, STAY)] = 1
    return counts, pending


def numbered_histories(k: int, rows: Arrays, cells: Arrays) -> tuple[Integers, Integers]:
    """`counts` and `unknown` of `UserHistories`, in the order of the histories of one partition."""
    is_pending = rows["history_end"] == HistoryEnd.CENSORED_PENDING
    departed = rows["history_end"] >= HistoryEnd.DEPARTED_LOGGED
    return _counts(k, rows, cells, departed)[1], np.where(is_pending, rows["last_step"], -1)


def _counts(k: int, rows: Arrays, cells: Arrays, departed: Booleans) -> tuple[Integers, Integers]:
    """Steps `[N, 2, K, 2]` by recency, category and click, and counts `[N, K, 4]` of histories.

    `departed[N]` marks histories whose last step counts as a departure.

    A step's code is 2 × category + click, and 2 K more for a recent step; `last_step` is 2 × category + click. Both
    arrays hold the smallest integers that suffice, because a log may have millions of distinct histories.
    """
    n = len(rows["history_end"])
    dtype = np.min_scalar_type(2 * int(cells["n"].max(initial=0)))  # recent steps are added to earlier ones
    flat = np.zeros((n, 4 * k), dtype)
    flat[cells["history"], cells["code"]] = cells["n"]
    steps = flat.reshape(n, 2, k, 2)
    counts = np.zeros((n, k, 4), dtype)
    counts[..., OUTCOME_BY_CLICK] = steps.sum(axis=1, dtype=dtype)
    category, clicked = rows["last_step"] // 2, rows["last_step"] % 2
    gone = np.flatnonzero(departed)
    counts[gone, category[gone], np.where(clicked[gone], CLICK, STAY)] -= 1
    counts[gone, category[gone], np.where(clicked[gone], CLICK_DEPART, DEPART)] += 1
    return steps, counts
