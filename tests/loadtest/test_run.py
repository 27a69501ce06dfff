"""Load tests of real servers."""

import json
import threading
import time
import urllib.request

import numpy as np
import pytest

import departing as dp
from departing import client
from departing.client import ServiceError
from departing.loadtest.run import run_loadtest
from departing.model.examples import magazine
from helpers.commands import call, json_output, output
from helpers.servers import free_port, serving

SITE = dp.Instance(
    prior=[0.5, 0.5], click=[[0.7, 0.1], [0.1, 0.6]], depart=[[0.6, 0.7], [0.6, 0.7]], categories=["news", "music"]
)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://x:port", "http://", "http://x:99999"])
def test_an_invalid_url_is_an_error(url):
    result = call("loadtest", "magazine", "--url", url)
    assert result.exit_code == 2
    assert "url is" in result.stderr
    assert "expected a URL such as http://127.0.0.1:8080." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:PORT"), "; start `departing serve` or give another --url."),
        (("--users", "0"), "users is 0; expected"),
        (("--key", "schlüssel"), "key contains characters other than printable ASCII."),
    ],
)
def test_invalid_options_are_errors(arguments, message, monkeypatch):
    monkeypatch.setattr(client, "RETRY_PAUSES", (0.01,))
    arguments = [argument.replace("PORT", str(free_port())) for argument in arguments]
    result = call("loadtest", "magazine", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture(scope="module")
def optimal_server(tmp_path_factory):
    """A server of the optimal policy that requires a key."""
    folder = tmp_path_factory.mktemp("optimal")
    SITE.save(folder / "site.toml")
    keys = {"DEPARTING_CLIENT_KEY": "for clients"}
    with serving(folder, "--instance", folder / "site.toml", "--explore", "0", environment=keys) as server:
        yield server


def test_a_service_of_the_optimal_policy_has_no_regret(optimal_server):
    result = run_loadtest(SITE, optimal_server.url, 1500, pace=0, seed=4, key="for clients")
    assert result.rejected_feedback == 0
    assert abs(result.regrets.mean()) < 1e-4
    clicks = result.clicks.astype(float)
    assert abs(clicks.mean() - dp.plan(SITE).value) < 4 * clicks.std(ddof=1) / np.sqrt(len(clicks))
    assert all(0 <= row["regret_per_user"] < 1e-4 for row in result.ranges())


def test_the_command_reports_regret_and_latencies(optimal_server, tmp_path, monkeypatch):
    monkeypatch.setenv("DEPARTING_CLIENT_KEY", "for clients")
    SITE.save(tmp_path / "site.toml")
    arguments = ("loadtest", tmp_path / "site.toml", "--url", optimal_server.url, "--open-users", "8")
    result = json_output(*arguments, "--users", "200", "--pace", "1000")
    assert result["users"] == 200
    assert result["optimum"][0] <= dp.plan(SITE).value <= result["optimum"][1] + 1e-9
    assert [row["last"] for row in result["ranges"]] == [1, 3, 6, 12, 25, 50, 100, 200]
    assert result["ranges"][0]["clicks_stderr"] is None
    baselines = {row["policy"]: row for row in result["baselines"]}
    assert baselines["always news"]["clicks_per_user"] == pytest.approx(SITE.best_fixed[1])
    assert baselines["this service"]["regret"] < 0.1 < baselines["always news"]["regret"]
    assert result["requests"] % 2 == 0
    assert result["requests"] >= 400
    assert 0 < result["median_seconds"] <= result["p99_seconds"] < result["seconds"]
    printed = output(*arguments, "--users", "1")
    assert "Total regret: 0 clicks" in printed
    assert "uniformly random" in printed


def test_a_wrong_key_and_other_categories_are_errors(optimal_server):
    with pytest.raises(ServiceError, match="A key is required") as error:
        run_loadtest(SITE, optimal_server.url, 10)
    assert (error.value.code, error.value.status) == ("key_required", 401)
    with pytest.raises(dp.InputError, match=r"shows 'news', 'music'; expected .* of the instance, 'news', 'sport'"):
        run_loadtest(magazine(), optimal_server.url, 10, key="for clients")


def test_a_service_with_a_horizon(tmp_path):
    site = SITE.replace(horizon=3)
    site.save(tmp_path / "site.toml")
    with serving(tmp_path, "--instance", tmp_path / "site.toml", "--explore", "0") as server:
        result = json_output("loadtest", tmp_path / "site.toml", "--url", server.url, "--users", "500", "--pace", "0")
        assert result["cut_visits"] == result["rejected_feedback"] == 0
        assert abs(result["regret"]) < 0.05
        assert result["optimum"][0] <= dp.plan(site).value <= result["optimum"][1] + 1e-9
        assert result["requests"] <= 2 * 3 * 500
        longer = run_loadtest(SITE, server.url, 500, pace=0)  # which has no horizon
        assert 0 < longer.cut_visits < 500
        lost = dp.plan(SITE).value - dp.plan(site).value
        assert abs(longer.regrets.mean() - lost) < 4 * longer.regrets.std() / np.sqrt(500)
        assert longer.summary().endswith(f"ended at a shorter horizon: {longer.cut_visits}.")


@pytest.mark.slow
def test_the_regret_of_a_learning_service_decreases(tmp_path):
    options = (
        "--learn",
        "--departures",
        "reported",
        "--categories",
        "music,news",
        "--types",
        "2",
        "--explore",
        "0",
        "--seed",
        "1",
    )
    with serving(tmp_path, *options) as server:
        first = run_loadtest(SITE, server.url, 300, pace=150, seed=0)
        start, seed = time.monotonic(), 1
        while True:  # kernels may have to be compiled before the first policy
            later = run_loadtest(SITE, server.url, 400, pace=200, seed=seed)
            (regret, stderr), (initial, initial_stderr) = later.regret(), first.regret(0, 100)
            if regret + 4 * (stderr**2 + initial_stderr**2) ** 0.5 < initial:
                break
            assert time.monotonic() - start < 120, (regret, initial)
            seed += 1
        assert regret < initial / 2


@pytest.mark.slow
def test_a_service_that_is_killed_and_restarted_loses_nothing(tmp_path):
    SITE.save(tmp_path / "site.toml")
    with serving(tmp_path, "--instance", tmp_path / "site.toml", "--explore", "0") as server:
        some, arrived = threading.Event(), [0]

        def count(users):
            arrived[0] += users
            if arrived[0] == 200:
                some.set()

        def restart():
            assert some.wait(60)
            server.kill()
            time.sleep(0.3)
            server.start()

        thread = threading.Thread(target=restart)
        thread.start()
        result = run_loadtest(SITE, server.url, 1000, pace=500, seed=2, progress=count)
        thread.join()
        assert arrived[0] == 1000
        assert result.rejected_feedback == 0
        assert abs(result.regrets.mean()) < 1e-4
        with urllib.request.urlopen(f"{server.url}/v1/log?format=jsonl") as response:
            rows = [json.loads(line) for line in response]
    steps = [row for row in rows if str(row["user"]).startswith("loadtest ")]
    assert len({row["user"] for row in steps}) == 1000
    assert sum(row["clicked"] for row in steps) == result.clicks.sum()


def test_messages_of_the_service_name_the_options_of_the_command(tmp_path, optimal_server, monkeypatch):
    monkeypatch.delenv("DEPARTING_CLIENT_KEY", raising=False)
    SITE.save(tmp_path / "site.toml")
    arguments = ("loadtest", tmp_path / "site.toml", "--users", "2", "--url")
    keyless = call(*arguments, optimal_server.url)
    assert keyless.exit_code == 2
    assert "requires a key; pass --key or set DEPARTING_CLIENT_KEY." in " ".join(keyless.output.split())
    options = ("--instance", tmp_path / "site.toml", "--departures", "reported", "--shadow")
    with serving(tmp_path, *options) as server:
        missing = call(*arguments, server.url)
    assert missing.exit_code == 2
    assert "shown is missing" in missing.output
    assert "Pass --shown CATEGORY." in " ".join(missing.output.split())
