"""Learners of users who change: forgetting, choice of the half-life, detection of changes, sliding window."""

from math import inf

import numpy as np
import pytest

import departing as dp
from departing.evaluation.traversal import first_level
from departing.learning.change_detection import FALSE_ALARM, ChangeDetector
from departing.learning.forgetting import CohortCounts, HalfLives
from departing.learning.library import parse_learner
from departing.learning.sliding_window import SlidingWindow
from departing.learning.transition_counts import TransitionCounts
from departing.model.errors import InputError
from departing.model.sampling import sample_type_counts
from departing.simulation.aggregate import aggregate

BEFORE = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5]], [[0.5, 0.6], [0.4, 0.7]], categories=["news", "sport"])
AFTER = BEFORE.replace(click=[[0.2, 0.1], [0.4, 0.5]])


def play(counts, instance, blocks, users, seed=0, arrived=0, first=0):
    """Add blocks of users under a fixed policy, and close a cohort after each; those before `first` are forgotten."""
    rng = np.random.default_rng(seed)
    for _ in range(blocks):
        by_type = sample_type_counts(instance, users, rng)
        level = first_level(instance, dp.Threshold(0, 2, 1), by_type)
        aggregate(level, rng, None, 10**6, np.inf, lambda _: None, counts.add, counts.limit)
        arrived += users
        counts.close(arrived, first)
        yield arrived


def play_late(counts, instance, blocks, users, lag, seed=0, after=None, blocks_after=0):
    """One recommendation to each user; departures are observed when `lag` more users have arrived."""
    rng, late = np.random.default_rng(seed), []
    start = np.zeros((1, 2, 4), np.int64)
    for block in range(blocks + blocks_after):
        site = instance if block < blocks else after
        arrivals = np.arange(block * users, (block + 1) * users)
        types = rng.choice(2, users, p=site.prior)
        outcomes = [rng.choice(4, p=site.outcome_probabilities[0, :, x]) for x in types]
        late += [(arrival, outcome) for arrival, outcome in zip(arrivals, outcomes, strict=True) if outcome == 2]
        now = [pair for pair in zip(arrivals, outcomes, strict=True) if pair[1] != 2]
        now += [pair for pair in late if pair[0] <= arrivals[-1] - lag]
        late = [pair for pair in late if pair[0] > arrivals[-1] - lag]
        one_hot = np.eye(4, dtype=np.int64)[[outcome for _, outcome in now]]
        rows = np.repeat(start, len(now), axis=0)
        counts.add(rows, np.zeros(len(now), np.int64), one_hot, np.array([arrival for arrival, _ in now]))
        counts.close((block + 1) * users)
        yield (block + 1) * users


def histogram(counts):
    rows, users = counts.histogram()
    order = np.lexsort(rows.reshape(len(rows), -1).T)
    return rows[order], users[order]


class TestCohortCounts:
    """Weighted histograms agree with those of the cohorts by themselves."""

    def test_weights(self):
        counts = CohortCounts(2, 10)
        parts = []
        for i in range(3):
            part = TransitionCounts(2, 10)
            each = CohortCounts(2, 10)
            for target in (counts, each):
                list(play(target, BEFORE, 1, 50, seed=i, arrived=50 * i))
            part.restore({name: each.state()[name] for name in TransitionCounts(2, 10).state()})
            parts.append(part)
        counts.weigh(150, half_life=50)
        np.testing.assert_allclose(counts.weights, 2.0 ** -np.array([2.5, 1.5, 0.5]))
        expected = {}
        for part, weight in zip(parts, counts.weights, strict=True):
            for row, users in zip(*part.histogram(), strict=True):
                expected[row.tobytes()] = expected.get(row.tobytes(), 0.0) + weight * users
        actual = {row.tobytes(): users for row, users in zip(*counts.histogram(), strict=True)}
        assert actual.keys() == expected.keys()
        assert all(abs(actual[key] - expected[key]) < 1e-9 for key in expected)
        assert counts.memory == pytest.approx(50 * counts.weights.sum())

    def test_an_infinite_half_life_is_none(self):
        counts = CohortCounts(2, 10)
        list(play(counts, BEFORE, 20, 50))
        counts.weigh(1000)
        plain = TransitionCounts.histogram(counts)
        for first, second in zip(counts.histogram(), plain, strict=True):
            assert (first == second).all()

    def test_joined_cohorts_keep_the_totals(self):
        counts = CohortCounts(2, 10)
        list(play(counts, BEFORE, 200, 10))
        assert len(counts.cohorts) < 80
        assert counts.cohorts[0].start == 0
        assert all(a.end == b.start for a, b in zip(counts.cohorts, counts.cohorts[1:], strict=False))
        total = counts.weighted(np.ones(len(counts.cohorts)))
        assert (total.outcomes == counts.outcomes).all()
        assert (total.unresolved_users == counts.unresolved_users).all()

    def test_forgotten_users_are_not_joined_with_later_ones(self):
        counts = CohortCounts(2, 10)
        list(play(counts, BEFORE, 20, 10))
        list(play(counts, AFTER, 300, 10, arrived=200, first=200))
        counts.weigh(3200, first=200)
        assert counts.memory == 3000

    def test_users_who_span_two_cohorts_are_counted_once(self):
        counts = CohortCounts(2, 10)
        start = np.zeros((1, 2, 4), np.int64)
        counts.add(start, np.array([0]), np.array([[1, 0, 0, 0]]))
        counts.close(1)
        clicked = start.copy()
        clicked[0, 0, 0] = 1
        counts.add(clicked, np.array([0]), np.array([[0, 0, 1, 0]]))
        counts.close(2)
        counts.weigh(2, half_life=100)
        rows, users = counts.histogram()
        assert len(rows) == 1
        assert rows[0, 0].tolist() == [1, 0, 1, 0]
        assert users[0] == pytest.approx(1, abs=0.02)

    def test_late_outcomes_belong_to_the_cohort_of_arrival(self):
        counts, start = CohortCounts(2, 10), np.zeros((2, 2, 4), np.int64)
        counts.add(start, np.array([0, 0]), np.array([[1, 0, 0, 0], [0, 1, 0, 0]]), np.array([0, 1]))
        counts.close(3)
        counts.add(start[:1], np.array([0]), np.array([[1, 0, 0, 0]]), np.array([3]))
        late = start.copy()
        late[1, 0, 0] = 1
        counts.add(late, np.array([0, 0]), np.array([[0, 0, 1, 0], [0, 0, 0, 1]]), np.array([2, 0]))
        counts.close(5)
        tables = [TransitionCounts.histogram(counts.weighted(np.array(each))) for each in ((1.0, 0), (0, 1.0))]
        assert [users.tolist() for _, users in tables] == [[1.0, 1.0, 1.0], [1.0]]
        assert [(rows.sum(axis=(0, 1)).tolist()) for rows, _ in tables] == [[1, 1, 1, 1], [1, 0, 0, 0]]
        total = counts.weighted(np.ones(2))
        assert (total.outcomes == counts.outcomes).all()
        assert (total.unresolved_users == counts.unresolved_users).all()
        assert counts.settled == 3  # the outcomes of the latest cohort may be late, as those of the first were
        counts.weigh(counts.settled, half_life=10)
        assert counts.users == pytest.approx(3 * 2**-0.15)
        restored = CohortCounts(2, 10)
        restored.restore(counts.state())
        assert (restored.histogram()[1] == counts.histogram()[1]).all()

    def test_only_users_with_all_outcomes_count_if_others_are_forgotten(self):
        counts = CohortCounts(2, 10)
        list(play_late(counts, BEFORE, 60, 50, lag=500))
        assert 2000 <= counts.settled <= 2500
        counts.weigh(counts.settled, half_life=500)
        rows, users = counts.histogram(depth=1)
        departed = rows[:, :, 2:].any(axis=(1, 2))
        assert users[departed].sum() / users.sum() == pytest.approx(0.35, abs=0.05)
        counts.weigh(counts.settled)
        assert counts.memory == 3000


class TestChangeDetector:
    """Alarms are rare on stationary sites, and follow changes."""

    def test_false_alarms(self):
        alarms = 0
        for seed in range(60):
            counts, detector = CohortCounts(2, 10), ChangeDetector()
            alarms += any(detector.update(counts) for _ in play(counts, BEFORE, 60, 50, seed))
        assert alarms <= 3  # P(more than 3 of 60) < 0.003 at the rate 0.01
        assert FALSE_ALARM == 0.01

    def test_a_change_is_found_near_its_place(self):
        for seed in range(5):
            counts, detector = CohortCounts(2, 10), ChangeDetector()
            assert not any(detector.update(counts) for _ in play(counts, BEFORE, 60, 50, seed))
            found = [n for n in play(counts, AFTER, 20, 50, seed + 100, 3000) if detector.update(counts)]
            assert found
            assert found[0] <= 3400
            assert 2800 <= detector.changes[0] <= 3400

    def test_late_departures_raise_no_alarm(self):
        found = []
        for seed in range(10):
            counts, detector = CohortCounts(2, 10), ChangeDetector()
            found += [n for n in play_late(counts, BEFORE, 60, 50, 500, seed) if detector.update(counts)]
        assert not found

    def test_a_change_is_found_when_departures_are_late(self):
        counts, detector = CohortCounts(2, 10), ChangeDetector()
        run = play_late(counts, BEFORE, 60, 50, 500, after=AFTER, blocks_after=40)
        found = [n for n in run if detector.update(counts)]
        assert 3500 <= found[0] <= 4200
        assert 2800 <= detector.changes[0] <= 3400

    def test_it_does_not_depend_on_policies(self):
        """The frequencies of outcomes are compared after equal counts and category only."""
        counts, detector = CohortCounts(2, 10), ChangeDetector()
        rng, arrived = np.random.default_rng(0), 0
        for block in range(80):
            policy = dp.Fixed(int(block >= 40))
            level = first_level(BEFORE, policy, sample_type_counts(BEFORE, 50, rng))
            aggregate(level, rng, None, 10**6, np.inf, lambda _: None, counts.add, counts.limit)
            arrived += 50
            counts.close(arrived)
            assert not detector.update(counts)


class TestHalfLives:
    """Chosen by predictive likelihood."""

    def test_none_on_a_stationary_site(self):
        counts, half_lives = CohortCounts(2, 10), HalfLives()
        for arrived in play(counts, BEFORE, 100, 100):
            half_lives.update([counts], arrived, 0)
            assert half_lives.best == inf

    def test_none_if_departures_are_late(self):
        counts, half_lives = CohortCounts(2, 10), HalfLives()
        for _ in play_late(counts, BEFORE, 100, 60, 1000):
            half_lives.update([counts], counts.settled, 0)
            assert half_lives.best == inf

    def test_short_after_a_change(self):
        counts, half_lives = CohortCounts(2, 10), HalfLives()
        for arrived in play(counts, BEFORE, 100, 100):
            half_lives.update([counts], arrived, 0)
        for arrived in play(counts, AFTER, 10, 100, 1, 10_000):
            half_lives.update([counts], arrived, 0)
        assert half_lives.best <= 4000
        assert half_lives.first > 0


def test_learners_off_is_the_learner_itself():
    runs = [
        dp.simulate(BEFORE, dp.Bayes(2, 2, seed=1, growth=0.5, **options), 300, seed=1)
        for options in ({}, {"half_life": None, "change_detection": False})
    ]
    assert runs[0].regret.tolist() == runs[1].regret.tolist()


def test_an_infinite_half_life_is_none():
    runs = [
        dp.simulate(BEFORE, dp.Bayes(2, 2, seed=1, growth=0.5, half_life=half_life), 300, seed=1)
        for half_life in (None, inf)
    ]
    assert runs[0].regret.tolist() == runs[1].regret.tolist()


def test_a_very_long_half_life_is_nearly_none():
    counts = CohortCounts(2, 10)
    list(play(counts, BEFORE, 20, 50))
    counts.weigh(1000, half_life=1e12)
    for first, second in zip(
        histogram(counts), histogram(counts.weighted(np.ones(len(counts.cohorts)))), strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dp.Bayes(2, 2, seed=1, growth=0.3, half_life="auto", change_detection=True),
        lambda: dp.Bayes(2, 2, seed=1, growth=0.3, half_life=300),
        lambda: SlidingWindow(2, 2, seed=1, growth=0.5, window=300),
    ],
)
def test_they_follow_a_jump_and_are_saved_exactly(make, tmp_path):
    learner = make()
    site = dp.NonStationaryInstance.jump(BEFORE, AFTER, 2000)
    run = dp.simulate(site, learner, 4000, seed=3)
    last = run.regret[-1] - np.interp(3500, run.checkpoints, run.regret)
    worst = dp.plan(AFTER).value - dp.evaluate(AFTER, dp.Fixed(0)).value
    assert last < 0.4 * worst * 500
    learner.save(tmp_path / "learner.json")
    loaded = dp.load_learner(tmp_path / "learner.json")
    again, more = (dp.simulate(AFTER, each, 300, seed=4).clicks for each in (learner, loaded))
    assert again == more
    assert loaded.add_category("music") == 2


def test_shares_of_segments_are_forgotten_as_users_are():
    learner = dp.Bayes(2, 2, segments=["mobile", "desktop"], half_life=100, growth=1.0, explore="none")
    for first, segment in [(0, "mobile"), (1000, "desktop")]:
        for users in np.arange(first, first + 1000).reshape(-1, 50).tolist():
            learner.observe(users, learner.recommend(users, [segment] * 50), ["depart"] * 50)
    learner._forget()
    mobile, desktop, unknown = learner._by_segment.shares
    assert mobile < 0.02
    assert desktop > 0.98
    assert unknown == 0
    assert learner._by_segment.parts[0].histogram()[1].sum() < 1
    assert learner._by_segment.parts[1].histogram()[1].sum() == pytest.approx(learner.effective_users)


def test_less_than_one_effective_user():
    assert dp.simulate(BEFORE, dp.Bayes(2, 2, half_life=10, growth=10), 60).users == 60


def test_a_state_without_arrivals_is_restored():
    """Files of earlier versions have neither arrivals nor delays."""
    learner = dp.Bayes(2, 2, seed=1, growth=1.0, half_life="auto", change_detection=True)
    dp.simulate(BEFORE, learner, 500, engine="step")
    learner.recommend(["ann"])
    state = learner.state()
    del state["arrivals"], state["half_lives"]["scored"]
    for name in ("settled", "observed", "delays"):
        del state["transitions"][name]
    restored = dp.Bayes.from_state(state)
    assert restored._arrivals[restored._slots["ann"]] == 501
    assert restored._half_lives.scored == restored.transitions.end
    for each in (learner, restored):
        each.observe(["ann"], each.recommend(["ann"]), ["depart"])
    assert restored.instance() == learner.instance()


def test_options():
    spec = parse_learner("bayes:half_life=auto,change_detection=true")
    assert spec == {"kind": "bayes", "half_life": "auto", "change_detection": "true"}
    assert dp.Bayes(2, 2, change_detection="true").change_detection is True
    for none in ("none", "inf"):
        assert dp.Bayes(2, 2, half_life=parse_learner(f"bayes:half_life={none}")["half_life"]).half_life is None
    with pytest.raises(InputError, match="half_life is 'soon'"):
        dp.Bayes(2, 2, half_life="soon")
    with pytest.raises(InputError, match=r"half_life is 3; expected a number of users from 10 .*'auto', or 'none'"):
        dp.Bayes(2, 2, half_life=3)
    with pytest.raises(InputError, match=r"segments is 'de'; expected a list of names such as \['de', 'fr'\]"):
        dp.Bayes(2, 2, segments="de")
    with pytest.raises(InputError, match="change_detection is 'maybe'"):
        dp.Bayes(2, 2, change_detection="maybe")


def test_only_what_no_segment_is_shown_first_is_probed():
    learner = dp.Bayes(2, 3, segments=["mobile", "desktop"], change_detection=True)
    policies = [policy for policy, _ in learner._probes([dp.Fixed(0), dp.Threshold(1, 2, 2)], 10_000)]
    assert policies == [dp.Fixed(2)]


def test_policies_by_segment_raise_no_alarm():
    """Who is shown a category may depend on the segment, and this may change without a change of users."""
    priors = ([0.9, 0.1], [0.1, 0.9])
    every, parts = CohortCounts(2, 10), [CohortCounts(2, 10), CohortCounts(2, 10)]
    detector, mixed = ChangeDetector(), ChangeDetector()
    alarms = {"segments": [], "all": [], "changed": []}
    for block in range(60):
        instance = BEFORE if block < 40 else AFTER
        for segment, prior in enumerate(priors):
            policy = dp.Fixed(segment if block < 20 else 0)
            rng = np.random.default_rng([block, segment])
            by_type = rng.multinomial(100, prior)
            level = first_level(instance.replace(prior=prior), policy, by_type)
            add = parts[segment].add
            aggregate(
                level, rng, None, 10**6, np.inf, lambda _: None, lambda *a, add=add: (add(*a), every.add(*a)), 10
            )
        for counts in (every, *parts):
            counts.close(200 * (block + 1))
        alarms["segments" if block < 40 else "changed"].append(detector.update(every, parts))
        alarms["all"].append(mixed.update(every))
    assert not any(alarms["segments"])
    assert any(alarms["changed"])
    assert any(alarms["all"][20:40])  # without segments the change of the policy looks like one of users
