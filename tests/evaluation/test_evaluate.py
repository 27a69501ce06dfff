"""Evaluations: bounds, distribution and presentation."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import departing as dp
from departing.evaluation.continuation import continuation_values
from departing.model.examples import blog, magazine
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem


class Opaque:
    """A policy that is followed through the count graph although it is a schedule."""

    def __init__(self, policy):
        self.policy = policy

    def recommend(self, counts):
        return self.policy.recommend(counts)


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("make", [lambda _: dp.Walk([0, 1, 1], then=0), dp.Greedy], ids=["walk", "greedy"])
def test_committed_users_have_the_same_distribution_in_closed_form_and_by_the_count_graph(seed, make):
    instance = dp.random_instance("uniform", 2, 2, seed=seed, depart=0.6)
    instance = instance.replace(depart_on_click=0.1 * (seed - 4))
    policy = make(instance)
    closed = dp.evaluate(instance, policy, gap=1e-7).distribution
    graph = dp.evaluate(instance, Opaque(policy), gap=1e-7).distribution
    n = min(len(closed.returns), len(graph.returns))
    assert closed.returns[:n] == pytest.approx(graph.returns[:n], abs=1e-6)
    n = min(len(closed.survival), len(graph.survival))
    assert closed.survival_by_type[:n] == pytest.approx(graph.survival_by_type[:n], abs=1e-6)
    n = min(len(closed.steps), len(graph.steps))
    assert closed.steps_by_type[:n] == pytest.approx(graph.steps_by_type[:n], abs=1e-6)
    assert closed.remaining <= 1e-7
    assert graph.remaining <= 1e-7


def test_the_distribution_of_long_visits_is_complete():
    instance = dp.Instance([0.6, 0.4], [[0.7, 0.3], [0.3, 0.8]], 0.03)
    value = dp.evaluate(instance, dp.Greedy(instance), gap=1e-6)
    returns = value.distribution.returns
    assert value.distribution.remaining <= 1e-6
    assert np.arange(len(returns)) @ returns == pytest.approx(value.value, rel=1e-4)


def test_the_distribution_has_the_value_as_its_mean():
    instance = dp.random_instance("uniform", 2, 2, seed=4, depart=0.6)
    value = dp.evaluate(instance, dp.Greedy(instance), gap=1e-8)
    returns = value.distribution.returns
    assert np.arange(len(returns)) @ returns == pytest.approx(value.value, abs=1e-5)


def test_continuation_values_start_with_the_value_of_the_policy():
    instance = magazine()
    policy = dp.Greedy(instance)
    continuation = continuation_values(instance, policy, 10, 1e-7, 10**6)
    value = dp.evaluate(instance, policy)
    assert float(instance.prior @ continuation.levels[0].values[0]) == pytest.approx(value.value, abs=1e-6)
    assert continuation.gained.sum() == pytest.approx(value.value, abs=1e-6)


def test_category_names_are_accepted():
    instance = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    assert dp.evaluate(instance, dp.Fixed("sports")).value == dp.evaluate(instance, dp.Fixed(1)).value


def test_a_summary_names_every_type():
    value = dp.evaluate(magazine(), dp.Fixed(0))
    assert value.describe() == f"A user clicks {value.value:.6g} times on average."
    assert all(name in value.summary() for name in magazine().types)
    rough = dp.evaluate(magazine(), dp.Greedy(magazine()), gap=1.0)
    assert "±" in rough.describe()


def test_a_plot_is_a_figure_and_is_written_on_request(tmp_path):
    value = dp.evaluate(blog(), dp.Threshold(first=1, steps=6, then=0))
    figure = value.plot(tmp_path / "value.svg")
    assert isinstance(figure, Figure)
    assert [axes.get_xlabel() for axes in figure.axes] == ["clicks of a user", "steps"]
    assert (tmp_path / "value.svg").read_text().startswith("<?xml")
    assert isinstance(value.plot(), Figure)


def test_the_policy_of_a_plan_has_the_bounds_of_the_plan_where_users_stay_long():
    """The bounds of the count graph alone are 49 clicks apart."""
    instance = dp.random_instance("sticky", 5, 10, seed=0)
    plan = plan_within(PlanningProblem(instance), 1e-6, 500)
    value = dp.evaluate(instance, plan, max_nodes=3000)
    assert plan.lower * (1 - 1e-9) <= value.lower <= value.upper <= plan.upper
    alone = dp.evaluate(instance, dp.Alpha(instance, plan.policy.vectors, plan.policy.categories), max_nodes=3000)
    assert alone.lower <= value.lower
    assert alone.gap > 40
    assert dp.evaluate(instance.replace(prior=np.full(5, 0.2)), plan, max_nodes=3000).gap > 40  # another instance


@pytest.mark.parametrize("seed", range(5))
def test_lower_bounds_from_vectors_hold_for_any_vectors(seed):
    rng = np.random.default_rng(seed)
    instance = dp.random_instance("uniform", 3, 3, seed=seed)
    vectors, categories = rng.uniform(0, 3, (6, 3)), rng.integers(0, 3, 6)
    successors = rng.integers(0, 6, (6, 2))
    policy = dp.Alpha(instance, vectors, categories, successors)
    exact = dp.evaluate(instance, dp.Alpha(instance, vectors, categories), gap=1e-6)
    assert policy.value_lower_bounds(instance.normalised_prior[None])[0] <= exact.upper
    few = dp.evaluate(instance, policy, max_nodes=5)
    assert few.lower <= exact.upper
    assert few.upper >= exact.lower
    plan = dp.plan(instance, 1e-5, method="search")
    if isinstance(plan.policy, dp.Alpha):
        bound = float(plan.policy.value_lower_bounds(instance.normalised_prior[None])[0])
        exact = dp.evaluate(instance, dp.Alpha(instance, plan.policy.vectors, plan.policy.categories), gap=1e-6)
        assert plan.lower - 1e-8 <= bound <= exact.upper
