"""Messages of `departing publish` and `departing experiment`."""

import json

import pytest

from departing import client as clients
from departing import plan
from departing.model.examples import blog
from helpers.commands import call, output
from helpers.servers import free_port, request, serving

SHARE = "expected a share from 0 to 1, such as 0.1 for 10 %."


def error(*arguments):
    """Run a command that fails and return its message."""
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    return done.stderr.strip().removeprefix("Error: ")


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("experiment", "start", "1", "--share", "10"), "--share", "10"),
        (("experiment", "start", "1", "--share", "150%"), "--share", "150%"),
        (("experiment", "start", "1", "--share", "half"), "--share", "half"),
        (("experiment", "start", "1", "--holdout", "-1"), "--holdout", "-1"),
        (("experiment", "ramp", "150"), "SHARE", "150"),
        (("serve", "--instance", "blog", "--explore", "5"), "--explore", "5"),
    ],
)
def test_a_share_outside_0_and_1_is_rejected_with_an_example(arguments, name, value):
    assert error(*arguments) == f"{name} is {value}; {SHARE}"


def test_a_service_that_does_not_run_is_named(monkeypatch):
    monkeypatch.setattr(clients, "RETRY_PAUSES", ())
    url = f"http://127.0.0.1:{free_port()}"
    message = f"Nothing answers at {url}; start `departing serve` or give another --url."
    assert error("experiment", "status", "--url", url) == message


def test_a_missing_or_wrong_key_names_the_option(tmp_path):
    keys = {"DEPARTING_CLIENT_KEY": "client", "DEPARTING_ADMIN_KEY": "admin"}
    options = ("--instance", "blog", "--departures", "reported")
    with serving(tmp_path, *options, environment=keys) as server:
        url = ("--url", server.url)
        step = "pass --key or set DEPARTING_ADMIN_KEY."
        assert error("experiment", "status", *url) == f"{server.url} requires an admin key; {step}"
        for key in ("wrong", "client"):
            message = f"{server.url} does not accept this key as its admin key; {step}"
            assert error("experiment", "status", *url, "--key", key) == message
        log = (tmp_path / "log.txt").read_text()
        assert "DEPARTING_CLIENT_KEY has 6 characters; use at least 20 random ones." in log
        assert "are equal" not in log


def test_the_commands_state_what_users_get(tmp_path):
    with serving(tmp_path, "--instance", "magazine", "--departures", "reported") as server:
        url = ("--url", server.url)
        output("publish", "fixed:sport", *url)
        missing = error("experiment", "start", *url)
        assert missing.startswith("VERSION is missing; expected latest or a published version: 1 (uploaded: ")
        assert "; 0 (instance: " in missing
        started = output("experiment", "start", "1", "--share", "10%", *url)
        assert "is running: version 1 for 10 % of new users." in started
        window = "Clicks count within 1 day of a user's first recommendation; the first readout of clicks comes after"
        assert f"{window} about 1 day, that of retention after 2 days." in " ".join(started.split())
        assert "is running: 50 % of new users get version 1." in output("experiment", "ramp", "0.5", *url)
        assert "is completed: all new users get version 1." in output("experiment", "complete", *url)
        body = json.dumps({"action": "ramp", "share": 10}).encode()
        status, problem = request(server, "/v1/experiments/1", body)
        assert status == 422
        assert "only a running experiment can be ramped" in json.loads(problem)["detail"]
        body = json.dumps({"treatment": 0, "share": 10}).encode()
        status, problem = request(server, "/v1/experiments", body)
        assert json.loads(problem)["detail"].startswith("share is 10; expected a share above 0 and at most 1")


def test_an_instance_in_place_of_a_policy_and_the_reverse_name_the_next_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blog().save("fitted.toml")
    plan(blog()).save("policy.json")
    expected = "'fitted.toml' has format 'departing-instance'; expected 'departing-policy'. Make one with "
    assert error("publish", "fitted.toml") == f"{expected}`departing plan fitted.toml -o policy.json`."
    expected = "Give the instance that was planned, or make one with `departing fit LOG -o fitted.toml`."
    assert expected in error("plan", "policy.json")


def test_a_start_and_a_ramp_to_all_users_are_explained(tmp_path):
    with serving(tmp_path, "--instance", "magazine", "--departures", "reported") as server:
        url, note = ("--url", server.url), "The share is 100 %, so no new user is in the control"
        output("publish", "fixed:sport", *url)
        assert note in " ".join(output("experiment", "start", "1", "--share", "1", *url).split())
        assert note not in " ".join(output("experiment", "ramp", "0.5", *url).split())
        assert note in " ".join(output("experiment", "ramp", "1", *url).split())
        assert note in " ".join(output("experiment", "status", *url).split())
