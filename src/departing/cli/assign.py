"""Command assign: users and their types as a table."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from departing.cli import options as opt
from departing.cli.inputs import check_files, load_instance
from departing.cli.output import present, progress

FIT_HELP = "Instance that `departing fit` wrote (.toml or .json), or a built-in example."


@opt.with_log_options
def assign(
    log: opt.LogOptions,
    fit: Annotated[str, Option(metavar="FILE", help=FIT_HELP)],
    output: Annotated[Path, opt.output_option("Table of users to write (.parquet or .csv).")],
    policy: Annotated[str | None, Option(metavar="POLICY", help=opt.POLICY_HELP, show_default="optimal")] = None,
    as_json: opt.Json = False,
) -> None:
    """Assign every user of an event log to a type, and compute the next recommendation."""
    from departing.assignment.assign import assign as assign_users
    from departing.cli.tables.assignment import assignment_table, assignment_values
    from departing.model.tables import TABLE_SUFFIXES

    check_files(output, suffixes=TABLE_SUFFIXES)
    instance = load_instance(fit)
    data = log.read(as_json)
    with progress("assigning", as_json):
        users = assign_users(data, instance, policy, output)
    contents: list[Any] = [assignment_table(users), *users.notes()]
    present(as_json, assignment_values(users), contents, output=output, rejects=log.rejects)
