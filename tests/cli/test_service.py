"""Options of `departing serve`, and Ctrl-C."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from departing.client import Client
from helpers.commands import call, output
from helpers.load import wait_until
from helpers.servers import children, free_port, serving


def test_a_blank_category_is_rejected(tmp_path):
    done = call(
        "serve", "--learn", "--departures", "reported", "--categories", "a,b,", "--store", tmp_path / "s.sqlite"
    )
    assert done.exit_code == 2
    assert done.stderr.strip() == "Error: --categories is ['a', 'b', '']; expected nonempty names."
    assert list(tmp_path.iterdir()) == []


def test_one_category_and_categories_beside_an_instance_are_rejected(tmp_path):
    options = ("serve", "--departures", "reported", "--store", tmp_path / "s.sqlite")
    done = call(*options, "--learn", "--categories", "news")
    assert done.stderr.strip() == ("Error: --categories is 'news'; expected at least two names, such as news,sport.")
    done = call(*options, "--instance", "blog", "--categories", "news,sport")
    assert done.stderr.strip() == "Error: --instance and --categories cannot be combined; omit one of them."
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_store_leaves_no_file(tmp_path):
    done = call("serve", "--learn", "--inactive-after", "1 day", "--store", tmp_path / "typo.sqlite")
    assert done.exit_code == 2
    assert "is new; name its categories" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_a_running_service_without_a_traceback(tmp_path):
    """The terminal sends the signal to all processes of the session, of which the trainer is not one."""
    options = ("--learn", "--departures", "reported", "--categories", "a,b", "--port", str(free_port()))
    process = subprocess.Popen(
        [sys.executable, "-c", "from departing.cli import main; main()", "serve", *options],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: any(os.getsid(pid) == pid for pid in children(process.pid)))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_a_category_is_added_with_a_reward(tmp_path):
    with serving(tmp_path, "--instance", "magazine", "--departures", "reported") as server:
        printed = output("categories", "add", "toys", "--reward", "5", "--url", server.url)
        assert re.search(r"toys\W+available\W+5\W", printed)
        done = call("categories", "add", "toys", "--reward", "-1", "--url", server.url)
        assert done.exit_code == 2
        assert "reward is -1.0; expected a number ≥ 0" in done.stderr
        with Client(server.url) as client:
            added = client.add_category("toys", reward=4)
            assert added[-1] == {"name": "toys", "retired": False, "reward": 4.0}
            assert client.categories() == client.add_category("toys") == added
            assert [each["reward"] for each in added[:-1]] == [None] * (len(added) - 1)
            names = [each["name"] for each in added]
        index = names.index("toys")
    with closing(sqlite3.connect(server.store)) as store:
        assert store.execute("SELECT value FROM meta WHERE key = ?", [f"reward {index}"]).fetchall() == [("4.0",)]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (("--half-life", "30 days"), "--half-life weighs users in training"),
        (("--types", "3"), "--types is '3', the number of types in training"),
    ],
)
def test_options_of_training_without_learning_are_refused(tmp_path, option, reason):
    done = call("serve", "--instance", "blog", "--store", tmp_path / "s.sqlite", *option)
    assert done.exit_code == 2
    assert done.stderr.strip() == f"Error: {reason}; add --learn, or omit it."
