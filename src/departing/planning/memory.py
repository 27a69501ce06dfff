"""Allocation and growth of the arrays of kernels, which are the fields of named tuples.

A field is annotated with its data type and a letter for each axis: `Annotated[np.ndarray, np.float64, "NM"]`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

MAX_BYTES = 1_500_000_000  # of the arrays of a planner; they double, so they grow up to half of it
T = TypeVar("T", bound=NamedTuple)


@cache
def layout(kind: Any) -> dict[str, tuple[Any, str]]:
    """Data type and axes of each field."""
    return {name: annotation.__metadata__ for name, annotation in kind.__annotations__.items()}


def allocate(kind: Callable[..., T], lengths: dict[str, int], **given: npt.NDArray[Any]) -> T:
    """Named tuple of the arrays that are `given` and of uninitialised ones, whose axes have these lengths."""
    for name, (dtype, axes) in layout(kind).items():
        if name not in given:
            given[name] = np.empty([lengths[axis] for axis in axes], dtype)
    return kind(**given)


def grown(group: T, **lengths: int) -> T:
    """`group` with longer axes: new entries are 0."""
    arrays = {}
    for name, (dtype, axes) in layout(type(group)).items():
        array = getattr(group, name)
        shape = tuple(lengths.get(axis, n) for axis, n in zip(axes, array.shape, strict=True))
        if shape != array.shape:
            arrays[name] = np.zeros(shape, dtype)
            arrays[name][tuple(slice(n) for n in array.shape)] = array
    return group._replace(**arrays)


def nbytes(*groups: NamedTuple) -> int:
    """Memory of all arrays, in bytes."""
    return sum(array.nbytes for group in groups for array in group)


def key_table(n: int) -> npt.NDArray[np.int32]:
    """Empty hash table for n keys."""
    return np.full(1 << (2 * n - 1).bit_length(), -1, np.int32)
