"""How kernels are compiled."""

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, without Python's lock, and keep the code on disk where that is possible."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in can be written
        return njit(nogil=True)(function)
