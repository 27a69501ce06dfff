"""Fits with segments: recovery, shrinkage, laws, errors, and the likelihood behind them."""

from dataclasses import replace

import numpy as np
import pytest

import departing as dp
from departing.fitting.concentration import estimate_concentration, fit_segments, log_evidence
from departing.fitting.fit_rows import FitRows
from departing.fitting.optimisation import maximise
from departing.fitting.refit import refit
from departing.fitting.resampling import resample_users
from departing.fitting.type_matching import type_assignment
from departing.model.segments import Segments

CLICK, DEPART = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.4]]), np.array([[0.3, 0.4], [0.5, 0.3], [0.2, 0.5]])
SIZES = np.array([4000, 3000, 2000, 600, 300, 100])


def histories(priors, sizes, seed, click=CLICK, depart=DEPART):
    """Histories of `sizes[s]` users of each segment with the priors `[S, M]`."""
    parts = [
        dp.sample_log(dp.Instance(prior, click, depart), users=int(n), seed=1000 * seed + s, days=60).histories
        for s, (prior, n) in enumerate(zip(priors, sizes, strict=True))
    ]
    return dp.Histories(
        np.concatenate([each.counts for each in parts]),
        np.concatenate([each.multiplicity for each in parts]),
        pending=np.concatenate([each.pending for each in parts]),
        segment=np.repeat(np.arange(len(parts)), [len(each) for each in parts]),
        segments=[f"s{s}" for s in range(len(parts))],
    )


def drawn(concentration, seed, mean=(0.6, 0.4), sizes=SIZES):
    priors = np.random.default_rng(seed).dirichlet(concentration * np.array(mean), len(sizes))
    return histories(priors, sizes, seed), priors


def with_segments(data, segment, names):
    """The histories with other segments."""
    fields = {"pending": data.pending, "segment": segment, "segments": names}
    return dp.Histories(data.counts, data.multiplicity, **fields)


def matched(fit, prior):
    """True priors with types in the order of the fit."""
    order = [int(np.abs(CLICK - fit.instance.click[:, [x]]).sum(axis=0).argmin()) for x in range(2)]
    return prior[:, order]


@pytest.fixture(scope="module")
def different():
    data, priors = drawn(5.0, 1)
    fit = dp.fit(data, types=2)
    return fit, matched(fit, priors)


def test_priors_of_segments_are_recovered_within_their_errors(different):
    fit, true = different
    prior = fit.instance.segments.prior
    z = (np.log(prior / (1 - prior)) - np.log(true / (1 - true))) / fit.segments.logit_stderr
    assert np.abs(z).max() < 4
    lower, upper = fit.segments.intervals(0.9999)
    assert ((lower < true) & (true < upper)).all()
    assert fit.segments.stderr[0, 0] < fit.segments.stderr[-1, 0]


def test_common_prior_is_the_mean_by_share_and_stands_for_unseen_segments(different):
    fit, _ = different
    segments = fit.instance.segments
    np.testing.assert_allclose(fit.instance.prior, segments.share @ segments.prior, atol=1e-12)
    np.testing.assert_array_equal(fit.instance.in_segment("elsewhere").prior, fit.instance.prior)
    np.testing.assert_allclose(segments.share, SIZES / SIZES.sum(), atol=0.02)


def test_segments_lower_no_likelihood_and_improve_it_where_they_differ(different):
    fit, _ = different
    without = dp.fit(fit.histories.without_segments, types=2)
    assert fit.log_likelihood > without.log_likelihood + 50
    assert 1 < fit.segments.concentration < 100


def test_common_priors_are_shrunk_to_almost_the_same():
    data, _ = drawn(1e9, 3)
    fit = dp.fit(data, types=2)
    assert np.abs(fit.instance.segments.prior - fit.instance.prior).max() < 0.05
    assert fit.segments.concentration > 200


def test_infinite_concentration_equals_a_fit_without_segments(different):
    fit, _ = different
    common = dp.fit(fit.histories, types=2, concentration=np.inf)
    without = dp.fit(fit.histories.without_segments, types=2)
    np.testing.assert_array_equal(common.instance.click, without.instance.click)
    np.testing.assert_array_equal(common.instance.segments.prior, np.tile(without.instance.prior, (6, 1)))


def test_one_segment_equals_no_segments():
    data, _ = drawn(5.0, 4, sizes=[5000])
    one, none = dp.fit(data, types=[1, 2, 3]), dp.fit(data.without_segments, types=[1, 2, 3])
    np.testing.assert_array_equal(one.instance.click, none.instance.click)
    np.testing.assert_array_equal(one.instance.segments.prior[0], none.instance.prior)
    assert [row.sabic for row in one.criteria] == [row.sabic for row in none.criteria]


def test_order_of_segments_does_not_matter(different):
    fit, _ = different
    data, order = fit.histories, [3, 1, 0, 5, 4, 2]
    place = np.argsort(order)
    names = [data.segments[s] for s in order]
    other = dp.fit(with_segments(data, place[data.segment], names), types=2)
    np.testing.assert_allclose(other.instance.segments.prior, fit.instance.segments.prior[order], atol=1e-5)


def test_small_segments_are_shrunk_more_than_large_ones():
    priors = np.array([[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]])
    data = histories(priors, [4000, 4000, 10], 5)
    fit = dp.fit(data, types=2)
    own = dp.fit(data, types=2, concentration=0.0)
    true = matched(fit, priors)
    distance = np.abs(fit.instance.segments.prior - true)
    assert distance[:2].max() < 0.05
    common = fit.instance.prior
    assert abs(fit.instance.segments.prior[2, 0] - common[0]) < abs(own.instance.segments.prior[2, 0] - common[0])


def test_users_of_unknown_segment_count_with_the_common_prior(different):
    fit, _ = different
    data = fit.histories
    segment = np.where(np.arange(len(data)) % 4 == 0, -1, data.segment)
    other = dp.fit(with_segments(data, segment, data.segments), types=2)
    assert np.abs(other.instance.click - fit.instance.click).max() < 0.05


def test_derivatives_agree_with_differences(different):
    fit, _ = different
    likelihood = fit.segments.optimum.likelihood.with_prior(np.array([0.6, 0.4]), 20.0)
    logits = fit.segments.optimum.logits + 0.1
    _, gradient = likelihood.gradient(logits, 1.0)
    steps = 1e-5 * np.eye(len(logits))
    numeric = [
        (likelihood.log_posterior((logits + step)[None], 1.0) - likelihood.log_posterior((logits - step)[None], 1.0))
        / 2e-5
        for step in steps
    ]
    np.testing.assert_allclose(gradient, np.ravel(numeric), atol=2e-3)
    (information,) = likelihood.derivatives(logits[None], 1.0)[2]
    second = [
        (likelihood.gradient(logits - step, 1.0)[1] - likelihood.gradient(logits + step, 1.0)[1]) / 2e-5
        for step in steps
    ]
    np.testing.assert_allclose(information, second, rtol=1e-4, atol=0.1)


def test_evidence_agrees_with_an_integral_over_the_priors():
    """Two types: the integral over each segment's prior is one-dimensional."""
    from scipy.integrate import quad
    from scipy.stats import beta

    data, _ = drawn(4.0, 6, sizes=[60, 30, 8])
    free = np.arange(3), np.zeros(0, np.int64)
    rows = FitRows.of(data, free)
    like = rows.segmented(2).with_prior(np.array([0.6, 0.4]), 5.0)
    instance = dp.Instance([0.6, 0.4], CLICK, DEPART)
    logits = like.likelihood.to_logits(instance)[: like.n_parameters]
    weight, _ = like.row_likelihoods(logits)
    value, _ = log_evidence(like, weight)
    exact = 0.0
    for s in range(3):
        own = like.segment == s

        def integrand(p, own=own):
            return beta.pdf(p, 3.0, 2.0) * np.exp(like.users[own] @ np.log(weight[own] @ [p, 1 - p]) + 20)

        exact += np.log(quad(integrand, 0, 1, epsabs=0, epsrel=1e-8, limit=200)[0]) - 20
    assert value == pytest.approx(exact, abs=0.05)


def test_concentration_is_recovered():
    """The mean of its logarithm over fits of many segments is that of the true one, within error."""
    values = []
    for seed in range(8):
        data, _ = drawn(8.0, 50 + seed, sizes=[400] * 25)
        values.append(np.log(dp.fit(data, types=2).segments.concentration))
    assert abs(np.mean(values) - np.log(8.0)) < 4 * np.std(values, ddof=1) / np.sqrt(8) + 0.1


def test_bootstrap_keeps_segments_and_matches_the_errors(different):
    fit, _ = different
    for method in ("parametric", "nonparametric"):
        draws = fit.bootstrap(30, method, seed=1)
        priors = np.array([each.segments.prior[:, 0] for each in draws])
        ratio = priors.std(axis=0)[:3] / fit.segments.stderr[:3, 0]
        assert (np.abs(np.log(ratio)) < np.log(1.7)).all()


def test_bootstrap_fits_start_at_the_fit_and_agree_with_fits_from_the_start(different):
    fit, _ = different
    sample = resample_users(fit.histories.confirmed, np.random.default_rng(0))
    rows = FitRows.of(sample, (fit.likelihood.depart_categories, fit.likelihood.depart_on_click_categories))
    own = refit(fit, sample)
    full = fit_segments(
        maximise(replace(rows.merged.likelihood, n_types=2), fit.logits[None], 1.0), rows.segmented(2), 1.0, None
    )
    order = type_assignment(fit.likelihood.from_logits(full.all_logits), fit.instance)
    np.testing.assert_allclose(own.segments.prior, full.with_types(order).prior, atol=2e-3)


def test_bootstrap_fits_are_kept_for_equal_arguments(different):
    fit, _ = different
    first, reports = fit.bootstrap(2, seed=4), []
    again = replace(fit, criteria=()).bootstrap(2, seed=4, progress=lambda *done: reports.append(done))
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert not reports
    euro = replace(fit, instance=fit.instance.replace(reward=[2.0] * 3)).bootstrap(2, seed=4)
    assert euro[0].reward.tolist() == [2.0] * 3


def test_resampled_users_keep_segments(different):
    fit, _ = different
    same = fit.resampled(fit.likelihood.users)
    np.testing.assert_allclose(same.segments.prior, fit.instance.segments.prior, atol=1e-3)


def test_save_and_load(different, tmp_path):
    fit, _ = different
    fit.save(tmp_path / "site.toml")
    assert dp.Instance.load(tmp_path / "site.toml").segments == fit.instance.segments


def test_number_of_types_is_selected_with_segments():
    data, _ = drawn(2.0, 7)
    assert dp.fit(data, types=[1, 2, 3]).instance.n_types == 2


@pytest.mark.parametrize(("value", "reason"), [(-1.0, "concentration"), (np.nan, "concentration")])
def test_invalid_concentrations_are_refused(different, value, reason):
    with pytest.raises(dp.InputError, match=reason):
        dp.fit(different[0].histories, types=2, concentration=value)


def test_concentration_needs_segments(different):
    with pytest.raises(dp.InputError, match="no segments"):
        dp.fit(different[0].histories.without_segments, types=2, concentration=3.0)


def test_concentration_is_infinite_if_segments_do_not_differ():
    """Under the common prior the evidence is largest at infinity in part of the logs, never at small values."""
    estimates = []
    for seed in range(6):
        data, _ = drawn(1e9, 80 + seed, sizes=[500] * 6)
        fit = dp.fit(data, types=2)
        estimates.append(fit.segments.concentration)
    assert min(estimates) > 30
    assert np.isinf(estimates).any()


def test_segments_of_the_instance_are_those_of_the_histories(different):
    fit, _ = different
    assert isinstance(fit.instance.segments, Segments)
    assert fit.instance.segments.names == fit.histories.segments
    assert estimate_concentration(fit.segments.optimum.likelihood, np.ones((len(fit.likelihood.users), 2))) == np.inf
