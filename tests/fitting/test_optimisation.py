"""EM and Newton's method."""

import numpy as np
import pytest

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.optimisation import newton_maximise
from helpers.mixtures import likelihood_of, parameters_of, random_mixture


def test_em_never_decreases_the_value_and_newton_ends_at_a_maximum():
    instance = random_mixture(5, 2, 3)
    _, likelihood = likelihood_of(instance, 20000)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, likelihood.n_parameters))
    before = likelihood.log_posterior(logits, 2.0)
    for _ in range(5):
        logits = likelihood.run_em(logits, 2.0, 3)
        after = likelihood.log_posterior(logits, 2.0)
        assert (after >= before - 1e-6).all()
        before = after
    result = newton_maximise(likelihood, logits, 2.0)
    assert (result.values >= before - 1e-9).all()
    best = result.values.argmax()
    _, gradient, information = likelihood.derivatives(result.logits[best : best + 1], 2.0)
    assert np.linalg.eigvalsh(information[0]).min() > 0
    assert gradient[0] @ np.linalg.solve(information[0], gradient[0]) < 1e-3


def test_newton_steps_stay_in_the_span_of_a_basis():
    instance = random_mixture(7, 2, 2)
    _, likelihood = likelihood_of(instance, 5000)
    start = likelihood.to_logits(parameters_of(instance))[None] + 0.2
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(likelihood.n_parameters, 3)))[0]
    result = newton_maximise(likelihood, start, 2.0, basis, 20)
    moved = result.logits[0] - start[0]
    assert moved == pytest.approx(basis @ (basis.T @ moved), abs=1e-9)
    assert result.values[0] > likelihood.log_posterior(start, 2.0)[0]


def test_a_million_users_determine_the_instance():
    instance = random_mixture(11, 2, 2)
    histories = dp.simulate(instance, dp.Walk([0, 1, 0], then=1), users=10**6, seed=2, max_steps=10).histories
    likelihood = MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, 2)
    initial = np.random.default_rng(0).normal(size=(4, 9))
    result = newton_maximise(likelihood, likelihood.run_em(initial, 2.0, 30), 2.0)
    logits = result.logits[result.values.argmax()]
    fitted = likelihood.from_logits(logits)
    order = np.argsort(fitted.click[0])
    true = np.argsort(instance.click[0])
    errors = np.sqrt(np.diag(np.linalg.inv(result.information[result.values.argmax()])))
    assert errors.max() < 0.1
    assert fitted.click[:, order] == pytest.approx(instance.click[:, true], abs=0.03)
    assert fitted.depart[:, order] == pytest.approx(instance.depart[:, true], abs=0.03)
    assert fitted.prior[order] == pytest.approx(instance.prior[true], abs=0.03)
