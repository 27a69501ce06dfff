"""The README's own serve command, with callers that send only recommendations and feedback."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from departing.model.examples import magazine
from helpers.load import wait_until
from helpers.servers import request, serving

PERIOD = "8 seconds"  # far longer than a round of recommendations to `ACTIVE` users
ACTIVE = 60


def readme_options():
    """The options of the README's command, with a short inactivity period."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    _, _, *options = shlex.split(re.search(r"^departing serve .*$", text, re.MULTILINE)[0])
    options[options.index("--inactive-after") + 1] = PERIOD
    return options


def visit(client, site, users, rng):
    """Send users to the service, who leave after half of their no-clicks; return the clicks of each.

    The callers send recommend and feedback only.
    """
    names, clicks = list(site.categories), dict.fromkeys(users, 0)
    types = dict(zip(users, rng.choice(site.n_types, len(users), p=site.prior), strict=True))
    waiting, active = users[ACTIVE:], users[:ACTIVE]
    while active:
        shown = list(map(client.recommend, active))
        clicked = [
            bool(rng.random() < site.click[names.index(row["category"]), types[user]])
            for user, row in zip(active, shown, strict=True)
        ]
        rows = [{"event": row["event"], "clicked": each} for row, each in zip(shown, clicked, strict=True)]
        assert all(row["accepted"] for row in client.feedback_batch(rows))
        for user, each in zip(active, clicked, strict=True):
            clicks[user] += each
        active = [user for user, each in zip(active, clicked, strict=True) if each or rng.random() < 0.5]
        n = ACTIVE - len(active)
        active, waiting = active + waiting[:n], waiting[n:]
    return np.array(list(clicks.values()))


def published(path):
    """The lines of a log about published policies."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if line["event"] == "policies_published"]


@pytest.mark.slow
def test_promised_clicks_come_where_callers_never_report_departures(tmp_path):
    site, rng = magazine(), np.random.default_rng(1)
    with serving(tmp_path, *readme_options(), "--seed", "1") as server, server.client() as client:

        def dashboard():
            return json.loads(request(server, "/v1/dashboard")[1])

        first = visit(client, site, [f"first {i}" for i in range(1500)], rng)
        wait_until(lambda: dashboard()["active_users"] == 0)
        wait_until(lambda: published(tmp_path / "log.txt")[-1]["pending"] <= 150)
        counters = dashboard()["counters"]
        assert counters["departures"] == counters["new_users"] == 1500
        assert counters.get("returned_users", 0) == counters.get("reopened_users", 0) == 0
        assert counters["clicks"] == first.sum()
        promised = dashboard()["policy"]["lower"]
        second = visit(client, site, [f"second {i}" for i in range(500)], rng)
        # The promise has the error of a fit to the first users, and what comes that of the second.
        error = second.std() * np.sqrt(1 / len(first) + 1 / len(second))
        assert abs(promised - second.mean()) < 4 * error
        assert json.loads(request(server, "/health")[1])["warnings"] == []
