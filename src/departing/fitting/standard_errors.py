"""Standard errors of estimated probabilities, by the delta method."""

from collections.abc import Callable

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.model.instance import Floats


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
    prior = function(prior, _prior_logit_stderr(prior, covariance))
    return likelihood.parameters(prior, function(prob, stderr), depart, depart_on_click)


def _prior_logit_stderr(prior: Floats, covariance: Floats) -> Floats:
    """Standard errors of the logit of every share."""
    m = len(prior)
    if m == 1:
        return np.zeros(1)
    slopes = prior[:, None] * (np.eye(m)[:, :-1] - prior[:-1]) / np.maximum(prior * (1 - prior), 1e-300)[:, None]
    tail = covariance[-(m - 1) :, -(m - 1) :]
    return np.asarray(np.sqrt(np.einsum("xi,ij,xj->x", slopes, tail, slopes)))
