"""Histories from the rows that the engine returns: distinct ones for a log, numbered ones for its users."""

from dataclasses import dataclass

import numpy as np

from departing.data.history_rules import HistoryEnd
from departing.data.sources import Arrays, UserTable
from departing.model.counts import Integers
from departing.model.histories import Histories, distinct_histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats

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


def log_histories(categories: tuple[str, ...], rows: Arrays, cells: Arrays) -> Histories:
    """Distinct histories `[N]` from their last steps and ends, and the cells of their counts."""
    steps, counts = _counts(len(categories), rows, cells)
    category, clicked = rows["last_step"] // 2, rows["last_step"] % 2
    is_pending = rows["history_end"] == HistoryEnd.CENSORED_PENDING
    pending = np.zeros((len(counts), len(categories), 2), counts.dtype)
    pending[..., OUTCOME_BY_CLICK] = steps[:, 1] * is_pending[:, None, None]
    last_only = np.flatnonzero(is_pending & ~pending.any(axis=(1, 2)))  # no step is recent
    pending[last_only, category[last_only], np.where(clicked[last_only], CLICK, STAY)] = 1
    return distinct_histories(counts, rows["users"], pending, categories)


def numbered_histories(k: int, rows: Arrays, cells: Arrays) -> tuple[Integers, Integers]:
    """`counts` and `unknown` of `UserHistories`, in the order of the histories of one partition."""
    is_pending = rows["history_end"] == HistoryEnd.CENSORED_PENDING
    return _counts(k, rows, cells)[1], np.where(is_pending, rows["last_step"], -1)


def _counts(k: int, rows: Arrays, cells: Arrays) -> tuple[Integers, Integers]:
    """Steps `[N, 2, K, 2]` by recency, category and click, and counts `[N, K, 4]` of histories.

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
    gone = np.flatnonzero(rows["history_end"] >= HistoryEnd.DEPARTED_LOGGED)
    counts[gone, category[gone], np.where(clicked[gone], CLICK, STAY)] -= 1
    counts[gone, category[gone], np.where(clicked[gone], CLICK_DEPART, DEPART)] += 1
    return steps, counts
