"""Standard errors of estimated probabilities: the sandwich estimator, and the delta method."""

from collections.abc import Callable

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.model.instance import Floats

MIN_VARIANCE = 1e-300  # guards a division by zero


def robust_covariance(
    likelihood: MixtureLikelihood, logits: Floats, covariance: Floats, pseudocount: float
) -> Floats:
    """Sandwich estimate of the covariance matrix of the estimated `logits[d]` (Huber 1967, White 1982).

    With `covariance[d, d]` the inverse of the observed information and B the sum over users of the squared scores, it
    is `covariance @ B @ covariance`. It holds if users differ within types, in which case the inverse of the
    information is too small. Pseudocounts count as observations, so that parameters without data keep their variance.
    No variance is below that of the information: where few users determine a parameter, their scores are near zero.
    """
    squares = likelihood.rows(slice(0, 0)).derivatives(logits[None], pseudocount)[2][0]  # of the pseudocounts
    mean = np.zeros(len(logits))
    total = float(likelihood.users.sum())
    for part in likelihood.batches(len(logits)):
        scores = part.scores(logits)
        weighted = scores * part.users[:, None]
        squares += scores.T @ (weighted if part.squares is None else scores * part.squares[:, None])
        mean += weighted.sum(axis=0) / total
    squares -= total * np.outer(mean, mean)
    robust = covariance @ squares @ covariance
    scale = np.sqrt(np.maximum(np.diag(covariance) / np.maximum(np.diag(robust), MIN_VARIANCE), 1.0))
    return np.asarray(robust * scale[:, None] * scale)


def transform_estimates(
    likelihood: MixtureLikelihood,
    logits: Floats,
    covariance: Floats,
    function: Callable[..., Floats],
    depart: float,
    depart_on_click: float,
) -> Parameters:
    """`function(estimate, standard error of its logit)`; `depart` and `depart_on_click` where not estimated."""
    prior, prob = likelihood.from_logits(logits).prior, likelihood.response_probabilities(logits)
    stderr = np.sqrt(np.diag(covariance)[: prob.size]).reshape(prob.shape)
    prior = function(prior, prior_logit_stderr(prior, covariance))
    return likelihood.parameters(prior, function(prob, stderr), depart, depart_on_click)


def prior_logit_stderr(prior: Floats, covariance: Floats) -> Floats:
    """Standard errors of the logit of every share."""
    m = len(prior)
    if m == 1:
        return np.zeros(1)
    slopes = prior[:, None] * (np.eye(m)[:, :-1] - prior[:-1]) / np.maximum(prior * (1 - prior), 1e-300)[:, None]
    tail = covariance[-(m - 1) :, -(m - 1) :]
    return np.asarray(np.sqrt(np.einsum("xi,ij,xj->x", slopes, tail, slopes)))
