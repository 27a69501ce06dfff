"""Errors that invalid input causes."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Invalid input; the message states the field, its value and the accepted values.

    Parameters
    ----------
    message : str
        One sentence, and the next step where there is one. Parameters it mentions stand in backticks, as in
        "set `max_steps`"; the command line prints its options in their place.
    parameter : str, optional
        Name of the invalid parameter. Where the message starts with it, the command line prints its option instead.
    """

    exit_code = 2  # of a command that raises it; 1 if the same command may succeed later

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class MissingExtraError(InputError, ImportError):
    """An optional part of the package whose extra is not installed."""


@contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Context in which messages of input errors start with `where`, such as the name of a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


@contextmanager
def interruptible_query() -> Iterator[None]:
    """Context in which Ctrl-C raises KeyboardInterrupt, although DuckDB turns it into a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" not in str(error).lower():
            raise
        raise KeyboardInterrupt from error
