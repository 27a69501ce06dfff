from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.data.log import Episodes
from departing.evaluation.continuation import continuation_values, first_steps
from departing.offpolicy.importance_sampling import importance_returns, observation_probabilities
from helpers.strategies import Opaque, instances, schedules

TABLE = dp.Table([[[0] * 4] * 2], [1], dp.Fixed(0))


class Shifted:
    """What a policy recommends to users who have some counts already."""

    def __init__(self, policy, counts):
        self.policy, self.counts = policy, counts

    def recommend(self, counts):
        return self.policy.recommend(np.asarray(counts) + self.counts)


def value_to_go(instance, policy, counts):
    """The value to go at counts, as of a new user with the belief for a prior."""
    return _value_to_go(instance, policy, counts.tobytes())


def _after(counts, steps):
    later = counts.copy()
    later[0, 0] += steps
    return later


@lru_cache(maxsize=10**4)
def _value_to_go(instance, policy, counts):
    counts = np.frombuffer(counts, np.int64).reshape(-1, 4)
    prior = dp.belief(instance, counts)
    same = dp.Instance(prior / prior.sum(), instance.click, instance.depart, instance.depart_on_click)
    if hasattr(policy, "then"):
        steps = [int(policy.recommend(_after(counts, n))) for n in range(32)]
        return dp.evaluate(same, dp.Walk(steps, then=policy.then)).value
    return dp.evaluate(same, Shifted(policy, counts), tolerance=1e-11).value


def as_episodes(users):
    """Lists of (category, outcome, propensity, pending) as the steps of a log."""
    rows = [(i, t, *step) for i, steps in enumerate(users) for t, step in enumerate(steps)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Episodes(*(c.astype(kind) for c, kind in zip(columns, (int, int, int, int, float, bool), strict=True)))


def known(users):
    """The users without the steps that are pending, and without those of whom nothing is left."""
    return [left for steps in users if (left := [step for step in steps if not step[3]])]


def as_histories(users, n_categories):
    counts = np.zeros((len(users), n_categories, 4), np.int64)
    for i, steps in enumerate(users):
        for a, outcome, *_ in steps:
            counts[i, a, outcome] += 1
    return dp.Histories(counts).distinct


def watched_slowly(users, t):
    """The chance that step t of a user who has not departed is seen, from users one by one."""
    seen = 1.0
    for s in range(t):
        stayed = [steps for steps in users if len(steps) > s and steps[s][1] < 2]
        seen *= sum(len(steps) > s + 1 for steps in stayed) / len(stayed)
    return seen


def weigh_slowly(users, instance, policy, last):
    """The summands of both estimates, user by user and step by step."""
    clicks, robust, start = [], [], np.zeros((instance.n_categories, 4), np.int64)
    for steps in users:
        if any(np.isnan(p) for _, _, p, _ in steps):
            continue
        counts, weight, plain, better = start, 1.0, 0.0, value_to_go(instance, policy, start)
        for t, (a, outcome, p, _) in enumerate(steps[:last]):
            if int(policy.recommend(counts)) != a:
                break
            weight /= p
            seen = watched_slowly(users, t)
            click, here = outcome in (0, 3), value_to_go(instance, policy, counts)
            after = counts.copy()
            after[a, 0 if click else 1] += 1
            rest = value_to_go(instance, policy, after) if outcome < 2 else 0.0
            plain += weight * (click + (rest if t == last - 1 else 0.0)) / seen
            better += weight * (click + rest - here) / seen
            counts = after
        clicks.append(plain)
        robust.append(better)
    return clicks, robust


def draw_users(instance, n, rng, stop=0.2, unsure=0.5, missing=0.0):
    """Users shown categories with chances that differ, some of whom we stop looking at."""
    k, users = instance.n_categories, []
    for _ in range(n):
        x, steps = rng.choice(instance.n_types, p=instance.prior), []
        while True:
            shares = rng.dirichlet(np.ones(k)) * 0.5 + 0.5 / k
            a = rng.choice(k, p=shares)
            outcome = int(rng.choice(4, p=instance.outcome_probabilities[a, :, x]))
            stopped = rng.random() < stop
            pending = stopped and rng.random() < unsure
            if pending:
                outcome = 0 if outcome in (0, 3) else 1
            steps.append((int(a), outcome, np.nan if rng.random() < missing else float(shares[a]), bool(pending)))
            if stopped or outcome >= 2:
                break
        users.append(steps)
    return users


@settings(max_examples=25)
@given(st.data())
def test_estimates_are_those_of_a_loop_over_users(data):
    instance = data.draw(instances(chances=st.floats(0.3, 0.7), most=3, depart=0.9))
    policy = data.draw(st.one_of(schedules(instance.n_categories), st.just(dp.Greedy(instance))))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    users = draw_users(instance, 12, rng, missing=data.draw(st.sampled_from([0.0, 0.1])))
    if not known(users):
        return
    seen = observation_probabilities(as_histories(known(users), instance.n_categories))
    steps = data.draw(st.integers(1, len(seen)))
    to_go = continuation_values(instance, policy, len(seen), 1e-11, 10**6)
    parts = [as_episodes(users[:5]), as_episodes(users[5:])]
    found = importance_returns(parts, to_go, seen, steps)
    clicks, robust = weigh_slowly(known(users), instance, policy, steps)
    near = (
        1e-12 if hasattr(policy, "then") else 1e-6
    )  # values to go of others are followed until nearly nobody is left
    np.testing.assert_allclose(found.pdis, clicks, rtol=near, atol=near)
    np.testing.assert_allclose(found.dr, robust, rtol=near, atol=near)
    assert found.missing == len(known(users)) - len(clicks)


@settings(max_examples=30)
@given(st.data())
def test_values_to_go_are_those_of_a_new_user_with_the_belief_for_a_prior(data):
    instance = data.draw(instances(chances=st.floats(0.2, 0.7), most=3, depart=0.8))
    policy = data.draw(st.one_of(schedules(instance.n_categories), st.just(Opaque(dp.Greedy(instance)))))
    to_go = continuation_values(instance, policy, 6, 1e-8, 10**6)
    counts, row = np.zeros((instance.n_categories, 4), np.int64), np.zeros(1, np.int64)
    for t in range(5):
        values = dp.belief(instance, counts) @ to_go.values(t, row, counts[None])[0]
        assert values == pytest.approx(value_to_go(instance, policy, counts), abs=1e-5)
        outcome = data.draw(st.integers(0, 1))
        row = to_go.after(t, row, np.array([outcome]))
        counts = counts.copy()
        counts[int(policy.recommend(counts)), outcome] += 1
    earned = sum(level.earned for level in to_go.levels)
    assert earned == pytest.approx(dp.evaluate(instance, policy).value, abs=1e-5)


def test_counts_that_are_too_rare_have_a_rough_value():
    site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4]], 0.5)
    greedy = dp.Greedy(site)
    to_go = continuation_values(site, greedy, 3, 1e-2, 10)
    counts = np.zeros((1, 2, 4), np.int64)
    counts[0, 0, 0] = 50
    rough = to_go.values(3, np.array([-1]), counts)[0]
    assert (rough <= site.fixed_values.max(axis=0)).all()
    assert (rough >= site.fixed_values.min(axis=0)).all()
    assert to_go.after(2, np.array([-1]), np.array([0])).tolist() == [-1]


def test_first_steps_and_the_rest_make_the_whole():
    site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4]], 0.5)
    earned, here = first_steps(site, dp.Walk([1, 1], then=0), 2, 0.0)
    whole = site.prior @ (earned + here * site.fixed_values[0])
    assert whole == pytest.approx(dp.evaluate(site, dp.Walk([1, 1], then=0)).value, abs=1e-12)
    assert (first_steps(site, dp.Walk([1, 1], then=0), 2, 0.5)[0] == site.click[1]).all()


@pytest.mark.parametrize(("stop", "unsure"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.6)])
@pytest.mark.parametrize("policy", [dp.Walk([1], then=0), TABLE])
def test_both_estimates_are_unbiased_whatever_the_model_and_the_censoring(stop, unsure, policy):
    site = dp.Instance([0.6, 0.4], [[0.5, 0.2], [0.3, 0.5]], 0.8)
    wrong = dp.Instance([0.3, 0.7], [[0.3, 0.4], [0.4, 0.2]], 0.6)
    truth, to_go = dp.evaluate(site, policy).value, continuation_values(wrong, policy, 60, 1e-6, 10**4)
    rng = np.random.default_rng(int(10 * stop + unsure))
    found = []
    for _ in range(60):
        users = draw_users(site, 250, rng, stop=stop, unsure=unsure)
        seen = observation_probabilities(as_histories(known(users), 2))
        sums = importance_returns([as_episodes(users)], to_go, seen, len(seen))
        found.append((sums.pdis.mean(), sums.dr.mean()))
    found = np.array(found)
    z = (found.mean(axis=0) - truth) / (found.std(axis=0, ddof=1) / np.sqrt(len(found)))
    assert np.abs(z).max() < 4
    assert found.std(axis=0, ddof=1).max() / np.sqrt(len(found)) < 0.05  # else z would say nothing


def test_steps_end_where_one_user_stands_for_too_many():
    users = [[(0, 0, 0.5, False), (0, 2, 0.25, False)], [(0, 2, 0.5, False)], [(1, 2, 0.5, False)]]
    site = dp.Instance([1.0], [[0.5], [0.5]], 0.5)
    to_go = continuation_values(site, dp.Fixed(0), 2, 1e-6, 10)
    sums = importance_returns([as_episodes(users)], to_go, observation_probabilities(as_histories(users, 2)), 2)
    assert sums.users.tolist() == [2, 1]
    assert sums.ess.tolist() == [2.0, 1.0]
    assert [sums.horizon(most) for most in (1.0, 2.0, 7.9, 8.0)] == [0, 1, 1, 2]
