"""Relabelling types or categories permutes every result; a zero `depart_on_click` changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import departing as dp
from helpers.strategies import ORDINARY, counts, instances, schedules


@st.composite
def relabelled(draw):
    instance = draw(instances(ORDINARY, most=3))
    a = draw(st.permutations(range(instance.n_categories)))
    x = draw(st.permutations(range(instance.n_types)))
    return instance, instance.relabel(a, x), list(a), list(x)


def moved(policy, order):
    """The schedule with categories under their new labels."""
    label = {old: new for new, old in enumerate(order)}
    walk = [label[a] for a, n in policy.phases for _ in range(n)]
    return dp.Walk(walk, then=label[policy.then])


@given(st.data())
def test_values_of_schedules_do_not_change(data):
    instance, other, a, x = data.draw(relabelled())
    policy = data.draw(schedules(instance.n_categories))
    one, two = dp.evaluate(instance, policy), dp.evaluate(other, moved(policy, a))
    assert one.value == pytest.approx(two.value, rel=1e-12)
    np.testing.assert_allclose([one.by_type[i].value for i in x], [by.value for by in two.by_type], rtol=1e-12)


@given(st.data())
def test_beliefs_and_predictions_are_permuted(data):
    instance, other, a, x = data.draw(relabelled())
    seen = data.draw(counts(instance.n_categories))
    np.testing.assert_allclose(dp.belief(instance, seen)[x], dp.belief(other, seen[a]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dp.predict(instance, seen)[a], dp.predict(other, seen[a]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_greedy_is_permuted(seed):
    instance = dp.random_instance("uniform", types=3, categories=4, seed=seed)
    rng = np.random.default_rng(seed)
    a, x = rng.permutation(4), rng.permutation(3)
    other = instance.relabel(a, x)
    seen = np.zeros((200, 4, 4), np.int64)
    seen[..., :2] = rng.integers(0, 5, (200, 4, 2))
    assert (a[dp.Greedy(other).recommend(seen[:, a])] == dp.Greedy(instance).recommend(seen)).all()
    one = dp.evaluate(instance, dp.Greedy(instance), gap=1e-4)
    two = dp.evaluate(other, dp.Greedy(other), gap=1e-4)
    assert one.lower <= two.upper
    assert two.lower <= one.upper


@given(instances(ORDINARY, most=3, depart_on_click=False))
def test_a_zero_depart_on_click_changes_nothing(instance):
    other = dp.Instance(instance.prior, instance.click, instance.depart, np.zeros_like(instance.click))
    assert instance == other
    assert not instance.outcome_probabilities[:, 3].any()
    for engine in ("step", "lanes", "aggregate"):
        one = dp.simulate(instance, dp.Fixed(0), users=500, seed=1, engine=engine)
        two = dp.simulate(other, dp.Fixed(0), users=500, seed=1, engine=engine)
        assert (one.clicks, one.steps) == (two.clicks, two.steps)


def test_the_inverse_relabelling_restores_the_instance():
    instance = dp.random_instance("uniform", types=3, categories=2, seed=1)
    assert instance.relabel([1, 0], [2, 0, 1]).relabel([1, 0], [1, 2, 0]) == instance
    with pytest.raises(dp.InputError, match="expected each of 0 to 2 once"):
        instance.relabel(types=[0, 0, 1])
