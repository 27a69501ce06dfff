"""Arguments and options shared by several commands."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from departing.cli.inputs import parse_duration, split_names
from departing.cli.output import progress

if TYPE_CHECKING:
    from departing.data.inactivity import ReturnTimes
    from departing.data.log import Log

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "TOML or JSON file, or a built-in example: blog, hard, magazine or shop."
LOG_HELP = "CSV, Parquet or JSON-lines file, folder, glob, DuckDB or SQLite file, or the bundled dataset oulad."
INACTIVE_HELP = "Inactivity period after which a user counts as departed, such as '30 days', or auto."
HALF_LIFE_HELP = "Age at which a user counts half, such as '30 days', from the first event of the user; none: never."
FORMAT_HELP = "Format of times that are ambiguous, such as '%d/%m/%Y %H:%M'."
REJECTED_HELP = "Accepted share of rejected rows; above it the command fails."
SEGMENT_HELP = "Columns of features known on arrival, such as country,device; users with equal values are a segment."
REWARD_HELP = "Column of the reward of a click: numbers ≥ 0."
# Options that are lists: separated by commas, and repeated
LISTS = ("categories", "clicked_values", "departed_values", "segment")
READING_ONLY = (
    "rejects",
    "inactive_after",
    "departed",
    "segment",
    "reward",
    "unit",
    "horizon",
    "missing_segment",
    "max_segments",
)
TYPES_HELP = "Number of types, or numbers to select from: 3, 1-5 or 2,4."

InstanceArgument = Annotated[str, Argument(metavar="INSTANCE", help=INSTANCE_HELP)]
Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, Option(help="Random seed; equal seeds give equal results.")]
Users = Annotated[str, Option(metavar="N", help="Number of users, such as 1000 or 1e6.")]
Confidence = Annotated[float, Option(help="Confidence level of intervals, between 0 and 1.")]
HalfLife = Annotated[
    str | None, Option(metavar="DURATION", help=HALF_LIFE_HELP, show_default="all users count alike")
]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Write a plot (.svg, .png or .pdf).")]


def output_option(description: str, metavar: str = "FILE", default: str | None = None) -> Any:
    """Option `--output` or `-o`; `default` is the text that describes a computed default."""
    return Option("--output", "-o", metavar=metavar, help=description, show_default=default or True)


InstanceOutput = Annotated[Path | None, output_option("Write the instance (.toml or .json).")]

Types = Annotated[str, Option(metavar="M", help=TYPES_HELP)]


@dataclass(frozen=True)
class LogOptions:
    """Options of the commands that read a log; except `log`, the names are parameters of `read_log`."""

    log: Annotated[str, Argument(metavar="LOG", help=LOG_HELP)]
    user: Annotated[str, Option(metavar="COLUMN", help="User ID column.")] = "user"
    time: Annotated[str, Option(metavar="COLUMN", help="Timestamp column.")] = "time"
    category: Annotated[str, Option(metavar="COLUMN", help="Column of the recommended category.")] = "category"
    clicked: Annotated[str, Option(metavar="COLUMN", help="Column with the clicks (true or false).")] = "clicked"
    departed: Annotated[str, Option(metavar="COLUMN", help="Departure column, if the log has one.")] = "departed"
    segment: Annotated[list[str] | None, Option(metavar="COLUMN,…", help=SEGMENT_HELP)] = None
    reward: Annotated[str | None, Option(metavar="COLUMN", help=REWARD_HELP)] = None
    unit: Annotated[
        str | None, Option(metavar="NAME", help="Unit of rewards, such as euro.", show_default="column name")
    ] = None
    horizon: Annotated[int | None, Option(metavar="H", help="Maximum number of recommendations to a user.")] = None
    inactive_after: Annotated[str | None, Option(metavar="DURATION", help=INACTIVE_HELP)] = None
    categories: Annotated[
        list[str] | None, Option(metavar="C,C,…", help="Categories in order.", show_default="all logged")
    ] = None
    clicked_values: Annotated[
        list[str] | None, Option(metavar="V,V,…", help="Values that mean a click.", show_default="known words")
    ] = None
    departed_values: Annotated[
        list[str] | None, Option(metavar="V,V,…", help="Values that mean a departure.", show_default="known words")
    ] = None
    time_format: Annotated[str | None, Option(metavar="FORMAT", help=FORMAT_HELP)] = None
    duplicates: Annotated[str, Option(help="Rows that are equal in all columns: drop or keep.")] = "drop"
    max_rejected: Annotated[float, Option(metavar="SHARE", help=REJECTED_HELP)] = 0.05
    missing_segment: Annotated[
        str | None, Option(metavar="NAME", help="Name of missing values in segments.", show_default="unknown segment")
    ] = None
    max_segments: Annotated[int, Option(metavar="N", help="Largest number of segments.")] = 200
    table: Annotated[str | None, Option(metavar="NAME", help="Table of a DuckDB or SQLite file.")] = None
    memory_limit: Annotated[str, Option(metavar="SIZE", help="Spill to disk above this limit.")] = "1 GB"
    rejects: Annotated[Path | None, Option(metavar="FILE", help="Write the rejected rows (.csv or .parquet).")] = None

    def read(self, quiet: bool, **columns: str) -> "Log":
        """Read the log."""
        from departing.data.log import read_log

        source, options = self.arguments()
        with progress("reading", quiet):
            return read_log(source, **options | columns)

    def return_times(self, quiet: bool) -> "ReturnTimes":
        """Read the times after which users return."""
        from departing.data.log import suggest_inactivity

        source, options = self.arguments()
        for name in READING_ONLY:  # they do not matter here
            del options[name]
        with progress("reading", quiet):
            return suggest_inactivity(source, **options)

    def arguments(self) -> tuple[Any, dict[str, Any]]:
        """The source and the arguments of `read_log`; a number as `inactive_after` is in the unit of the times."""
        from departing.data.sources import OULAD

        lists = {name: split_names(getattr(self, name)) for name in LISTS}
        options: dict[str, Any] = vars(self) | lists
        options["inactive_after"] = parse_duration(self.inactive_after)
        source = options.pop("log")
        return OULAD if source == "oulad" else source, options


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Command whose first parameter, a `LogOptions`, is replaced by the fields of that class."""
    shared = inspect.signature(LogOptions).parameters
    _, *own = inspect.signature(command).parameters.values()

    @wraps(command)
    def wrapper(**values: Any) -> None:
        log = LogOptions(**{name: values.pop(name) for name in shared})
        command(log, **values)

    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared.values(), *own)]
    vars(wrapper)["__signature__"] = inspect.Signature(keyword_only)
    return wrapper
