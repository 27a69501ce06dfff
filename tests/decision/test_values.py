"""Values of policies under many instances, agreeing with `evaluate`; the value of the log's policy; information."""

import numpy as np
import pytest
from scipy.stats import norm

import departing as dp
from departing.decision import ensemble
from departing.decision.ensemble import follow
from departing.decision.information import expected_loss, sample_information, users_to_halve
from departing.decision.log_value import LogValue
from departing.decision.policy_graph import PolicyGraph
from departing.decision.stack import Stack
from departing.fitting import likelihood
from departing.model import random_streams
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem


def random_draws(seed, categories=3, types=2, n=5):
    """Instances that differ as bootstrap draws of a fit do."""
    rng = np.random.default_rng(seed)
    first = dp.random_instance("uniform", types, categories, seed=seed)
    tables = ("click", "depart", "depart_on_click")
    instances = [first]
    for _ in range(n - 1):
        noisy = {
            name: np.clip(getattr(first, name) + rng.normal(0, 0.03, first.click.shape), 0, 1) for name in tables
        }
        instances.append(first.replace(prior=rng.dirichlet(50 * first.prior), **noisy))
    return instances


@pytest.mark.parametrize("seed", range(4))
def test_values_of_a_policy_agree_with_evaluate_under_every_instance(seed):
    instances = random_draws(seed, categories=2 + seed % 3, types=2 + seed % 2)
    stack = Stack.of(instances)
    plan = plan_within(PlanningProblem(instances[1]), 1e-5, 100_000)
    for policy in (plan.policy, dp.Greedy(instances[0]), dp.Walk([0, 1], then=0)):
        exact = [dp.evaluate(instance, policy, 1e-6).value for instance in instances]
        np.testing.assert_allclose(stack.values(follow(policy, instances[0])), exact, rtol=2e-3)
        if isinstance(policy, dp.Walk):
            np.testing.assert_allclose(stack.values(policy), exact, rtol=1e-12)
    exact = [plan.value_under(instance) for instance in instances]
    np.testing.assert_allclose(stack.values(plan.controller), exact, rtol=1e-12)
    np.testing.assert_allclose(stack.values(plan.controller)[1], plan.value, rtol=1e-5)
    fixed = [[dp.evaluate(instance, dp.Fixed(a)).value for instance in instances] for a in range(2)]
    np.testing.assert_allclose(stack.fixed_values[:2], fixed, rtol=1e-12)


def test_a_graph_that_is_followed_far_is_exact():
    fitted = random_draws(9)[0]
    graph = PolicyGraph.follow(dp.Greedy(fitted), fitted, 1e-9, 10**6)
    assert graph.values(fitted) @ fitted.prior == pytest.approx(
        dp.evaluate(fitted, dp.Greedy(fitted)).value, rel=1e-8
    )


def test_log_value_without_censoring_is_the_mean():
    histories = dp.Histories([[[2, 0, 1, 0]], [[0, 0, 1, 0]], [[3, 1, 1, 0]]], [5, 3, 2])
    log = LogValue.of(histories)
    users = histories.confirmed.multiplicity.astype(float)
    assert log.value(users) == pytest.approx((5 * 2 + 2 * 3) / 10)
    assert log.final_survival(users) == 0


def test_log_value_corrects_for_censoring():
    """z-score of the mean over 40 logs in which a third of the users are censored."""
    site = dp.Instance([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], depart=0.5)
    shown = np.array([0.5, 0.5])
    truth = float(site.prior @ (shown @ site.click / (shown @ site.departure_probabilities)))
    values = []
    for seed in range(40):
        histories = dp.sample_log(site, 1000, seed=seed, days=12).histories
        assert 0.1 < histories.multiplicity[histories.censored].sum() / 1000 < 0.5
        values.append(LogValue.of(histories).value(histories.confirmed.multiplicity.astype(float)))
    stderr = np.std(values, ddof=1) / 40**0.5
    assert abs(np.mean(values) - truth) < 4 * stderr


def test_expected_loss_of_two_policies_with_a_normal_difference():
    """EVPI and EVSI are those of the unit normal loss integral."""
    rng = np.random.default_rng(1)
    difference = 0.4 + rng.normal(0, 1.0, 10**6)
    values = np.stack([1 + difference, np.ones(len(difference))])

    def loss(sd):
        return sd * norm.pdf(0.4 / sd) - 0.4 * norm.cdf(-0.4 / sd)

    assert expected_loss(values) == pytest.approx(loss(1.0), abs=3e-3)
    assert sample_information(values, 0.25) == pytest.approx(loss(0.5), abs=3e-3)
    assert sample_information(values, 1.0) == pytest.approx(expected_loss(values))
    assert sample_information(values, 0.0) == pytest.approx(0.0, abs=1e-12)


def test_users_to_halve_the_loss():
    rng = np.random.default_rng(2)
    values = 5 + rng.normal(0, 1.0, (3, 500))
    more = users_to_halve([(1.0, values)], 1000)
    assert sample_information(values, more / (1000 + more)) == pytest.approx(expected_loss(values) / 2, rel=1e-2)
    assert users_to_halve([(1.0, np.array([[5.0, 6.0], [4.0, 5.0]]))], 1000) is None  # one policy is always the best


def test_one_step_in_batches_is_that_of_the_scores_of_all_rows(monkeypatch):
    site = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7], [0.5, 0.4]], 0.3)
    fit = dp.fit(dp.sample_log(site, 3000, seed=2, days=60).histories, types=2)
    monkeypatch.setattr(ensemble, "MAX_REFIT_SIZE", 0)
    whole = ensemble.Ensemble.bootstrap(fit, 20, 7)
    rng = np.random.default_rng([7, random_streams.DECISION])
    users = fit.likelihood.users
    steps = fit.likelihood.scores(fit.logits) @ fit.covariance
    for logits in whole.logits[1:]:
        resampled = rng.multinomial(int(users.sum()), users / users.sum())
        expected = fit.logits + np.clip((resampled - users) @ steps, -ensemble.MAX_STEP, ensemble.MAX_STEP)
        np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(likelihood, "BATCH_CELLS", 1000)  # of rows
    monkeypatch.setattr(ensemble, "MAX_RESAMPLED_BYTES", 3 * len(users))  # of draws
    parts = ensemble.Ensemble.bootstrap(fit, 20, 7)
    np.testing.assert_allclose(parts.logits, whole.logits, rtol=1e-9, atol=1e-9)
    assert parts.log_values.tolist() == whole.log_values.tolist()


@pytest.mark.parametrize("horizon", [1, 2, 6])
def test_log_value_has_all_steps_of_a_horizon(horizon):
    """z-score over 12 logs of a uniform policy against its exact value."""
    site = dp.Instance(
        [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], 0.4, 0.1, reward=[1.0, 3.0], unit="euro", horizon=horizon
    )
    reward, active = site.expected_reward.mean(axis=0), 1 - site.departure_probabilities.mean(axis=0)
    truth = float(site.prior @ sum(reward * active**t for t in range(horizon)))
    values = []
    for seed in range(12):
        log = dp.sample_log(site, 1500, seed=seed, days=120).to_frame()
        log = dp.read_log(log, reward="reward", horizon=horizon, inactive_after="14 days")
        seen = LogValue.of(log, site)
        users = log.confirmed.multiplicity.astype(float)
        values.append(seen.value(users))
        assert seen.final_survival(users) == 0
    stderr = np.std(values, ddof=1) / 12**0.5
    assert abs(np.mean(values) - truth) < 4 * stderr
    assert stderr < 0.02 * truth
