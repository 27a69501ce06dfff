"""The service without HTTP: random calls against a plain model of it, and clocks that jump."""

import asyncio
import json
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import departing as dp
from departing.model.examples import magazine
from departing.serving import messages as m
from departing.serving.export import write_log
from departing.serving.http import ADMIN, CLIENT, OPEN, App, Keys, openapi
from departing.serving.live import Watch
from departing.serving.metrics import metrics_text
from departing.serving.run import open_service
from departing.serving.service import NotFoundError, Settings
from departing.serving.store import connect
from departing.serving.trainer import Trainer, histogram
from departing.serving.versions import Version, choose

NAMES = ["news", "sports", "music"]


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@contextmanager
def service(path, names=NAMES, instance=None, **options):
    made = open_service(path, names, instance, Settings(**options), seed=1)
    made.clock = Clock()
    with closing(made.store):
        yield made


def run(call):
    return asyncio.run(call)


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("recommend"), st.sampled_from("abc")),
        st.tuples(st.just("feedback"), st.integers(1, 12), st.booleans(), st.sampled_from([None, None, False, True])),
        st.tuples(st.just("depart"), st.sampled_from("abc")),
        st.tuples(st.just("wait"), st.floats(0.1, 6.0)),
        st.tuples(st.just("jump"), st.floats(-100.0, 0.0)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


class Plain:
    """What the service should know, as lists."""

    def __init__(self):
        self.now, self.people, self.events = 1000.0, {}, []

    def recommend(self, name):
        life = self.people.get(name)
        if life is None or life["gone"]:
            life = self.people[name] = {"gone": False, "events": [], "seen": self.now}
        life["events"].append(len(self.events))
        life["seen"] = self.now
        self.events.append({"life": life, "clicked": None, "departed": None})

    def settled(self, event):
        """Whether nothing that is told of it can change anything any more."""
        row = self.events[event]
        back = row["life"]["events"][-1] != event
        return row["life"]["gone"] or (row["clicked"] is not None and (back or row["departed"] is False))

    def takes(self, event, clicked, departed):
        row = self.events[event]
        last = row["life"]["events"][-1] == event
        if row["clicked"] is not None:
            if row["clicked"] != clicked or (departed is not None and row["departed"] not in (None, departed)):
                return False
            if departed is None or row["departed"] == departed:
                return True
            return not departed or row["life"]["gone"] or last
        if row["life"]["gone"]:
            return not clicked
        return not departed or last

    def feedback(self, event, clicked, departed):
        row = self.events[event]
        if self.settled(event):
            return
        row["clicked"] = clicked
        row["departed"] = row["departed"] if departed is None else departed
        row["life"]["seen"] = max(row["life"]["seen"], self.now)
        row["life"]["gone"] |= bool(departed)

    def sweep(self, span):
        for life in self.people.values():
            life["gone"] |= life["seen"] < self.now - span


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(calls=CALLS)
def test_random_calls_against_a_plain_model(calls, tmp_path_factory):
    path = tmp_path_factory.mktemp("service") / "store.sqlite"
    options = {"inactive_after": 5.0}
    plain, clock = Plain(), Clock()
    found = open_service(path, NAMES, None, Settings(**options), seed=1)
    try:
        for call in calls:
            if found.clock is not clock:
                found.clock = clock
                found.now()  # it has seen the time before anything jumps
            if call[0] == "recommend":
                shown = found.recommend(m.Ask(call[1]))
                plain.recommend(call[1])
                assert shown.event == f"e-{len(plain.events)}"
            elif call[0] == "feedback":
                (row,) = run(found.feedback([m.Feedback(f"e-{call[1]}", *call[2:])]))
                known = call[1] <= len(plain.events)
                assert row.taken == (known and plain.takes(call[1] - 1, *call[2:])), (call, row)
                if row.taken:
                    plain.feedback(call[1] - 1, *call[2:])
            elif call[0] == "depart" and call[1] in plain.people:
                run(found.depart(call[1]))
                plain.people[call[1]]["gone"] = True
            elif call[0] == "wait":
                clock.time = max(clock.time, plain.now) + call[1]
                plain.now = clock.time
                run(found.store.flushed())
                found.sweep()
                plain.sweep(5.0)
            elif call[0] == "jump":
                clock.time = plain.now + call[1]  # the clock goes back; time does not
            elif call[0] == "restart":
                clock.time = max(clock.time, plain.now)
                found.store.close()
                found = open_service(path, NAMES, None, Settings(**options), seed=1)
        found.clock = clock
        for name, life in plain.people.items():
            assert run(found.known(name)).departed == life["gone"], name
        clicks = sum(row["clicked"] is True for row in plain.events)
        run(found.store.flushed())
        ((stored,),) = found.store.rows("SELECT coalesce(sum(clicked), 0) FROM answers")
        assert stored == clicks
    finally:
        found.store.close()


def test_propensities_are_the_shares_with_which_categories_are_shown(tmp_path):
    with service(tmp_path / "s.sqlite", instance=magazine(), names=[], explore=0.3) as found:
        shown = [found.recommend(m.Ask(f"u{i}", ["news", "music"])) for i in range(4000)]
        for name in ("news", "music"):
            chance = {row.propensity for row in shown if row.category == name}
            assert len(chance) == 1
            share = sum(row.category == name for row in shown) / len(shown)
            assert abs(share - chance.pop()) < 4 * np.sqrt(0.25 / len(shown))


def test_categories_that_a_policy_does_not_know_are_shown_by_the_share_that_explores(tmp_path):
    with service(tmp_path / "s.sqlite", instance=magazine(), names=[], explore=0.0) as found:
        run(found.add_category("golf"))
        version = found.versions[0]
        assert choose(version, np.zeros((4, 4), int), [3], 0.0, found.rng) == (3, 1.0, 3)
        assert found.recommend(m.Ask("ann")).category == "music"
        assert run(found.known("ann")).counts["golf"] == [0, 0, 0, 0]


def test_versions_are_published_switched_and_taken_up(tmp_path):
    with service(tmp_path / "s.sqlite", instance=magazine(), names=[], explore=0.0) as found:
        assert found.policy().source == "the instance"
        found.publish(Version(1, 0.0, dp.Fixed(1), 3, {"words": "always sport", "source": "a hand"}))
        assert found.recommend(m.Ask("ann")).category == "sport"
        assert run(found.switch(0)).version == 0
        assert found.recommend(m.Ask("bob")).category == "music"
        assert found.recommend(m.Ask("ann")).category == "sport"  # who keeps the version of the first visit
        assert [row.version for row in found.policies().versions] == [1, 0]
        with pytest.raises(NotFoundError, match="no version 7"):
            run(found.switch(7))
        version = Version(2, 0.0, dp.Fixed(2), 3, {"words": "always music"})
        with closing(connect(tmp_path / "s.sqlite")) as other:
            other.execute("INSERT INTO policies VALUES (?, ?, ?, ?)", version.row())
        with pytest.raises(dp.InputError, match="served by another process already"):
            open_service(tmp_path / "s.sqlite", [], None, Settings())
        assert found.refresh()
        assert not found.refresh()


def test_the_trainer_learns_what_users_like_and_goes_on_after_a_restart(tmp_path):
    rng = np.random.default_rng(0)
    with service(tmp_path / "s.sqlite", explore=0.0) as found:
        trainer = Trainer(tmp_path / "s.sqlite", types=1)
        assert trainer.step()  # before anybody comes
        assert not trainer.step()
        assert found.refresh()
        for i in range(300):
            shown = found.recommend(m.Ask(f"u{i}", [NAMES[i % 3]]))
            clicked = bool(rng.random() < (0.9 if shown.category == "sports" else 0.2))
            run(found.feedback([m.Feedback(shown.event, clicked, not clicked)]))
        counts, users = histogram(trainer.connection, 3)
        assert users.sum() == 300
        assert (users[:, None, None] * counts).sum() == 300
        assert trainer.step()
        trainer.connection.close()
        again = Trainer(tmp_path / "s.sqlite", types=1)
        assert again.learner is not None
        assert not again.step()
        again.connection.close()
        assert found.refresh()
        assert found.policy().lower > 2
        assert found.recommend(m.Ask("new", explain=True)).category == "sports"


def test_the_page_the_metrics_and_the_log_tell_the_same(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as found:
        for i in range(20):
            shown = found.recommend(m.Ask(f"u{i}"))
            run(found.feedback([m.Feedback(shown.event, i % 2 == 0, i % 4 == 3)]))
        live = Watch(found).look()
        assert (live.users, live.here) == (20, 15)
        assert sum(live.left) == 5
        assert len(live.latest) == 8
        assert "departing_clicked_total 10" in metrics_text(found)
        for form in ("jsonl", "parquet"):
            write_log(tmp_path / "s.sqlite", found.names, "no-click", form, tmp_path / f"log.{form}")
        rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert sum(row["clicked"] for row in rows) == 10
        assert sum(row["departed"] for row in rows) == 5
        assert dp.read_log(tmp_path / "log.parquet").users == 20


def test_shadow_is_remembered_and_turned_off_by_one_call(tmp_path):
    with service(tmp_path / "s.sqlite", instance=magazine(), names=[], shadow=True) as found:
        found.recommend(m.Ask("ann", shown="news", propensity=0.5))
        found.recommend(m.Ask("bob", shown="music"))
        report = run(found.shadow_report())
        assert (report.decisions, report.rate) == (2, 0.5)
        assert not run(found.set_shadow(False)).shadow
    with service(tmp_path / "s.sqlite", names=[], shadow=True) as found:
        assert found.recommend(m.Ask("eve")).category == "music"


def test_a_store_is_refused_if_it_is_another_one(tmp_path):
    with service(tmp_path / "s.sqlite"):
        pass
    with pytest.raises(dp.InputError, match="has the categories news, sports, music, not a, b"):
        open_service(tmp_path / "s.sqlite", ["a", "b"], None, Settings())
    with pytest.raises(dp.InputError, match="is new; name its categories"):
        open_service(tmp_path / "t.sqlite", [], None, Settings())
    (tmp_path / "u.sqlite").write_text("no database at all, but text")
    with pytest.raises(dp.InputError, match="cannot be opened"):
        open_service(tmp_path / "u.sqlite", NAMES, None, Settings())


def test_keys_have_rights_and_a_rate():
    keys = Keys(("client",), ("admin",), rate=1.0)
    assert keys.allows("Bearer client", CLIENT)
    assert not keys.allows("Bearer client", ADMIN)
    assert keys.allows("Bearer admin", ADMIN)
    assert not keys.allows("client", CLIENT)
    assert keys.allows(None, OPEN)
    assert sum(keys.in_time("Bearer client") for _ in range(50)) == 10


def test_the_document_of_the_api_names_all_messages(tmp_path):
    with service(tmp_path / "s.sqlite") as found:
        document = openapi(App(found).routes)
        assert {"/v1/log", "/metrics"} <= set(document["paths"])
    text = json.dumps(document)
    for schema in document["components"]["schemas"]:
        assert f"#/components/schemas/{schema}" in text
