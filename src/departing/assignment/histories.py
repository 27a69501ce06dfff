"""Type, recommendation and expected remaining reward of histories: computed once for users with equal histories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.data.history_rows import UserHistories
from departing.evaluation.remaining import remaining_clicks
from departing.model.belief import IMPOSSIBLE, log_weights, posterior, row_max
from departing.model.counts import Booleans, Integers, clicks, departed, hash_rows, steps
from departing.model.instance import CLICK, LOG_ZERO, STAY, Floats, Instance
from departing.policy.protocol import Policy, own_segments, policy_in_segment, recommended

MULTIPLIER = 0x9E3779B97F4A7C15  # odd, 2^64 divided by the golden ratio: spreads hashes before the last step is added
CHUNK = 2**16  # histories whose log weights are computed at once: tens of MB
RELATIVE_GAP = 1e-3  # of expected remaining clicks, relative to the value of the best fixed policy


@dataclass(frozen=True, eq=False)
class HistoryAssignments:
    """Assignments of N histories and ages, shared by all users who have them.

    Attributes
    ----------
    key : uint64 array [N]
        `group_keys` of the histories, in increasing order.
    users, events, clicks : int array [N]
        Users with this history; recommendations and clicks of each of them.
    departed : bool array [N]
        True if the user departed; the others are censored.
    active : float array [N]
        Probability that the user has not departed; NaN where there is no posterior.
    posterior : float array [N, M]
        Posterior over types; NaN where the history has probability 0 under every type.
    recommendation : int array [N]
        Index of the next category; -1 for departed users.
    remaining : float array [N]
        Expected remaining reward, clicks by default; 0 for departed users, NaN where there is no posterior.
    remaining_error : float array [N]
        Certified upper bounds on the errors of `remaining`.
    segment : int array [N] or None
        Index of the segment in the log, -1 if it is unknown; None for a log without segments.
    """

    key: npt.NDArray[np.uint64]
    users: Integers
    events: Integers
    clicks: Integers
    departed: Booleans
    active: Floats
    posterior: Floats
    recommendation: Integers
    remaining: Floats
    remaining_error: Floats
    segment: Integers | None = None

    @property
    def type(self) -> Integers:
        """Index of the most likely type of each history; -1 where there is no posterior."""
        known = ~np.isnan(self.posterior[:, 0])
        return np.where(known, np.nan_to_num(self.posterior).argmax(axis=1), -1)


def group_keys(histories: UserHistories) -> npt.NDArray[np.uint64]:
    """64-bit hash of the history and age of each group of users, the same for every numbering of the histories."""
    keys, multiplier = hash_rows(histories.counts), np.uint64(MULTIPLIER)
    keys = keys * multiplier + histories.unknown.astype(np.uint64)
    if histories.segment is not None:
        keys = keys * multiplier + histories.segment.astype(np.uint64)
    return np.asarray(keys[histories.history] * multiplier + histories.age.astype(np.uint64))


def assign_histories(
    instance: Instance,
    policy: Policy,
    histories: UserHistories,
    order: Integers,
    segments: Sequence[str] = (),
) -> HistoryAssignments:
    """Assign types, recommendations and expected remaining clicks to histories.

    Parameters
    ----------
    instance : Instance
        Model of the users.
    policy : Policy
        Policy whose categories are indices into those of the instance.
    histories : UserHistories
        Histories of a log; equal ones, from several partitions, are merged.
    order : int array [K of the log]
        Index of every category of the log in the instance.
    segments : sequence of str
        Names of the segments of the log. Beliefs start at the prior of the user's segment, or at the common prior if
        the instance does not know the segment.
    """
    key, distinct, inverse = np.unique(group_keys(histories), return_index=True, return_inverse=True)
    users = np.zeros(len(key), np.int64)
    np.add.at(users, inverse, histories.users)
    counts = np.zeros((len(key), instance.n_categories, 4), np.int64)
    counts[:, order] = histories.counts[histories.history[distinct]]
    last = histories.unknown[histories.history[distinct]]
    unknown = np.where(last >= 0, 2 * order[last // 2] + last % 2, -1)
    not_returned = histories.not_returned[histories.age[distinct]]
    segment = None if histories.segment is None else histories.segment[histories.history[distinct]]
    if segment is None or (instance.segments is None and not own_segments(policy)):
        made = _assigned(instance, policy, counts, unknown, not_returned)
    else:
        made = _empty_columns(len(key), instance.n_types)
        for index in np.unique(segment):
            name = segments[index] if index >= 0 else None
            rows = np.flatnonzero(segment == index)
            own = instance.in_segment(name), policy_in_segment(policy, name)
            part = _assigned(*own, counts[rows], unknown[rows], not_returned[rows])
            for column, values in zip(made, part, strict=True):
                column[rows] = values
    columns: tuple[Any, ...] = (key, users, *made, segment)
    return HistoryAssignments(*columns)


def _empty_columns(n: int, n_types: int) -> tuple[Any, ...]:
    """Columns of n `HistoryAssignments` from `events` to `remaining_error`, to be filled."""
    integers, floats = (np.zeros(n, np.int64) for _ in range(3)), (np.zeros(n) for _ in range(3))
    events, clicked, recommendation = integers
    active, remaining, error = floats
    gone = np.zeros(n, bool)
    return events, clicked, gone, active, np.zeros((n, n_types)), recommendation, remaining, error


def _assigned(
    instance: Instance, policy: Policy, counts: Integers, unknown: Integers, not_returned: Floats
) -> tuple[Any, ...]:
    """Columns of `HistoryAssignments` from `events` to `remaining_error`, of users with the prior of the instance."""
    gone = departed(counts)
    if instance.horizon is not None:  # after the last recommendation nobody returns
        not_returned = np.where(steps(counts) >= instance.horizon, 1.0, not_returned)
    finished = gone if instance.horizon is None else gone | (steps(counts) >= instance.horizon)
    beliefs, stay = _beliefs(instance, counts, unknown, not_returned)
    recommendation, remaining = np.full(len(counts), -1), np.where(np.isnan(stay), np.nan, 0.0)
    error = np.zeros(len(counts))
    active = np.flatnonzero(~finished)
    _, first, row = np.unique(hash_rows(counts[active]), return_index=True, return_inverse=True)
    nodes = counts[active[first]]  # equal counts may end in different last steps
    made = steps(counts), clicks(counts), gone, np.where(gone, 0.0, stay)
    del counts  # with many histories, the memory matters to what follows
    if len(nodes):
        recommendation[active] = recommended(policy, nodes)[row]
        value, half_width = _remaining(instance, policy, nodes)
        returning = stay[active] > 0
        remaining[active[returning]] = (value[row] * stay[active])[returning]
        error[active[returning]] = (half_width[row] * stay[active])[returning]
    return *made, beliefs, recommendation, remaining, error


def _beliefs(instance: Instance, counts: Integers, unknown: Integers, not_returned: Floats) -> tuple[Floats, Floats]:
    """Posterior `[N, M]`, and the probability that the user stayed after the last step `[N]`; NaN where impossible.

    A last step after which it is unknown whether the user stayed contributes the probability of its click or
    no-click, and of what followed: a departure, or a stay without a return up to the end of the log, which has the
    probability `not_returned[N]` for every type.
    """
    beliefs, stay = np.empty((len(counts), instance.n_types)), np.empty(len(counts))
    with np.errstate(divide="ignore"):
        log_click = np.maximum(np.stack([np.log1p(-instance.click), np.log(instance.click)], axis=1), LOG_ZERO)
    stay_given_click = np.stack([1 - instance.depart, 1 - instance.depart_on_click], axis=1)  # [K, 2, M]
    for start in range(0, len(counts), CHUNK):
        part = slice(start, start + CHUNK)
        known, last = counts[part].copy(), unknown[part]
        open_rows = np.flatnonzero(last >= 0)
        category, clicked = last[open_rows] // 2, last[open_rows] % 2
        known[open_rows, category, np.where(clicked, CLICK, STAY)] -= 1
        weights = log_weights(instance, known)
        stayed = stay_given_click[category, clicked] * not_returned[part][open_rows, None]
        silent = 1 - stay_given_click[category, clicked] + stayed
        with np.errstate(divide="ignore"):
            weights[open_rows] += log_click[category, clicked] + np.maximum(np.log(silent), LOG_ZERO)
        shares = posterior(weights, instance.prior)
        shares[row_max(weights) <= IMPOSSIBLE] = np.nan
        beliefs[part], stay[part] = shares, np.where(np.isnan(shares[:, 0]), np.nan, 1.0)
        share_stayed = np.divide(stayed, silent, out=np.zeros_like(stayed), where=silent > 0)
        stay[start + open_rows] = (shares[open_rows] * share_stayed).sum(axis=1)
    return beliefs, stay


def _remaining(instance: Instance, policy: Policy, counts: Integers) -> tuple[Floats, Floats]:
    """Expected remaining reward of users who stayed, and half the width of their bounds; NaN where impossible."""
    value, half_width = np.full(len(counts), np.nan), np.zeros(len(counts))
    possible = np.concatenate(
        [
            row_max(log_weights(instance, counts[start : start + CHUNK])) > IMPOSSIBLE
            for start in range(0, len(counts), CHUNK)
        ]
    )
    rows = np.flatnonzero(possible)
    if len(rows):
        gap = RELATIVE_GAP * instance.best_fixed[1]
        result = remaining_clicks(instance, policy, counts[rows], gap)
        value[rows] = result.values
        half_width[rows] = np.maximum(result.upper - result.values, result.values - result.lower)
    return value, half_width
