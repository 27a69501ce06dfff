"""Plans with rewards: against brute force, under scaling, and in the unit of the instance."""

import numpy as np
import pytest
from tests.helpers.exact import BruteForce

import departing as dp
from departing.model.examples import blog, magazine
from departing.model.families import random_instance
from departing.planning.problem import PlanningProblem, dominance_table

REWARDS = [1.0, 7.5, 0.25]


def instances(depart=None):
    for seed in range(6):
        plain = random_instance("uniform", types=2 + seed % 2, categories=3, seed=seed, depart=depart)
        yield plain.replace(reward=np.random.default_rng(seed).permutation(REWARDS), unit="euro")


@pytest.mark.parametrize("depart", [None, 1.0])
def test_bounds_contain_those_of_brute_force(depart):
    brute = BruteForce(3, 9)
    for instance in instances(depart):
        lower, upper = brute.bounds(instance)
        plan = dp.plan(instance)
        assert plan.gap <= 7.5e-6
        assert plan.lower <= upper + 1e-9
        assert lower - 1e-9 <= plan.upper
        assert plan.verify()
        assert dp.evaluate(instance, plan.policy).upper >= plan.lower - 1e-12


def test_lattice_and_search_agree():
    for instance in instances(1.0):
        walk, search = (dp.plan(instance, method=method) for method in ("lattice", "search"))
        assert walk.lower <= search.upper
        assert search.lower <= walk.upper


@pytest.mark.parametrize("method", ["closed-form", "lattice", "search"])
def test_equal_rewards_multiply_the_value(method):
    plain = dp.plan(blog(), method=method)
    for reward in (1.0, 4.0, 2.0**-30):
        scaled = dp.plan(blog().replace(reward=[reward] * 2, unit="euro"), method=method)
        assert (scaled.lower, scaled.upper) == (plain.lower * reward, plain.upper * reward)
        assert scaled.verify()
    other = dp.plan(blog().replace(reward=[3, 3]), method=method)
    assert other.value == pytest.approx(3 * plain.value, rel=1e-6)


def test_scaling_all_rewards_scales_bounds_vectors_and_progress():
    instance, seen = magazine().replace(reward=[1.0, 1.5, 1.25]), []
    first = dp.plan(instance)
    second = dp.plan(instance.replace(reward=instance.reward * 1024), progress=lambda *bounds: seen.append(bounds))
    assert (second.lower, second.upper) == (first.lower * 1024, first.upper * 1024)
    assert second.target_gap == 1024 * first.target_gap == 1024 * 1.5e-6
    np.testing.assert_array_equal(second.policy.vectors, 1024 * first.policy.vectors)
    np.testing.assert_array_equal(second.controller.vectors, 1024 * first.controller.vectors)
    assert seen[-1][0] == pytest.approx(second.lower, rel=1e-6)
    assert second.verify()


def test_a_false_bound_is_found():
    plan = dp.plan(magazine().replace(reward=[100.0, 300.0, 200.0]))
    assert not plan.certificate.verify(plan.policy, plan.lower, plan.lower * 0.999)


def test_dominance_depends_on_rewards():
    same = dp.Instance([0.5, 0.5], [[0.4, 0.5], [0.5, 0.6]])
    assert list(PlanningProblem(same).categories) == [1]
    assert list(PlanningProblem(same.replace(reward=[2, 1])).categories) == [0, 1]
    assert dominance_table(same.replace(reward=[2, 1]))[0, 0].tolist() == [0.8, 1.0]


def test_the_closed_form_of_the_paper_requires_equal_rewards():
    with pytest.raises(dp.InputError, match="closed-form"):
        dp.plan(blog().replace(reward=[1.0, 1.1]), method="closed-form")
    assert dp.plan(blog().replace(reward=[1.0, 10.0])).method == "closed-form"  # the second category is always best
    assert dp.plan(blog().replace(reward=[1.0, 1.1])).method == "lattice"


def test_a_category_without_reward_may_tell_types_apart():
    click = [[0.95, 0.05], [0.5, 0.02], [0.02, 0.5]]
    site = dp.Instance([0.5, 0.5], click, [[0.01, 0.01], [0.9, 0.9], [0.9, 0.9]], reward=[0, 1, 1], unit="sales")
    plan = dp.plan(site)
    assert int(plan.policy.recommend(np.zeros((3, 4), int))) == 0
    assert plan.verify()


def test_texts_tables_and_sensitivity_are_in_the_unit(tmp_path):
    instance = magazine().replace(reward=[2.0, 3.0, 1.0], unit="euro")
    plan = dp.plan(instance, gap=1e-3)
    assert "Expected euro per user" in plan.summary()
    assert "expected euro per user" in plan._repr_html_()
    assert all(each.loss.upper >= 0 for each in plan.baselines())
    assert plan.value_under(instance) == pytest.approx(plan.value, abs=2e-3)
    assert plan.sensitivity(0.05).of("prior")[0].optimal_value > 0
    plan.plot(tmp_path / "plan.svg")
    assert "euro" in (tmp_path / "plan.svg").read_text() or (tmp_path / "plan.svg").stat().st_size > 0
    plan.save(tmp_path / "plan.json")
    assert dp.load_policy(tmp_path / "plan.json") == plan.policy


def test_allowed_categories_restrict_rewards_too():
    instance = magazine().replace(reward=[1e6, 3.0, 1.0])
    plan = dp.plan(instance, allowed=[1, 2])
    assert plan.target_gap == 3e-6
    assert plan.upper < 100
    assert all(each.evaluation.upper < 100 for each in plan.baselines())
