"""What all commands share: how they read arguments, show progress, print, and tell errors."""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.models import OptionInfo

from departing.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from departing.model.instance import Instance
    from departing.simulation.run import Progress

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "A TOML or JSON file, or 'blog' for the example of the paper; also 'hard' and 'magazine'."

InstanceArgument = Annotated[str, typer.Argument(metavar="INSTANCE", help=INSTANCE_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def told(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, with every error a user can make told in one sentence on stderr and by exit code 2."""

    @wraps(command)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except InputError as error:
            stop(f"Error: {_in_options(str(error), command, kwargs)}")
        except BrokenPipeError:  # the reader of our output has seen enough
            _drop_output()
        except OSError as error:
            _drop_output()
            stop(f"Error: Cannot write the output: {error.strerror or error}.")
        except MemoryError:
            stop("Error: There is not enough memory for this; try fewer users, types or nodes.")
        except (KeyboardInterrupt, SystemError) as error:
            # A compiled function interrupted on its way in tells so by a SystemError.
            if not interrupted(error):
                raise
            stop("Interrupted; no file is half written.")

    return told


def _options(command: Callable[..., None]) -> dict[str, tuple[str, object]]:
    """The options of a command by the names of its arguments, with their defaults."""
    found = {}
    for name, parameter in inspect.signature(command).parameters.items():
        for about in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(about, OptionInfo):
                named = [each for each in (about.default, *(about.param_decls or ())) if isinstance(each, str)]
                found[name] = named[0] if named else "--" + name.replace("_", "-"), parameter.default
    return found


def _in_options(sentence: str, command: Callable[..., None], given: dict[str, Any]) -> str:
    """A sentence of the library, with its arguments as the options of the command at hand."""
    for name, (option, default) in _options(command).items():
        sentence = re.sub(rf"\b{name}=(\[\.\.\.\]|1\b)?", f"{option} ", sentence)
        sentence = re.sub(rf"{option} (?=[,.;)])", option, sentence)
        if "_" in name:  # no word of a sentence
            sentence = re.sub(rf"\b{name}\b", option, sentence)
        if given.get(name, default) != default:
            sentence = re.sub(rf"^({name}|{option[2:]}) (?=is |has )", f"{option} ", sentence)
    return sentence


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the bottom of `error`."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _drop_output() -> None:
    """Let nothing more be written to a stdout that does not take it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stop(sentence: str) -> NoReturn:
    """Tell what is wrong, and stop."""
    print(sentence, file=sys.stderr)
    raise typer.Exit(2)


def new_console() -> "Console":
    """A console on stdout."""
    from rich.console import Console

    return Console()


def load_instance(name: str) -> "Instance":
    """An instance from its file, or an example by its name."""
    from departing.model.examples import EXAMPLES
    from departing.model.instance import Instance

    if name in EXAMPLES:
        return EXAMPLES[name]()
    if not Path(name).suffix:
        known = ", ".join(EXAMPLES)
        raise InputError(f"There is no instance {name!r}; give a file ending in .toml or .json, or one of {known}.")
    return Instance.load(name)


def labelled(text: str, words: str) -> str:
    """A policy in words, with its file if it came from one."""
    return f"{text}: {words}" if Path(text).suffix.lower() in (".toml", ".json") else words


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(values, allow_nan=False))


def whole(field: str, text: str) -> int:
    """A whole number, also written like 1e12 or 1_000_000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or abs(value) > 1e18:
        raise InputError(f"{field} is {text!r:.40}; expected a whole number such as 1000000 or 1e6.")
    return int(value)


@contextmanager
def progress(label: str, total: int | None, quiet: bool) -> Iterator["Progress"]:
    """A bar on a terminal, just a sign of life where the total is not known; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda users: bars.advance(task, users)
