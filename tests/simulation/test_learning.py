"""Learners in simulations: blocks, single steps, delayed outcomes, and regret."""

import numpy as np
import pytest

import departing as dp
from departing.learning.baselines import Uniform
from departing.learning.oracle import Oracle
from departing.model.errors import InputError
from departing.model.examples import blog, hard
from departing.simulation.regret_curve import log_checkpoints, slope, split_by_interval

UNSURE = dp.Instance([0.35, 0.65], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.9], [0.8, 0.4]])


def test_a_frozen_learner_is_its_policy():
    policy = dp.Threshold(first=1, steps=6, then=0)
    for options in ({}, {"engine": "step"}, {"open_users": 7}, {"delay": 5, "open_users": 3}):
        run = dp.simulate(blog(), dp.Frozen(dp.Fixed(0), 2), users=3000, seed=2, **options)
        gap = dp.evaluate(blog(), policy).value - dp.evaluate(blog(), dp.Fixed(0)).value
        assert run.regret == pytest.approx(run.checkpoints * gap, rel=1e-5)
        assert run.users == 3000
        assert run.checkpoints[-1] == 3000
        assert run.realised_regret[-1] == pytest.approx(3000 * dp.plan(blog()).value - run.clicks)


def test_engines_agree_on_the_outcomes_of_users():
    """The mean of clicks in blocks, steps and with delayed outcomes, by z-score."""
    runs = [
        dp.simulate(UNSURE, dp.Frozen(dp.Greedy(UNSURE), 2), users=20000, seed=3, **options)
        for options in ({}, {"engine": "step", "open_users": 500}, {"delay": 1000})
    ]
    exact = dp.evaluate(UNSURE, dp.Greedy(UNSURE)).value
    for run in runs:
        assert abs(run.mean - exact) < 4 * run.stderr
        assert run.steps == sum(
            n * times for n, times in zip(run.histories.steps, run.histories.multiplicity, strict=True)
        )


def test_the_oracle_has_no_regret():
    run = dp.simulate(UNSURE, Oracle(UNSURE), users=10**5)
    assert np.abs(run.regret).max() < 1


def test_realised_regret_differs_from_expected_regret_by_noise_only():
    run = dp.simulate(hard(), Uniform(2, seed=0), users=10**5, seed=1)
    assert abs(run.realised_regret[-1] - run.regret[-1]) < 5 * run.stderr * run.users


def test_a_run_under_a_policy_has_regret_too():
    run = dp.simulate(blog(), dp.Fixed(0), users=1000)
    assert run.checkpoints.tolist() == [1000]
    assert run.regret[0] == pytest.approx(16.957251, abs=1e-4)
    assert dp.simulate(blog(), dp.Fixed(0), users=1000, optimum=1.0).regret[0] == pytest.approx(1000 * (1 - 19 / 30))


class Own:
    """Third-party learner with the two required methods only."""

    def __init__(self):
        self.told = 0

    def recommend(self, users):
        return np.zeros(len(users), np.int64)

    def observe(self, users, categories, outcomes):
        self.told += len(users)


def test_anything_with_the_two_methods_is_a_learner():
    own = Own()
    run = dp.simulate(blog(), own, users=500, open_users=50)
    assert own.told == run.steps
    assert run.realised_regret[-1] == pytest.approx(500 * dp.plan(blog()).value - run.clicks)
    with pytest.raises(InputError, match="does not report its policies"):
        _ = run.regret


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: Uniform(2, seed=0), {}),
        (lambda: Uniform(2, seed=0), {"open_users": 7}),
        (lambda: Uniform(2, seed=0), {"delay": 20}),
        (lambda: dp.UCBHybrid.fixed(2, users=3000, tau=1.0), {}),
        (lambda: dp.Bayes(2, 2, seed=1), {}),
    ],
    ids=["blocks", "steps", "delayed", "arms", "bayes"],
)
def test_the_regret_so_far_is_reported_at_checkpoints(make, options):
    seen, plain = {}, dp.simulate(UNSURE, make(), users=3000, seed=2, **options)
    run = dp.simulate(UNSURE, make(), users=3000, seed=2, **options, regret_progress=seen.__setitem__)
    assert list(seen)[-1] == 3000
    assert set(seen) <= set(run.checkpoints.tolist())
    assert list(seen) == sorted(seen)
    curve = dict(zip(run.checkpoints.tolist(), run.regret.tolist(), strict=True))
    assert seen == pytest.approx({users: curve[users] for users in seen}, abs=0.2)
    assert run.regret.tolist() == plain.regret.tolist()  # reports do not change the result
    assert run.clicks == plain.clicks


def test_the_regret_so_far_of_a_learner_without_policies_is_realised():
    seen = []
    run = dp.simulate(blog(), Own(), users=500, seed=1, optimum=0.65, regret_progress=lambda *now: seen.append(now))
    assert seen[-1] == (500, pytest.approx(run.realised_regret[-1]))
    assert len(seen) > 10


def test_a_policy_that_stays_in_use_is_evaluated_once_a_decade(monkeypatch):
    policy, gaps = dp.Greedy(UNSURE), []

    def evaluated(instance, policy, gap):
        gaps.append(gap)
        return 1.0

    monkeypatch.setattr("departing.simulation.regret_curve._exact_value", evaluated)
    run = dp.simulate(
        UNSURE, dp.Frozen(policy, 2), users=10**5, engine="blocks", optimum=1.0, regret_progress=lambda *_: None
    )
    assert len(gaps) <= 6
    assert run.regret[-1] == 0
    assert len(gaps) <= 7


def test_the_record_of_policies_does_not_grow_with_the_users():
    """UCB-Hybrid changes its policy for every user; Uniform creates a new one for each of them."""
    for learner in (dp.UCBHybrid.fixed(2, users=3000, tau=1.0), Uniform(2, growth=0.0)):
        run = dp.simulate(blog(), learner, users=3000, seed=1, engine="step", optimum=0.65)
        assert len(run.regret_curve.policy_segments) <= 2 * len(run.checkpoints)
        assert sum(segment.users for segment in run.regret_curve.policy_segments) == 3000


class Unhashable:
    """Policy that cannot be a key of a dictionary."""

    __hash__ = None

    def recommend(self, counts):
        return np.zeros(len(counts), np.int64)


def test_policies_need_not_be_hashable():
    run = dp.simulate(blog(), dp.Frozen(Unhashable(), 2), users=1000, seed=1, regret_progress=lambda *_: None)
    assert len(run.regret_curve.policy_segments) == len(run.checkpoints)
    assert run.regret[-1] == pytest.approx(16.957251, abs=0.02)


class Slow(Own):
    """Learner that records after how many arrivals it observes each user."""

    def __init__(self):
        super().__init__()
        self.come, self.waits = set(), []

    def recommend(self, users):
        self.come |= set(users.tolist())
        self.asked = {user: len(self.come) for user in users.tolist()} | getattr(self, "asked", {})
        return super().recommend(users)

    def observe(self, users, categories, outcomes):
        self.waits += [len(self.come) - self.asked.pop(user) for user in users.tolist()]


def test_delayed_outcomes_are_observed_after_the_delay():
    slow = Slow()
    dp.simulate(blog(), slow, users=2000, delay=100, open_users=10)
    waits = np.array(slow.waits)
    assert np.median(waits) == 100
    assert waits.max() < 100 + 2 * 10


@pytest.mark.slow
def test_delayed_outcomes_hardly_increase_regret():
    alone = dp.simulate(hard(), dp.Bayes(2, 2, seed=2), users=20000, seed=2).regret[-1]
    many = dp.simulate(hard(), dp.Bayes(2, 2, seed=2), users=20000, seed=2, open_users=200).regret[-1]
    loss = dp.plan(hard()).value - max(dp.evaluate(hard(), dp.Fixed(a)).value for a in (0, 1))
    assert many < alone + 0.3 * loss * 20000


@pytest.mark.slow
def test_a_learner_continues_from_its_state():
    first, second = 0.0, 0.0
    for seed in (1, 2, 3):
        learner = dp.Bayes(2, 2, seed=seed)
        first += dp.simulate(hard(), learner, users=5000, seed=seed).regret[-1]
        second += dp.simulate(hard(), learner, users=5000, seed=seed + 10).regret[-1]
    assert second < first


@pytest.mark.parametrize("engine", ["blocks", "step", "arms"])
def test_a_learner_that_has_seen_users_gets_others_with_the_same_seed(engine):
    learner = dp.UCBHybrid.fixed(2, users=4000, epsilon=0.2) if engine == "arms" else dp.Frozen(dp.Fixed(0), 2)
    first, second = (dp.simulate(UNSURE, learner, users=2000, seed=1, engine=engine) for _ in range(2))
    assert first.clicks != second.clicks
    assert (first.seed, second.seed) == (1, 1)
    if engine != "arms":
        spread = np.hypot(first.stderr, second.stderr)
        assert abs(first.mean - second.mean) < 4 * spread


@pytest.mark.parametrize(
    "answer", [[-1], [2], [0.0], ["category 0"], None, []], ids=["negative", "large", "float", "name", "none", "few"]
)
def test_categories_of_other_learners_are_checked(answer):
    class Wrong(Own):
        def recommend(self, users):
            return answer

    with pytest.raises(InputError, match=r"^Wrong"):
        dp.simulate(UNSURE, Wrong(), users=10)


def test_checkpoints_split_users():
    marks = log_checkpoints(1000)
    assert marks[0] == 1
    assert marks[-1] == 1000
    assert (np.diff(marks) > 0).all()
    assert {10, 100, 1000} <= set(marks.tolist())
    assert split_by_interval(9, 5, marks) == [(7, 1), (8, 3), (9, 1)]
    assert sum(n for _, n in split_by_interval(0, 1000, marks)) == 1000


def test_slopes_of_known_curves():
    users = np.array([1, 10, 100, 1000, 10000])
    one = slope(users, 3 * users**0.5, 10, 10000)
    assert one.value == pytest.approx(0.5)
    assert one.stderr == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    many = slope(users, 3 * users**0.5 * np.exp(0.1 * rng.normal(size=(50, 5))), 10, 10000)
    assert abs(many.value - 0.5) < 4 * many.stderr
    with pytest.raises(InputError, match="fewer than two checkpoints"):
        slope(users, users, 20, 30)


def test_invalid_arguments_of_learner_runs_raise_clear_errors():
    learner = dp.Frozen(dp.Fixed(0), 2)
    for options, words in (
        ({"engine": "lanes"}, "engine is 'lanes'; expected one of auto, blocks, arms, step for a learner"),
        ({"engine": "blocks", "open_users": 3}, "engine is 'blocks'"),
        ({"delay": -1}, "delay is -1"),
        ({"log": "x.csv"}, "apply to policies, not to learners"),
        ({"optimum": -1.0}, "optimum is -1.0"),
    ):
        with pytest.raises(InputError, match=words):
            dp.simulate(blog(), learner, users=10, **options)
    with pytest.raises(InputError, match="delay is 3; it applies to learners only"):
        dp.simulate(blog(), dp.Fixed(0), users=10, delay=3)
    with pytest.raises(InputError, match=r"regret_progress is .*; it applies to learners only"):
        dp.simulate(blog(), dp.Fixed(0), users=10, regret_progress=print)


def test_a_learner_with_other_names_than_the_instance_is_refused():
    learner = dp.Bayes(types=2, categories=["sports", "economics"])
    with pytest.raises(InputError, match=r"categories\[0\] of the learner is 'sports', but 'economics'"):
        dp.simulate(blog(), learner, users=10)
    named = dp.Bayes(types=2, categories=["economics", "sports"])
    assert dp.simulate(blog(), named, users=10).users == 10
