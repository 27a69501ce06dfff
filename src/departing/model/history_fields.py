"""Fields of histories: checks, and the columns of segments and weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, departed, steps
from departing.model.errors import InputError
from departing.model.instance import CLICKS, DEPART, Floats
from departing.model.instance_fields import check_horizon, check_rewards, check_unit
from departing.model.names import check_names
from departing.model.packing import CHUNK, by_rows, is_large, is_packed, small_type

UNKNOWN = -1  # index of the segment of a user whose segment is unknown


class HistoryRows(NamedTuple):
    """Rows of histories: `counts[n, K, 4]`, number of `users[n]`, and `segment[n]` and `weights[n, 2]` or None.

    The weights are sums over the users of a row: of their weights, and of the squares of these. `final[n, K, 2]` are
    the clicks and stays in the counts that are steps at the horizon, after which it is unknown whether users stayed.
    """

    counts: Integers
    users: Integers
    segment: Integers | None
    weights: Floats | None
    final: Integers


def check_site(
    reward: npt.ArrayLike | None, unit: str | None, horizon: int | None, counts: Integers
) -> tuple[Floats | None, str, int | None]:
    """Rewards `[K]`, unit and horizon of the site, checked against the counts `[N, K, 4]`."""
    if reward is None and unit is not None:
        raise InputError(
            f"unit is {unit!r:.80}, but there is no reward; state the `reward` of each category.", "unit"
        )
    horizon = check_horizon(horizon)
    longest = int(by_rows(steps, counts).max(initial=0)) if horizon is not None else 0
    if horizon is not None and longest > horizon:
        raise InputError(
            f"horizon is {horizon}, but users have up to {longest:,} steps; expected at least {longest:,}, or None.",
            "horizon",
        )
    if reward is None:
        return None, CLICKS, horizon
    return check_rewards(reward, counts.shape[1]), CLICKS if unit is None else check_unit(unit), horizon


def check_rows(counts: npt.ArrayLike) -> Integers:
    """Check and copy counts `[N, K, 4]`; those of many rows are packed."""
    rows = _packed_rows(counts) if isinstance(counts, np.ndarray) and is_large(counts.shape) else None
    if rows is None:
        rows = as_counts(counts, copy=True)
    if rows.ndim != 3:
        raise InputError(f"counts have shape {rows.shape}; expected [users, categories, 4].")
    if (rows[..., 2:].sum(axis=(1, 2)) > 1).any():
        raise InputError("counts contain a user with more than one departure; expected at most one.")
    return rows


def _packed_rows(counts: Integers) -> Integers:
    size = max(CHUNK // counts[0].size, 1)
    parts = [slice(start, start + size) for start in range(0, len(counts), size)]
    most = max(int(steps(as_counts(counts[part])).max()) for part in parts)
    rows = np.empty(counts.shape, small_type(most))
    for part in parts:
        rows[part] = as_counts(counts[part])
    return rows


def check_multiplicity(multiplicity: npt.ArrayLike | None, n: int) -> Integers:
    """Numbers of users of n rows, 1 each by default."""
    try:
        times = np.ones(n, np.int64) if multiplicity is None else np.array(multiplicity)
    except ValueError:  # rows of different lengths
        times = np.empty(0, object)
    if times.shape != (n,) or times.dtype.kind not in "iu" or (times < 1).any():
        least = f", the smallest {times.min()}" if times.size and times.dtype.kind in "iuf" else ""
        raise InputError(
            f"multiplicity is {times.dtype} of shape {times.shape}{least}; expected integers ≥ 1 of shape "
            f"({n},), one for every row of counts."
        )
    return times.astype(np.int64)


def no_pending(counts: Integers) -> Integers:
    """Zero pending steps, for packed counts without memory of their own."""
    shape = len(counts), counts.shape[1], 2
    if is_packed(counts):
        return np.broadcast_to(np.zeros((), counts.dtype), shape)
    return np.zeros(shape, np.int64)


def check_pending(pending: npt.ArrayLike | None, counts: Integers) -> Integers:
    """Check `pending`: at most the clicks and stays of censored users."""
    if pending is None or np.size(pending) == 0:
        return no_pending(counts)
    steps = np.array(pending)
    if steps.shape != (*counts.shape[:2], 2) or steps.dtype.kind not in "iu":
        shape = [*counts.shape[:2], 2]
        raise InputError(f"pending is {steps.dtype} of shape {steps.shape}; expected integers of shape {shape}.")
    if (steps < 0).any() or (steps > counts[..., :DEPART]).any():
        raise InputError(
            "pending is negative or exceeds the clicks and stays in counts; expected integers between 0 and these."
        )
    if steps[departed(counts)].any():
        raise InputError("pending contains steps of a departed user; expected 0 there.")
    return steps.astype(counts.dtype, copy=False)


def check_segments(
    segment: npt.ArrayLike | None, segments: Sequence[str] | None, columns: Sequence[str], n: int
) -> tuple[Integers | None, tuple[str, ...] | None, tuple[str, ...]]:
    """Indices, names and columns of the segments of n rows; None, None and () without segments."""
    if segment is None and segments is None:
        if len(columns):
            raise InputError(f"segment_columns is {list(columns)!s:.80}, but there are no segments; omit it.")
        return None, None, ()
    if segment is None or segments is None:
        missing = "segment" if segment is None else "segments"
        raise InputError(f"{missing} is None; expected both segment, an index for each row, and segments, the names.")
    names = check_names("segments", segments)
    try:
        index = np.array(segment)
    except ValueError:  # rows of different lengths
        index = np.empty(0, object)
    if index.shape != (n,) or index.dtype.kind not in "iu":
        raise InputError(
            f"segment is {index.dtype} of shape {index.shape}; expected integers of shape ({n},), one for every row "
            "of counts."
        )
    if n and not UNKNOWN <= int(index.min()) <= int(index.max()) < len(names):
        wrong = index[(index < UNKNOWN) | (index >= len(names))][0]
        raise InputError(
            f"segment contains {wrong}; expected indices of the {len(names)} segments, or {UNKNOWN} for unknown."
        )
    given = check_names("segment_columns", columns) if len(columns) else ()
    return index.astype(np.int64), names, given


def check_weights(
    weight: npt.ArrayLike | None, squares: npt.ArrayLike | None, multiplicity: Integers
) -> Floats | None:
    """Sums of the weights of the users of each row, and of their squares, as `[N, 2]`; None without weights."""
    if weight is None:
        if squares is not None:
            raise InputError("weight_squares is given without weight; expected both or weight alone.")
        return None
    sums = _numbers("weight", weight, len(multiplicity))
    least = sums**2 / multiplicity  # of equal weights
    if squares is None:
        return np.stack([sums, least], axis=1)
    given = _numbers("weight_squares", squares, len(multiplicity))
    wrong = (given < least * (1 - 1e-9)) | (given > sums**2 * (1 + 1e-9))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"weight_squares[{row}] is {given[row]:g}; expected the sum of squares of {multiplicity[row]} weights "
            f"≥ 0 with the sum {sums[row]:g}: a number from {least[row]:g} to {sums[row] ** 2:g}."
        )
    return np.stack([sums, given], axis=1)


def _numbers(field: str, values: npt.ArrayLike, n: int) -> Floats:
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (n,) or not (np.isfinite(array) & (array >= 0)).all():
        raise InputError(f"{field} is {values!s:.80}; expected {n} numbers ≥ 0, one for every row of counts.")
    return array


def take(array: Any, rows: Any) -> Any:
    """`array[rows]`, or None if there is no array."""
    return None if array is None else array[rows]
