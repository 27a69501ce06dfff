"""PDIS and DR returns against a loop over users, their bias, and continuation values."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.data.log import Episodes
from departing.evaluation.continuation import continuation_values, first_steps, value_within
from departing.offpolicy import policy_nodes
from departing.offpolicy.importance_sampling import Moments, importance_returns, observation_probabilities
from departing.offpolicy.policy_nodes import PolicyNodes
from helpers.strategies import Opaque, instances, schedules

TABLE = dp.Table([[[0] * 4] * 2], [1], dp.Fixed(0))


class Shifted:
    """A policy for users who already have some counts."""

    def __init__(self, policy, counts):
        self.policy, self.counts = policy, counts

    def recommend(self, counts):
        return self.policy.recommend(np.asarray(counts) + self.counts)


def continuation_value(instance, policy, counts):
    """The continuation value at counts: the value of a new user whose prior is the belief."""
    return _continuation_value(instance, policy, counts.tobytes())


def _after(counts, steps):
    later = counts.copy()
    later[0, 0] += steps
    return later


@lru_cache(maxsize=10**4)
def _continuation_value(instance, policy, counts):
    counts = np.frombuffer(counts, np.int64).reshape(-1, 4)
    prior = dp.belief(instance, counts)
    same = dp.Instance(prior / prior.sum(), instance.click, instance.depart, instance.depart_on_click)
    if hasattr(policy, "then"):
        steps = [int(policy.recommend(_after(counts, n))) for n in range(32)]
        return dp.evaluate(same, dp.Walk(steps, then=policy.then)).value
    return dp.evaluate(same, Shifted(policy, counts), gap=1e-11).value


def as_episodes(users):
    """Lists of (category, outcome, propensity, pending) as the steps of a log."""
    rows = [(i, t, *step, 0.0) for i, steps in enumerate(users) for t, step in enumerate(steps)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    kinds = (int, int, int, int, float, bool, float)
    return Episodes(*(c.astype(kind) for c, kind in zip(columns, kinds, strict=True)))


def reducing(*parts):
    """The function `reduce` for the confirmed steps of lists of users."""
    chunks = [
        {name: values[~part.pending] for name, values in vars(part).items() if values is not None}
        for part in map(as_episodes, parts)
    ]
    return lambda function, argument: [function(chunk, argument) for chunk in chunks]


def moments_of(returns):
    """Moments of returns that are all known."""
    returns = np.array(returns)
    away = returns - returns.mean()
    return len(returns), returns.mean(), (away**2).mean(), (away**3).mean()


def known(users):
    """The users without their pending steps, and without those who have no others."""
    return [left for steps in users if (left := [step for step in steps if not step[3]])]


def as_histories(users, n_categories):
    counts = np.zeros((len(users), n_categories, 4), np.int64)
    for i, steps in enumerate(users):
        for a, outcome, *_ in steps:
            counts[i, a, outcome] += 1
    return dp.Histories(counts).distinct


def observation_probability(users, t):
    """The probability that step t of a user who has not departed is observed, from single users."""
    observed = 1.0
    for s in range(t):
        stayed = [steps for steps in users if len(steps) > s and steps[s][1] < 2]
        observed *= sum(len(steps) > s + 1 for steps in stayed) / len(stayed)
    return observed


def returns_by_user(users, instance, policy, last):
    """PDIS and DR returns, user by user and step by step."""
    all_pdis, all_dr, start = [], [], np.zeros((instance.n_categories, 4), np.int64)
    for steps in users:
        if any(np.isnan(p) for _, _, p, _ in steps):
            continue
        counts, weight, pdis, dr = start, 1.0, 0.0, continuation_value(instance, policy, start)
        for t, (a, outcome, p, _) in enumerate(steps[:last]):
            if int(policy.recommend(counts)) != a:
                break
            weight /= p
            observed = observation_probability(users, t)
            click, value = outcome in (0, 3), continuation_value(instance, policy, counts)
            after = counts.copy()
            after[a, 0 if click else 1] += 1
            rest = continuation_value(instance, policy, after) if outcome < 2 else 0.0
            pdis += weight * (click + (rest if t == last - 1 else 0.0)) / observed
            dr += weight * (click + rest - value) / observed
            counts = after
        all_pdis.append(pdis)
        all_dr.append(dr)
    return all_pdis, all_dr


def draw_users(instance, n, rng, stop=0.2, unsure=0.5, missing=0.0):
    """Users with random propensities, some of them censored."""
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
def test_returns_agree_with_a_loop_over_users(data):
    instance = data.draw(instances(probabilities=st.floats(0.3, 0.7), most=3, depart=0.9))
    policy = data.draw(st.one_of(schedules(instance.n_categories), st.just(dp.Greedy(instance))))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    users = draw_users(instance, 12, rng, missing=data.draw(st.sampled_from([0.0, 0.1])))
    if not known(users):
        return
    observed = observation_probabilities(as_histories(known(users), instance.n_categories))
    steps = data.draw(st.integers(1, len(observed)))
    continuation = continuation_values(instance, policy, len(observed), 1e-11, 10**6)
    parts = [part for part in (users[:5], users[5:]) if part]
    result = importance_returns(reducing(*parts), PolicyNodes(continuation, len(observed)), observed)
    pdis, dr = returns_by_user(known(users), instance, policy, steps)
    assert result.missing == len(known(users)) - len(pdis)
    assert result.n == len(pdis)
    if not pdis:
        return
    near = 1e-11 if hasattr(policy, "then") else 1e-6  # continuation values of other policies are truncated
    for moments, returns in ((result.pdis(steps), pdis), (result.dr(steps), dr)):
        scale = 1 + np.abs(returns).max()
        expected = moments_of(returns)
        assert moments.n == expected[0]
        for power, name in enumerate(("mean", "second", "third"), 1):
            assert getattr(moments, name) == pytest.approx(expected[power], rel=near, abs=near * scale**power)


@settings(max_examples=30)
@given(st.data())
def test_continuation_values_are_those_of_a_new_user_whose_prior_is_the_belief(data):
    instance = data.draw(instances(probabilities=st.floats(0.2, 0.7), most=3, depart=0.8))
    policy = data.draw(st.one_of(schedules(instance.n_categories), st.just(Opaque(dp.Greedy(instance)))))
    continuation = continuation_values(instance, policy, 6, 1e-8, 10**6)
    counts, row = np.zeros((instance.n_categories, 4), np.int64), np.zeros(1, np.int64)
    for t in range(5):
        values = dp.belief(instance, counts) @ continuation.values(t, row, counts[None])[0]
        assert values == pytest.approx(continuation_value(instance, policy, counts), abs=1e-5)
        outcome = data.draw(st.integers(0, 1))
        row = continuation.child_rows(t, row, np.array([outcome]))
        counts = counts.copy()
        counts[int(policy.recommend(counts)), outcome] += 1
    total = continuation.gained.sum()
    assert total == pytest.approx(dp.evaluate(instance, policy).value, abs=1e-5)


def test_rewards_of_counts_that_are_not_followed_belong_to_their_steps():
    site = dp.Instance([0.5, 0.5], [[0.8, 0.7], [0.3, 0.4]], 0.5)
    for horizon in (None, 9, 4):
        within = site.replace(horizon=horizon)
        fixed = continuation_values(within, dp.Fixed(0), 6, 1e-6, 100)
        greedy = continuation_values(within, dp.Greedy(within), 6, 1e-6, 100)
        assert greedy.gained == pytest.approx(fixed.gained, abs=1e-5)


def test_rare_counts_have_an_approximate_continuation_value():
    site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4]], 0.5)
    greedy = dp.Greedy(site)
    continuation = continuation_values(site, greedy, 3, 1e-2, 10)
    counts = np.zeros((1, 2, 4), np.int64)
    counts[0, 0, 0] = 50
    rough = continuation.values(3, np.array([-1]), counts)[0]
    assert (rough <= site.fixed_values.max(axis=0)).all()
    assert (rough >= site.fixed_values.min(axis=0)).all()
    assert continuation.child_rows(2, np.array([-1]), np.array([0])).tolist() == [-1]


@settings(max_examples=20)
@given(st.data())
def test_the_value_within_some_steps_agrees_with_following_all_counts(data):
    instance = data.draw(instances(probabilities=st.floats(0.2, 0.7), most=3, depart=0.8))
    greedy = dp.Greedy(instance)
    policy = data.draw(st.one_of(schedules(instance.n_categories), st.just(greedy), st.just(Opaque(greedy))))
    steps = data.draw(st.integers(0, 6))
    clicks, _ = first_steps(instance, policy, steps, 0.0)
    within = value_within(instance, policy, steps, 1e-9, 10**5)
    assert instance.prior @ within == pytest.approx(instance.prior @ clicks, abs=1e-8)


def test_first_steps_and_continuation_add_up_to_the_value():
    site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4]], 0.5)
    clicks, active = first_steps(site, dp.Walk([1, 1], then=0), 2, 0.0)
    whole = site.prior @ (clicks + active * site.fixed_values[0])
    assert whole == pytest.approx(dp.evaluate(site, dp.Walk([1, 1], then=0)).value, abs=1e-12)
    assert (first_steps(site, dp.Walk([1, 1], then=0), 2, 0.5)[0] == site.click[1]).all()


@pytest.mark.parametrize(("stop", "unsure"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.6)])
@pytest.mark.parametrize("policy", [dp.Walk([1], then=0), TABLE])
def test_pdis_and_dr_are_unbiased_for_a_wrong_model_and_censored_users(stop, unsure, policy):
    site = dp.Instance([0.6, 0.4], [[0.5, 0.2], [0.3, 0.5]], 0.8)
    wrong = dp.Instance([0.3, 0.7], [[0.3, 0.4], [0.4, 0.2]], 0.6)
    truth, continuation = dp.evaluate(site, policy).value, continuation_values(wrong, policy, 60, 1e-6, 10**4)
    rng = np.random.default_rng(int(10 * stop + unsure))
    means = []
    for _ in range(60):
        users = draw_users(site, 250, rng, stop=stop, unsure=unsure)
        observed = observation_probabilities(as_histories(known(users), 2))
        returns = importance_returns(reducing(users), PolicyNodes(continuation, len(observed)), observed)
        means.append((returns.pdis(len(observed)).mean, returns.dr(len(observed)).mean))
    means = np.array(means)
    z = (means.mean(axis=0) - truth) / (means.std(axis=0, ddof=1) / np.sqrt(len(means)))
    assert np.abs(z).max() < 4
    assert means.std(axis=0, ddof=1).max() / np.sqrt(len(means)) < 0.05  # otherwise the test has no power


def test_the_horizon_ends_where_weights_become_too_large():
    users = [[(0, 0, 0.5, False), (0, 2, 0.25, False)], [(0, 2, 0.5, False)], [(1, 2, 0.5, False)]]
    site = dp.Instance([1.0], [[0.5], [0.5]], 0.5)
    continuation = continuation_values(site, dp.Fixed(0), 2, 1e-6, 10)
    observed = observation_probabilities(as_histories(users, 2))
    returns = importance_returns(reducing(users), PolicyNodes(continuation, 2), observed)
    assert returns.users.tolist() == [2, 1]
    assert returns.ess.tolist() == [2.0, 1.0]
    assert [returns.horizon(most) for most in (1.0, 2.0, 7.9, 8.0)] == [0, 1, 1, 2]


def test_nodes_are_added_where_users_go(monkeypatch):
    """A small table of counts gives the same returns as one that contains all counts."""
    site = dp.Instance([0.5, 0.5], [[0.8, 0.6], [0.5, 0.7], [0.6, 0.6]], 0.3)
    policy, rng = dp.Greedy(site), np.random.default_rng(1)
    users = []
    for _ in range(200):  # of the policy itself: they agree with it to the end
        counts, steps, x = np.zeros((3, 4), np.int64), [], rng.choice(2)
        while not steps or steps[-1][1] < 2:
            a = int(policy.recommend(counts))
            outcome = int(rng.choice(4, p=site.outcome_probabilities[a, :, x]))
            counts[a, outcome] += 1
            steps.append((a, outcome, 1.0, False))
        users.append(steps)
    observed = observation_probabilities(as_histories(users, 3))
    continuation = continuation_values(site, policy, len(observed), 1e-4, 10**5)
    whole = importance_returns(reducing(users), PolicyNodes(continuation, len(observed)), observed)
    monkeypatch.setattr(policy_nodes, "FIRST_NODES", 4)
    nodes = PolicyNodes(continuation, len(observed))
    assert nodes.step < len(observed)
    part = importance_returns(reducing(users[:70], users[70:]), nodes, observed)
    assert (
        part.users.tolist() == whole.users.tolist() == [sum(len(u) > t for u in users) for t in range(len(observed))]
    )
    np.testing.assert_allclose(part.dr_sums, whole.dr_sums, rtol=1e-9, atol=1e-9)
    clicks = [sum(outcome in (0, 3) for _, outcome, *_ in steps) for steps in users]
    assert whole.pdis(len(observed)).mean == pytest.approx(np.mean(clicks))


def test_distinct_counts_are_found_in_spite_of_equal_hashes(monkeypatch):
    counts = np.arange(24).reshape(3, 2, 4)[[0, 1, 0, 2]]
    monkeypatch.setattr(policy_nodes, "hash_rows", lambda rows: np.zeros(len(rows), np.uint64))
    first, inverse = policy_nodes._distinct(counts)
    assert (counts[first][inverse] == counts).all()
    assert len(first) == 3


def test_moments_of_equal_returns_have_no_variance():
    moments = Moments.of(3, [0.3, 0.03, 0.003], 1.0)
    assert moments.mean == pytest.approx(1.1)
    assert moments.second == pytest.approx(0.0, abs=1e-15)
    assert moments.third == pytest.approx(0.0, abs=1e-15)


def test_a_partition_without_users_adds_nothing():
    """On Spark, a partition may hold no user whose first category is the policy's."""
    users = [[(0, 0, 0.5, False), (0, 2, 0.25, False)], [(0, 2, 0.5, False)], [(1, 2, 0.5, False)]]
    site = dp.Instance([1.0], [[0.5], [0.5]], 0.5)
    observed = observation_probabilities(as_histories(users, 2))
    nodes = PolicyNodes(continuation_values(site, dp.Fixed(0), 2, 1e-6, 10), 2)
    none = {name: np.zeros(0) for name in ("step", "category", "outcome", "propensity")}
    reduce = reducing(users)
    whole = importance_returns(reduce, nodes, observed)
    more = importance_returns(
        lambda function, given: [*reduce(function, given), function(none, given)], nodes, observed
    )
    assert (more.n, more.missing) == (whole.n, whole.missing) == (3, 0)
    assert more.dr_sums.tolist() == whole.dr_sums.tolist()
