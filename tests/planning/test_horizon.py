"""Plans with a horizon: against all policies in fractions, limits, certificates, and policies by steps left."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from tests.helpers.exact import outcome_probabilities

import departing as dp
from departing.model.examples import magazine
from departing.planning.horizon_bounds import HorizonBounds
from departing.planning.problem import PlanningProblem, values_by_steps


def random_site(seed, types=None, categories=None, horizon=4, sure=False, rewards=True):
    rng = np.random.default_rng(seed)
    m, k = types or 2 + seed % 2, categories or 2 + seed % 3 // 2
    return dp.Instance(
        rng.dirichlet(np.ones(m)),
        rng.uniform(0.1, 0.9, (k, m)),
        1.0 if sure else rng.uniform(0.2, 0.9, (k, m)),
        depart_on_click=rng.uniform(0, 0.2, (k, m)) if seed % 4 == 0 else 0.0,
        horizon=horizon,
        reward=rng.uniform(0.5, 3.0, k) if rewards else None,
    )


def best_value(instance):
    """Largest value of all policies, following every ordered history in fractions."""
    types, categories = range(instance.n_types), range(instance.n_categories)
    outcomes = [[outcome_probabilities(instance, a, x) for x in types] for a in categories]
    reward = [Fraction(float(r)) for r in instance.reward]

    def value(weights, left):
        if left == 0:
            return Fraction(0)
        return max(
            sum(reward[a] * weights[x] * (outcomes[a][x][0] + outcomes[a][x][3]) for x in types)
            + sum(value([weights[x] * outcomes[a][x][o] for x in types], left - 1) for o in range(2))
            for a in categories
        )

    shares = [Fraction(float(q)) for q in instance.prior]
    return value([q / sum(shares) for q in shares], instance.horizon)


@pytest.mark.parametrize("seed", range(10))
def test_bounds_contain_the_value_of_the_best_of_all_policies(seed):
    instance = random_site(seed, horizon=1 + seed % 5, sure=seed % 3 == 0)
    exact, plan = best_value(instance), dp.plan(instance)
    assert plan.method in ("finite-horizon", "closed-form")
    assert Fraction(plan.lower) <= exact <= Fraction(plan.upper)
    assert plan.gap <= plan.target_gap
    assert plan.verify()
    value = dp.evaluate(instance, plan.policy)
    assert plan.lower <= value.upper <= plan.upper + 1e-12


def test_the_value_grows_with_the_horizon_to_that_without():
    plain = random_site(3, types=3, categories=3, horizon=None)
    without = dp.plan(plain)
    values = [dp.plan(plain.replace(horizon=n)) for n in (1, 2, 5, 20, 100, 400, 10**6)]
    for first, second in pairwise(values):
        assert first.lower <= second.upper
    for long in values[-2:]:
        assert long.value == pytest.approx(without.value, abs=5e-6)
        assert long.verify()


def test_one_step_is_greedy():
    instance = random_site(5, types=3, categories=4, horizon=1)
    plan = dp.plan(instance)
    greedy = instance.expected_reward @ instance.normalised_prior
    assert plan.value == pytest.approx(greedy.max(), rel=1e-12)
    assert int(plan.policy.recommend(np.zeros((4, 4), int))) == greedy.argmax()


def test_a_large_reward_that_drives_users_away_is_recommended_at_the_end():
    click, last = [[0.6, 0.5], [0.5, 0.6]], [[0.0, 0.0], [1.0, 1.0]]
    site = dp.Instance([0.5, 0.5], click, [[0.05, 0.05], [1.0, 1.0]], last, horizon=6, reward=[1, 2])
    plan = dp.plan(site)
    counts = np.zeros((6, 2, 4), int)
    counts[:, 0, 1] = np.arange(6)
    assert plan.policy.recommend(counts).tolist() == [0, 0, 0, 0, 0, 1]
    assert plan.policy.recommend(counts[5] * 4) == 1  # beyond the horizon, as at the last step
    assert values_by_steps(*(getattr(PlanningProblem(site), name) for name in ("reward", "stay")), 6)[0][1, 0] == 1.0
    assert plan.verify()


def test_sure_departure_yields_a_schedule():
    plan = dp.plan(random_site(9, types=3, categories=3, horizon=8, sure=True))
    assert isinstance(plan.policy, dp.Fixed | dp.Threshold | dp.Walk)
    assert plan.verify()


def test_false_claims_are_found():
    instance = random_site(11, types=3, categories=3, horizon=12)
    plan = dp.plan(instance, gap=1e-9)
    assert plan.verify()
    certificate = plan.certificate.certificate if hasattr(plan.certificate, "exponent") else plan.certificate
    assert not plan.certificate.verify(plan.policy, plan.lower, plan.lower - 1e-6)
    assert not plan.certificate.verify(plan.policy, plan.upper + 1e-6, plan.upper + 1e-5)
    nodes, controller, bounds = certificate.nodes, certificate.controller, certificate.bounds
    inner = len(nodes.depth) // 2
    for claims in (
        {"nodes": nodes._replace(upper=_lowered(nodes.upper, inner))},
        {"nodes": nodes._replace(q_upper=_lowered(nodes.q_upper, 0))},
        {"nodes": nodes._replace(weights=_lowered(nodes.weights, inner))},
        {"controller": replace(controller, vectors=_lowered(controller.vectors, 0, 1.01))},
        {"bounds": replace(bounds, known=_lowered(bounds.known, 3))},
        {"bounds": replace(bounds, pairs=_lowered(bounds.pairs, 3))},
    ):
        scale = 2.0 ** getattr(plan.certificate, "exponent", 0)
        arrays = (plan.policy.vectors / scale, plan.policy.categories, plan.policy.successors)
        own = dp.Alpha(certificate.problem.instance, *arrays, None, plan.policy.steps)
        assert certificate.verify(own, plan.lower / scale, plan.upper / scale)
        assert not replace(certificate, **claims).verify(own, plan.lower / scale, plan.upper / scale), claims


def _lowered(array, row, factor=0.99):
    changed = np.array(array)
    changed[row] *= factor
    return changed


def test_bounds_of_pairs_are_below_those_of_known_types_and_above_the_value():
    problem = PlanningProblem(random_site(2, types=3, categories=3, horizon=5))
    bounds = HorizonBounds.of(problem, np.ones(3))
    rng = np.random.default_rng(0)
    for prior in rng.dirichlet(np.ones(3), 5):
        upper = bounds.upper(prior[None], np.array([5]))[0]
        assert upper <= prior @ bounds.known[-1] + 1e-12
        assert upper >= dp.plan(problem.instance.replace(prior=prior)).lower


def test_the_policy_is_saved_reordered_and_evaluated(tmp_path):
    instance = random_site(11, types=3, categories=3, horizon=12).replace(categories=["a", "b", "c"])
    plan = dp.plan(instance)
    plan.save(tmp_path / "plan.json")
    loaded = dp.load_policy(tmp_path / "plan.json")
    assert loaded == plan.policy
    assert dp.evaluate(instance, loaded).upper <= plan.upper
    other = instance.relabel(categories=[2, 0, 1])
    assert dp.plan(other).value == pytest.approx(plan.value, abs=2e-6)
    assert dp.evaluate(other, loaded).value == pytest.approx(dp.evaluate(instance, loaded).value, rel=1e-12)
    assert plan.value_under(instance) == pytest.approx(plan.lower, abs=1e-9)


def test_the_policy_chooses_the_best_allowed_category():
    instance = random_site(11, types=3, categories=3, horizon=3)
    policy = dp.plan(instance, gap=1e-9).policy
    start = np.zeros((3, 4), int)
    for allowed in ([0], [1, 2], [0, 2]):
        values = []
        for a in allowed:
            ahead = instance.expected_reward[a] @ instance.prior
            for outcome in range(2):
                weights = instance.prior * instance.outcome_probabilities[a, outcome]
                later = instance.replace(prior=weights / weights.sum(), horizon=2)
                ahead += weights.sum() * dp.plan(later).value
            values.append(ahead)
        assert int(policy.recommend(start, allowed)) == allowed[int(np.argmax(values))]


def test_relabelling_types_and_scaling_rewards_change_nothing():
    instance = random_site(13, types=3, categories=3, horizon=10)
    plan = dp.plan(instance)
    assert dp.plan(instance.relabel(types=[1, 2, 0])).value == pytest.approx(plan.value, abs=5e-6)
    scaled = dp.plan(instance.replace(reward=instance.reward * 256))
    assert (scaled.lower, scaled.upper) == (256 * plan.lower, 256 * plan.upper)
    ones = dp.plan(instance.replace(reward=[1] * 3))
    assert (ones.lower, ones.upper) == (lambda p: (p.lower, p.upper))(dp.plan(instance.replace(reward=None)))


def test_methods_refuse_what_does_not_apply():
    instance = random_site(1, horizon=5)
    with pytest.raises(dp.InputError, match="'search' does not apply: the instance has a horizon"):
        dp.plan(instance, method="search")
    with pytest.raises(dp.InputError, match="requires an instance with a horizon"):
        dp.plan(magazine(), method="finite-horizon")
    with pytest.raises(dp.InputError, match="steps is None and the horizon of the instance 5"):
        dp.Alpha(instance, instance.fixed_values, range(instance.n_categories))


def test_baselines_sensitivity_and_plots_stop_at_the_horizon(tmp_path):
    instance = magazine().replace(horizon=3)
    plan = dp.plan(instance)
    assert all(0 <= each.loss.lower <= each.loss.upper for each in plan.baselines())
    assert plan.sensitivity(0.05).of("click")
    figure = plan.plot(tmp_path / "plan.svg")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert any("step 3" in text for text in texts)
    assert not any("step 4" in text for text in texts)


def test_a_time_limit_keeps_valid_bounds():
    instance = random_site(0, types=6, categories=8, horizon=60, rewards=False)
    plan = dp.plan(instance, gap=1e-9, seconds=0.2)
    better = dp.plan(instance, gap=1e-3)
    assert plan.lower <= better.upper
    assert better.lower <= plan.upper
    assert plan.verify()


def test_bounds_of_steps_after_the_last_computed_one():
    reward, depart, horizon = np.array([[1.0], [0.9]]), np.array([[1e-3], [1e-5]]), 20_000
    values, tail = values_by_steps(reward, 1 - depart, horizon)
    best = np.zeros(1)
    for left in range(1, horizon + 1):
        best = (reward + (1 - depart) * best).max(axis=0)
        if left < len(values):
            assert values[left] == pytest.approx(best, rel=1e-12)
    assert values[-1] + tail >= best
    reward, depart, horizon = np.array([[1.0, 0.0], [0.9, 0.0]]), np.array([[0.5, 0.0], [1e-6, 0.5]]), 100_000
    values, tail = values_by_steps(reward, 1 - depart, horizon)
    shown_first = 0.9 * (1 - (1 - 1e-6) ** (horizon - 1)) / 1e-6
    assert shown_first + (1 - 1e-6) ** (horizon - 1) <= values[-1, 0] + tail[0] <= 100_000
    assert values[-1, 1] + tail[1] == 0


def test_a_probability_to_stay_that_rounds_to_one():
    instance = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4]], [[1e-17, 0.5], [1e-17, 0.3]], horizon=4)
    plan = dp.plan(instance)
    assert plan.verify()
    assert plan.gap <= plan.target_gap
    assert plan.lower <= best_value(instance) <= plan.upper
