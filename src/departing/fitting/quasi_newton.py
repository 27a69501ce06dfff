"""Limited-memory BFGS, preconditioned by the curvature of a sample of the users, for models with many parameters.

A gradient costs as much as an EM iteration; the observed information of all users costs tens of times as much, and
its eigenvectors more. A sample determines the large curvatures well. Those in directions that the log hardly
determines are small differences of large numbers, and the corrections of BFGS (Nocedal 1980) learn them from the
gradients.
"""

from collections import deque

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.model.instance import Floats

USERS_PER_PARAMETER = 40  # of the sample; the relative error of its large curvatures is about the root of the inverse
# Distinct rows above which passes over them take most of the time of a fit. A hundredth of them then costs less than
# the iterations that a better curvature saves.
LARGE_ROWS, ROW_SHARE = 10**6, 0.01
MEMORY = 20  # pairs of steps and changes of the gradient; the usual choice is 3 to 20, and they cost little here
REFRESH = 30  # iterations after which the curvature is computed again; set by hand
MAX_ITERATIONS = 500  # gradients; reached only on plateaus
MAX_STEP = 2.0  # logits, from a probability of 0.5 to 0.88; longer steps leave the quadratic model
MIN_CURVATURE = 1e-3  # keeps steps in flat directions finite, as in `newton_maximise`
HOPE = 10.0  # times what a step promises; of a quadratic function the maximum is half of it above the value
SUFFICIENT = 1e-4  # share of the promised increase that a step must reach (Armijo's condition)
ROUNDING = 1e-12  # of a log-posterior, relative; smaller increases are not resolved


def quasi_newton_maximise(
    likelihood: MixtureLikelihood, logits: Floats, pseudocount: float, limit: float, target: float = -np.inf
) -> tuple[Floats, float]:
    """Maximise the log-posterior from `logits[d]` until a step promises less than `limit` nats.

    It also stops if the value is not going to reach `target`. Returns the logits and the log-posterior there.
    """
    value, gradient = likelihood.gradient(logits, pseudocount)
    pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=MEMORY)
    for iteration in range(MAX_ITERATIONS):
        if iteration % REFRESH == 0:
            curvature, directions = _sampled_curvature(likelihood, logits, pseudocount)
            pairs.clear()
        step = _two_loops(gradient, pairs, curvature, directions)
        promised = float(gradient @ step)
        if not promised >= max(limit, ROUNDING * abs(value)) or value + HOPE * promised < target:
            break
        length = min(1.0, MAX_STEP / float(np.abs(step).max()))
        while True:
            candidate = logits + length * step
            candidate_value, candidate_gradient = likelihood.gradient(candidate, pseudocount)
            increase = candidate_value - value
            if increase >= SUFFICIENT * length * promised:
                break
            if not length * promised >= ROUNDING * abs(value):
                return logits, value
            # Maximum of the parabola through both values with the slope at the first, within a tenth and a half.
            length *= min(max(0.5 * length * promised / max(length * promised - increase, 1e-300), 0.1), 0.5)
        change = gradient - candidate_gradient
        moved = candidate - logits
        product = float(moved @ change)
        if product > 0:  # else the curvature along the step is negative, and a correction would be so too
            pairs.append((moved, change, product))
        logits, value, gradient = candidate, candidate_value, candidate_gradient
    return logits, value


def _sampled_curvature(likelihood: MixtureLikelihood, logits: Floats, pseudocount: float) -> tuple[Floats, Floats]:
    """Absolute curvatures `[d]` of the log-posterior of a sample, scaled to all users, and directions `[d, d]`."""
    size = min(USERS_PER_PARAMETER * likelihood.n_parameters, len(likelihood.users))
    size = max(size, int(ROW_SHARE * max(len(likelihood.users) - LARGE_ROWS, 0)))
    sample = likelihood.rows(np.linspace(0, len(likelihood.users) - 1, size).astype(np.int64))  # rows are in order
    scale = float(likelihood.users.sum() / sample.users.sum())
    curvature, directions = np.linalg.eigh(scale * sample.derivatives(logits[None], pseudocount / scale)[2][0])
    return np.maximum(np.abs(curvature), MIN_CURVATURE), directions


def _two_loops(
    gradient: Floats, pairs: deque[tuple[Floats, Floats, float]], curvature: Floats, directions: Floats
) -> Floats:
    """The gradient times the inverse of the corrected curvature."""
    step, weights = gradient.copy(), []
    for moved, change, product in reversed(pairs):
        weights.append(float(moved @ step) / product)
        step -= weights[-1] * change
    step = directions @ (directions.T @ step / curvature)
    for (moved, change, product), weight in zip(pairs, reversed(weights), strict=True):
        step += (weight - float(change @ step) / product) * moved
    return step
