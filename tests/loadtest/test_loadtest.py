"""Simulated users who visit a running service: what they do there, and what they lose."""

import asyncio
import json
import threading
import time
import urllib.request
from array import array
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

import departing as dp
from departing import client as client_module
from departing.loadtest import connection as module
from departing.loadtest.connection import converse, post
from departing.loadtest.simulated_users import (
    Crowd,
    Losses,
    SampleLog,
    best_of,
    check_service,
    value_of_random,
    visit,
)
from departing.model.examples import blog, magazine
from helpers.commands import call, told, values
from helpers.servers import free_port, serving

SITE = dp.Instance(
    prior=[0.5, 0.5], click=[[0.7, 0.1], [0.1, 0.6]], depart=[[0.6, 0.7], [0.6, 0.7]], categories=["news", "music"]
)
LAST = dp.Instance(
    prior=[0.3, 0.3, 0.4],
    click=[[0.8, 0.3, 0.2], [0.2, 0.7, 0.3]],
    depart=[[0.4, 0.5, 0.6], [0.3, 0.4, 0.9]],
    depart_on_click=0.1,
)
INSTANCES = {"site": SITE, "blog": blog(), "magazine": magazine(), "last": LAST}


def answered(crowd, show):
    """Let a crowd talk to `show`, which makes a category of the counts of a user, instead of a service."""
    talk, answer, counts, shown = crowd.talk(), None, {}, {}
    while True:
        try:
            request = talk.send(answer)
        except StopIteration:
            return
        if not isinstance(request, bytes):
            answer = None
            continue
        head, _, text = request.partition(b"\r\n\r\n")
        body = json.loads(text)
        if head.startswith(b"POST /v1/recommend "):
            event = body["event"]
            own = counts.setdefault(body["user"], np.zeros((crowd.instance.n_categories, 4), np.int64))
            shown[event] = own, show(own)
            answer = {"event": event, "category": crowd.instance.categories[shown[event][1]]}
        else:
            own, category = shown[body["event"]]
            own[category, 2 * body["departed"] + (body["clicked"] == body["departed"])] += 1
            answer = {"event": body["event"], "accepted": True}


def z(values, expected):
    return (values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values)))


# Without a service


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "vectors that are not the best"])
def test_losses_add_up_to_what_a_policy_is_behind_the_best(name, planned):
    instance = INSTANCES[name]
    losses = best_of(instance)[1] if planned else Losses(instance)
    if planned:
        assert losses.start == pytest.approx(dp.plan(instance).value, abs=2e-5)
    for policy in (dp.Fixed(0), dp.Walk([1, 0, 0, 1], then=1), dp.Greedy(instance)):
        worth = dp.evaluate(instance, policy, 1e-6).value
        crowd = Crowd(instance, 2000, losses, seed=3)
        answered(crowd, lambda counts, policy=policy: int(policy.recommend(counts)))
        assert abs(z(crowd.clicks.astype(float), worth)) < 4
        if crowd.lost.std() < 1e-9:  # it is the best, or as good as the first vector
            assert crowd.lost.mean() == pytest.approx(losses.start - worth, abs=1e-6)
        else:
            assert abs(z(crowd.lost, losses.start - worth)) < 4


def test_the_best_policy_loses_nothing_and_any_category_as_much_as_is_told():
    best, losses = best_of(magazine())
    plan = dp.plan(magazine())
    crowd = Crowd(magazine(), 1000, losses)
    answered(crowd, lambda counts: int(plan.policy.recommend(counts)))
    assert abs(crowd.lost.mean()) < 1e-4
    rng = np.random.default_rng(0)
    crowd = Crowd(magazine(), 3000, losses)
    answered(crowd, lambda counts: int(rng.integers(3)))
    assert abs(z(crowd.lost, best.value - value_of_random(magazine()))) < 4


def test_luck_is_fixed_by_the_seed():
    found = []
    for seed in (1, 1, 2):
        crowd = Crowd(SITE, 200, Losses(SITE), seed=seed)
        answered(crowd, lambda counts: 0)
        found.append((crowd.clicks.tolist(), crowd.lost.tolist()))
    assert found[0] == found[1] != found[2]


def test_no_more_users_come_than_the_pace_allows():
    crowd = Crowd(SITE, 4, Losses(SITE), pace=10)
    talk, other = crowd.talk(), crowd.talk()
    assert isinstance(next(talk), bytes)
    assert 0 < next(other) <= 0.1
    third = crowd.talk()
    assert 0.1 < next(third) <= 0.2


def test_what_was_forgotten_is_asked_and_told_again_and_what_is_refused_is_counted():
    crowd = Crowd(SITE, 1, Losses(SITE))
    talk = crowd.talk()
    ask = next(talk)
    told = talk.send({"category": "news"})
    assert talk.send({"accepted": False}) == ask
    assert talk.send({"category": "news"}) == told
    assert crowd.refused == 0
    with suppress(StopIteration):  # should this have been a departure
        assert talk.send({"accepted": False}) != ask
    assert crowd.refused == 1
    came = SampleLog(SITE, dp.plan(SITE), crowd.clicks, crowd.lost, crowd.refused, np.ones(4), 1.0)
    assert came.notes()[-1] == "Answers of users that the service did not take: 1."


def test_a_category_that_the_instance_does_not_have_is_told():
    talk = Crowd(SITE, 1, Losses(SITE)).talk()
    next(talk)
    with pytest.raises(dp.InputError, match="recommends 'golf', which is no category"):
        talk.send({"category": "golf"})

    async def go():
        async with strange(reply(200, {"category": "golf"})) as (url, _):
            await converse(url, [Crowd(SITE, 1, Losses(SITE)).talk()], array("d"))

    with pytest.raises(dp.InputError, match="recommends 'golf'"):
        asyncio.run(go())


# Services that do not behave


def reply(status, body, length=True):
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\n%s\r\n%s" % (status, b"Content-Length: %d\r\n" % len(text) if length else b"", text)


@asynccontextmanager
async def strange(*replies):
    """A server that feedback one request after the other with these; None closes the connection."""
    heard, left = [], iter(replies)

    async def handle(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heard.append(head + await reader.readexactly(int(head.split(b"content-length: ")[1])))
                said = next(left)
                if said is None:
                    return
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()
        await server.wait_closed()


def conversation(*replies, requests=1, pause=None):
    """What a talk got for its requests, and what the server heard."""
    got, times = [], array("d")

    def talk():
        for i in range(requests):
            got.append((yield post("/v1/recommend", {"user": str(i)})))
            if pause is not None:
                yield pause

    async def go():
        async with strange(*replies) as (url, heard):
            await converse(url, [talk()], times)
            return heard

    heard = asyncio.run(go())
    assert len(times) == len(got)
    return got, heard


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    monkeypatch.setattr(module, "PAUSE", 0.05)
    monkeypatch.setattr(client_module, "RETRY_PAUSES", (0.01,))


@pytest.mark.parametrize("trouble", [None, reply(503, {"error": "Full."}), reply(429, {"error": "Wait."})])
def test_what_is_not_answered_is_asked_again(trouble, impatient):
    got, heard = conversation(trouble, reply(200, 1), trouble, reply(200, 2), requests=2)
    assert got == [1, 2]
    assert heard[0] == heard[1] != heard[2] == heard[3]


def test_who_asks_too_often_waits_as_long_as_it_takes(impatient):
    got, heard = conversation(*[reply(429, {"error": "Wait."})] * 10, reply(200, "at last"))
    assert got == ["at last"]
    assert len(heard) == 11


def test_answers_may_come_in_parts_and_connections_may_close_in_a_pause(impatient):
    async def go():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for part in (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 4\r\n\r\ntr", b"ue"):
                writer.write(part)
                await asyncio.sleep(0.02)
            writer.close()

        def talk():
            for _ in range(3):
                assert (yield post("/", {})) is True
                yield 0.4  # longer than it is waited for an answer

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await converse(f"http://127.0.0.1:{port}", [talk()], times)

    times = array("d")
    asyncio.run(go())
    assert len(times) == 3


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([b""], "does not answer."),
        ([reply(503, {"error": "The disk is full."})] * 20, "The disk is full."),
        ([reply(422, {"error": "Not so."})], "Not so."),
        ([reply(500, [])], "The service answered with status 500."),
        ([reply(200, 1, length=False)], "does not answer as departing serve does."),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "does not answer as departing serve does."),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{"], "does not answer as departing serve does."),
    ],
)
def test_troubles_that_stay_are_told_in_one_sentence(replies, sentence, impatient):
    with pytest.raises(dp.InputError, match=sentence):
        conversation(*replies)


def test_a_service_that_goes_away_for_good_is_told(impatient):
    def talk():
        yield post("/", {})

    with pytest.raises(dp.InputError, match="cannot be reached: Connection"):
        asyncio.run(converse(f"http://127.0.0.1:{free_port()}", [talk(), talk()], array("d")))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://x:port", "http://", "http://x:99999"])
def test_what_is_no_url_is_told(url):
    done = call("loadtest", "magazine", "--url", url)
    assert done.exit_code == 2
    assert "url is" in done.stderr
    assert "expected something like http://127.0.0.1:8080." in done.stderr


def test_wrong_options_are_told(impatient):
    for arguments, sentence in (
        (("--url", f"http://127.0.0.1:{free_port()}"), "cannot be reached: ConnectionRefusedError"),
        (("--users", "0"), "users is 0; expected an integer ≥ 1."),
        (("--key", "schlüssel"), "key has characters that are not printable ASCII."),
    ):
        done = call("loadtest", "magazine", *arguments)
        assert done.exit_code == 2
        assert sentence in done.stderr


def test_another_kind_of_server_is_told(impatient):
    for text in (b"[]", b"hi"):

        async def go(text=text):
            async def handle(reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + text)
                writer.close()

            async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                await asyncio.to_thread(check_service, SITE, f"http://127.0.0.1:{port}")

        with pytest.raises(dp.InputError, match="does not answer as departing serve does"):
            asyncio.run(go())


# Services that do


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A server of the best policy, whose users have a key."""
    folder = tmp_path_factory.mktemp("planned")
    SITE.save(folder / "site.toml")
    keys = {"DEPARTING_CLIENT_KEY": "for clients"}
    with serving(folder, "--instance", folder / "site.toml", "--explore", "0", environment=keys) as server:
        yield server


def test_a_service_of_the_best_policy_loses_nothing(planned):
    came = visit(SITE, planned.url, 1500, pace=0, seed=4, key="for clients")
    assert came.refused == 0
    assert abs(came.lost.mean()) < 1e-4
    assert abs(z(came.clicks.astype(float), dp.plan(SITE).value)) < 4
    assert all(0 <= row["regret_per_user"] < 1e-4 for row in came.stretches())


def test_the_command_tells_what_users_lose(planned, tmp_path, monkeypatch):
    monkeypatch.setenv("DEPARTING_CLIENT_KEY", "for clients")
    SITE.save(tmp_path / "site.toml")
    arguments = ("loadtest", tmp_path / "site.toml", "--url", planned.url, "--open", "8")
    found = values(*arguments, "--users", "200", "--pace", "1000")
    assert found["users"] == 200
    assert found["best"][0] <= dp.plan(SITE).value <= found["best"][1] + 1e-9
    assert [row["last"] for row in found["stretches"]] == [1, 3, 6, 12, 25, 50, 100, 200]
    assert found["stretches"][0]["clicks_stderr"] is None
    ways = {row["way"]: row for row in found["ways"]}
    assert ways["always news"]["clicks_per_user"] == pytest.approx(SITE.best_fixed[1])
    assert ways["this service"]["regret"] < 0.1 < ways["always news"]["regret"]
    assert found["calls"] % 2 == 0
    assert found["calls"] >= 400
    assert 0 < found["median_seconds"] <= found["p99_seconds"] < found["seconds"]
    printed = told(*arguments, "--users", "1")
    assert "Total regret 0 clicks" in printed
    assert "any category, all alike" in printed


def test_a_key_and_the_categories_must_be_right(planned):
    with pytest.raises(dp.InputError, match="A key with this right is needed"):
        visit(SITE, planned.url, 10)
    with pytest.raises(dp.InputError, match="the categories news, music; those of the instance are news, sport"):
        visit(magazine(), planned.url, 10, key="for clients")


def test_a_service_that_learns_loses_less_and_less(tmp_path):
    options = ("--learn", "--categories", "music,news", "--types", "2", "--explore", "0", "--seed", "1")
    with serving(tmp_path, *options) as server:
        first = visit(SITE, server.url, 300, pace=150, seed=0)
        begun, seed = time.monotonic(), 1
        while True:  # where much has to be compiled it learns late
            later = visit(SITE, server.url, 400, pace=200, seed=seed)
            (loses, error), (lost, before) = later.regret(), first.regret(0, 100)
            if loses + 4 * (error**2 + before**2) ** 0.5 < lost:
                break
            assert time.monotonic() - begun < 120, (loses, lost)
            seed += 1
        assert loses < lost / 2


def test_a_service_that_is_killed_and_started_again_does_no_harm(tmp_path):
    SITE.save(tmp_path / "site.toml")
    with serving(tmp_path, "--instance", tmp_path / "site.toml", "--explore", "0") as server:
        halfway, came = threading.Event(), [0]

        def count(users):
            came[0] += users
            if came[0] == 200:
                halfway.set()

        def restart():
            assert halfway.wait(60)
            server.kill()
            time.sleep(0.3)
            server.start()

        thread = threading.Thread(target=restart)
        thread.start()
        found = visit(SITE, server.url, 1000, pace=500, seed=2, progress=count)
        thread.join()
        assert came[0] == 1000
        assert found.refused == 0
        assert abs(found.lost.mean()) < 1e-4
        with urllib.request.urlopen(f"{server.url}/v1/log?format=jsonl") as answer:
            rows = [json.loads(line) for line in answer]
    steps = [row for row in rows if str(row["user"]).startswith("crowd ")]
    assert len({row["user"] for row in steps}) == 1000
    assert sum(row["clicked"] for row in steps) == found.clicks.sum()
