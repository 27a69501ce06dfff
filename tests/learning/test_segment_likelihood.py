"""Likelihood with a prior for each segment, and information by segment: derivatives and integrals by other means."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import betaln, logit

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.segment_likelihood import CONCENTRATIONS, Arrow, SegmentedLikelihood

PARTS = dp.Segments(["a", "b", "c"], [0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]])
SITE = dp.Instance(
    None,
    [[0.6, 0.2, 0.4], [0.3, 0.5, 0.1], [0.1, 0.3, 0.8]],
    [[0.5, 0.6, 0.4], [0.8, 0.7, 0.6], [0.4, 0.5, 0.6]],
    segments=PARTS,
)


def observed(site, users):
    """Counts and users of every segment."""
    runs = [
        dp.simulate(site.in_segment(name), dp.Walk([0, 1, 0, 1], then=0), users, seed, max_steps=5).histories
        for seed, name in enumerate(site.segments.names)
    ]
    return [(run.counts, run.multiplicity) for run in runs]


@pytest.fixture(scope="module")
def likelihood():
    return SegmentedLikelihood.of_segments(observed(SITE, 300), 3, 7.0)


def test_gradient_and_information_are_derivatives(likelihood):
    point = 0.7 * np.random.default_rng(0).normal(size=(1, likelihood.n_parameters))
    _, gradient, information = likelihood.derivatives(point, 2.0)
    step = 1e-5
    slope, curvature = [], []
    for unit in np.eye(point.shape[1]):
        ahead, back = point + step * unit, point - step * unit
        values = likelihood.log_posterior(np.concatenate([ahead, back]), 2.0)
        slope.append((values[0] - values[1]) / (2 * step))
        gradients = likelihood.derivatives(np.concatenate([ahead, back]), 2.0)[1]
        curvature.append((gradients[1] - gradients[0]) / (2 * step))
    np.testing.assert_allclose(gradient[0], slope, atol=1e-3)
    np.testing.assert_allclose(information[0], curvature, atol=0.02)


def test_an_infinite_concentration_is_a_common_prior(likelihood):
    parts = observed(SITE, 300)
    pooled = MixtureLikelihood.from_counts(*(np.concatenate(each) for each in zip(*parts, strict=True)), 3)
    points = np.random.default_rng(1).normal(size=(4, likelihood.n_parameters))
    common = likelihood.with_concentration(1e9)
    integrated = common.log_posterior(points, 2.0) + common.corrections(points)
    np.testing.assert_allclose(integrated, pooled.log_posterior(points, 2.0), atol=1e-4)


@pytest.mark.parametrize(
    ("click", "priors", "concentration"),
    [([[0.6, 0.2], [0.3, 0.5]], [[0.8, 0.2], [0.3, 0.7]], c) for c in (4.0, 64.0)]
    + [([[0.78, 0.05], [0.59, 0.2]], [[0.16, 0.84], [0.01, 0.99]], c) for c in (1.0, 4.0)],
)
def test_the_integral_over_the_prior_of_a_segment_is_that_by_quadrature(click, priors, concentration):
    site = dp.Instance(None, click, 0.6, segments=dp.Segments(["a", "b"], [0.5, 0.5], priors))
    likelihood = SegmentedLikelihood.of_segments(observed(site, 40), 2, concentration)
    parameters = site.in_segment(None)
    logits = likelihood.to_logits(parameters)
    common = parameters.prior
    responses = likelihood.responses(likelihood.from_logits(logits))
    per_type = likelihood.successes @ np.log(responses) + (likelihood.trials - likelihood.successes) @ np.log1p(
        -responses
    )

    def density(ratio, rows, users, c=concentration):
        prior = np.array([1 / (1 + np.exp(-ratio)), 1 / (1 + np.exp(ratio))])
        return users @ np.log(np.exp(per_type[rows]) @ prior) + c * (common @ np.log(prior / common))

    total = 0.0
    for first, end in zip(likelihood.bounds[:-1], likelihood.bounds[1:], strict=True):
        rows, users = likelihood.segment_rows[first:end], likelihood.segment_users[first:end]
        top = max(density(r, rows, users) for r in np.linspace(-12, 8, 400))
        integral = quad(lambda r, rows=rows, users=users, top=top: np.exp(density(r, rows, users) - top), -40, 40)[0]
        constant = quad(lambda r: np.exp(density(r, np.zeros(0, int), np.zeros(0))), -40, 40)[0]
        total += top + np.log(integral / constant)
    found = likelihood.log_posterior(logits[None], 0.0) + likelihood.corrections(logits[None])
    assert found[0] == pytest.approx(total, abs=0.1)


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_the_integral_is_exact_where_types_are_known(concentration):
    """With types that are observed, users by type have a beta-binomial distribution in each segment."""
    users, share = np.array([3, 1, 0, 12]), 0.05
    first, second = np.array([[[60, 0, 1, 0]]]), np.array([[[0, 60, 1, 0]]])
    parts = [(np.concatenate([first, second]), np.array([n, 50 - n])) for n in users]
    parts.append((np.zeros((0, 1, 4), int), np.zeros(0, int)))  # nobody is of unknown segment
    likelihood = SegmentedLikelihood.of_segments(parts, 2, concentration)
    logits = np.zeros((1, likelihood.n_parameters))
    logits[0, :2], logits[0, -1] = logit([0.999, 0.001]), logit(share)
    found = likelihood.log_posterior(logits, 0.0) + likelihood.corrections(logits)
    a, b = concentration * share, concentration * (1 - share)
    expected = (betaln(a + users, b + 50 - users) - betaln(a, b)).sum()
    constant = found[0] - expected
    common = likelihood.with_concentration(1e6)
    at_common = common.log_posterior(logits, 0.0) + common.corrections(logits)
    binomial = (users * np.log(share) + (50 - users) * np.log1p(-share)).sum()
    assert constant == pytest.approx(at_common[0] - binomial, abs=0.02)


def test_sampled_priors_spread_as_their_posterior():
    likelihood = SegmentedLikelihood.of_segments(observed(SITE, 5000), 3, 7.0)
    rng = np.random.default_rng(2)
    logits = likelihood.to_logits(SITE.in_segment(None))
    priors, log_weights = likelihood.sample_priors(np.repeat(logits[None], 500, axis=0), rng)
    assert priors.shape == (500, 3, 3)
    assert np.isfinite(log_weights).all()
    assert (log_weights >= -1e-9).all()  # the likelihood's own concentration is not in the grid, others add to it
    assert priors.mean(axis=0) == pytest.approx(PARTS.prior, abs=0.06)
    assert (priors.std(axis=0) < 0.08).all()


def test_arrowhead_matrices_give_the_variances_of_dense_ones():
    rng = np.random.default_rng(3)
    s, d, r = 3, 5, 2
    size = d + s * r
    root = rng.normal(size=(size, size + 3))
    dense = root @ root.T
    for i in range(s):
        for j in range(s):
            if i != j:
                dense[d + i * r : d + (i + 1) * r, d + j * r : d + (j + 1) * r] = 0.0
    dense += 40 * np.eye(size)
    cross = np.array([dense[:d, d + i * r : d + (i + 1) * r] for i in range(s)])
    own = np.array([dense[d + i * r : d + (i + 1) * r, d + i * r : d + (i + 1) * r] for i in range(s)])
    arrow = Arrow(dense[None, :d, :d], cross[None], own[None])
    segment = np.array([2, 0])
    shared, ratios = rng.normal(size=(1, 2, d)), rng.normal(size=(1, 2, r))
    slopes = np.zeros((2, size))
    for c, i in enumerate(segment):
        slopes[c, :d], slopes[c, d + i * r : d + (i + 1) * r] = shared[0, c], ratios[0, c]
    expected = [slope @ np.linalg.solve(dense, slope) for slope in slopes]
    np.testing.assert_allclose(arrow.variances(shared, ratios, segment)[0], expected, rtol=1e-9)
    doubled = np.array([2.0, 3.0])[:, None, None, None] * arrow + arrow
    np.testing.assert_allclose(
        doubled.variances(shared, ratios, segment)[:, 0], np.outer([1 / 3, 1 / 4], expected), rtol=1e-9
    )
