"""The trainer: learning from a store and publishing to it."""

import time
from contextlib import closing
from math import inf

import numpy as np
import pytest

import departing as dp
from departing.model.examples import magazine, shop
from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store import queries
from departing.service.store.connection import connect
from departing.service.uptime import latest_time
from departing.service.workers.evidence import (
    histogram,
    large_segments,
    pending_since,
    pending_users,
    training_users,
)
from departing.service.workers.served_learner import ServedBayes
from departing.service.workers.trainer import Trainer
from helpers.services import NAMES, FixedClock, recommend, run, service


@pytest.mark.slow
def test_the_trainer_learns_preferences_and_resumes_after_a_restart(address):
    rng = np.random.default_rng(0)
    with service(address, explore=0.0) as served, closing(connect(address)) as training:
        assert training.acquire_trainer_lock()
        trainer = Trainer(training, types=1)
        assert trainer.step()  # before the first user
        assert not trainer.step()
        assert run(served.refresh())

        async def visit(i):
            """Visit until the first no-click; return the number of recommendations."""
            steps, clicked = 0, True
            while clicked:
                shown = await served.recommend(m.RecommendRequest(f"u{i}", [NAMES[i % 3]]))
                clicked = bool(rng.random() < (0.9 if shown.category == "sports" else 0.2))
                await served.feedback([m.Feedback(shown.event, clicked, not clicked)])
                steps += 1
            return steps

        async def visits():
            return sum([await visit(i) for i in range(300)])

        steps = run(visits())
        with served.store.read() as snapshot:
            counts, users = histogram(snapshot, 3)
        assert users.sum() == 300
        assert (users[:, None, None] * counts).sum() == steps
        assert trainer.step()
        assert trainer.learner.loss is not None
        again = Trainer(training, types=1)
        assert again.learner is not None
        assert not again.step()
        assert run(served.refresh())
        assert run(served.policy()).lower > 2
        assert recommend(served, "new", explain=True).category == "sports"
        run(served.retire_category("sports"))
        assert again.step()  # without waiting for more users
        assert not again.step()
        assert run(served.refresh())
        assert "sports" not in run(served.policy()).description
        figures = run(DashboardReader(served, learning=True).read())
        assert figures.learning_curve
        assert figures.learning_curve[-1].users == 301
        assert figures.tree.category != "sports"
        assert [c.name for c in figures.categories if c.retired] == ["sports"]


def test_a_learned_policy_is_kept_by_a_restart_after_a_category_was_retired(address):
    site, learning = magazine(), {"learn": True, "departures_reported": True}
    with service(address, instance=site, **learning) as served, closing(connect(address)) as training:
        trainer = Trainer(training, types=2)

        async def calls():
            for i in range(30):
                shown = await served.recommend(m.RecommendRequest(f"u{i}"))
                await served.feedback([m.Feedback(shown.event, i % 2 == 0, i % 2 == 1)])
            await served.retire_category("sport")

        run(calls())
        assert trainer.step()
        run(served.refresh())
        learned = run(served.policy()).version
    with service(address, instance=site, **learning) as served:
        assert run(served.policy()).version == learned


def test_one_trainer_of_a_store_holds_the_lock(address):
    with service(address), closing(connect(address)) as one, closing(connect(address)) as other:
        assert one.acquire_trainer_lock()
        assert one.acquire_trainer_lock()
        assert not other.acquire_trainer_lock()
        one.close()
        deadline = time.monotonic() + 10
        while not other.acquire_trainer_lock():
            assert time.monotonic() < deadline


@pytest.mark.parametrize("state", ['{"items": []}', '{"array": 1}', "[]", "{"])
def test_an_unreadable_learner_is_discarded_and_trained_again(tmp_path, caplog, state):
    address = tmp_path / "s.sqlite"
    with service(address), closing(connect(address)) as training:
        training.execute(queries.SET, queries.LEARNER_KEY, state)
        trainer = Trainer(training, types=1)
        assert "learner_discarded" in caplog.messages
        assert trainer.step()
        assert Trainer(training, types=1).learner is not None


def test_recent_users_count_as_departed_until_the_inactivity_period_is_over(address):
    """Their stays are known at once, but not their departures."""
    with service(address, inactive_after=60.0) as served, closing(connect(address)) as database:
        for name, clicks in (("old", 2), ("ann", 1), ("bob", 0)):
            if name == "ann":
                served.clock.time += 50.0
            for clicked in [True] * clicks + [False]:
                run(served.feedback([m.Feedback(recommend(served, name).event, clicked)]))
        run(served.flush())

        def outcomes(now):
            since = pending_since(database, now)
            counts, users = histogram(database, 3, since)
            return pending_users(database, since), (counts.sum(axis=1) * users[:, None]).sum(axis=0).tolist()

        assert outcomes(1055.0) == (3, [3, 0, 3, 0])
        assert outcomes(1070.0) == (2, [3, 0, 2, 0])  # the last step of the first user is not known yet
        served.clock.time = 1065.0
        assert run(served.sweep()) == 1
        run(served.flush())
        assert outcomes(1070.0) == (2, [3, 0, 3, 0])
        run(served.depart("ann"))
        assert outcomes(1070.0) == (1, [3, 0, 3, 0])
    with service(address, departures_reported=True), closing(connect(address)) as database:
        assert pending_since(database, 1070.0) == inf


def test_downtime_resolves_no_departure(address):
    """After it all users would otherwise count as users who stayed."""
    settings, clock = Settings(inactive_after=600.0), FixedClock(1e6)
    for days in (0, 3):
        clock.time += days * 86400
        served = open_service(address, NAMES, None, settings, 1, clock=clock)
        with closing(served.store), closing(connect(address)) as database:
            if not days:
                for _ in range(2):
                    recommend(served, "ann")
                run(served.flush())
            now = latest_time(database)
            since = pending_since(database, now)
            counts, _ = histogram(database, 3, since)
            assert now == clock.time  # not that of this process
            assert pending_users(database, since) == 1
            assert counts[:, :, 2:].sum() == 1  # departs after the last recommendation


def test_departures_that_become_known_are_news(address):
    with service(address, inactive_after=60.0), closing(connect(address)) as database:
        trainer = Trainer(database, types=1)
        trainer._trained_at, trainer._pending = 100, 50
        assert not trainer._has_news(104, 50)
        assert trainer._has_news(111, 61)
        assert trainer._has_news(104, 48)
        trainer._pending = 5  # too few to train again for
        assert not trainer._has_news(104, 0)


def visits(served, n, click, start=0, segment=None):
    """Let users visit for one recommendation, one per second."""
    rng = np.random.default_rng(start)

    async def calls():
        for i in range(start, start + n):
            served.clock.time += 1.0
            shown = await served.recommend(m.RecommendRequest(f"u{segment}{i}", segment=segment))
            clicked = bool(rng.random() < click[shown.category])
            await served.feedback([m.Feedback(shown.event, clicked, True)])
        await served.flush()

    run(calls())


def test_with_a_half_life_old_users_count_less(address):
    options = Settings(learn=True, departures_reported=True, half_life=100.0, explore=1.0)
    served = open_service(address, NAMES, None, options, seed=1, clock=FixedClock())
    with closing(served.store), closing(connect(address)) as training:
        visits(served, 300, {"news": 0.9, "sports": 0.1, "music": 0.1})
        visits(served, 300, {"news": 0.1, "sports": 0.9, "music": 0.1}, 300)
        with served.store.read() as snapshot:
            counts, users = histogram(snapshot, 3)
            found = training_users(snapshot, 3, inf, (), 100.0, served.clock.time)
            equal = training_users(snapshot, 3, inf)
        weight = 0.5 ** (np.arange(600) / 100.0)
        assert found.parts[0][1].sum() == pytest.approx(weight.sum(), rel=0.05)
        assert found.effective == pytest.approx(weight.sum() ** 2 / (weight**2).sum(), rel=0.05)
        order, other = (np.lexsort(each.reshape(-1, 12).T) for each in (counts, equal.parts[0][0]))
        assert counts[order].tolist() == equal.parts[0][0][other].tolist()
        np.testing.assert_allclose(equal.parts[0][1][other], users[order], rtol=1e-8)
        assert equal.effective == pytest.approx(600)
        assert (found.mean_weight, equal.mean_weight) == (pytest.approx(weight.mean(), rel=0.05), 1.0)
        trainer = Trainer(training, types=1)
        assert trainer.step()
        run(served.refresh())
        policy, instance = run(served.policy()), served.rollout.state.current.instance
        assert (policy.half_life, policy.effective_users) == (100.0, pytest.approx(found.effective))
        assert instance.click[:, 0].argmax() == 1
        assert trainer.learner.effective_users == pytest.approx(weight.sum(), rel=0.05)
        visits(served, 10, {"news": 0.1, "sports": 0.9, "music": 0.1}, 600)
        assert not trainer.step()
        visits(served, 10, {"news": 0.1, "sports": 0.9, "music": 0.1}, 610)
        assert trainer.step()  # more than a tenth of the users that count
        assert not Trainer(training, types=1).step()
    for given, expected in ((None, 100.0), (inf, None)):
        with service(address, half_life=given), closing(connect(address)) as training:
            assert Trainer(training, types=1).half_life() == expected


def test_with_a_half_life_a_given_instance_is_forgotten(address, monkeypatch):
    monkeypatch.setattr("departing.service.workers.trainer.PRIOR_USERS", 100)
    given = dp.Instance([1.0], [[0.9], [0.1], [0.1]], 0.5, categories=NAMES)
    options = Settings(learn=True, departures_reported=True, half_life=50.0, explore=1.0)
    served = open_service(address, [], given, options, seed=1, clock=FixedClock())
    with closing(served.store), closing(connect(address)) as training:
        visits(served, 600, {"news": 0.1, "sports": 0.5, "music": 0.1})
        assert Trainer(training, types=1).step()
        run(served.refresh())
        assert served.rollout.state.current.instance.click[:, 0].argmax() == 1


def test_learning_starts_with_the_segments_and_types_of_a_given_instance(address):
    site, options = shop(), Settings(learn=True, departures_reported=True, unit="euro")
    served = open_service(address, [], site, options, seed=1, clock=FixedClock())

    async def calls():
        for i in range(30):  # too few to learn anything
            shown = await served.recommend(m.RecommendRequest(f"u{i}", segment=site.segments.names[i % 4]))
            await served.feedback([m.Feedback(shown.event, False, True)])
        await served.flush()

    with closing(served.store), closing(connect(address)) as training:
        run(calls())
        trainer = Trainer(training, types="auto")
        assert trainer.step()
        run(served.refresh())
        learned = served.rollout.state.current.instance
        assert set(learned.segments.names) == set(site.segments.names)
        assert learned.n_types >= site.n_types
        policy = served.rollout.state.current.policy
        # That of the best policy without segments has 0.77 times the optimal value.
        assert dp.evaluate(site, policy, 1e-3).value > 0.8 * dp.plan(site, 1e-3).value
        assert Trainer(training, types="auto").learner._numbers.fewest == site.n_types


def test_exploration_is_paid_in_the_unit_of_rewards():
    learner = ServedBayes(2, ["news", "sports"], segments=["mobile", "desktop"])
    before = learner._budget.available
    learner.set_reward([100.0, 300.0], "cent", None)
    budgets = learner._budget, learner._segment_budget, *learner._segment_budget.parts
    assert [each.available for each in budgets] == [200 * before] * 5
    learner.set_reward(None, "clicks", None)
    assert learner._budget.available == before


def test_the_trainer_learns_priors_of_segments_and_mean_rewards(address):
    """Users of one segment click news, those of the other music; sports pays most for a click, of few."""
    options = Settings(learn=True, departures_reported=True, explore=1.0, unit="euro")
    served = open_service(address, NAMES, None, options, seed=1, clock=FixedClock())
    click = {"news": (0.9, 0.1), "sports": (0.3, 0.3), "music": (0.1, 0.9)}
    reward, rng = {"news": 1.0, "sports": 0.5, "music": 2.0}, np.random.default_rng(0)

    async def calls():
        for i in range(400):
            segment, departed = i % 2, False
            while not departed:
                served.clock.time += 1.0
                shown = await served.recommend(m.RecommendRequest(f"u{i}", segment=("mobile", "desktop")[segment]))
                kind = segment if rng.random() < 0.9 else 1 - segment
                clicked = bool(rng.random() < click[shown.category][kind])
                departed = bool(rng.random() < 0.5)
                worth = reward[shown.category] * int(rng.integers(1, 4)) / 2 if clicked else None
                await served.feedback([m.Feedback(shown.event, clicked, departed, worth)])
        await served.flush()

    with closing(served.store), closing(connect(address)) as training:
        run(calls())
        trainer = Trainer(training, types=2)
        assert trainer.step()
        run(served.refresh())
        version = served.rollout.state.current
        instance = version.instance
        assert instance.unit == "euro"
        assert instance.reward == pytest.approx([1.0, 0.5, 2.0], rel=0.2)
        assert set(instance.segments.names) == {"desktop", "mobile"}
        prior = {name: instance.in_segment(name).prior for name in instance.segments.names}
        assert abs(prior["desktop"][0] - prior["mobile"][0]) > 0.3
        assert run(served.policy()).unit == "euro"
        assert run(served.policy()).lower <= run(served.policy()).upper
        again = Trainer(training, types=2)
        assert again.learner.segments == ("desktop", "mobile")
        assert not again.step()
        figures = run(DashboardReader(served, learning=True).read())
        assert {row.name: row.prior is not None for row in figures.segments} == {"desktop": True, "mobile": True}
        assert recommend(served, "new", segment="desktop", explain=True).belief is not m.UNSET
        run(served.add_category("golf"))
        run(served.add_category("chess", reward=7.5))
        run(served.flush())
        assert again.step()
        run(served.refresh())
        latest = served.rollout.state.current.instance
        assert latest.categories == (*NAMES, "golf", "chess")
        assert latest.reward[3] == pytest.approx(latest.reward[:3].mean())
        assert latest.reward[4] == 7.5


EQUAL = {"news": 0.5, "sports": 0.5, "music": 0.5}


def limit_segments(monkeypatch, users, segments):
    monkeypatch.setattr("departing.service.workers.evidence.MIN_SEGMENT_USERS", users)
    monkeypatch.setattr("departing.service.workers.evidence.MAX_SEGMENTS", segments)


def test_segments_keep_their_priors_until_others_are_twice_as_large(address, monkeypatch):
    limit_segments(monkeypatch, 4, 2)
    with service(address, departures_reported=True) as served, closing(connect(address)) as database:
        for name, users in (("a", 6), ("b", 5), ("c", 3)):
            visits(served, users, EQUAL, segment=name)
        assert large_segments(database) == ("a", "b")
        visits(served, 6, EQUAL, 10, segment="c")
        assert large_segments(database) == ("a", "c")
        assert large_segments(database, ("a", "b")) == ("a", "b")
        assert large_segments(database, ("a", "c")) == ("a", "c")
        visits(served, 2, EQUAL, 20, segment="c")
        assert large_segments(database, ("a", "b")) == ("a", "c")  # 11 users, more than twice 5
        limit_segments(monkeypatch, 10, 2)
        assert large_segments(database) == ()
        assert large_segments(database, ("a", "b")) == ("a", "c")
        assert large_segments(database, ("b", "c")) == ("b", "c")


def test_with_a_half_life_segments_without_recent_users_lose_their_priors(address, monkeypatch):
    limit_segments(monkeypatch, 4, 2)
    with service(address, departures_reported=True) as served, closing(connect(address)) as database:
        for name, users in (("old", 40), ("a", 10), ("b", 10)):
            visits(served, users, EQUAL, segment=name)
            served.clock.time += 1000.0
        now = served.clock.time = served.clock.time - 1000.0
        assert large_segments(database, ("a", "old")) == ("a", "old")
        assert large_segments(database, ("a", "old"), 500.0, now) == ("a", "b")  # 40 / 2 ** 4 are fewer than 10
        assert large_segments(database, ("a", "old"), 300.0, now) == ()
        visits(served, 10, EQUAL, 20, segment="a")
        assert large_segments(database, ("a", "old"), 300.0, served.clock.time) == ("a", "b")


def test_a_learner_with_other_segments_keeps_what_it_has_learned():
    learner = ServedBayes(2, ["news", "sports"], seed=1)
    learner._budget.spent, learner._remembered, learner._added = 7.0, [dp.Fixed(1)], [1]
    learner.rng.random()
    kept = learner.posterior, learner._remembered, learner._added, learner.rng.bit_generator.state
    learner.set_segments(("a", "b"))
    assert (learner.segments, learner.distinguishes_segments) == (("a", "b"), True)
    budget = learner._segment_budget
    assert (budget.spent, len(budget.parts)) == (7.0, 3)
    budget.spent, learner.concentration = 9.0, 64.0
    for part, category in zip(budget.parts, (0, 1, 0), strict=True):
        part.greedy = dp.Fixed(category)
    learner.set_segments(("b", "c"))
    assert learner._segment_budget.greedy == [dp.Fixed(1), None, dp.Fixed(0)]
    assert (learner._segment_budget.spent, learner.concentration) == (9.0, 64.0)
    assert len(learner._by_segment.shares) == 3
    again = ServedBayes.from_state(learner.state())
    assert (again.segments, again._segment_budget.greedy) == (("b", "c"), learner._segment_budget.greedy)
    learner.set_segments(())
    assert (learner.segments, learner._budget.spent, learner._segment_budget.parts) == (None, 9.0, [])
    assert kept == (learner.posterior, learner._remembered, learner._added, learner.rng.bit_generator.state)


def test_the_trainer_keeps_its_learner_when_segments_change(address, monkeypatch):
    limit_segments(monkeypatch, 20, 2)
    with service(address, learn=True, departures_reported=True) as served, closing(connect(address)) as training:
        trainer = Trainer(training, types=1)
        assert trainer.step()
        learner, segments = trainer.learner, []
        for start, counts in enumerate(({"a": 30}, {"b": 25}, {"c": 60}, {"b": 15})):
            for name, users in counts.items():
                visits(served, users, EQUAL, 100 * start, segment=name)
            assert trainer.step()
            run(served.refresh())
            assert trainer.learner is learner
            segments.append(learner.segments)
        assert segments == [None, ("a", "b"), ("a", "c"), ("a", "c")]
        assert Trainer(training, types=1).learner.segments == ("a", "c")
