"""Counts: outcomes of a user by category, `[..., K, 4]` integers; a sufficient statistic of the history."""

from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
CHUNK = 2**22  # small integers that are converted to 64 bits at once: tens of MB


def as_counts(
    counts: npt.ArrayLike, n_categories: int | None = None, whose: str = "the instance", copy: bool | None = None
) -> Integers:
    """Check counts and convert them to integers of shape `[..., K, 4]`; `copy` is that of `numpy.array`.

    >>> as_counts([[1, 0, 0, 0], [0, 2, 0, 0]]).sum()
    np.int64(3)
    """
    try:
        array = np.array(counts, copy=copy)
    except ValueError as error:
        raise InputError("counts are rows of different lengths; expected [..., categories, 4].") from error
    if array.dtype.kind == "U":
        raise InputError(
            "counts contain text; expected integers. Pass names of categories as events=[(category, outcome), …]."
        )
    if array.ndim < 2 or array.shape[-1] != 4:
        raise InputError(f"counts have shape {array.shape}; expected [..., categories, 4].")
    if n_categories is not None and array.shape[-2] != n_categories:
        raise InputError(f"counts have {array.shape[-2]} categories; {whose} has {n_categories}.")
    if array.dtype != np.int64:
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
        fits = array.dtype.kind in "iuf" and bool(((array > -(2**62)) & (array < 2**62)).all())
        whole = array.astype(np.int64) if fits else None
        if whole is None or (whole != array).any():
            raise InputError(f"counts are {array.dtype}{_odd_one(array)}; expected integers.")
        array = whole
    if array.size and array.min() < 0:
        raise InputError(f"counts contain {array.min()}; expected integers ≥ 0.")
    return array


def _odd_one(array: npt.NDArray[np.generic]) -> str:
    """One of the values that is not an integer, or too large."""
    whole = [isinstance(v, int | float) and v == v // 1 and abs(v) < 2**62 for v in array.reshape(-1).tolist()]
    return f" (such as {array.reshape(-1)[whole.index(False)]!s})" if False in whole else ""


def steps(counts: Integers) -> Integers:
    """Number of recommendations in each history, `[...]`."""
    return np.asarray(np.asarray(counts).sum(axis=(-2, -1), dtype=np.int64))


def clicks(counts: Integers) -> Integers:
    """Number of clicks in each history, `[...]`: the return of the user."""
    counts = np.asarray(counts)
    return np.asarray((counts[..., CLICK] + counts[..., CLICK_DEPART]).sum(axis=-1, dtype=np.int64))


def departed(counts: Integers) -> Booleans:
    """True for users who have departed, `[...]`; the others are censored."""
    return np.asarray((np.asarray(counts)[..., DEPART:] > 0).any(axis=(-2, -1)))


def flat_rows(counts: Integers) -> Integers:
    """`counts[..., K, 4]` as `[..., 4 K]`."""
    return counts.reshape(*counts.shape[:-2], counts.shape[-2] * counts.shape[-1])


def hash_rows(counts: Integers, seed: int = 0) -> npt.NDArray[np.uint64]:
    """64-bit hash of each row of `counts[n, K, 4]`."""
    flat = flat_rows(counts)
    factors = np.random.default_rng(seed).integers(0, 2**64, flat.shape[1], np.uint64)
    if flat.dtype == np.int64:
        return np.asarray(flat.view(np.uint64) @ factors)
    hashes = np.empty(len(flat), np.uint64)
    n = CHUNK // max(flat.shape[1], 1) + 1
    for start in range(0, len(flat), n):
        part = slice(start, start + n)
        hashes[part] = flat[part].astype(np.uint64) @ factors
    return hashes


def merge(counts: Integers, multiplicity: npt.NDArray[Any]) -> tuple[Integers, npt.NDArray[Any]]:
    """Distinct rows of `counts[n, K, 4]` in lexicographic order, with the sums of their `multiplicity[n, ...]`.

    The sums are floats if the multiplicity consists of floats, otherwise 64-bit integers.
    """
    _, first, inverse = np.unique(hash_rows(counts), return_index=True, return_inverse=True)
    rows = counts[first]
    if not (rows[inverse] == counts).all():  # two different rows with one key
        flat, inverse = np.unique(flat_rows(counts), axis=0, return_inverse=True)
        rows, inverse = flat.reshape(-1, *counts.shape[1:]), inverse.reshape(-1)
    dtype = np.float64 if multiplicity.dtype.kind == "f" else np.int64
    total: npt.NDArray[Any] = np.zeros((len(rows), *multiplicity.shape[1:]), dtype)
    np.add.at(total, inverse, multiplicity)
    order = np.lexsort(flat_rows(rows).T[::-1])
    return rows[order], total[order]
