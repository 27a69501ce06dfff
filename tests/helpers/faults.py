"""Helpers of tests of faults: options of a server, its processes, backups and probes."""

import os
import subprocess
import sys

from helpers.load import LONG, request
from helpers.servers import children, command_of

LEARN = ("--learn", "--departures", "reported", "--types", "1", "--categories", "news,sports,music")
KILLS = int(os.environ.get("DEPARTING_KILLS", "100" if LONG else "3"))


def backup(store, target):
    code = "from departing.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "backup", str(store), str(target)], capture_output=True, text=True
    )


def processes(server, command):
    """The child processes of a server whose command contains this text."""
    return [pid for pid in children(server.process.pid) if command in command_of(pid)]


def healthy(server):
    status, health = request(server.port, "GET", "/health")
    return status == 200 and health["ok"]


def rejects(server, message):
    """True if all calls that need the store are rejected with this message, by every worker that was reached.

    Each worker notices a failure by its own calls, so that another one may still report that it is healthy.
    """
    calls = (("POST", "/v1/recommend", {"user": "somebody"}), ("GET", "/health", None), ("GET", "/ready", None))
    answers = [request(server.port, *call) for call in calls]
    rejected = [status == 503 for status, _ in answers]
    if not all(rejected):
        assert not rejected[0] or "--workers" in server.options, answers
        return False
    (_, problem), (_, health), _ = answers
    assert message in problem["detail"]
    assert not health["ok"]
    assert message in health["reason"]
    return True
