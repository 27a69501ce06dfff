"""Arrays that grow, in named tuples."""

from collections.abc import Collection
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

MAX_BYTES = 1_500_000_000  # of the arrays of a planner; they double, so they grow up to half of it
T = TypeVar("T", bound=NamedTuple)


def grown(group: T, n: int, skip: Collection[str] = (), only: Collection[str] | None = None) -> T:
    """`group` with fields of length n; fields called `columns` grow along their second axis."""
    fields = {}
    for name, array in group._asdict().items():
        if name in skip or (only is not None and name not in only):
            continue
        axis = 1 if name == "columns" else 0
        shape = list(array.shape)
        shape[axis] = n
        fields[name] = np.zeros(shape, array.dtype)
        fields[name][(slice(None),) * axis + (slice(array.shape[axis]),)] = array
    return group._replace(**fields)


def nbytes(*groups: NamedTuple) -> int:
    """Memory of all arrays, in bytes."""
    return sum(array.nbytes for group in groups for array in group)


def key_table(n: int) -> npt.NDArray[np.int32]:
    """Empty hash table for n keys."""
    return np.full(1 << (2 * n - 1).bit_length(), -1, np.int32)
