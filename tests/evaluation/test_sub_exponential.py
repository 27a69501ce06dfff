"""Sub-exponential constants against summed distributions."""

from math import inf, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.evaluation.sub_exponential import SubExponential, generating_function, sub_exponential
from departing.model.errors import InputError
from departing.model.examples import blog, hard
from helpers.strategies import ORDINARY, Opaque, instances, schedules


def distribution(instance, policy):
    returns = dp.evaluate(instance, policy, 1e-17).distribution.returns
    return np.arange(len(returns)), returns


def exponents(instance, policy, gammas):
    """ln E exp(γ (V - E V)) from the summed distribution."""
    clicks, law = distribution(instance, policy)
    mean = law @ clicks
    return np.log(np.exp(np.outer(gammas, clicks - mean)) @ law)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_generating_function_is_that_of_the_distribution(data):
    instance = data.draw(instances(ORDINARY, most=3))
    policy = data.draw(schedules(instance.n_categories))
    clicks, law = distribution(instance, policy)
    rate = float(np.log1p(instance.departure_probabilities / np.maximum(instance.click, 1e-9)).min())
    gammas = np.array([-2.0, -0.3, 0.0, 0.2, 0.4]) * min(rate, 1.0)
    weights = np.exp(np.outer(gammas, clicks)) * law
    expected = [weights.sum(axis=1), weights @ clicks, weights @ clicks**2]
    assert generating_function(instance, policy, gammas) == pytest.approx(np.array(expected), rel=1e-6, abs=1e-9)


@given(data=st.data(), users=st.sampled_from([10, 10**4, 10**9]))
@settings(max_examples=40, deadline=None)
def test_the_constants_hold_and_are_nearly_the_smallest(data, users):
    instance = data.draw(instances(ORDINARY, most=3))
    policy = data.draw(schedules(instance.n_categories))
    constants = sub_exponential(instance, policy, users)
    gammas = np.concatenate([np.linspace(-1, -0.01, 400), np.linspace(0.01, 1, 400)]) / constants.b
    clicks, law = distribution(instance, policy)
    variance = law @ clicks**2 - (law @ clicks) ** 2
    exact = max((2 * exponents(instance, policy, gammas) / gammas**2).max(), variance)
    assert constants.tau**2 >= exact * (1 - 1e-6) - 1e-9
    assert constants.tau**2 <= exact * 1.02 + 1e-6


def test_the_choice_of_b_minimises_the_share_of_the_bound():
    def share(constants, users=10**5, policies=20):
        return 16 * log(users) * constants.b + np.sqrt(32 * users * log(users) / policies) * constants.tau

    chosen = sub_exponential(hard(), dp.Threshold(1, 3, 0), 10**5, 20)
    others = [sub_exponential(hard(), dp.Threshold(1, 3, 0), b=chosen.b * factor) for factor in (0.8, 0.9, 1.1, 1.3)]
    assert all(share(other) > share(chosen) for other in others)
    assert sub_exponential(hard(), dp.Threshold(1, 3, 0), b=chosen.b).tau == pytest.approx(chosen.tau, rel=1e-3)
    assert chosen.eta == pytest.approx(chosen.b**2 / chosen.tau**2)


def test_a_geometric_return_in_closed_form():
    # P[V = k] = 2^-(k+1): ψ(γ) = -ln(2 - e^γ) - γ, and 2 ψ / γ² increases up to 1 / b.
    constants = sub_exponential(dp.Instance([1.0], [[0.5]]), dp.Fixed(0), b=2.0)
    assert constants.tau**2 == pytest.approx(2 * 4 * (-log(2 - np.exp(0.5)) - 0.5), rel=1e-5)
    assert constants.b == 2.0


def test_types_of_prior_zero_do_not_count():
    with_more = dp.Instance([1.0, 0.0], [[0.5, 0.999]])
    assert sub_exponential(with_more, dp.Fixed(0)) == sub_exponential(dp.Instance([1.0], [[0.5]]), dp.Fixed(0))


def test_extreme_instances():
    never = sub_exponential(dp.Instance([1.0], [[0.0]]), dp.Fixed(0))
    assert 0 < never.tau < 1e-3
    long = sub_exponential(dp.Instance([1.0], [[1 - 1e-6]]), dp.Fixed(0))
    assert 1e6 * (1 - 1e-6) < long.tau < 1.5e6
    switch = sub_exponential(dp.Instance([1.0], [[0.5], [1 - 1e-6]]), dp.Threshold(first=1, steps=10**6, then=0))
    assert 3e5 < switch.tau < inf


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: sub_exponential(blog(), Opaque(dp.Fixed(0))),
            "policy is a Opaque; expected a schedule: Fixed, Threshold or Walk.",
        ),
        (
            lambda: sub_exponential(dp.Instance([1.0], [[0.5]]), dp.Fixed(0), b=1.0),
            "b is 1.0; expected more than 1.4427, where the moments exist.",
        ),
        (lambda: sub_exponential(blog(), dp.Fixed(0), users=1), "users is 1; expected an integer ≥ 2."),
    ],
)
def test_invalid_arguments_are_rejected(make, sentence):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == sentence


def test_eta_is_that_of_the_paper():
    assert SubExponential(tau=2.0, b=3.0).eta == 2.25
