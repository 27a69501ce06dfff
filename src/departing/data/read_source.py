"""Logs that functions accept read or unread."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from departing.data.log import Log, read_log
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.names import suggest

SITE_FIELDS = ("reward", "unit", "horizon")  # which histories can carry, too


def read_source(source: Any, options: dict[str, Any], function: Callable[..., Any]) -> Histories:
    """Return `source` if it is histories, otherwise the log that `read_log` reads from it.

    Parameters
    ----------
    source : Histories, or source of read_log
        Log that is read already, or a data frame or path.
    options : dict
        Further keyword arguments of the caller, meant for `read_log`.
    function : callable
        The caller, whose own parameters are suggested beside those of `read_log`.

    Raises
    ------
    TypeError
        If an option is not an argument of `read_log`.
    InputError
        If there are options for histories, or the source cannot be read.
    """
    accepted = [name for each in (function, read_log) for name in signature(each).parameters]
    for name in options:
        if name not in accepted:
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {name!r}; {suggest(name, accepted)}"
            )
        if isinstance(source, Histories):
            reader = "Histories" if name in SITE_FIELDS and not isinstance(source, Log) else "read_log"
            raise InputError(
                f"{name} is given, but the source is read already: {source!r:.80}; pass {name} to {reader} instead.",
                name,
            )
    if isinstance(source, np.ndarray):
        raise InputError(
            f"The source is an array of shape {source.shape}; expected a log, or Histories(counts) for counts."
        )
    return source if isinstance(source, Histories) else read_log(source, **options)
