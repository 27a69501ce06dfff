"""Results as data frames of pandas or polars, whichever is installed."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from departing.model.errors import MissingExtraError


def to_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame with these columns, or a polars one if pandas is not installed.

    Parameters
    ----------
    columns : mapping of str to sequence
        Columns by name, all of the same length.

    Raises
    ------
    MissingExtraError
        If neither library is installed.

    Examples
    --------
    >>> to_frame({"category": ["news", "sport"], "clicks": [3, 1]}).shape
    (2, 2)
    """
    for library in ("pandas", "polars"):
        try:
            frames = import_module(library)
        except ImportError:
            continue
        return frames.DataFrame(dict(columns))
    raise MissingExtraError("to_frame() needs pandas or polars; install one of them with: pip install pandas")
