"""Calling the command line as a user does."""

import json
import re
import shlex
from pathlib import Path

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


def check_block(block):
    """Run the commands of a page in the current folder; each must print what stands below it."""
    examples = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert examples
    for example in examples:
        command, _, expected = example.partition("\n")
        command, _, target = command.partition(" > ")
        name, *arguments = shlex.split(command)
        assert name == "departing"
        printed = told(*arguments)
        if target:
            Path(target.strip()).write_text(printed, encoding="utf-8")
        else:
            assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()
