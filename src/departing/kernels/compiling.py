"""Decorators that compile kernels with numba."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba import njit, types

from departing.kernels import deferred


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, releasing the GIL, and cache the machine code on disk if possible."""
    return _compiled(function)


def search_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel that allocates no arrays, without the (slow) reference counting of its arguments."""
    return _compiled(function, _nrt=False)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a kernel that only kernels call and that allocates no arrays: no Python entry point."""
    return _inner(function)


def fast_math(function: Callable[..., Any]) -> Any:
    """Compile as `inner`, with sums in any order: for heuristics that guide a search, never for a bound."""
    return _inner(function, fastmath=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Insert `function` into the kernels that call it before these are compiled, which is faster than a call."""
    return _compiled(function, inline="always")


def _inner(function: Callable[..., Any], **options: Any) -> Any:
    options |= {"_nrt": False, "no_cpython_wrapper": True}
    if not deferred.SUPPORTED:
        return _compiled(function, **options)
    return _compiled(function, cache=False, pipeline_class=deferred.InnerCompiler, **options)


def _compiled(function: Callable[..., Any], cache: bool = True, **options: Any) -> Any:
    # No Python exception for a division by zero and no entry point for C: both take time to compile.
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    if deferred.SUPPORTED:
        options.setdefault("pipeline_class", deferred.KernelCompiler)
    try:
        compiled: Any = njit(cache=cache, **options)(function)
    except RuntimeError:  # no cache folder is writable
        compiled = njit(**options)(function)
    template = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: template(tuple(map(_general, args)), kws)
    return compiled


def _general(kind: Any) -> Any:
    """Type for which an argument of an inner kernel is compiled: int64 for all signed integers.

    Otherwise a kernel would be compiled again for constants and for entries of int32 arrays.
    """
    return types.int64 if isinstance(kind, types.Integer) and getattr(kind, "signed", False) else kind


def is_compiled(function: Any) -> bool:
    """Return True if this kernel has been compiled, in this process or on disk."""
    index = getattr(getattr(getattr(function, "_cache", None), "_cache_file", None), "_index_path", None)
    return bool(function.signatures) or bool(index and Path(index).exists())


def log_compilation(function: Any, name: str, seconds: int) -> None:
    """Log that `name` is about to be compiled and takes about `seconds`, unless it has been compiled."""
    if not is_compiled(function):
        logging.getLogger("departing").warning("Compiling %s (once, about %d seconds).", name, seconds)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage in the body, which takes a seventh of the time to compile the planner."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
