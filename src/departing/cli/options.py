"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "TOML or JSON file, or a built-in example: blog, hard or magazine."
LOG_HELP = "CSV, Parquet or JSON-lines file, folder, glob, DuckDB or SQLite file, or the bundled dataset oulad."
INACTIVE_HELP = "Inactivity period after which a user counts as departed, such as '30 days'."
TYPES_HELP = "Number of types, or numbers to select from: 3, 1-5 or 2,4."

InstanceArgument = Annotated[str, Argument(metavar="INSTANCE", help=INSTANCE_HELP)]
Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, Option(help="Random seed; equal seeds give equal results.")]
Users = Annotated[str, Option(metavar="N", help="Number of users, such as 1000 or 1e6.")]
Confidence = Annotated[float, Option(help="Confidence level of intervals, between 0 and 1.")]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Write a plot (.svg, .png or .pdf).")]


def output_option(description: str, metavar: str = "FILE", default: str | None = None) -> Any:
    """Option `--output` or `-o`; `default` is the text that describes a computed default."""
    return Option("--output", "-o", metavar=metavar, help=description, show_default=default or True)


InstanceOutput = Annotated[Path | None, output_option("Write the instance (.toml or .json).")]

# Reading a log
LogArgument = Annotated[str, Argument(metavar="LOG", help=LOG_HELP)]
User = Annotated[str, Option(metavar="COLUMN", help="User ID column.")]
Time = Annotated[str, Option(metavar="COLUMN", help="Timestamp column.")]
Category = Annotated[str, Option(metavar="COLUMN", help="Column of the recommended category.")]
Clicked = Annotated[str, Option(metavar="COLUMN", help="Column with the clicks (true or false).")]
Departed = Annotated[str, Option(metavar="COLUMN", help="Column with the departures, if the log has one.")]
InactiveAfter = Annotated[str | None, Option(metavar="DURATION", help=INACTIVE_HELP)]
Categories = Annotated[str | None, Option(metavar="C,C,…", help="Categories in order.", show_default="all logged")]
Table = Annotated[str | None, Option(metavar="NAME", help="Table of a DuckDB or SQLite file.")]
MemoryLimit = Annotated[str, Option(metavar="SIZE", help="Spill to disk above this limit.")]
Types = Annotated[str, Option(metavar="M", help=TYPES_HELP)]
Rejects = Annotated[Path | None, Option(metavar="FILE", help="Write the rejected rows (.csv or .parquet).")]
