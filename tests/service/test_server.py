"""A real server: behaviour of the HTTP API from end to end."""

import json
import threading

import numpy as np
import pytest

import departing as dp
from departing.loadtest.run import run_loadtest
from departing.model.examples import magazine
from helpers.commands import call, output
from helpers.load import recount, wait_until
from helpers.servers import request, serving

CATEGORIES = ("--categories", "news,sports,music")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--learn", "--departures", "reported", *CATEGORIES) as running:
        yield running


def test_recommend_feedback_and_recommend_again(server):
    with server.client() as client:
        first = client.recommend("ann")
        assert first["category"] in ("news", "sports", "music")
        assert 0 < first["propensity"] <= 1
        assert client.feedback(first["event"], True) == {"event": first["event"], "accepted": True}
        assert client.feedback(first["event"], True)["accepted"]
        refused = client.feedback(first["event"], False)
        assert not refused["accepted"]
        assert refused["code"] == "conflicting_feedback"
        assert client.feedback("nothing", True)["code"] == "unknown_event"
        known = client.user("ann")
        counts = known["counts"][first["category"]]
        assert counts == {"click": 1, "stay": 0, "depart": 0, "click_and_depart": 0}
        assert known["history"][0]["clicked"] is True
        assert client.recommend("ann", allowed=["music"])["category"] == "music"
        assert client.depart("ann")
        assert not client.depart("ann")
        assert client.user("ann")["departed"]


def test_a_repeated_request_gets_the_same_response(server):
    body = json.dumps({"user": "bob", "event": "mine-1"}).encode()
    assert request(server, "/v1/recommend", body) == request(server, "/v1/recommend", body)
    other = json.dumps({"user": "eve", "event": "mine-1"}).encode()
    status, text = request(server, "/v1/recommend", other)
    assert status == 422
    assert b"already used for another user" in text


@pytest.mark.slow
def test_an_instance_fitted_to_the_exported_log_is_served_to_the_same_clients(tmp_path):
    segments = dp.Segments(["de/mobile", "fr/tv"], [0.6, 0.4], [[0.9, 0.1], [0.2, 0.8]], ["country", "device"])
    click = [[0.8, 0.1], [0.1, 0.7], [0.3, 0.3]]
    site = dp.Instance(None, click, 0.5, categories=["news", "sports", "music"], segments=segments)
    site.save(tmp_path / "site.toml")
    body = json.dumps({"user": "ann", "segment": {"country": "de", "device": "mobile"}}).encode()
    served = ("--departures", "reported", "--explore", "0.2")
    with serving(tmp_path, *served, "--instance", tmp_path / "site.toml") as server:
        run_loadtest(site, server.url, 300, pace=0)
        (tmp_path / "log.jsonl").write_bytes(request(server, "/v1/log")[1])
    for columns in ("country,device", "segment"):
        fitted = tmp_path / f"{columns}.toml"
        output("fit", tmp_path / "log.jsonl", "--segment", columns, "--types", "2", "-o", fitted)
        with serving(tmp_path, *served, "--instance", fitted) as server:
            status, text = request(server, "/v1/recommend", body)
            assert (status, json.loads(text).get("segment_known")) == (200, None)
    assert dp.Instance.load(tmp_path / "country,device.toml").segments.columns == ("country", "device")


def test_of_conflicting_feedback_at_once_one_wins(server):
    with server.client() as client:
        event = client.recommend("carl")["event"]
    results = []

    def send(clicked):
        with server.client() as own:
            results.append((clicked, own.feedback(event, clicked)["accepted"]))

    threads = [threading.Thread(target=send, args=(i % 2 == 0,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = {clicked for clicked, accepted in results if accepted}
    assert len(winners) == 1
    assert sum(accepted for _, accepted in results) == 8


@pytest.mark.slow
def test_categories_are_added_and_retired_while_serving(tmp_path):
    with (
        serving(tmp_path, "--learn", "--departures", "reported", "--explore", "1", *CATEGORIES) as server,
        server.client() as client,
    ):
        client.call("POST", "/v1/categories", {"name": "golf"})
        assert {client.recommend(f"u{i}")["category"] for i in range(100)} == {"news", "sports", "music", "golf"}
        client.call("POST", "/v1/categories/retire", {"name": "news"})
        assert {client.recommend(f"v{i}")["category"] for i in range(100)} == {"sports", "music", "golf"}
        assert client.call("GET", "/v1/categories")["categories"][0] == {
            "name": "news",
            "retired": True,
            "reward": None,
        }
        client.call("POST", "/v1/categories", {"name": "news"})
        for name in ("sports", "music", "golf"):
            client.call("POST", "/v1/categories/retire", {"name": name})
        with pytest.raises(dp.InputError, match="before you retire the last available one"):
            client.call("POST", "/v1/categories/retire", {"name": "news"})


def test_a_forgotten_user_leaves_counts_but_no_name(tmp_path):
    with serving(tmp_path, "--learn", "--departures", "reported", *CATEGORIES) as server, server.client() as client:
        event = client.recommend("secret name")["event"]
        client.feedback(event, True, departed=True)
        for _ in range(3):
            client.recommend("secret name 2")  # without feedback
        assert client.forget("secret name")
        assert client.forget("secret name 2")
        with pytest.raises(dp.InputError, match="expected a user who has requested"):
            client.user("secret name")
        server.stop()
        recomputed, stored = recount(server.store)
        assert recomputed == stored
        assert sum(map(sum, stored.values())) == 3
        for file in tmp_path.glob("store*"):
            assert b"secret name" not in file.read_bytes()


@pytest.mark.slow
def test_the_log_of_a_served_plan_supports_off_policy_evaluation(tmp_path):
    site = magazine()
    site.save(tmp_path / "site.toml")
    with serving(tmp_path, "--instance", tmp_path / "site.toml", "--explore", "0.3", "--seed", "1") as server:
        rng = np.random.default_rng(1)
        with server.client() as client:
            policy = client.policy()
            assert policy["lower"] <= dp.plan(site).value + 1e-6 <= policy["upper"] + 2e-6
            explained = client.recommend("first", explain=True)
            assert explained["belief"] == pytest.approx(dict(zip(site.types, site.prior, strict=True)))
            assert explained["expected_remaining_clicks"] == pytest.approx(dp.plan(site).value, abs=1e-4)
            for i in range(150):
                visit(client, site, f"user {i}", rng)
        for log_format in ("jsonl", "parquet"):
            status, text = request(server, f"/v1/log?format={log_format}")
            assert status == 200
            (tmp_path / f"log.{log_format}").write_bytes(text)
        logs = [
            dp.read_log(tmp_path / f"log.{log_format}", categories=list(site.categories), max_rejected=1)
            for log_format in ("jsonl", "parquet")
        ]
        assert (logs[0].counts == logs[1].counts).all()
        assert logs[0].users == 150
        value = dp.off_policy_value(logs[0], dp.plan(site).policy, types=3, bootstrap=20).pdis
        assert value is not None
        assert value.stderr > 0
        server.stop()
        recomputed, _ = recount(server.store)
        rows = np.repeat(logs[0].counts, logs[0].multiplicity, axis=0).reshape(-1, 12).tolist()
        assert sorted(rows) == sorted(row for row in recomputed.values() if any(row))


def visit(client, site, name, rng):
    """Simulate a user of the instance from the first step to the departure."""
    user_type = rng.choice(site.n_types, p=site.prior)
    while True:
        shown = client.recommend(name)
        probabilities = site.outcome_probabilities[site.category_index(shown["category"]), :, user_type]
        outcome = rng.choice(4, p=probabilities / probabilities.sum())
        client.feedback(shown["event"], outcome in (0, 3), departed=bool(outcome >= 2))
        if outcome >= 2:
            return


@pytest.mark.slow
def test_inactivity_is_a_departure_after_the_period_and_not_before(tmp_path):
    with (
        serving(tmp_path, "--learn", "--inactive-after", "10 seconds", *CATEGORIES) as server,
        server.client() as client,
    ):
        client.feedback(client.recommend("ann")["event"], False)
        server.kill()
        server.start()
        assert not client.user("ann")["departed"]
        wait_until(lambda: client.user("ann")["departed"])
        client.recommend("ann")  # the user returns
        assert not client.user("ann")["departed"]
        assert b"departing_returned_users_total 1" in request(server, "/metrics")[1]


def test_an_address_that_is_not_local_requires_a_key(tmp_path):
    with pytest.raises(AssertionError, match=r"expected 127\.0\.0\.1, ::1 or localhost without an API key"):
        serving(tmp_path, "--learn", "--departures", "reported", "--host", "0.0.0.0", *CATEGORIES).__enter__()


def test_in_shadow_mode_the_response_has_the_choices_of_caller_and_policy(tmp_path):
    magazine().save(tmp_path / "site.toml")
    with serving(tmp_path, "--instance", tmp_path / "site.toml", "--shadow") as server, server.client() as client:
        shown = client.recommend("ann", shown="news")
        assert (shown["category"], shown["shadow_category"]) == ("news", "music")
        with pytest.raises(dp.InputError, match="shown is missing"):
            client.recommend("bob")


def test_a_port_or_a_store_in_use_may_be_free_after_a_restart(tmp_path):
    command = ("serve", "--instance", "magazine", "--departures", "reported")
    with serving(tmp_path, *command[1:]) as server:
        busy = call(*command, "--store", str(tmp_path / "other.sqlite"), "--port", str(server.port))
        assert (busy.exit_code, "Use another port" in busy.output) == (1, True)
        used = call(*command, "--store", str(server.store), "--port", "1")
        assert (used.exit_code, "already in use by another process" in used.output) == (1, True)
