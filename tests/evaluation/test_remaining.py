"""Expected remaining clicks at given counts, against the evaluation of single continued policies."""

import numpy as np
import pytest

import departing as dp
from departing.evaluation.remaining import remaining_clicks
from helpers.users import Continued

SITES = [
    dp.Instance([0.5, 0.5], [[0.9, 0.3], [0.2, 0.8]], 0.6),
    dp.Instance([0.6, 0.4], [[0.6, 0.4], [0.5, 0.5]], 1.0),
    dp.random_instance("uniform", types=3, categories=3, depart=0.7, seed=4),
    dp.Instance([0.3, 0.7], [[0.7, 0.5], [0.4, 0.8]], [[0.8, 0.9], [0.7, 0.6]], depart_on_click=0.2),
]


def random_counts(site, n, seed):
    """Counts of active users with different numbers of steps, some of them twice."""
    random = np.random.default_rng(seed)
    counts = np.zeros((n, site.n_categories, 4), np.int64)
    for row in counts:
        for _ in range(random.integers(0, 9)):
            clicked = site.sure_departure or random.random() < 0.6
            row[random.integers(0, site.n_categories), 0 if clicked else 1] += 1
    return np.concatenate([counts, counts[:3]])


def policies_of(site):
    yield dp.Greedy(site)
    yield dp.plan(site, gap=1e-2).policy
    yield dp.Table([[[1, 0, 0, 0]] + [[0] * 4] * (site.n_categories - 1)], [1], dp.Greedy(site))
    yield dp.Greedy(site.replace(click=site.click[::-1]))  # a model that the users do not follow


@pytest.mark.parametrize("site", SITES)
def test_bounds_contain_the_value_of_the_continued_policy(site):
    counts = random_counts(site, 7, 1)
    for policy in policies_of(site):
        result = remaining_clicks(site, policy, counts, gap=0.01)
        assert (result.lower <= result.values).all()
        assert (result.values <= result.upper).all()
        assert (result.upper - result.lower <= 0.01).all()
        np.testing.assert_array_equal(result.values[:3], result.values[-3:])
        for row, lower, upper in zip(counts, result.lower, result.upper, strict=True):
            now = site.replace(prior=dp.belief(site, row))
            value = dp.evaluate(now, Continued(policy, row), gap=1e-3)
            assert lower - 1e-9 <= value.upper
            assert value.lower <= upper + 1e-9


@pytest.mark.parametrize("policy", [dp.Fixed(1), dp.Threshold(0, 4, 1), dp.Walk([0, 1, 1, 0], then=1)])
def test_schedules_are_exact(policy):
    site = SITES[0]
    counts = random_counts(site, 8, 2)
    result = remaining_clicks(site, policy, counts, gap=0.01)
    for row, value in zip(counts, result.values, strict=True):
        now = site.replace(prior=dp.belief(site, row))
        assert value == pytest.approx(dp.evaluate(now, Continued(policy, row), gap=1e-7).value, abs=1e-6)


def test_few_nodes_give_wider_bounds_that_contain_the_value():
    site = SITES[2]
    counts = random_counts(site, 30, 3)
    for policy in policies_of(site):
        exact = remaining_clicks(site, policy, counts, gap=1e-3)
        for max_nodes in (0, 10, 300):
            result = remaining_clicks(site, policy, counts, gap=1e-3, max_nodes=max_nodes)
            assert (result.lower <= exact.upper).all()
            assert (result.upper >= exact.lower).all()
            assert (result.lower <= result.values).all()
            assert (result.values <= result.upper).all()


def test_no_step_is_the_value_of_the_policy():
    site = SITES[2]
    for policy in policies_of(site):
        result = remaining_clicks(site, policy, np.zeros((1, 3, 4), np.int64), gap=1e-3)
        assert result.values[0] == pytest.approx(dp.evaluate(site, policy).value, abs=1e-3)
