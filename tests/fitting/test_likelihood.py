"""Likelihood of the latent class model, against the model itself and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood
from departing.model.belief import log_weights
from helpers.mixtures import likelihood_of, parameters_of, random_mixture


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_log_likelihood_agrees_with_the_model(seed, types, categories, sure, last):
    instance = random_mixture(seed, types, categories, sure, last)
    histories, likelihood = likelihood_of(instance, 300)
    logits = likelihood.to_logits(parameters_of(instance))
    # Departures without a response are sure, so compare with the instance in which they are.
    fitted = likelihood.from_logits(logits)
    same = dp.Instance(fitted.prior, fitted.click, fitted.depart, fitted.depart_on_click)
    weights = log_weights(same, histories.counts)
    top = weights.max(axis=1)
    expected = histories.multiplicity @ (top + np.log(np.exp(weights - top[:, None]).sum(axis=1)))
    assert likelihood.log_likelihood(logits) == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_gradient_and_information_are_the_derivatives(seed, types, sure, last):
    instance = random_mixture(seed, types, 2, sure, last)
    _, likelihood = likelihood_of(instance)
    rng = np.random.default_rng(seed)
    logits = likelihood.to_logits(parameters_of(instance)) + 0.3 * rng.normal(size=likelihood.n_parameters)
    step = 1e-5 * np.eye(len(logits))
    value, gradient, information = (part[0] for part in likelihood.derivatives(logits[None], 1.5))
    assert value == pytest.approx(likelihood.log_posterior(logits[None], 1.5)[0], rel=1e-12)
    difference = (likelihood.log_posterior(logits + step, 1.5) - likelihood.log_posterior(logits - step, 1.5)) / 2e-5
    assert difference == pytest.approx(gradient, rel=1e-5, abs=1e-3)
    second = -(likelihood.derivatives(logits + step, 1.5)[1] - likelihood.derivatives(logits - step, 1.5)[1]) / 2e-5
    assert second == pytest.approx(information, rel=1e-4, abs=1e-2)
    assert information == pytest.approx(information.T, rel=1e-12, abs=1e-9)


def test_sure_departures_are_not_estimated():
    instance = random_mixture(3, 2, 2, sure=True)
    _, likelihood = likelihood_of(instance)
    assert not len(likelihood.depart_categories)
    assert not len(likelihood.depart_on_click_categories)
    assert (likelihood.sure_departures > 0).any()
    assert (likelihood.from_logits(np.zeros(likelihood.n_parameters)).depart == 1).all()


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_responsibilities_are_the_beliefs_of_the_model(seed):
    instance = random_mixture(seed, 2, 3)
    histories = dp.sample_log(instance, users=50, seed=seed, days=20).histories
    likelihood = MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, 2, np.arange(3))
    logits = likelihood.to_logits(parameters_of(instance))
    assert likelihood.responsibilities(logits) == pytest.approx(dp.belief(instance, histories.counts), abs=1e-9)
