"""Calling the command line as a user does."""

import json

from typer.testing import CliRunner

from departing.cli import app


def call(*arguments):
    """What came of a command."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


def told(*arguments):
    """What a command that went well printed."""
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def values(*arguments):
    """What it printed as JSON."""
    return json.loads(told(*arguments, "--json"))
