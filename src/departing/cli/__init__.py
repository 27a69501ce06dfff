"""The command line: arguments in, calls of the library, tables or JSON out."""

import io
import signal
import sys
from typing import Annotated

import typer

from departing.cli.common import told
from departing.cli.data import fit, movielens, ope, sample_log
from departing.cli.learning import learn, study
from departing.cli.paper import paper
from departing.cli.policies import evaluate, instance, plan, simulate
from departing.cli.quickstart import quickstart
from departing.cli.service import backup, loadtest, serve

app = typer.Typer(
    name="departing",
    help="Recommend to people who leave when they are disappointed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_COMMANDS = (
    instance,
    evaluate,
    simulate,
    plan,
    learn,
    study,
    sample_log,
    fit,
    ope,
    movielens,
    serve,
    backup,
    loadtest,
    paper,
    quickstart,
)
for _command in _COMMANDS:
    app.command()(told(_command))


def _version(show: bool) -> None:
    if show:
        from departing import __version__

        print(f"departing {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Recommend to people who leave when they are disappointed."""


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind then either
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()
