"""Fields of an instance: checks, defaults and the form in files."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError
from departing.model.names import check_names, default_names
from departing.model.segments import Floats, Segments

MAX_HORIZON = 10**6  # beyond it, no horizon is the same up to rounding in practice
LOG_FIELDS = ("users", "shown", "clicks_per_user")  # of the table `log` that a fit adds to the file of an instance


def frozen(array: Floats) -> Floats:
    """`array`, which can no longer be changed."""
    array.setflags(write=False)
    return array


def check_probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """`values` as an array of probabilities."""
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "fiu":
            raise ValueError
        array = np.array(raw, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{field} is {values!r:.80}; expected a number, or numbers in rows of equal length."
        ) from error
    bad = np.argwhere(~((array >= 0) & (array <= 1)))
    if len(bad):
        at = "".join(f"[{i}]" for i in bad[0])
        raise InputError(f"{field}{at} is {float(array[tuple(bad[0])])!r}; expected a probability between 0 and 1.")
    return array + 0.0  # no negative zero, so that equal instances are equal to the bit


def check_common_prior(prior: npt.ArrayLike | None, segments: Segments | None) -> npt.ArrayLike:
    """`prior`, which must be that of the segments if there are any."""
    if segments is None:
        if prior is None:
            raise InputError("prior is None; expected one probability for each type, or segments.")
        return prior
    if not isinstance(segments, Segments):
        raise InputError(f"segments is {segments!r:.80}; expected a Segments object.")
    common = segments.common_prior
    if prior is not None and (np.shape(prior) != common.shape or np.abs(np.asarray(prior) - common).max() > 1e-9):
        raise InputError(
            f"prior is {prior!s:.80}, but the segments have the mean prior {common.tolist()!s:.80}; omit the prior, "
            "or set `segments` to None.",
            "prior",
        )
    return common if prior is None else prior


def check_rewards(reward: npt.ArrayLike | None, n: int) -> Floats:
    """Rewards of n categories, 1 each by default."""
    if reward is None:
        return np.ones(n)
    try:
        array = np.array(reward, np.float64) + 0.0
    except (TypeError, ValueError):
        array = np.empty(0)
    valid = array.shape == (n,) and bool((np.isfinite(array) & (array >= 0)).all())
    if not valid or not array.any():
        raise InputError(
            f"reward is {reward!s:.80}; expected {n} numbers ≥ 0, one per category, not all 0.", "reward"
        )
    return array


def check_unit(unit: object) -> str:
    """`unit` if it is a name."""
    if not isinstance(unit, str) or not unit.strip():
        raise InputError(f"unit is {unit!r:.80}; expected a name such as 'euro'.", "unit")
    return unit


def check_horizon(horizon: object) -> int | None:
    """`horizon` if it is a number of recommendations, or None."""
    if horizon is None:
        return None
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or not 1 <= horizon <= MAX_HORIZON:
        raise InputError(f"horizon is {horizon!r:.80}; expected an integer from 1 to {MAX_HORIZON:,}.", "horizon")
    return int(horizon)


def as_matrix(field: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Probabilities of this shape from one number or a matrix."""
    array = check_probabilities(field, values)
    if array.ndim != 0 and array.shape != shape:
        raise InputError(f"{field} has shape {array.shape}; expected one number or shape {shape} like click.")
    return np.array(np.broadcast_to(array, shape))


def compact(array: Floats) -> Any:
    """One number if all entries are equal, otherwise nested lists."""
    return float(array.flat[0]) if (array == array.flat[0]).all() else array.tolist()


def names_or_default(field: str, noun: str, given: Sequence[str] | None, n: int) -> tuple[str, ...]:
    """`given` names, or the default ones."""
    return tuple(default_names(noun, n)) if given is None else check_names(field, given, n)


def check_order(field: str, order: Sequence[int] | None, n: int) -> list[int]:
    """`order` if it is a permutation of 0 to n - 1."""
    indices = list(range(n) if order is None else order)
    if not all(isinstance(i, int | np.integer) for i in indices) or sorted(indices) != list(range(n)):
        raise InputError(f"{field} is {order!r}; expected each of 0 to {n - 1} once.")
    return indices
