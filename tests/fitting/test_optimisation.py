"""EM, Newton's method and the quasi-Newton method."""

from collections import deque

import numpy as np
import pytest

import departing as dp
from departing.fitting import optimisation
from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.optimisation import newton_maximise
from departing.fitting.quasi_newton import _two_loops, quasi_newton_maximise
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


def many_parameters(seed, users=3000):
    """Likelihood of users of a random instance with four types and five categories, 43 parameters."""
    rng = np.random.default_rng(seed)
    instance = dp.Instance(
        rng.dirichlet(np.full(4, 5.0)), rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0.1, 0.4, (5, 4))
    )
    histories = dp.sample_log(instance, users=users, seed=seed, days=60).histories.confirmed
    return instance, histories, MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, 4)


@pytest.mark.parametrize("seed", range(4))
def test_quasi_newton_and_newton_end_at_the_same_maximum(seed):
    instance, _, likelihood = many_parameters(seed)
    start = likelihood.to_logits(parameters_of(instance))
    newton = newton_maximise(likelihood, start[None], 1.0)
    logits, value = quasi_newton_maximise(likelihood, start, 1.0, 1e-8)
    assert value == pytest.approx(newton.values[0], abs=1e-5)
    assert value == pytest.approx(likelihood.log_posterior(logits[None], 1.0)[0], abs=1e-9)
    distance = logits - newton.logits[0]
    assert distance @ newton.information[0] @ distance < 1e-3  # squared standard errors


@pytest.mark.parametrize("shift", [0.0, 30.0, -30.0, 700.0])
def test_quasi_newton_never_decreases_the_value(shift):
    _, _, likelihood = many_parameters(1, users=300)
    start = np.random.default_rng(1).normal(shift, 1.0, likelihood.n_parameters)
    logits, value = quasi_newton_maximise(likelihood, start, 1.0, 1e-6)
    assert np.isfinite(logits).all()
    assert value >= likelihood.log_posterior(start[None], 1.0)[0]


def test_the_gradient_is_that_of_the_derivatives():
    instance, _, likelihood = many_parameters(1)
    logits = likelihood.to_logits(parameters_of(instance))
    values, gradients, _ = likelihood.derivatives(logits[None], 1.0)
    value, gradient = likelihood.gradient(logits, 1.0)
    assert value == values[0]
    assert (gradient == gradients[0]).all()


def test_corrections_are_those_of_bfgs():
    """The step is the gradient times the inverse of the curvature after the updates of dense BFGS."""
    rng, d = np.random.default_rng(1), 6
    factor = rng.normal(size=(d, d))
    matrix = factor @ factor.T + np.eye(d)
    curvature, directions = np.linalg.eigh(matrix)
    inverse, pairs = np.linalg.inv(matrix), deque()
    other = matrix + 0.3 * np.diag(rng.random(d))
    for _ in range(4):
        moved = rng.normal(size=d)
        change = other @ moved
        pairs.append((moved, change, moved @ change))
        project = np.eye(d) - np.outer(moved, change) / (moved @ change)
        inverse = project @ inverse @ project.T + np.outer(moved, moved) / (moved @ change)
    gradient = rng.normal(size=d)
    assert _two_loops(gradient, pairs, curvature, directions) == pytest.approx(inverse @ gradient, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_fits_do_not_depend_on_the_method(seed, monkeypatch):
    _, histories, _ = many_parameters(seed)
    monkeypatch.setattr(optimisation, "SAMPLE_USERS", 1000)
    quasi_newton = dp.fit(histories, types=4)
    monkeypatch.setattr(optimisation, "MAX_NEWTON_PARAMETERS", 1000)
    newton = dp.fit(histories, types=4)
    values = [each.likelihood.log_posterior(each.logits[None], 1.0)[0] for each in (quasi_newton, newton)]
    assert values[0] > values[1] - 1e-3
    assert quasi_newton.criteria[0].held_out == pytest.approx(newton.criteria[0].held_out, abs=1e-3)
