"""Empirical Bayes estimate of how similar the priors of segments are, and the fit of a model with segments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.optimisation import MAX_SAMPLE_DEFICIT, Optimum, maximise
from departing.fitting.segments import MIN_SHARE, SegmentedLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats

# Concentrations that are tried: from priors near the corners of the simplex to so many users of the common prior that
# the largest segment counts for a hundredth of them, by factors of three, between which the evidence is smooth.
SMALLEST, LARGEST, FACTOR = 0.1, 100.0, 3.0
MIN_GAIN = 1e-3  # nats: above the rounding of the evidence where it does not depend on the concentration
STOP = 50.0  # nats below the best so far, beyond which smaller concentrations are not tried
GOLDEN_STEPS = 12  # within two factors of three: an error of the logarithm of 2 log(3) 0.618^12 = 0.007
# The concentration and the common prior depend on the responses and the other way round. Changes below these have no
# effect on an estimate: a concentration is known to a third at best, and a prior to about the root of one over users.
SAME_CONCENTRATION, SAME_PRIOR, MAX_ROUNDS = 0.02, 1e-4, 10
# For a bootstrap sample, which starts near its maximum: three rounds leave at most 0.06 standard deviations.
SAMPLE_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class SegmentOptimum:
    """Fit of a model with segments.

    Attributes
    ----------
    likelihood : SegmentedLikelihood
        With the estimated concentration and common prior.
    logits : array [F * M]
        Logits of the responses.
    prior : array [S, M]
        Priors of the segments.
    evidence : float
        Log-likelihood of all users, integrated over the priors of the segments by Laplace's method.
    """

    likelihood: SegmentedLikelihood
    logits: Floats
    prior: Floats
    evidence: float

    @property
    def common_prior(self) -> Floats:
        """Mean of the segments' priors by share, `[M]`."""
        return np.asarray(self.likelihood.share @ self.prior)

    def with_types(self, order: Integers) -> "SegmentOptimum":
        """The same with the types in another order, given as old indices."""
        likelihood = self.likelihood.with_prior(self.likelihood.target[order], self.likelihood.concentration)
        logits = self.logits.reshape(-1, len(order))[:, order].reshape(-1)
        return replace(self, likelihood=likelihood, logits=logits, prior=self.prior[:, order])

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of all users given the priors of the segments."""
        return self.likelihood.log_likelihood(self.logits, self.prior)

    @property
    def all_logits(self) -> Floats:
        """Logits of the responses and log-ratios of the common prior, as of a model without segments."""
        prior = np.maximum(self.common_prior, MIN_SHARE)
        return np.append(self.logits, np.log(prior[:-1] / prior[-1]))


def log_evidence(
    likelihood: SegmentedLikelihood, weight: Floats, initial: Floats | None = None
) -> tuple[float, Floats]:
    """Log-likelihood of the row likelihoods `weight[N, M]` integrated over the priors, and the priors `[S + 1, M]`.

    Laplace's method in the log-ratios of each prior, of which the normal approximation is close even in small
    segments; the same approximation of the Dirichlet distribution cancels most of its error, all of it for a segment
    without users.
    """
    prior, values, determinants = likelihood.modes(weight, initial)
    if np.isinf(likelihood.concentration):
        return float(values.sum()), prior
    m, target = likelihood.n_types, np.maximum(likelihood.target, MIN_SHARE)
    without_users = (m - 1) * np.log(likelihood.concentration) + np.log(target).sum()
    return float(values.sum() + 0.5 * (without_users - determinants).sum()), prior


def estimate_concentration(likelihood: SegmentedLikelihood, weight: Floats) -> float:
    """Concentration of the largest evidence; infinite if the segments differ no more than by chance."""
    largest = LARGEST * max(float(likelihood.segment_users.max()), 1.0)
    n = int(np.ceil(np.log(largest / SMALLEST) / np.log(FACTOR))) + 1
    grid = np.linspace(np.log(largest), np.log(SMALLEST), n)  # the priors move away from the common one
    prior: Floats | None = None

    def evidence(log_concentration: float) -> float:
        nonlocal prior
        given = likelihood.with_prior(likelihood.target, float(np.exp(log_concentration)))
        value, prior = log_evidence(given, weight, prior)
        return value

    values = []
    for each in grid:
        values.append(evidence(float(each)))
        if values[-1] < max(values) - STOP:
            break
    best = int(np.argmax(values))
    common, _ = log_evidence(likelihood.with_prior(likelihood.target, np.inf), weight)
    if best == 0 or values[best] <= common + MIN_GAIN:
        return np.inf
    low, high = grid[min(best + 1, n - 1)], grid[best - 1]
    return float(np.exp(_golden(evidence, float(low), float(high))))


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Maximum of a function with one maximum between `low` and `high`, by golden-section search."""
    ratio = (np.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(GOLDEN_STEPS):
        if at_left > at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2


def fit_segments(
    pooled: Optimum, rows: SegmentedLikelihood, pseudocount: float, concentration: float | None
) -> SegmentOptimum:
    """Fit a model with segments, starting at the maxima of the model without.

    `rows` holds all users with their segments; `concentration` is estimated if it is None.
    """
    near = pooled.deficits < MAX_SAMPLE_DEFICIT
    starts = [pooled.logits, *pooled.local_maxima[near]]
    return max((_fit(each, pooled.likelihood, rows, pseudocount, concentration) for each in starts), key=_evidence)


def maximise_segmented(
    likelihood: SegmentedLikelihood, logits: Floats, pseudocount: float, nearly: bool = False
) -> Floats:
    """Maximise the log-posterior from `logits[d]` over the responses and the priors of the segments."""
    optimum = maximise(cast(MixtureLikelihood, likelihood), logits[None], pseudocount, nearly=nearly)
    return optimum.logits


def _evidence(optimum: SegmentOptimum) -> float:
    return optimum.evidence


def _fit(
    start: Floats,
    pooled: MixtureLikelihood,
    rows: SegmentedLikelihood,
    pseudocount: float,
    concentration: float | None,
) -> SegmentOptimum:
    d = rows.n_parameters
    logits, target = start[:d], pooled.from_logits(start).prior
    likelihood = rows.with_prior(target, np.inf)
    weight, top = likelihood.row_likelihoods(logits)
    concentration = np.inf if rows.n_types == 1 else concentration
    own = estimate_concentration(likelihood, weight) if concentration is None else concentration
    if np.isinf(own):
        prior = np.tile(target, (rows.n_segments, 1))
        return SegmentOptimum(
            likelihood, logits, prior, log_evidence(likelihood, weight)[0] + float(rows.users @ top)
        )
    return _alternate(rows, logits, target, own, pseudocount, concentration) or _fit(
        start, pooled, rows, pseudocount, np.inf
    )


def _alternate(
    rows: SegmentedLikelihood,
    logits: Floats,
    target: Floats,
    own: float,
    pseudocount: float,
    concentration: float | None,
    rounds: int = MAX_ROUNDS,
) -> SegmentOptimum | None:
    """Maximise over responses, then estimate common prior and concentration, by turns; None if that is infinite."""
    for _ in range(rounds):
        likelihood = rows.with_prior(target, own)
        logits = maximise_segmented(likelihood, logits, pseudocount)
        weight, top = likelihood.row_likelihoods(logits)
        prior = likelihood.modes(weight)[0]
        moved, last = rows.share @ prior[:-1], own
        change, target = float(np.abs(moved - target).max()), moved
        if concentration is None:
            own = estimate_concentration(rows.with_prior(target, own), weight)
        if np.isinf(own):
            return None
        if change < SAME_PRIOR and abs(np.log(own / last)) < SAME_CONCENTRATION:
            break
    value, prior = log_evidence(likelihood, weight, prior)
    return SegmentOptimum(likelihood, logits, prior[:-1], value + float(rows.users @ top))


def refit_segments(given: SegmentOptimum, rows: SegmentedLikelihood, pseudocount: float) -> SegmentOptimum | None:
    """Fit a sample of the users of a fit, starting there; None if the concentration is, or becomes, infinite."""
    start = given.likelihood.target, given.likelihood.concentration
    if np.isinf(start[1]):
        return None
    return _alternate(rows, given.logits, *start, pseudocount, None, SAMPLE_ROUNDS)
