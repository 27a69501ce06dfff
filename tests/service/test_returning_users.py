"""Figures of the dashboard where the same persons return, and where the caller decides."""

import asyncio
import random

import numpy as np
import pytest

import departing as dp
from departing.service import messages as m
from departing.service.cohorts import CALLER, Cohort, by_person, mean_interval, share_interval
from departing.service.dashboard import DashboardReader
from departing.service.follow_up import UserSample
from helpers.experiments import with_versions
from helpers.services import publish, run, service

VISITS, STEPS = 8, 4
CLICKS = 0.2, 0.8  # probability of two types of persons; on average two clicks per visit
HOUR = 3600.0


def figures(path, seed, persons=150):
    """Figures of a service whose persons return every hour, with an inactivity period of half an hour."""
    rng = random.Random(seed)
    click = [rng.choice(CLICKS) for _ in range(persons)]

    with service(path, ["news"], explore=0.0, inactive_after=HOUR / 2) as served:

        async def visit(person):
            for _ in range(STEPS):
                event = (await served.recommend(m.RecommendRequest(f"u{person}"))).event
                await served.feedback([m.Feedback(event, rng.random() < click[person])])

        async def visits():
            for _ in range(VISITS):
                await asyncio.gather(*map(visit, range(persons)))
                served.clock.time += HOUR
                while await served.sweep():
                    await served.flush()

        run(visits())
        return run(DashboardReader(served).read()).follow_up


@pytest.mark.slow
def test_intervals_allow_for_persons_who_return(tmp_path):
    held = []
    for seed in range(30):
        follow_up = figures(tmp_path / f"{seed}.sqlite", seed)
        assert follow_up.latest.users > 1000
        held.append(follow_up.latest.lower <= 2.0 <= follow_up.latest.upper)
    assert sum(held) >= 25  # of 30; with 95 % coverage fewer have a probability of 0.1 %


def test_intervals_of_persons_who_never_return_are_those_of_users():
    rng = np.random.default_rng(0)
    clicks = rng.poisson(1.0, 200).astype(float)
    assert by_person(clicks, rng.permutation(200)) is clicks


def test_the_interval_of_a_mean_covers_if_persons_return():
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        person = np.repeat(np.arange(100), rng.integers(1, 12, 100))
        click = rng.choice(CLICKS, 100)[person]
        values = by_person(rng.binomial(STEPS, click).astype(float), person)
        _, lower, upper = mean_interval(values, values)
        held += lower <= 2.0 <= upper
    assert 0.92 < held / 400 < 0.98


def test_the_interval_of_a_share_is_wider_if_persons_return():
    steps = np.tile([1, 2], 200)  # every second person has a second recommendation in each of four visits
    person = np.arange(400) % 100
    cohort = Cohort(np.arange(400.0), np.zeros(400, int), steps, np.ones(400), person)
    _, (_, second) = cohort.survival(2)[-2:]
    assert np.allclose(second, share_interval(50, 100), atol=2e-3)


def test_users_for_whom_the_caller_decided_have_no_version(tmp_path):
    """In shadow mode the caller shows music; then version 1, which shows sports, decides."""
    click = {"music": 0.1, "sports": 0.9}
    rng = random.Random(0)
    with service(tmp_path / "s.sqlite", explore=0.0, shadow=True) as served:
        with_versions(served)

        async def visits(name):
            for i in range(300):
                shown = await served.recommend(m.RecommendRequest(f"{name} {i}", shown="music"))
                clicked = rng.random() < click[shown.category]
                await served.feedback([m.Feedback(shown.event, clicked, True)])
                served.clock.time += 1.0
            served.clock.time += HOUR

        def estimates():
            follow_up = run(DashboardReader(served).read()).follow_up
            return follow_up.latest, {group.version for group in follow_up.over_time}

        run(visits("early"))
        latest, versions = estimates()
        assert (latest.version, latest.users, versions) == ("caller", 300, {"caller"})
        assert latest.lower < 0.1 < latest.upper
        run(served.set_shadow(False))
        run(visits("late"))
        latest, versions = estimates()
        assert (latest.version, latest.users, versions) == (1, 300, {"caller", 1})
        assert latest.lower < 0.9 < latest.upper


def test_the_latest_users_exclude_those_of_the_caller():
    n = 2000
    version = np.where(np.arange(n) % 2, 3, CALLER)
    clicks = np.where(version == 3, 2.0, 0.0) + np.arange(n) % 3
    cohort = Cohort(np.arange(float(n)), version, np.ones(n, int), clicks, np.arange(n))
    assert cohort.latest(4).clicks.estimate == pytest.approx(3.0, abs=0.01)
    assert cohort.latest(CALLER).clicks.estimate == pytest.approx(1.0, abs=0.01)


def test_a_user_who_returns_is_the_same_person(tmp_path):
    with service(tmp_path / "s.sqlite", inactive_after=HOUR) as served:
        publish(served, dp.Fixed(0))
        for _ in range(3):
            run(served.recommend(m.RecommendRequest("ann")))
            served.clock.time += 2 * HOUR
        run(served.recommend(m.RecommendRequest("bob")))
        run(served.flush())
        with served.store.read() as snapshot:
            sample = UserSample.read(snapshot, served.clock.time, HOUR)
        assert sample.person.tolist() == [0, 0, 0, 3]


def test_rare_clicks_of_returning_persons_need_as_large_groups_as_those_of_users():
    rng, n = np.random.default_rng(0), 16_000
    clicks = (rng.random(n) < 0.004).astype(float)
    same = Cohort(np.arange(float(n)), np.zeros(n, int), np.ones(n, int), clicks, np.arange(n) % 400)
    apart = Cohort(np.arange(float(n)), np.zeros(n, int), np.ones(n, int), clicks, np.arange(n))
    assert same.min_users == apart.min_users > 1000


def test_a_single_person_with_many_visits_has_finite_figures():
    n = 60
    cohort = Cohort(np.arange(float(n)), np.zeros(n, int), np.arange(n) % 3 + 1, np.arange(n) % 2.0, np.zeros(n, int))
    assert cohort.latest(0) is None
    assert all(np.isfinite(share).all() for _, share in cohort.survival(3))
