"""Experiments end to end, with real servers and simulated users: the path of the docs, kills, and several workers."""

import inspect
import json
import re
import shlex
import time
from pathlib import Path

import pytest

from departing.cli.experiment import ramp, start
from departing.client import Client
from departing.loadtest.run import run_loadtest
from departing.model.examples import magazine
from departing.service.experiments.messages import ExperimentAction, ExperimentStart
from helpers.commands import call
from helpers.load import wait_until
from helpers.servers import request, serving

PAGE = (Path(__file__).parents[3] / "docs/howto/experiments.md").read_text(encoding="utf-8")
PATH = re.search(r"<!-- path -->(.*?)<!-- end of path -->", PAGE, re.DOTALL)[1]
COMMANDS = [line for line in PATH.splitlines() if line.startswith("departing ")]
SERVE = shlex.split(re.search(r"^departing serve (.*) --store \S+$", PAGE, re.MULTILINE)[1])


def run_command(server, line):
    """Run a command of the page against a server; return what it printed."""
    done = call(*shlex.split(line)[1:], "--url", server.url)
    assert done.exit_code == 0, done.output
    return done.stdout


def state(client, number):
    return client.experiment(number)["experiment"]["state"]


@pytest.mark.slow
def test_from_shadow_mode_to_all_users_and_a_bad_policy_is_rolled_back(tmp_path):
    with serving(tmp_path, *SERVE) as server, server.client() as client:
        printed = {}
        for line in COMMANDS[:4]:
            printed[line] = run_command(server, line)
        wait_until(lambda: client.experiment(1)["metrics"][0]["treatment_users"] > 120)
        readout = client.experiment(1)
        assert readout["experiment"]["control"] == "caller"
        assert readout["metrics"][0]["difference"] > 0
        assert not readout["sample_ratio_mismatch"]
        assert "treatment" in printed["departing experiment status"]
        for line in COMMANDS[4:8]:
            run_command(server, line)
        experiment = client.experiments()[0]
        assert experiment["state"] == "completed"
        assert [change["action"] for change in experiment["changes"]] == ["start", "ramp", "complete"]
        assert not client.call("GET", "/v1/shadow")["enabled"]
        assert client.policy()["version"] == 0
        for line in COMMANDS[8:]:
            run_command(server, line)
        wait_until(lambda: state(client, 2) == "rolled_back")
        ended = client.experiments()[0]["changes"][-1]
        assert (ended["action"], ended["actor"]) == ("rollback", "guardrail")
        assert "worse in clicks per user" in ended["reason"]
        assert client.recommend("after")["version"] == 0
        wait_until(lambda: b"Experiment 2 was rolled back automatically" in request(server, "/health")[1])
        assert b"departing_experiment_rolled_back 1" in request(server, "/metrics")[1]
        log = request(server, "/v1/log")[1].decode()
        assert '"experiment":2,"arm":"treatment"' in log


@pytest.mark.slow
def test_an_experiment_survives_kills_and_reaches_all_workers(tmp_path, postgres):
    site = magazine()
    options = ("--instance", "magazine", "--departures", "reported", "--workers", "2")
    with serving(tmp_path, *options, store=postgres.new()) as server:
        with server.client() as client:
            worst = site.categories[int((site.fixed_values @ site.prior).argmin())]
            version = client.publish({"kind": "fixed", "category": worst})["version"]
            started = client.start_experiment(version, share=0.5, window=3, planned_users=400, salt="s")
            arms = {f"u{i}": client.recommend(f"u{i}")["arm"] for i in range(20)}
        server.kill()
        server.start()
        wait_until(lambda: server.listeners() == 2)
        for user, arm in arms.items():
            with server.client() as client:  # any worker
                assert client.recommend(user)["arm"] == arm
        with server.client() as client:
            assert client.experiments() == [started]
            run_loadtest(site, server.url, 1500, pace=0, open_users=16)
            wait_until(lambda: state(client, 1) == "rolled_back")
        time.sleep(1.0)  # within which all workers adopt it
        treated = next(user for user, arm in arms.items() if arm == "treatment")
        for _ in range(6):
            with server.client() as client:
                response = client.recommend(treated)
                assert (response["version"], "arm" in response) == (0, False)


def test_commands_print_tables_and_json(tmp_path):
    with serving(tmp_path, "--categories", "news,sport,music", "--learn", "--departures", "reported") as server:
        done = call("experiment", "status", "--url", server.url)
        assert done.exit_code == 2
        assert "There is no experiment; start one with: departing experiment start VERSION." in done.output
        with server.client() as client:
            version = client.publish({"kind": "fixed", "category": "sport"})["version"]
        options = "--control latest --window '1 hour' --return-period '2 days' --salt autumn"
        text = run_command(server, f"departing experiment start {version} {options}")
        assert f"is running: version {version} for 10 % of new users." in text
        ramped = json.loads(run_command(server, "departing experiment ramp 0.5 1 --reason better --json"))
        assert (ramped["share"], ramped["changes"][-1]["reason"]) == (0.5, "better")
        assert (ramped["window"], ramped["return_period"], ramped["salt"]) == (3600, 2 * 86400, "autumn")
        status = run_command(server, "departing experiment status")
        assert "waiting for 100 users per arm" in status
        assert re.search(r"treatment +│ version \d+ +│ +50 %", status)
        stopped = run_command(server, "departing experiment stop --reason over")
        kept = f"active users of the treatment keep version {version}."
        assert f"Experiment 1 is stopped: new users get the latest version; {kept}" in stopped
        assert "over" in run_command(server, "departing experiment status")
        done = call("experiment", "start", "new", "--url", server.url)
        assert "VERSION is 'new'; expected the number of a version or latest." in done.output
        done = call("experiment", "start", "0", "--window", "soon", "--url", server.url)
        assert "window is 'soon'; expected" in done.output


def test_the_command_line_and_the_client_have_all_options_of_the_api():
    fields = set(ExperimentStart.__struct_fields__) - {"actor"}
    assert set(inspect.signature(start).parameters) - {"url", "key", "as_json"} == fields
    assert set(inspect.signature(Client.start_experiment).parameters) - {"self"} == fields
    changes = {"experiment", *ExperimentAction.__struct_fields__} - {"actor"}
    assert set(inspect.signature(Client.change_experiment).parameters) - {"self"} == changes
    names = set(inspect.signature(ramp).parameters) - {"url", "key", "as_json"}
    assert names == changes - {"action", "experiment"} | {"number"}


def test_experiments_need_the_admin_key(tmp_path):
    keys = {"DEPARTING_CLIENT_KEY": "client", "DEPARTING_ADMIN_KEY": "admin"}
    with serving(tmp_path, "--instance", "magazine", environment=keys) as server:
        calls = [
            ("GET", "/v1/experiments", None),
            ("POST", "/v1/experiments", b"{}"),
            ("POST", "/v1/policies", b"{}"),
        ]
        calls += [("GET", "/v1/experiments/1", None), ("POST", "/v1/experiments/1", b'{"action": "stop"}')]
        for method, path, body in calls:
            assert request(server, path, body, method)[0] == 401
            assert request(server, path, body, method, key="client")[0] == 403
            assert request(server, path, body, method, key="admin")[0] in (200, 404, 422)
        assert request(server, "/experiments")[0] == 200
        large = b'{"kind": "fixed", "category": "news", "names": ["' + b"x" * (2 << 20) + b'"]}'
        assert request(server, "/v1/policies", large, key="admin")[0] == 422  # read, although above 1 MiB
        status, problem = request(server, "/v1/policies", large * 5, key="admin")
        assert status == 413
        assert b"exceeds 8 MiB" in problem
