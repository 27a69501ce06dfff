"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "TOML or JSON file, or a built-in example: blog, hard or magazine."

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
