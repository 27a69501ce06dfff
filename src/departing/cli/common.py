"""Arguments, progress bars, output and error messages shared by all commands."""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
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
    from departing.simulation.run import UsersProgress

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "TOML or JSON file, or a built-in example: blog, hard or magazine."
MIN_RESAMPLES = 20  # with fewer, the ends of a 95% interval are the extremes of the sample

InstanceArgument = Annotated[str, typer.Argument(metavar="INSTANCE", help=INSTANCE_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, typer.Option(help="Random seed; equal seeds give equal results.")]
Users = Annotated[str, typer.Option(metavar="N", help="Number of users, such as 1000 or 1e6.")]
Confidence = Annotated[float, typer.Option(help="Confidence level of intervals, between 0 and 1.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot (.svg, .png or .pdf).")]


def output_option(description: str) -> Any:
    """Option `--output` or `-o`."""
    return typer.Option("--output", "-o", metavar="FILE", help=description)


InstanceOutput = Annotated[Path | None, output_option("Write the instance (.toml or .json).")]


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap `command` so that input errors print one message on stderr and exit with code 2."""

    @wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except InputError as error:
            fail(f"Error: {_with_options(error, command, kwargs)}")
        except BrokenPipeError:  # the reader of our output has closed it
            _discard_output()
        except OSError as error:
            _discard_output()
            fail(f"Error: Cannot write the output: {error.strerror or error}.")
        except MemoryError:
            fail("Error: Not enough memory. Try fewer users, types or nodes.")
        except (KeyboardInterrupt, SystemError) as error:
            # A compiled function that is interrupted while it starts raises a SystemError.
            if not is_interrupt(error):
                raise
            fail("Interrupted. No partial files were written.")

    return wrapper


def _with_options(error: InputError, command: Callable[..., None], given: dict[str, Any]) -> str:
    """Message of an error with the options of the command in place of the library's parameters."""
    options, message, name = _options(command), str(error), error.parameter
    # A learner's own parameter may share the name of an option that is not at fault, so the option must be given.
    if name in options and given.get(name) != inspect.signature(command).parameters[name].default:
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


def is_interrupt(error: BaseException | None) -> bool:
    """Return True if `error` was caused by Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _discard_output() -> None:
    """Redirect stdout to the null device, so that closing it raises no second error."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str) -> NoReturn:
    """Print `message` on stderr and exit with code 2."""
    print(message, file=sys.stderr)
    raise typer.Exit(2)


def exclusive(option: str, **others: object) -> None:
    """Raise if one of the `others` is given (not None) together with `option`."""
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{option} and --{name.replace('_', '-')} cannot be combined.")


def new_console() -> "Console":
    """Console on stdout."""
    from rich.console import Console

    return Console()


def load_instance(name: str) -> "Instance":
    """Load an instance from a file, or an example by its name."""
    from departing.model.examples import EXAMPLES
    from departing.model.instance import Instance

    if name in EXAMPLES:
        return EXAMPLES[name]()
    if not Path(name).suffix:
        known = ", ".join(EXAMPLES)
        raise InputError(f"There is no instance {name!r}; expected a .toml or .json file, or one of {known}.")
    return Instance.load(name)


def policy_label(text: str, description: str) -> str:
    """Description of a policy, preceded by its file if it was loaded from one."""
    return f"{text}: {description}" if Path(text).suffix.lower() in (".toml", ".json") else description


def print_json(values: dict[str, Any], **files: Path | None) -> None:
    """Print one JSON object, with the paths of the files that were written."""
    print(json.dumps(values | {name: str(path) for name, path in files.items() if path is not None}, allow_nan=False))


def print_saved(*paths: Path | None) -> None:
    """Print the paths of the files that were written."""
    for path in filter(None, paths):
        print(f"Saved to {path}")


def check_files(output: Path | None = None, plot: Path | None = None, suffixes: Sequence[str] | None = None) -> None:
    """Raise before the computation if a file cannot be written; `suffixes` of the output: documents by default."""
    from departing.model.files import DOCUMENT_SUFFIXES, check_writable

    if output is not None:
        check_writable(output, tuple(suffixes or DOCUMENT_SUFFIXES))
    if plot is not None:
        from departing.plotting.figures import FIGURE_SUFFIXES

        check_writable(plot, FIGURE_SUFFIXES)


def check_resamples(bootstrap: int, optional: bool = False) -> int:
    """Number of bootstrap resamples; 0 is accepted if the bootstrap is `optional`."""
    from departing.model.validation import check_int

    if optional and bootstrap == 0:
        return 0
    return check_int("bootstrap", bootstrap, MIN_RESAMPLES, 10**5)


def parse_int(parameter: str, text: str) -> int:
    """Parse an integer, also if written like 1e12 or 1_000_000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or abs(value) > 1e18:
        raise InputError(f"{parameter} is {text!r:.40}; expected an integer such as 1000000 or 1e6.", parameter)
    return int(value)


def split_names(text: str | None) -> list[str] | None:
    """Split names at commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


@contextmanager
def progress(label: str, total: int | None, quiet: bool) -> Iterator["UsersProgress"]:
    """Progress bar on a terminal, without a percentage if the `total` is unknown; no output elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda users: bars.advance(task, users)
