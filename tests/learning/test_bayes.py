"""Learners that infer an instance: inference, the value of information, and regret."""

from dataclasses import replace
from itertools import count
from math import factorial, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln, logsumexp

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.bayes import Bayes
from departing.learning.candidates import Candidates
from departing.learning.exploration import (
    BUDGET_CLICKS,
    BUDGET_SHARE,
    ExplorationBudget,
    GainModel,
    allocate_block,
    positive_part,
)
from departing.learning.explore_then_commit import ExploreThenCommit
from departing.learning.files import encode_state, write_state
from departing.learning.information_gain import InformationGain, observed_graph
from departing.learning.library import learner_from_dict
from departing.learning.posterior import PSEUDOCOUNT, Posterior
from departing.learning.refitted_greedy import RefittedGreedy
from departing.learning.type_numbers import TypeNumbers
from departing.model.errors import InputError
from departing.model.examples import blog, hard
from departing.model.instance import CLICK, DEPART
from helpers.evidence import evidence_of

UNSURE = dp.Instance([0.35, 0.65], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.9], [0.8, 0.4]])


@pytest.mark.slow
def test_samples_spread_as_the_posterior():
    """With one type and one category the posterior is known: Beta(yes + PSEUDOCOUNT, no + PSEUDOCOUNT)."""
    instance = dp.Instance([1.0], [[0.6]], 1.0)
    evidence = evidence_of(instance, 60, policy=dp.Fixed(0), steps=50)
    yes, asked = float(evidence.users @ evidence.successes[:, 0]), float(evidence.users @ evidence.trials[:, 0])
    posterior = Posterior(1, 1, np.random.default_rng(0))
    clicks, weights = [], []
    for _ in range(40):
        samples = posterior.sample(evidence, 64, 2)
        clicks.append(samples.batch.click[:, 0, 0])
        weights.append(samples.weights)
    click, weight = np.concatenate(clicks), np.concatenate(weights) / 40
    a, b = yes + PSEUDOCOUNT, asked - yes + PSEUDOCOUNT
    mean, spread = a / (a + b), np.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    assert click @ weight == pytest.approx(mean, abs=4 * spread / np.sqrt(len(click)))
    assert np.sqrt(((click - click @ weight) ** 2) @ weight) == pytest.approx(spread, rel=0.1)


def test_sure_departure_is_inferred():
    rng = np.random.default_rng(2)
    few = Posterior(2, 2, rng).sample(evidence_of(blog(), 5), 64, 3)
    many = Posterior(2, 2, rng).sample(evidence_of(blog(), 5000), 64, 3)
    unsure = Posterior(2, 2, rng).sample(evidence_of(UNSURE, 5000), 64, 3)
    assert (many.batch.depart == 1).all()
    assert (unsure.batch.depart < 1).any(axis=(1, 2)).all()
    assert len(few.batch) == 64


def test_the_mode_recovers_the_instance_from_much_data():
    evidence = evidence_of(UNSURE, 10**6)
    mode = Posterior(2, 2, np.random.default_rng(0)).mode(evidence, 6)
    order, true = np.argsort(mode.click[0]), np.argsort(UNSURE.click[0])
    assert mode.click[:, order] == pytest.approx(UNSURE.click[:, true], abs=0.02)
    assert mode.depart[:, order] == pytest.approx(UNSURE.depart[:, true], abs=0.02)
    assert mode.prior[order] == pytest.approx(UNSURE.prior[true], abs=0.02)


def candidates_of(instance, users, more=()):
    samples = Posterior(2, 2, np.random.default_rng(1)).sample(evidence_of(instance, users), 40, 4)
    return Candidates.of(samples, [dp.plan(samples.batch.instance(j), 1e-5) for j in range(6)], list(more))


def test_candidate_values_agree_with_evaluate():
    candidates = candidates_of(blog(), 300, [dp.Fixed(0), dp.Threshold(first=1, steps=3, then=0)])
    for c, policy in enumerate(candidates.policies):
        for j in (0, 7, 23):
            exact = dp.evaluate(candidates.samples.batch.instance(j), policy, 1e-9).value
            assert candidates.values[c, j] == pytest.approx(exact, rel=1e-6)


def test_information_gain_is_the_fisher_information_of_the_observed_steps():
    """For one type and one category: the number of clicks before departure, censored after MAX_STEPS steps."""
    instance = dp.Instance([1.0], [[0.6]], 1.0)
    samples = Posterior(1, 1, np.random.default_rng(1)).sample(evidence_of(instance, 10**5, policy=dp.Fixed(0)), 8, 2)
    mode = samples.modes[0]
    p = float(mode.instance.click[0, 0])
    gain = InformationGain.of(dp.Fixed(0), samples.modes)
    n = len(observed_graph(dp.Fixed(0), mode.instance)[0])
    steps = (1 - p**n) / (1 - p)  # expected number of observed steps
    assert gain.fisher[0, 0, 0] == pytest.approx(steps * p * (1 - p), rel=1e-3)
    assert gain.divergence[0, 0] == pytest.approx(0, abs=1e-12)


def test_the_observed_graph_follows_a_policy_through_the_counts():
    category, child = observed_graph(dp.Threshold(first=1, steps=2, then=0), blog())
    n = len(category)
    assert category.tolist() == [1, 1] + [0] * (n - 2)
    assert child[:, 1].tolist() == [-1] * n  # nobody stays
    assert child[:-1, 0].tolist() == list(range(1, n))


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.floats(0.02, 0.98))
@settings(max_examples=40, deadline=None)
def test_the_click_chain_equals_the_general_graph(seed, types, categories, likely):
    """With sure departure there is one path; a policy that is no schedule takes the general traversal."""
    rng = np.random.default_rng(seed)
    instance = dp.Instance(rng.dirichlet(np.ones(types)), rng.uniform(0, 1, (categories, types)) * likely, 1.0)
    walk = dp.Walk(rng.integers(0, categories, 5).tolist(), then=int(rng.integers(categories)))

    class Same:
        def recommend(self, counts):
            return walk.recommend(counts)

    for fast, slow in zip(observed_graph(walk, instance), observed_graph(Same(), instance), strict=True):
        assert fast.tolist() == slow.tolist()


def test_a_few_samples_do_not_change_the_greedy_policy():
    candidates = candidates_of(hard(), 300, [dp.Fixed(0), dp.Fixed(1)])
    old, new = candidates.policies.index(dp.Fixed(0)), candidates.policies.index(dp.Fixed(1))
    values = np.zeros_like(candidates.values)
    values[old] = 1.0
    likely = np.argsort(-candidates.weights)[:3]
    values[new, likely] = 1e6
    for previous, expected in ((dp.Fixed(0), old), (None, new), (dp.Fixed(1), new)):
        assert replace(candidates, values=values, previous=previous).greedy_index == expected
    values[new] = 1.1
    assert replace(candidates, values=values, previous=dp.Fixed(0)).greedy_index == new


def test_the_budget_limits_the_cost_of_a_block():
    candidates = candidates_of(hard(), 300)
    budget = ExplorationBudget()
    shares = allocate_block(candidates, 10**5, 300, 10**7, budget)
    cost = sum(
        users * (candidates.means[candidates.greedy_index] - candidates.means[candidates.policies.index(policy)])
        for policy, users in shares
        if policy in candidates.policies
    )
    assert sum(users for _, users in shares) == 10**5
    assert len(shares) > 1
    assert cost <= BUDGET_CLICKS * 1.01
    assert budget.spent == pytest.approx(cost, abs=BUDGET_CLICKS)
    assert budget.available == BUDGET_CLICKS + BUDGET_SHARE * budget.spent


def test_advantages_are_averages_over_blocks_until_the_greedy_policy_changes():
    candidates = candidates_of(hard(), 300)
    budget = ExplorationBudget()
    budget.set_greedy(candidates.greedy)
    budget.record(candidates, 0.0)
    once = dict(budget.advantages)
    budget.set_greedy(candidates.greedy)
    budget.record(candidates, 0.0)
    assert budget.advantages.keys() == once.keys()
    for policy, (n, mean) in budget.advantages.items():
        assert mean == pytest.approx(once[policy][1])
        assert n > once[policy][0]
    budget.greedy = None
    budget.set_greedy(candidates.greedy)
    assert budget.advantages == {}


def test_more_information_never_decreases_the_gain():
    candidates = candidates_of(hard(), 2000)
    model = GainModel(candidates, ExplorationBudget())
    d = model.precision.shape[1]
    amounts = np.array([0.0, 1.0, 10.0, 1e3, 1e12])
    fisher = amounts[:, None, None, None] * np.broadcast_to(np.eye(d), model.precision.shape)
    divergence = amounts[:, None, None] * (1 - np.eye(len(model.share)))
    gains = model.gain(fisher, divergence)
    assert (np.diff(gains, axis=0) >= -1e-9).all()
    assert gains[0].max() <= 1e-9


def test_the_positive_part_of_normal_variables():
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=10**6)
    for mean, spread in ((-1.0, 2.0), (0.3, 0.5), (-3.0, 1.0)):
        expected = np.maximum(mean + spread * drawn, 0)
        value = float(positive_part(np.array([mean]), np.array([spread]))[0])
        assert abs(value - expected.mean()) < 5 * expected.std() / 1e3


@pytest.mark.parametrize(
    ("explore", "seed", "bound"),
    [
        ("voi", 0, 0.5),
        pytest.param("voi", 1, 0.5, marks=pytest.mark.slow),
        pytest.param("voi", 2, 0.5, marks=pytest.mark.slow),
        ("thompson", 1, 1.0),
        ("none", 1, 1.5),
    ],
)
def test_every_exploration_rule_has_bounded_regret(explore, seed, bound):
    instance = hard()
    run = dp.simulate(instance, Bayes(2, 2, seed=seed, explore=explore, users=20000), users=20000, seed=seed)
    loss = dp.plan(instance).value - float((instance.prior @ instance.fixed_values.T).max())
    assert 0 <= run.regret[-1] < bound * loss * 20000


@pytest.mark.slow
def test_it_learns_with_one_type_too_many_and_unsure_departure():
    run = dp.simulate(UNSURE, Bayes(3, 2, seed=4, users=30000), users=30000, seed=4)
    worst = dp.plan(UNSURE).value - float((UNSURE.prior @ UNSURE.fixed_values.T).min())
    assert run.regret[-1] < 0.1 * worst * 30000


@pytest.mark.slow
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


def test_invalid_arguments_are_rejected():
    sizes = {"types": 2, "categories": 2}
    for options, message in (
        (sizes | {"types": 0}, "types is 0"),
        (sizes | {"categories": 0}, "categories is 0"),
        (sizes | {"explore": "boldly"}, "explore is 'boldly'; expected one of voi, thompson, none"),
        (sizes | {"seed": -1}, "seed is -1"),
        (sizes | {"growth": 0}, "growth is 0"),
        (sizes | {"users": 0}, "users is 0"),
    ):
        with pytest.raises(InputError, match=message):
            Bayes(**options)
    with pytest.raises(InputError, match="The learner has 3 categories, but the instance has 2"):
        dp.simulate(blog(), Bayes(2, 3), users=10)


def test_a_saved_posterior_of_another_shape_is_rejected(tmp_path):
    learner = RefittedGreedy(2, 3)
    state = learner.state()
    state["posterior"] = [dict.fromkeys(("click", "depart", "depart_on_click"), np.full((3, 2), 0.5))]
    state["posterior"][0]["prior"] = np.full(2, 0.5)
    RefittedGreedy.from_state(state)
    for damaged in ({"prior": np.full(3, 1 / 3)}, {"click": np.full((2, 2), 0.5)}):
        write_state(
            tmp_path / "a.json", RefittedGreedy.kind, state | {"posterior": [state["posterior"][0] | damaged]}
        )
        with pytest.raises(InputError, match=r"is not a valid saved learner \(.* has the shape .* expected"):
            RefittedGreedy.load(tmp_path / "a.json")


def test_a_mode_without_weight_has_no_part_in_the_value_of_information():
    """Samples that were dropped as strays have weight 0; a mode that owns only such samples divided 0 by 0."""
    candidates = candidates_of(hard(), 300)
    samples = candidates.samples
    samples = replace(
        samples,
        modes=[*samples.modes, samples.modes[0]],
        owner=np.where(np.arange(40) == 7, len(samples.modes), samples.owner),
        weights=np.where(np.arange(40) == 7, 0.0, samples.weights),
    )
    model = GainModel(replace(candidates, samples=samples), ExplorationBudget())
    assert np.isfinite(model.factor).all()


@pytest.mark.parametrize("instance", [UNSURE, hard()], ids=["unsure", "sure"])
def test_the_clock_does_not_change_what_is_learned(instance, monkeypatch):
    def learned():
        learner = Bayes(2, 2, seed=3)
        dp.simulate(instance, learner, users=1000, seed=3, optimum=1.0)
        return encode_state(learner.state())

    expected, now = learned(), count(step=10**6)
    monkeypatch.setattr("departing.planning.problem.perf_counter", lambda: float(next(now)))
    assert learned() == expected


FOUR_TYPES = dp.Instance(
    [0.25, 0.25, 0.25, 0.25],
    [[0.9, 0.1, 0.1, 0.1], [0.1, 0.9, 0.1, 0.1], [0.1, 0.1, 0.9, 0.1], [0.1, 0.1, 0.1, 0.9]],
    0.4,
)


def uniform_histories(instance, users, seed=0):
    log = dp.sample_log(instance, users, seed=seed, days=10_000).histories
    return log.counts, log.multiplicity


def test_the_marginal_likelihood_of_one_type_is_the_product_of_beta_functions():
    counts = np.zeros((2, 2, 4), np.int64)
    counts[0, 0, [CLICK, DEPART]], counts[1, 1, [CLICK, DEPART]] = (30, 10), (12, 20)
    evidence = MixtureLikelihood.from_counts(counts, np.array([3, 5]), 1)
    exact = betaln(2 + 90, 2 + 30) + betaln(2 + 60, 2 + 100) - 2 * betaln(2, 2)
    approximation = Posterior(2, 1, np.random.default_rng(0)).log_evidence(evidence, 2)
    assert approximation == pytest.approx(exact, abs=0.02)


def test_the_marginal_likelihood_of_two_types_is_that_of_quadrature_for_labelled_types():
    counts = np.zeros((2, 1, 4), np.int64)
    counts[0, 0, [CLICK, DEPART]], counts[1, 0, [CLICK, DEPART]] = (40, 1), (10, 31)
    users = np.array([14, 26])
    evidence = MixtureLikelihood.from_counts(counts, users, 2)
    p = (np.arange(150) + 0.5) / 150
    share, first, second = (p.reshape(shape) for shape in ((-1, 1, 1), (1, -1, 1), (1, 1, -1)))
    log_likelihood = sum(
        n * np.logaddexp(np.log(share) + c * np.log(first) + d * np.log1p(-first),
                         np.log1p(-share) + c * np.log(second) + d * np.log1p(-second))
        for n, (c, d) in zip(users, counts[:, 0, [CLICK, DEPART]], strict=True)
    )  # fmt: skip
    density = sum(np.log(6 * x * (1 - x)) for x in (share, first, second)) - 3 * np.log(len(p))
    exact = logsumexp(log_likelihood + density) - log(2)  # the two orders of the types are one mode
    approximation = Posterior(1, 2, np.random.default_rng(0)).log_evidence(evidence, 4)
    assert approximation == pytest.approx(exact, abs=0.1)


def test_probabilities_of_numbers_of_types_are_those_of_samples_from_the_prior():
    counts = np.zeros((3, 1, 4), np.int64)
    counts[:, 0, [CLICK, DEPART]] = [[1, 1], [3, 1], [6, 1]]
    users, rng, exact = np.array([4, 3, 3]), np.random.default_rng(1), []
    for m in (2, 3, 4):
        prior, click = rng.dirichlet(np.full(m, 2.0), 200_000), rng.beta(2.0, 2.0, (200_000, m))
        likelihood = (prior[..., None] * click[..., None] ** counts[:, 0, CLICK] * (1 - click[..., None])).sum(axis=1)
        exact.append((likelihood**users).prod(axis=1).mean() / factorial(m))
    log_evidence = [
        Posterior(1, m, np.random.default_rng(0)).log_evidence(MixtureLikelihood.from_counts(counts, users, m), 4)
        for m in (2, 3, 4)
    ]
    approximation = np.exp(np.array(log_evidence) - logsumexp(log_evidence))
    np.testing.assert_allclose(approximation, np.array(exact) / np.sum(exact), atol=0.05)


@pytest.mark.parametrize(("instance", "expected"), [(FOUR_TYPES, 4), (UNSURE, 2)])
def test_the_number_of_types_is_inferred(instance, expected):
    counts, users = uniform_histories(instance, 2000)
    evidence = MixtureLikelihood.from_counts(counts, users, 2)
    numbers = TypeNumbers(instance.n_categories, np.random.default_rng(0))
    drawn = [numbers.draw(evidence, 10**n, 4).posterior.n_types for n in range(8)]
    assert numbers.likeliest.posterior.n_types == expected
    assert numbers.probabilities[expected - 2] > 0.9
    assert expected in drawn[3:]
    assert set(drawn[3:]) <= {expected, expected + 1}
    assert all(len(parameters.prior) == expected for parameters in numbers.likeliest.posterior.pool)


@pytest.mark.slow
def test_a_learner_with_an_automatic_number_of_types_resumes_with_the_types_it_has(tmp_path):
    learner = Bayes("auto", 4, seed=1, users=10**5)
    dp.simulate(FOUR_TYPES, learner, users=1500, seed=1)
    assert learner.instance().n_types == 4
    learner.save(tmp_path / "learner.json")
    resumed = dp.load_learner(tmp_path / "learner.json")
    assert resumed.instance() == learner.instance()
    for each in (learner, resumed):
        dp.simulate(FOUR_TYPES, each, users=300, seed=2)
    assert learner.instance() == resumed.instance()
    assert learner.types == resumed.types == "auto"


def test_an_invalid_number_of_types_is_rejected():
    with pytest.raises(InputError, match="types is 'many'; expected an integer from 1 to 64, or 'auto'"):
        Bayes("many", 2)
    spec = {"kind": "bayes", "types": "auto"}
    assert learner_from_dict(spec, blog(), users=100, seed=0).types == "auto"
