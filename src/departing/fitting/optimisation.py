"""Maximisation of the log-posterior: EM iterations from several initial points, then Newton's method.

Models with many parameters use a quasi-Newton method in the place of Newton's, whose cost per iteration grows with
the square and third power of their number.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.fitting.quasi_newton import LARGE_ROWS, quasi_newton_maximise
from departing.model.instance import Floats

# The three sizes trade time against the risk of missing the global maximum: most of the work is done on a sample of
# the users, and only the best local maxima of the sample are refined with all of them.
SAMPLE_USERS = 5_000
MAX_FINALISTS = 4
EM_ITERATIONS = 30
# Of a log with more than LARGE_ROWS distinct rows, a larger sample of the users is fitted between the first one and
# all users. Its maximum is below that of all users by d / 2n nats per user on average (n users, d parameters), 4e-4
# for 200 parameters, so that a few passes over all rows suffice.
LARGER_SAMPLE_USERS = 250_000
# Parameters above which quasi-Newton steps are faster in all stages of a fit of 100,000 users.
MAX_NEWTON_PARAMETERS = 30
# With many parameters half of the initial points are continued after the first EM iterations. A maximum of the sample
# is overfitted, with probabilities near 0 and 1, from where EM iterations on all users return.
FIRST_ITERATIONS, CONTINUED, RETURN_ITERATIONS = 10, 0.5, 5
# A difference of δ nats between two maxima of the sample has a standard error of about the root of 2 δ. So 15 nats
# are 2.7 standard errors, and the lower maximum is hardly ever the highest of all users.
MAX_SAMPLE_DEFICIT = 15.0
# Nats at which the quasi-Newton method stops on the sample, for candidate numbers of types and for held-out users:
# below SAME_MAXIMUM and any difference between criteria. The chosen fit is then refined.
NEARLY_CONVERGED = 1e-2
# Newton's method stops when the quadratic model promises less than this many nats: far below any difference that
# matters for an estimate. In a subspace the end point is only the centre of a proposal, so a looser limit suffices.
CONVERGED, CONVERGED_IN_SUBSPACE = 1e-6, 1e-2
# Nats between the values of distinct maxima: far above CONVERGED. In a fit closer maxima differ by the order of types
# only; `learning.posterior` compares their places as well.
SAME_MAXIMUM = 0.05
# Levenberg-Marquardt damping: divided by 5 after a step that increases the value, multiplied by 6 after one that does
# not, at most 12 times, that is by 2e9. The factors trade the number of steps against that of evaluations.
DAMPING_DECREASE, DAMPING_INCREASE, MAX_ATTEMPTS = 5, 6, 12
# Limits of the damping, set by hand: it does not fall below the first, and after a failed step it is at least the
# second, from which MAX_ATTEMPTS increases still reach 2e6.
MIN_DAMPING, RESTART_DAMPING = 1e-9, 1e-3
MIN_CURVATURE = 1e-3  # in the test of convergence; set by hand, keeps what a flat direction promises finite
MAX_STEP = 2.0  # logits, from a probability of 0.5 to 0.88; set by hand, longer steps leave the quadratic model


@dataclass(frozen=True)
class NewtonResult:
    """End points of Newton's method: `logits[B, d]`, log-posterior `values[B]`, observed `information[B, d, d]`."""

    logits: Floats
    values: Floats
    information: Floats


@dataclass(frozen=True, eq=False)
class Optimum:
    """Highest local maximum, at `logits[d]`, and the others `[n, d]`, lower by `deficits[n]` nats."""

    likelihood: MixtureLikelihood
    logits: Floats
    local_maxima: Floats
    deficits: Floats

    @property
    def parameters(self) -> Parameters:
        """Parameters at the maximum."""
        return self.likelihood.from_logits(self.logits)


def maximise(
    likelihood: MixtureLikelihood,
    initial: Floats,
    pseudocount: float,
    rng: np.random.Generator | None = None,
    nearly: bool = False,
) -> Optimum:
    """Maximise the log-posterior from `initial[n, d]`; with `rng`, start with EM on a sample of the users.

    If there are many parameters and `nearly` is true, stop as soon as the value is known to a hundredth of a nat.
    """
    if likelihood.n_parameters > MAX_NEWTON_PARAMETERS or len(likelihood.users) > LARGE_ROWS:
        return _maximise_many(likelihood, initial, pseudocount, rng, NEARLY_CONVERGED if nearly else CONVERGED)
    logits = initial
    if rng is not None:
        sample = _sample(likelihood, rng, SAMPLE_USERS)
        logits = sample.run_em(logits, pseudocount, EM_ITERATIONS)
        if sample is not likelihood:
            result = newton_maximise(sample, logits, pseudocount)
            logits = result.logits[_distinct(result.values)[:MAX_FINALISTS]]
    result = newton_maximise(likelihood, logits, pseudocount)
    return _optimum(likelihood, result.logits, result.values)


def _maximise_many(
    likelihood: MixtureLikelihood, initial: Floats, pseudocount: float, rng: np.random.Generator | None, limit: float
) -> Optimum:
    """The same for many parameters or rows, by the quasi-Newton method."""
    logits = initial
    if rng is not None:
        sample = _sample(likelihood, rng, SAMPLE_USERS)
        logits = sample.run_em(logits, pseudocount, FIRST_ITERATIONS)
        best = np.argsort(-sample.log_posterior(logits, pseudocount), kind="stable")
        logits = logits[best[: ceil(CONTINUED * len(best))]]
        logits = sample.run_em(logits, pseudocount, EM_ITERATIONS - FIRST_ITERATIONS)
        logits = logits[np.argsort(-sample.log_posterior(logits, pseudocount), kind="stable")]
        if sample is not likelihood:
            logits = _finalists(sample, logits, pseudocount)
            larger = likelihood
            if len(likelihood.users) > LARGE_ROWS:
                larger = _sample(likelihood, rng, LARGER_SAMPLE_USERS)
            logits = larger.run_em(logits, pseudocount, RETURN_ITERATIONS)
            if larger is not likelihood:
                logits = _finalists(larger, logits, pseudocount)
    return _optimum(likelihood, *_quasi_newton(likelihood, logits, pseudocount, limit))


def _finalists(sample: MixtureLikelihood, logits: Floats, pseudocount: float) -> Floats:
    """Local maxima of a sample of the users, from `logits[n, d]`, that may be the highest of all users."""
    logits, values = _quasi_newton(sample, logits, pseudocount, NEARLY_CONVERGED)
    finalists = [i for i in _distinct(values)[:MAX_FINALISTS] if values.max() - values[i] < MAX_SAMPLE_DEFICIT]
    return logits[finalists]


def _quasi_newton(
    likelihood: MixtureLikelihood, logits: Floats, pseudocount: float, limit: float
) -> tuple[Floats, Floats]:
    """End points `[n, d]` of the quasi-Newton method from `logits[n, d]`, and their values `[n]`.

    Those that are far from the highest value so far are left where this is clear.
    """
    ends: list[Floats] = []
    values: list[float] = []
    for each in logits:
        target = max(values, default=-np.inf) - MAX_SAMPLE_DEFICIT
        end, value = quasi_newton_maximise(likelihood, each, pseudocount, limit, target)
        ends.append(end)
        values.append(value)
    return np.array(ends), np.array(values)


def _optimum(likelihood: MixtureLikelihood, logits: Floats, values: Floats) -> Optimum:
    """Distinct maxima among the end points `[n, d]` with these values `[n]`."""
    first, *rest = _distinct(values)
    return Optimum(likelihood, logits[first], logits[rest], values[first] - values[rest])


def _sample(likelihood: MixtureLikelihood, rng: np.random.Generator, size: int) -> MixtureLikelihood:
    """Likelihood of a random sample of the users, or of all if they have few distinct rows."""
    if len(likelihood.users) <= size:
        return likelihood
    fraction = min(1.0, size / likelihood.users.sum())
    if likelihood.squares is not None:  # sums of weights are not integers
        return likelihood.reweighted(rng.poisson(likelihood.users * fraction).astype(np.float64))
    users = rng.binomial(likelihood.users.astype(np.int64), fraction).astype(np.float64)
    return likelihood.reweighted(users)


def _distinct(values: Floats) -> list[int]:
    """Indices of distinct maxima, largest first; equal values are one maximum, perhaps with types permuted."""
    kept: list[int] = []
    for i in np.argsort(-values, kind="stable").tolist():
        if not kept or values[kept[-1]] - values[i] > SAME_MAXIMUM:
            kept.append(i)
    return kept


def newton_maximise(
    likelihood: MixtureLikelihood,
    logits: Floats,
    pseudocount: float,
    basis: Floats | None = None,
    iterations: int = 60,
) -> NewtonResult:
    """Maximise the log-posterior by Newton's method from each of `logits[B, d]`.

    Steps are damped and saddle-free: the absolute curvature is used, so directions of negative curvature are
    ascended too. With `basis[d, r]` steps stay in its span.
    """
    logits = np.array(logits)
    values, gradients, information = likelihood.derivatives(logits, pseudocount)
    damping = np.ones(len(logits))
    active = np.ones(len(logits), bool)
    limit = CONVERGED if basis is None else CONVERGED_IN_SUBSPACE
    for _ in range(iterations):
        rows = np.flatnonzero(active)
        if not len(rows):
            break
        curvature, directions, slope = _eigenbasis(gradients[rows], information[rows], basis)
        decrement = (slope**2 / np.maximum(np.abs(curvature), MIN_CURVATURE)).sum(axis=1)
        converged = (decrement < limit) & ((curvature[:, 0] > 0) | (basis is not None))
        active[rows[converged]] = False
        rows, curvature, directions, slope = (part[~converged] for part in (rows, curvature, directions, slope))
        pending = np.arange(len(rows))
        for _ in range(MAX_ATTEMPTS):
            if not len(pending):
                break
            at = rows[pending]
            steps = _newton_steps(curvature[pending], directions[pending], slope[pending], damping[at])
            candidates = logits[at] + steps
            candidate_values = likelihood.log_posterior(candidates, pseudocount)
            better = candidate_values > values[at]
            logits[at[better]], values[at[better]] = candidates[better], candidate_values[better]
            damping[at[better]] = np.maximum(damping[at[better]] / DAMPING_DECREASE, MIN_DAMPING)
            damping[at[~better]] = np.maximum(damping[at[~better]], RESTART_DAMPING) * DAMPING_INCREASE
            pending = pending[~better]
        active[rows[pending]] = False  # no step improves the value within rounding
        moved = np.setdiff1d(rows, rows[pending])
        if len(moved):
            values[moved], gradients[moved], information[moved] = likelihood.derivatives(logits[moved], pseudocount)
    return NewtonResult(logits, values, information)


def _eigenbasis(gradients: Floats, information: Floats, basis: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Curvatures `[B, r]`, their directions `[B, d, r]` and the gradient along them `[B, r]`."""
    if basis is not None:
        curvature, inside = np.linalg.eigh(basis.T @ information @ basis)
        directions = basis @ inside
    else:
        curvature, directions = np.linalg.eigh(information)
    return curvature, directions, np.einsum("bdr,bd->br", directions, gradients)


def _newton_steps(curvature: Floats, directions: Floats, slope: Floats, damping: Floats) -> Floats:
    """Newton steps, scaled down to at most `MAX_STEP` in any logit."""
    along = slope / (np.abs(curvature) + damping[:, None])
    steps = np.einsum("bdr,br->bd", directions, along)
    longest = np.abs(steps).max(axis=1, initial=0.0)
    return np.asarray(steps * np.where(longest > MAX_STEP, MAX_STEP / np.maximum(longest, MAX_STEP), 1.0)[:, None])
