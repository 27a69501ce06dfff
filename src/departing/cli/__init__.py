"""Command line: argument parsing, library calls, and tables or JSON as output."""

import io
import signal
import sys
from typing import Annotated

import typer

from departing.cli.abtest import ab, power
from departing.cli.assign import assign
from departing.cli.categories import CATEGORY_COMMANDS
from departing.cli.command import Command
from departing.cli.data import fit, movielens, ope, return_times, sample_log
from departing.cli.errors import raise_terminated, report_errors
from departing.cli.experiment import EXPERIMENT_COMMANDS, publish
from departing.cli.learning import learn, study
from departing.cli.paper import paper
from departing.cli.policies import evaluate, instance, plan, simulate
from departing.cli.quickstart import quickstart
from departing.cli.report import report
from departing.cli.service import backup, loadtest, serve

app = typer.Typer(
    name="departing",
    help="Recommend to users who depart when they are disappointed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_COMMANDS = (
    *(instance, evaluate, simulate, plan, learn, study),
    *(report, sample_log, return_times, fit, assign, ope, movielens),
    *(power, ab),
    *(serve, backup, loadtest, publish),
    *(paper, quickstart),
)
for _command in _COMMANDS:
    app.command(cls=Command)(report_errors(_command))
experiment = typer.Typer(
    name="experiment", help="Roll out a policy version of a running service by an experiment.", no_args_is_help=True
)
for _command in EXPERIMENT_COMMANDS:
    experiment.command(cls=Command)(report_errors(_command))
app.add_typer(experiment)
categories = typer.Typer(
    name="categories", help="List, add and retire categories of a running service.", no_args_is_help=True
)
for _name, _change in CATEGORY_COMMANDS.items():
    categories.command(_name, cls=Command)(report_errors(_change))
app.add_typer(categories)


def _version(show: bool) -> None:
    if show:
        from departing import __version__

        print(f"departing {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Recommend to users who depart when they are disappointed."""


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, raise_terminated)  # so that SIGTERM removes partial files too
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()
