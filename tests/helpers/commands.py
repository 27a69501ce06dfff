"""Calls of the command line, and checks of the console blocks of the docs."""

import json
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from departing.cli import app


def call(*arguments):
    """Run a command and return its result."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


def output(*arguments):
    """Run a command that succeeds and return what it printed."""
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def json_output(*arguments):
    """Run a command with --json and return the parsed object."""
    return json.loads(output(*arguments, "--json"))


def check_block(block):
    """Run the commands of a console block in the current folder; each must print the lines below it."""
    examples = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert examples
    for example in examples:
        command, _, expected = example.partition("\n")
        command, _, target = command.partition(" > ")
        name, *arguments = shlex.split(command)
        assert name == "departing"
        printed = output(*arguments)
        if target:
            Path(target.strip()).write_text(printed, encoding="utf-8")
        else:
            assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()
