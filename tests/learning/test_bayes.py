"""The Bayes learner: its inference, what it thinks exploring is worth, and that it learns."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.bayes import Bayes, ExploreThenCommit, RefittedGreedy
from departing.learning.information_gain import (
    PURSE,
    Lesson,
    Memory,
    Outlook,
    Prospects,
    _positive_part,
    looks,
    priced,
)
from departing.learning.posterior import PSEUDO, Posterior
from departing.model.errors import InputError
from departing.model.examples import blog, hard

UNSURE = dp.Instance([0.35, 0.65], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.9], [0.8, 0.4]])


def evidence_of(instance, users, types=None, policy=None, seed=1, steps=10):
    policy = policy or dp.Walk([0, 1, 0], then=1)
    histories = dp.simulate(instance, policy, users=users, seed=seed, max_steps=steps).histories
    return MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, types or instance.n_types)


def test_draws_spread_as_the_posterior_does():
    """With one type and one category the posterior is known: Beta(yes + PSEUDO, no + PSEUDO)."""
    instance = dp.Instance([1.0], [[0.6]], 1.0)
    evidence = evidence_of(instance, 60, policy=dp.Fixed(0), steps=50)
    yes, asked = float(evidence.users @ evidence.successes[:, 0]), float(evidence.users @ evidence.trials[:, 0])
    posterior = Posterior(1, 1, np.random.default_rng(0))
    clicks, weights = [], []
    for _ in range(40):
        draws = posterior.draw(evidence, 64, 2)
        clicks.append([float(draw.click[0, 0]) for draw in draws.instances])
        weights.append(draws.weights)
    click, weight = np.concatenate(clicks), np.concatenate(weights) / 40
    a, b = yes + PSEUDO, asked - yes + PSEUDO
    mean, spread = a / (a + b), np.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    assert click @ weight == pytest.approx(mean, abs=4 * spread / np.sqrt(len(click)))
    assert np.sqrt(((click - click @ weight) ** 2) @ weight) == pytest.approx(spread, rel=0.1)


def test_sure_departure_is_learned_not_told():
    rng = np.random.default_rng(2)
    few = Posterior(2, 2, rng).draw(evidence_of(blog(), 5), 64, 3)
    many = Posterior(2, 2, rng).draw(evidence_of(blog(), 5000), 64, 3)
    unsure = Posterior(2, 2, rng).draw(evidence_of(UNSURE, 5000), 64, 3)
    assert all(draw.sure_departure for draw in many.instances)
    assert not any(draw.sure_departure for draw in unsure.instances)
    assert len(few.instances) == 64


def test_the_best_instance_is_found_from_much_data():
    evidence = evidence_of(UNSURE, 10**6)
    found = Posterior(2, 2, np.random.default_rng(0)).best(evidence, 6)
    order, true = np.argsort(found.click[0]), np.argsort(UNSURE.click[0])
    assert found.click[:, order] == pytest.approx(UNSURE.click[:, true], abs=0.02)
    assert found.depart[:, order] == pytest.approx(UNSURE.depart[:, true], abs=0.02)
    assert found.prior[order] == pytest.approx(UNSURE.prior[true], abs=0.02)


def prospects_of(instance, users, more=()):
    draws = Posterior(2, 2, np.random.default_rng(1)).draw(evidence_of(instance, users), 40, 4)
    return Prospects.of(draws, [dp.plan(draw, 1e-5) for draw in draws.instances[:6]], list(more))


def test_values_are_those_of_evaluate():
    prospects = prospects_of(blog(), 300, [dp.Fixed(0), dp.Threshold(first=1, steps=3, then=0)])
    for c, policy in enumerate(prospects.policies):
        for j in (0, 7, 23):
            exact = dp.evaluate(prospects.draws.instances[j], policy, 1e-9).value
            assert prospects.values[c, j] == pytest.approx(exact, rel=1e-6)


def test_a_lesson_is_the_fisher_information_of_what_is_seen():
    """For one type and one category: a number of clicks before leaving, cut after LOOK steps."""
    instance = dp.Instance([1.0], [[0.6]], 1.0)
    draws = Posterior(1, 1, np.random.default_rng(1)).draw(evidence_of(instance, 10**5, policy=dp.Fixed(0)), 8, 2)
    mode = draws.modes[0]
    p = float(mode.instance.click[0, 0])
    lesson = Lesson.of(dp.Fixed(0), draws.modes)
    n = len(looks(dp.Fixed(0), mode.instance)[0])
    looked = (1 - p**n) / (1 - p)  # expected steps that are looked at
    assert lesson.information[0, 0, 0] == pytest.approx(looked * p * (1 - p), rel=1e-3)
    assert lesson.nats[0, 0] == pytest.approx(0, abs=1e-12)


def test_looks_follow_a_policy_through_the_counts():
    category, child = looks(dp.Threshold(first=1, steps=2, then=0), blog())
    n = len(category)
    assert category.tolist() == [1, 1] + [0] * (n - 2)
    assert child[:, 1].tolist() == [-1] * n  # nobody stays
    assert child[:-1, 0].tolist() == list(range(1, n))


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.floats(0.02, 0.98))
@settings(max_examples=40, deadline=None)
def test_looks_along_one_way_are_those_through_all_counts(seed, types, categories, likely):
    """Where nobody stays there is one way; a table of the schedule goes through all counts instead."""
    rng = np.random.default_rng(seed)
    instance = dp.Instance(rng.dirichlet(np.ones(types)), rng.uniform(0, 1, (categories, types)) * likely, 1.0)
    walk = dp.Walk(rng.integers(0, categories, 5).tolist(), then=int(rng.integers(categories)))

    class Same:
        def recommend(self, counts):
            return walk.recommend(counts)

    for fast, slow in zip(looks(walk, instance), looks(Same(), instance), strict=True):
        assert fast.tolist() == slow.tolist()


def test_a_few_draws_do_not_make_another_policy_greedy():
    prospects = prospects_of(hard(), 300, [dp.Fixed(0), dp.Fixed(1)])
    old, new = prospects.policies.index(dp.Fixed(0)), prospects.policies.index(dp.Fixed(1))
    values = np.zeros_like(prospects.values)
    values[old] = 1.0
    likely = np.argsort(-prospects.weights)[:3]
    values[new, likely] = 1e6
    for before, chosen in ((dp.Fixed(0), old), (None, new), (dp.Fixed(1), new)):
        assert replace(prospects, values=values, before=before).chosen == chosen
    values[new] = 1.1
    assert replace(prospects, values=values, before=dp.Fixed(0)).chosen == new


def test_a_purse_bounds_what_a_block_explores():
    prospects = prospects_of(hard(), 300)
    memory = Memory()
    shares = priced(prospects, 10**5, 300, 10**7, memory)
    cost = sum(
        users * (prospects.means[prospects.chosen] - prospects.means[prospects.policies.index(policy)])
        for policy, users in shares
        if policy in prospects.policies
    )
    assert sum(users for _, users in shares) == 10**5
    assert len(shares) > 1
    assert cost <= PURSE[0] * 1.01
    assert memory.spent == pytest.approx(cost, abs=PURSE[0])
    assert memory.purse == PURSE[0] + PURSE[1] * memory.spent


def test_hopes_are_averages_over_blocks_until_another_policy_is_greedy():
    prospects = prospects_of(hard(), 300)
    memory = Memory()
    memory.meet(prospects)
    memory.learn(prospects, 0.0)
    once = dict(memory.hopes)
    memory.meet(prospects)
    memory.learn(prospects, 0.0)
    assert memory.hopes.keys() == once.keys()
    for policy, (many, hope) in memory.hopes.items():
        assert hope == pytest.approx(once[policy][1])
        assert many > once[policy][0]
    assert Memory.from_state(memory.state()).hopes == memory.hopes
    memory.greedy = None
    memory.meet(prospects)
    assert memory.hopes == {}


def test_knowing_more_never_hurts_and_ends_at_knowing_all():
    prospects = prospects_of(hard(), 2000)
    outlook = Outlook(prospects, Memory())
    d = outlook.known.shape[1]
    amounts = np.array([0.0, 1.0, 10.0, 1e3, 1e12])
    information = amounts[:, None, None, None] * np.broadcast_to(np.eye(d), outlook.known.shape)
    nats = amounts[:, None, None] * (1 - np.eye(len(outlook.share)))
    gains = outlook.gain(information, nats)
    assert (np.diff(gains) >= -1e-9).all()
    assert gains[0] <= 1e-9


def test_the_positive_part_of_normal_numbers():
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=10**6)
    for mean, spread in ((-1.0, 2.0), (0.3, 0.5), (-3.0, 1.0)):
        expected = np.maximum(mean + spread * drawn, 0)
        found = float(_positive_part(np.array([mean]), np.array([spread]))[0])
        assert abs(found - expected.mean()) < 5 * expected.std() / 1e3


@pytest.mark.parametrize(
    ("explore", "seed", "bound"),
    [("priced", 0, 0.5), ("priced", 1, 0.5), ("priced", 2, 0.5), ("thompson", 1, 1.0), ("none", 1, 1.5)],
)
def test_every_rule_runs_and_keeps_below_a_fixed_loss(explore, seed, bound):
    instance = hard()
    run = dp.simulate(instance, Bayes(2, 2, seed=seed, explore=explore, users=20000), users=20000, seed=seed)
    loss = dp.plan(instance).value - float((instance.prior @ instance.fixed_values.T).max())
    assert 0 <= run.regret[-1] < bound * loss * 20000


def test_one_type_too_many_still_learns_with_unsure_departure():
    run = dp.simulate(UNSURE, Bayes(3, 2, seed=4, users=30000), users=30000, seed=4)
    worst = dp.plan(UNSURE).value - float((UNSURE.prior @ UNSURE.fixed_values.T).min())
    assert run.regret[-1] < 0.1 * worst * 30000


def test_the_cost_of_inference_does_not_grow_with_users():
    learner = Bayes(2, 2, seed=0)
    dp.simulate(UNSURE, learner, users=10**6, seed=0)
    evidence = learner.evidence()
    assert len(evidence.users) <= 1500
    assert evidence.users.sum() == 10**6


def test_explore_then_commit_commits():
    learner = ExploreThenCommit(2, 2, users=10**5, seed=0)
    run = dp.simulate(UNSURE, learner, users=10**5, seed=0)
    assert learner.explore_users == 2155
    after = [piece.policy for piece in run.regret_curve.policy_segments][-10:]
    assert len(set(after)) == 1


def test_refitted_greedy_is_greedy():
    learner = RefittedGreedy(2, 2, seed=0)
    run = dp.simulate(UNSURE, learner, users=5000, seed=0)
    assert all(isinstance(piece.policy, dp.Greedy) for piece in run.regret_curve.policy_segments)


def test_wrong_arguments_are_told():
    sizes = {"types": 2, "categories": 2}
    for options, words in (
        (sizes | {"types": 0}, "types is 0"),
        (sizes | {"categories": 0}, "categories is 0"),
        (sizes | {"explore": "boldly"}, "explore is 'boldly'; allowed are priced, thompson, none"),
        (sizes | {"seed": -1}, "seed is -1"),
        (sizes | {"growth": 0}, "growth is 0"),
        (sizes | {"users": 0}, "users is 0"),
    ):
        with pytest.raises(InputError, match=words):
            Bayes(**options)
    with pytest.raises(InputError, match="The learner has 3 categories, but the instance has 2"):
        dp.simulate(blog(), Bayes(2, 3), users=10)
