"""Error messages and exit codes of all commands."""

import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, NoReturn

import typer
from typer.models import OptionInfo

from departing.model.errors import InputError


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap `command` so that input errors print one message on stderr and exit with their code, usually 2."""

    @wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            with on_interrupt("Interrupted. No partial files were written."):
                command(*args, **kwargs)
                with output_errors():
                    if sys.stdout is not None:
                        sys.stdout.flush()
        except InputError as error:
            fail(f"Error: {_with_options(error, command, kwargs)}", error.exit_code)
        except BrokenPipeError:  # the reader of our output has closed it
            _discard_output()
        except OSError as error:
            _discard_output()
            fail(f"Error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
        except MemoryError:
            fail("Error: Not enough memory. Try fewer users, types or nodes.")

    return wrapper


@contextmanager
def output_errors() -> Iterator[None]:
    """Context of writing to stdout, such as to a file on a full disk; its errors exit with code 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        fail(f"Error: Cannot write the output: {error.strerror or error}.")


@contextmanager
def on_interrupt(message: str) -> Iterator[None]:
    """Print `message` at Ctrl-C and SIGTERM, and exit with 128 plus the number of the signal, as shells expect."""
    try:
        yield
    except (KeyboardInterrupt, SystemError) as error:
        # A compiled function that is interrupted while it starts raises a SystemError.
        if not _is_interrupt(error):
            raise
        fail(message, 128 + (_received[-1] if _received else signal.SIGINT))


_received: list[int] = []  # signals that end the command; DuckDB replaces the exception of their handler by its own


def raise_terminated(number: int, _: object) -> NoReturn:
    """Handler of SIGTERM, which ends a command as Ctrl-C does."""
    _received.append(number)
    raise KeyboardInterrupt


def _with_options(error: InputError, command: Callable[..., None], given: dict[str, Any]) -> str:
    """Message of an error with the options of the command in place of the library's parameters."""
    options, message, name = _options(command), str(error), error.parameter
    # A learner's own parameter may share the name of an option that is not at fault, so the option must be given.
    is_first = name is not None and re.match(rf"{re.escape(name)}\b", message) is not None
    if is_first and name in options and given.get(name) != inspect.signature(command).parameters[name].default:
        message = options[name] + message.removeprefix(name)
    return re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[1]), message)


def _options(command: Callable[..., None]) -> dict[str, str]:
    """Options of a command by the names of its parameters."""
    options = {}
    for name, parameter in inspect.signature(command).parameters.items():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(info, OptionInfo):  # inside Annotated, its first declaration is stored as its default
                declared = (each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str))
                options[name] = next(declared, "--" + name.replace("_", "-"))
    return options


def _is_interrupt(error: BaseException | None) -> bool:
    """Return True if an interrupt caused `error`."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _discard_output() -> None:
    """Redirect stdout to the null device, so that closing it raises no second error."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int = 2) -> NoReturn:
    """Print `message` on stderr and exit: with code 2 for invalid input, 1 for an internal error, 130 at Ctrl-C."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)
