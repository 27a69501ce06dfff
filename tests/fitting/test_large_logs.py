"""Logs with many distinct histories: packed counts and fits in stages, against plain counts and fits in one."""

import numpy as np
import pytest

import departing as dp
from departing.data import sources
from departing.decision.log_value import LogValue
from departing.fitting import fit as fit_module
from departing.fitting import optimisation, quasi_newton
from departing.fitting.likelihood import MixtureLikelihood
from departing.model import packing


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(5)
    shape = (5, 3)
    instance = dp.Instance(rng.dirichlet(np.full(3, 8.0)), rng.uniform(0.1, 0.9, shape), rng.uniform(0.1, 0.3, shape))
    path = tmp_path_factory.mktemp("large") / "events.parquet"
    dp.sample_log(instance, 8000, seed=5, days=60).save(path)
    return path


@pytest.fixture
def large(monkeypatch):
    """Treat every log as a large one."""
    monkeypatch.setattr(packing, "LARGE_COUNTS", 0)
    monkeypatch.setattr(packing, "CHUNK", 20_000)
    monkeypatch.setattr(sources, "HISTORY_ROWS", 1000)
    for module in (optimisation, quasi_newton, fit_module):
        monkeypatch.setattr(module, "LARGE_ROWS", 1000)
    monkeypatch.setattr(optimisation, "SAMPLE_USERS", 1000)
    monkeypatch.setattr(optimisation, "LARGER_SAMPLE_USERS", 3000)


def test_a_packed_log_is_that_of_plain_counts(path, request):
    plain = dp.read_log(path, inactive_after="10 days")
    request.getfixturevalue("large")
    packed = dp.read_log(path, inactive_after="10 days")
    assert packed.counts.dtype == packed.pending.dtype == np.int8
    assert plain.pending.any()
    for name in ("counts", "multiplicity", "pending", "totals", "steps"):
        assert (getattr(packed, name) == getattr(plain, name)).all(), name
    assert packed.summary() == plain.summary()
    assert packed.to_frame().equals(plain.to_frame())


def test_the_likelihood_of_small_integers_is_the_same_to_the_last_bit():
    histories = dp.sample_log(dp.Instance([0.5, 0.5], [[0.8, 0.2], [0.3, 0.6]], 0.2), 3000, seed=1).histories
    counts, users = histories.counts, histories.multiplicity
    plain, none = MixtureLikelihood.from_counts(counts, users, 2), np.zeros((*counts.shape[:2], 2), np.int8)
    parts = [
        (counts[start : start + 300].astype(np.int8), users[start : start + 300], none[start : start + 300])
        for start in range(0, len(users), 300)
    ]
    small = MixtureLikelihood.from_parts(parts, 2, 2, plain.depart_categories, plain.depart_on_click_categories)
    assert small.entries.trials.dtype == np.int8
    logits = np.random.default_rng(1).normal(size=plain.n_parameters)
    for one, other in zip(plain.derivatives(logits[None], 1.0), small.derivatives(logits[None], 1.0), strict=True):
        assert (one == other).all()
    assert (plain.run_em(logits[None], 1.0, 5) == small.run_em(logits[None], 1.0, 5)).all()
    assert (plain.scores(logits) == small.scores(logits)).all()
    assert (plain.totals == small.totals).all()


@pytest.mark.slow
def test_a_fit_in_stages_agrees_with_a_fit_in_one(path, request):
    log = dp.read_log(path, inactive_after="10 days")
    plain = dp.fit(log, types=range(1, 5))
    assert not any("distinct histories" in warning for warning in plain.warnings)
    request.getfixturevalue("large")
    staged = dp.fit(dp.read_log(path, inactive_after="10 days"), types=range(1, 5))
    assert any("distinct histories" in warning for warning in staged.warnings)
    assert staged.instance.n_types == plain.instance.n_types == 3
    for one, other in zip(plain.criteria[:3], staged.criteria[:3], strict=True):  # a fourth type has many maxima
        assert other.log_likelihood >= one.log_likelihood - 1e-4 * log.users
    assert staged.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-3)
    assert staged.instance.click == pytest.approx(plain.instance.click, abs=1e-3)
    assert staged.stderr.click == pytest.approx(plain.stderr.click, rel=1e-2)
    assert staged.check().fits
    values = [LogValue.of(fit.histories).value(fit.likelihood.users) for fit in (plain, staged)]
    assert values[1] == pytest.approx(values[0], rel=1e-12)
