"""The service without HTTP: random calls against a plain model of it, and clocks that jump."""

import asyncio
import json
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import departing as dp
from departing.model.examples import magazine
from departing.policy.files import policy_to_dict
from departing.service.api import messages as m
from departing.service.api.metrics import metrics_text
from departing.service.clock import Clock as Wall
from departing.service.dashboard import DashboardReader
from departing.service.export import write_log
from departing.service.policy_version import PolicyVersion
from departing.service.rollout import NotFoundError, publication
from departing.service.service import Settings
from departing.service.startup import open_service
from departing.service.store.base import StoreError
from departing.service.store.connection import connect
from departing.service.store.training import TrainingStore
from departing.service.workers.shadow import GainRequest, ShadowReporter, estimate_gain
from departing.service.workers.trainer import Trainer, histogram

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


def ask(found, *fields, **more):
    return run(found.recommend(m.RecommendRequest(*fields, **more)))


def rows(found, query):
    return run(found.store.transaction(lambda tx: tx.rows(query)))


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
        elif row["life"]["gone"] and clicked:
            return False
        if departed is False and last and row["life"]["gone"]:
            return False
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(calls=CALLS)
def test_random_calls_against_a_plain_model(calls, tmp_path_factory):
    check_random_calls(calls, tmp_path_factory.mktemp("service") / "store.sqlite")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(calls=CALLS)
def test_random_calls_against_a_plain_model_in_postgres(calls, postgres):
    check_random_calls(calls, postgres.new())


def check_random_calls(calls, path):
    options = {"inactive_after": 5.0}
    plain, clock, events = Plain(), Clock(), []
    found = open_service(path, NAMES, None, Settings(**options), seed=1)
    try:
        for call in calls:
            if found.clock is not clock:
                found.clock = clock
                found.now()  # it has seen the time before anything jumps
            if call[0] == "recommend":
                shown = ask(found, call[1])
                plain.recommend(call[1])
                assert shown.event == f"e-{len(plain.events)}" or found.store.shared
                events.append(shown.event)
            elif call[0] == "feedback":
                known = call[1] <= len(plain.events)
                event = events[call[1] - 1] if known else "e-999999"
                (row,) = run(found.feedback([m.Feedback(event, *call[2:])]))
                assert row.accepted == (known and plain.takes(call[1] - 1, *call[2:])), (call, row)
                if row.accepted:
                    plain.feedback(call[1] - 1, *call[2:])
            elif call[0] == "depart" and call[1] in plain.people:
                run(found.depart(call[1]))
                plain.people[call[1]]["gone"] = True
            elif call[0] == "wait":
                clock.time = max(clock.time, plain.now) + call[1]
                plain.now = clock.time
                run(found.flush())
                run(found.sweep())
                plain.sweep(5.0)
            elif call[0] == "jump":
                clock.time = plain.now + call[1]  # the clock goes back; time does not
            elif call[0] == "restart":
                clock.time = max(clock.time, plain.now)
                found.store.close()
                found = open_service(path, NAMES, None, Settings(**options), seed=1)
        found.clock = clock
        for name, life in plain.people.items():
            assert run(found.user_state(name)).departed == life["gone"], name
        clicks = sum(row["clicked"] is True for row in plain.events)
        run(found.flush())
        ((stored,),) = rows(found, "SELECT coalesce(sum(clicked), 0) FROM feedback")
        assert stored == clicks
    finally:
        found.store.close()


def test_propensities_are_the_shares_with_which_categories_are_shown(address):
    with service(address, instance=magazine(), names=[], explore=0.3) as found:

        async def many():
            return [await found.recommend(m.RecommendRequest(f"u{i}", ["news", "music"])) for i in range(2000)]

        shown = run(many())
        for name in ("news", "music"):
            chance = {row.propensity for row in shown if row.category == name}
            assert len(chance) == 1
            share = sum(row.category == name for row in shown) / len(shown)
            assert abs(share - chance.pop()) < 4 * np.sqrt(0.25 / len(shown))


def test_categories_that_a_policy_does_not_know_are_shown_by_the_share_that_explores(address):
    with service(address, instance=magazine(), names=[], explore=0.0) as found:
        run(found.add_category("golf"))
        version = found.rollout.state.versions[0]
        assert version.choose(np.zeros((4, 4), int), [3], 0.0, found.rng) == (3, 1.0, 3)
        assert ask(found, "ann").category == "music"
        assert run(found.user_state("ann")).counts["golf"] == m.OutcomeCounts(0, 0, 0, 0)


def publish(found, *details):
    run(found.store.transaction(lambda tx: found.rollout.publish(tx, PolicyVersion(*details))))


def publish_as_trainer(address, policies, trials, latest):
    versions = [PolicyVersion(number, 0.0, policy, 3, {}) for number, policy in policies.items()]
    with closing(TrainingStore(address)) as store:
        store.publish(lambda first: publication(versions, trials, latest))


def test_versions_are_published_switched_and_taken_up(address):
    with service(address, instance=magazine(), names=[], explore=0.0) as found:
        assert run(found.policy()).source == "instance"
        publish(found, 1, 0.0, dp.Fixed(1), 3, {"description": "always sport", "source": "test"})
        assert ask(found, "ann").category == "sport"
        switched = run(found.pin(0))
        assert (switched.version, switched.pinned) == (0, True)
        assert ask(found, "bob").category == "music"
        assert ask(found, "ann").category == "sport"  # who keeps the version of the first visit
        assert [row.version for row in run(found.policies()).versions] == [1, 0]
        with pytest.raises(NotFoundError, match="version is 7; no such policy version"):
            run(found.pin(7))
        publish_as_trainer(address, {2: dp.Fixed(2)}, [], 2)
        assert run(found.refresh())
        assert not run(found.refresh())
        assert run(found.policy()).version == 0  # it was switched to, until told otherwise
    with service(address, names=[]) as found:
        assert run(found.policy()).version == 0
        assert run(found.pin(None)).version == 2


def test_so_many_users_try_a_version_whatever_happens_meanwhile(address):
    with service(address, explore=0.0) as found:
        publish_as_trainer(address, {1: dp.Fixed(1), 2: dp.Fixed(2)}, [(1, 5)], 2)
        ask(found, "early")
        assert run(found.refresh())
        first = [ask(found, f"a{i}").version for i in range(3)]
    with service(address, names=[]) as found:
        later = [ask(found, f"b{i}").version for i in range(4)]
    assert first + later == [1] * 5 + [2] * 2


def test_one_process_serves_a_file_and_several_a_database(address):
    with service(address, explore=0.0) as found:
        if not found.store.shared:
            with pytest.raises(dp.InputError, match="already in use by another process"):
                open_service(address, [], None, Settings())
            return
        with service(address, names=[], explore=0.0) as other:
            event = ask(found, "ann", event="mine").event
            assert ask(other, "ann", event="mine").event == event
            assert run(other.feedback([m.Feedback("mine", True)]))[0].accepted
            assert not run(found.feedback([m.Feedback("mine", False)]))[0].accepted
            run(other.add_category("golf"))
            assert ask(found, "ann", ["golf"]).category == "golf"
            assert run(other.user_state("ann")).counts["golf"] == m.OutcomeCounts(0, 1, 0, 0)
            run(found.retire_category("golf"))
            run(other.refresh())
            assert run(other.categories()).categories[-1].retired
            ask(other, "bob")
            assert run(found.totals())["recommendations"] == 3


def test_what_one_process_published_and_added_another_takes_up_with_its_users(postgres):
    address = postgres.new()
    with service(address, explore=0.0) as found, service(address, names=[], explore=0.0) as other:
        for number, name in ((1, "ann"), (2, "bob"), (3, "eve")):
            publish(found, number, 0.0, dp.Fixed(number), number + 3, {})
            run(found.add_category(f"new {number}"))
            assert ask(found, name, event=name).version == number
            ask(found, name, [f"new {number}"])
        assert ask(other, "ann").version == 1
        assert ask(other, "bob", event="bob").version == 2
        assert run(other.user_state("eve")).history[0].category == "new 3"
        publish(found, 4, 0.0, dp.Fixed(0), 3, {})
        assert run(other.pin(4)).version == 4


def test_the_trainer_learns_what_users_like_and_goes_on_after_a_restart(address):
    rng = np.random.default_rng(0)
    with service(address, explore=0.0) as found, closing(TrainingStore(address)) as training:
        assert training.acquire_lock()
        trainer = Trainer(training, types=1)
        assert trainer.step()  # before anybody comes
        assert not trainer.step()
        assert run(found.refresh())

        async def visit(i):
            shown = await found.recommend(m.RecommendRequest(f"u{i}", [NAMES[i % 3]]))
            clicked = bool(rng.random() < (0.9 if shown.category == "sports" else 0.2))
            await found.feedback([m.Feedback(shown.event, clicked, not clicked)])

        async def crowd():
            for i in range(300):
                await visit(i)

        run(crowd())
        with training.read() as snapshot:
            counts, users = histogram(snapshot, 3)
        assert users.sum() == 300
        assert (users[:, None, None] * counts).sum() == 300
        assert trainer.step()
        assert trainer.learner.loss is not None
        again = Trainer(training, types=1)
        assert again.learner is not None
        assert not again.step()
        assert run(found.refresh())
        assert run(found.policy()).lower > 2
        assert ask(found, "new", explain=True).category == "sports"
        run(found.retire_category("sports"))
        assert again.step()  # at once
        assert not again.step()
        assert run(found.refresh())
        assert "sports" not in run(found.policy()).description
        live = run(DashboardReader(found, learning=True).read())
        assert live.learning_curve
        assert live.learning_curve[-1].users == 301
        assert live.tree.category != "sports"
        assert [c.name for c in live.categories if c.retired] == ["sports"]


def test_of_several_trainers_one_leads(postgres):
    address = postgres.new()
    with closing(TrainingStore(address)) as one, closing(TrainingStore(address)) as other:
        assert one.acquire_lock()
        assert not other.acquire_lock()
        one.close()
        deadline = time.monotonic() + 10
        while not other.acquire_lock():
            assert time.monotonic() < deadline


def test_the_page_the_metrics_and_the_log_tell_the_same(address, tmp_path):
    with service(address, explore=0.0) as found:
        for i in range(20):
            shown = ask(found, f"u{i}")
            run(found.feedback([m.Feedback(shown.event, i % 2 == 0, i % 4 == 3)]))
        live = run(DashboardReader(found).read())
        assert (live.users, live.active_users) == (20, 15)
        assert sum(category.departures for category in live.categories) == 5
        assert len(live.recent_events) == 8
        assert sum(moment.users for moment in live.clicks) == 5
        assert live.survival[:3] == [1.0, 1.0, 0.0]
        assert "departing_clicks_total 10" in metrics_text(run(found.totals()), 0, False)
        for form in ("jsonl", "parquet"):
            write_log(found.store.read, "no-click", form, tmp_path / f"log.{form}")
        told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert sum(row["clicked"] for row in told) == 10
        assert sum(row["departed"] for row in told) == 5
        assert dp.read_log(tmp_path / "log.parquet").users == 20
    with service(address, names=[]) as found:
        assert run(found.totals())["clicks"] == 10


def test_shadow_is_remembered_and_turned_off_by_one_call(address):
    with service(address, instance=magazine(), names=[], shadow=True) as found:
        ask(found, "ann", shown="news", propensity=0.5)
        assert ask(found, "bob", shown="music").shadow_category == "music"
        report = run(ShadowReporter(found).report())
        assert (report.decisions, report.match_rate) == (2, 0.5)
        assert "200 users" in report.note
        run(found.set_shadow(False))
        ask(found, "carl")
        assert run(ShadowReporter(found).report()).decisions == 2  # those of the caller only
    with service(address, names=[], shadow=True) as found:
        assert not found.rollout.state.shadow
        assert ask(found, "eve").category == "music"


def test_the_gain_over_a_caller_who_shows_anything(address, tmp_path):
    site, rng = dp.Instance([0.6, 0.4], [[0.6, 0.1], [0.1, 0.5]], 0.8), np.random.default_rng(2)
    with service(address, instance=site, names=[], shadow=True) as found:
        found.clock = Wall()  # the log is ordered by time

        async def visit(name):
            kind, outcome = rng.choice(2, p=site.prior), 0
            while outcome < 2:
                category = int(rng.integers(2))
                shown = await found.recommend(
                    m.RecommendRequest(name, shown=site.categories[category], propensity=0.5)
                )
                outcome = rng.choice(4, p=site.outcome_probabilities[category, :, kind])
                await found.feedback([m.Feedback(shown.event, bool(outcome in (0, 3)), bool(outcome >= 2))])

        async def crowd():
            await asyncio.gather(*(visit(f"u{i}") for i in range(1500)))

        run(crowd())
        policy = policy_to_dict(found.rollout.state.current.policy)
        request = GainRequest(str(address), list(site.categories), "no-click", policy, str(tmp_path))
        told = estimate_gain(request)
        true = dp.plan(site).value - uniform_value(site)
        assert told.gain.users == 1500
        assert told.gain.lower < true < told.gain.upper
        assert told.gain.lower > 0
        request.categories.append("golf")
        assert "cannot be estimated" in estimate_gain(request).note


def uniform_value(site):
    """Clicks of a user who is shown anything at every step, by the linear equation for every type."""
    click = site.outcome_probabilities[:, [0, 3]].sum(axis=1).mean(axis=0)
    stay = site.outcome_probabilities[:, [0, 1]].sum(axis=1).mean(axis=0)
    return float(site.prior @ (click / (1 - stay)))


def test_people_are_forgotten_with_their_earlier_lives(address):
    with service(address, inactive_after=5.0) as found:
        ask(found, "ann", event="first life")
        found.clock.time += 10
        ask(found, "ann", event="second life")
        assert ask(found, "ann", event="first life").event == "first life"  # it is the same person
        assert run(found.totals())["returned_users"] == 1
        run(found.forget("ann"))
        assert rows(found, "SELECT count(*) FROM decisions WHERE key IS NOT NULL") == [(0,)]
        assert rows(found, "SELECT count(*) FROM users WHERE name LIKE 'forgotten %'") == [(2,)]
        assert found.store.active_users == 0


def test_there_is_room_for_so_many_users(address):
    with service(address, max_users=2) as found:
        ask(found, "ann")
        ask(found, "bob")
        with pytest.raises(StoreError, match="active, which is the limit"):
            ask(found, "carl")
        run(found.depart("ann"))
        assert ask(found, "carl").category in NAMES


def test_the_same_id_explains_what_it_explained(address):
    with service(address, instance=magazine(), names=[], explore=0.0) as found:
        first = ask(found, "ann", event="one", explain=True)
        assert ask(found, "ann", event="one", explain=True) == first


def test_a_store_is_refused_if_it_is_another_one(address, tmp_path):
    with service(address):
        pass
    with pytest.raises(dp.InputError, match="has the categories news, sports, music, not a, b"):
        open_service(address, ["a", "b"], None, Settings())
    with pytest.raises(dp.InputError, match="is new; name its categories"):
        open_service(tmp_path / "t.sqlite", [], None, Settings())
    (tmp_path / "u.sqlite").write_text("no database at all, but text")
    with pytest.raises(dp.InputError, match="cannot be opened"):
        open_service(tmp_path / "u.sqlite", NAMES, None, Settings())
    with closing(connect(address)) as database:
        database.rows("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(dp.InputError, match="written by a later release"):
        open_service(address, [], None, Settings())


def test_a_database_that_is_not_there_is_told():
    with pytest.raises(dp.InputError, match="cannot be opened"):
        open_service("postgresql://nobody@127.0.0.1:1/nothing", NAMES, None, Settings())


def test_a_clock_that_is_set_is_not_followed():
    wall, steady = [1000.0], [0.0]
    clock = Wall(lambda: wall[0], lambda: steady[0])

    def later(seconds, set_by=0.0):
        steady[0] += seconds
        wall[0] += seconds + set_by
        return clock()

    assert later(5) == 1005
    assert later(5, 10**6) == 1010
    assert clock.adjustment == 10**6
    assert later(5, -(10**6) - 500) == 1015
    assert clock.adjustment == -500
