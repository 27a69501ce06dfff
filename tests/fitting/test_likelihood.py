"""The likelihood against the model's own words, and its slopes against differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.fitting.likelihood import Evidence, Parameters, climb
from departing.model.belief import log_weights


def parameters_of(instance):
    return Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)


def drawn(seed, types=2, categories=2, sure=False, last=False):
    rng = np.random.default_rng(seed)
    shape = (categories, types)
    return dp.Instance(
        prior=rng.dirichlet(np.full(types, 3.0)),
        click=rng.uniform(0.1, 0.9, shape),
        depart=1.0 if sure else rng.uniform(0.3, 0.9, shape),
        depart_on_click=rng.uniform(0.02, 0.2, shape) if last else 0.0,
    )


def evidence_of(instance, users=2000, types=None, seed=1):
    histories = dp.simulate(instance, dp.Greedy(instance), users=users, seed=seed, max_steps=8).histories
    return histories, Evidence.of(histories.counts, histories.multiplicity, types or instance.n_types)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_likelihood_is_that_of_the_model(seed, types, categories, sure, last):
    instance = drawn(seed, types, categories, sure, last)
    histories, evidence = evidence_of(instance, 300)
    eta = evidence.pack(parameters_of(instance))
    # Chances that no question asks about are taken for sure, so compare with the instance that says so.
    again = evidence.unpack(eta)
    same = dp.Instance(again.prior, again.click, again.depart, again.depart_on_click)
    weights = log_weights(same, histories.counts)
    top = weights.max(axis=1)
    expected = histories.multiplicity @ (top + np.log(np.exp(weights - top[:, None]).sum(axis=1)))
    assert evidence.value(eta[None], 0.0)[0] == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_gradient_and_information_are_the_derivatives(seed, types, sure, last):
    instance = drawn(seed, types, 2, sure, last)
    _, evidence = evidence_of(instance)
    rng = np.random.default_rng(seed)
    eta = evidence.pack(parameters_of(instance)) + 0.3 * rng.normal(size=evidence.n_parameters)
    step = 1e-5 * np.eye(len(eta))
    value, gradient, information = (part[0] for part in evidence.slopes(eta[None], 1.5))
    assert value == pytest.approx(evidence.value(eta[None], 1.5)[0], rel=1e-12)
    difference = (evidence.value(eta + step, 1.5) - evidence.value(eta - step, 1.5)) / 2e-5
    assert difference == pytest.approx(gradient, rel=1e-5, abs=1e-3)
    second = -(evidence.slopes(eta + step, 1.5)[1] - evidence.slopes(eta - step, 1.5)[1]) / 2e-5
    assert second == pytest.approx(information, rel=1e-4, abs=1e-2)
    assert information == pytest.approx(information.T, rel=1e-12, abs=1e-9)


def test_em_never_goes_down_and_newton_ends_where_nothing_is_uphill():
    instance = drawn(5, 2, 3)
    _, evidence = evidence_of(instance, 20000)
    rng = np.random.default_rng(0)
    etas = rng.normal(size=(6, evidence.n_parameters))
    before = evidence.value(etas, 2.0)
    for _ in range(5):
        etas = evidence.approach(etas, 2.0, 3)
        after = evidence.value(etas, 2.0)
        assert (after >= before - 1e-6).all()
        before = after
    peaks = climb(evidence, etas, 2.0)
    assert (peaks.values >= before - 1e-9).all()
    best = peaks.values.argmax()
    _, gradient, information = evidence.slopes(peaks.etas[best : best + 1], 2.0)
    assert np.linalg.eigvalsh(information[0]).min() > 0
    assert gradient[0] @ np.linalg.solve(information[0], gradient[0]) < 1e-3


def test_within_a_basis_newton_stays_in_it():
    instance = drawn(7, 2, 2)
    _, evidence = evidence_of(instance, 5000)
    start = evidence.pack(parameters_of(instance))[None] + 0.2
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(evidence.n_parameters, 3)))[0]
    peaks = climb(evidence, start, 2.0, basis, 20)
    moved = peaks.etas[0] - start[0]
    assert moved == pytest.approx(basis @ (basis.T @ moved), abs=1e-9)
    assert peaks.values[0] > evidence.value(start, 2.0)[0]


def test_much_data_gives_the_instance_back():
    instance = drawn(11, 2, 2)
    histories = dp.simulate(instance, dp.Walk([0, 1, 0], then=1), users=10**6, seed=2, max_steps=10).histories
    evidence = Evidence.of(histories.counts, histories.multiplicity, 2)
    peaks = climb(evidence, evidence.approach(np.random.default_rng(0).normal(size=(4, 9)), 2.0, 30), 2.0)
    eta = peaks.etas[peaks.values.argmax()]
    found = evidence.unpack(eta)
    order = np.argsort(found.click[0])
    true = np.argsort(instance.click[0])
    errors = np.sqrt(np.diag(np.linalg.inv(peaks.informations[peaks.values.argmax()])))
    assert errors.max() < 0.1
    assert found.click[:, order] == pytest.approx(instance.click[:, true], abs=0.03)
    assert found.depart[:, order] == pytest.approx(instance.depart[:, true], abs=0.03)
    assert found.prior[order] == pytest.approx(instance.prior[true], abs=0.03)


def test_sure_departure_is_not_a_question():
    instance = drawn(3, 2, 2, sure=True)
    _, evidence = evidence_of(instance)
    assert not len(evidence.departing)
    assert not len(evidence.leaving)
    assert (evidence.never_stayed > 0).any()
    assert (evidence.unpack(np.zeros(evidence.n_parameters)).depart == 1).all()
