"""How kernels are compiled."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, without Python's lock, and keep the code on disk where that is possible."""
    return _compiled(function)


def search_kernel(function: Callable[..., Any]) -> Any:
    """As `kernel`, for one that makes no arrays: without counting references to those it is given, which is slow."""
    return _compiled(function, _nrt=False)


def inner(function: Callable[..., Any]) -> Any:
    """A kernel that only kernels call and that makes no arrays: no way in from Python, no counting of references."""
    return _compiled(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def loose(function: Callable[..., Any]) -> Any:
    """As `inner`, with sums in any order: for what guides a search, never for a bound."""
    return _compiled(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath=True)


def part(function: Callable[..., Any]) -> Any:
    """A piece of a kernel, put into the kernel that calls it before that is compiled, which is faster than a call."""
    return _compiled(function, inline="always")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written
        return njit(nogil=True, **options)(function)


def is_compiled(function: Any) -> bool:
    """Whether this kernel has been compiled, here or on disk."""
    index = getattr(getattr(getattr(function, "_cache", None), "_cache_file", None), "_index_path", None)
    return bool(function.signatures) or bool(index and Path(index).exists())


def say_if_compiling(function: Any, what: str, seconds: int) -> None:
    """Log that `what` is about to be compiled, if it has not been."""
    if not is_compiled(function):
        logging.getLogger("departing").warning("Compiling %s, once: about %d seconds.", what, seconds)
