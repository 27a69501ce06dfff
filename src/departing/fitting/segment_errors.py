"""Standard errors of a fit with segments, by the influence of every user on all estimates."""

from dataclasses import dataclass

import numpy as np

from departing.fitting.concentration import SegmentOptimum
from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.segments import MIN_SHARE
from departing.fitting.standard_errors import MIN_VARIANCE
from departing.model.counts import Integers
from departing.model.instance import Floats

MIN_CURVATURE = 1e-3  # of the log-posterior; caps standard errors of logits that are not identifiable at about 30


@dataclass(frozen=True, eq=False)
class SegmentErrors:
    """Covariance matrices of a fit with segments.

    Attributes
    ----------
    covariance : array [d, d]
        Of the logits of the responses and the log-ratios of the common prior, if the model holds.
    robust : array [d, d]
        The same by the sandwich estimator.
    stderr : array [S, M]
        Robust standard errors of the logits of the segments' priors. Users of the common prior that the concentration
        adds count as observations.
    """

    covariance: Floats
    robust: Floats
    stderr: Floats


def segment_errors(optimum: SegmentOptimum, pseudocount: float) -> SegmentErrors:
    """Covariance matrices at the optimum; the information about responses and priors is inverted by blocks.

    With the information blocks I of the responses, C_s shared with the prior of segment s, and H_s of that prior, the
    responses have the covariance V = (I - sum C_s' H_s⁻¹ C_s)⁻¹. A user with the scores g and u moves the responses
    by V (g - C_s' H_s⁻¹ u), and the prior of its segment by H_s⁻¹ u less what the responses explain.
    """
    likelihood, logits, prior = optimum.likelihood, optimum.logits, optimum.prior
    information, cross, own = likelihood.blocks(logits, prior, pseudocount)
    inverse: Floats = np.asarray(np.linalg.pinv(own, hermitian=True), np.float64)
    explained = inverse @ cross  # [S, M - 1, d]
    covariance = _invert(information - np.einsum("sxi,sxj->ij", cross, explained))
    slopes = prior[:, :, None] * (np.eye(likelihood.n_types)[:, :-1] - prior[:, None, :-1])  # [S, M, M - 1]
    pseudo = likelihood.concentration * slopes[:, :-1]
    to_common = likelihood.share[:, None, None] * _common_slopes(optimum.common_prior) @ slopes
    lever = np.einsum("scx,sxi->ci", to_common, explained)  # of the common prior by the responses
    users, common = _Sums(optimum), optimum.common_prior
    for rows, segment in likelihood.batches(len(logits)):
        users.add(rows, segment, inverse, cross)
    robust = _joint(covariance, users.responses + _pseudocounts(logits, pseudocount), lever)
    model = _joint(covariance, None, lever)
    total = float(likelihood.segment_users.sum())
    away = (prior - common) @ _common_slopes(common).T / np.sqrt(total)
    between = away.T @ (likelihood.share[:, None] * away)  # users of other segments could have come
    of_priors = to_common @ inverse
    spread = users.centred + pseudo
    d = len(logits)
    model[d:, d:] += between + np.einsum("scx,sxy,sdy->cd", of_priors, own, of_priors)
    robust[d:, d:] += between + np.einsum("scx,sxy,sdy->cd", of_priors, spread, of_priors)
    shared = np.einsum("scx,sxi->ci", of_priors, users.shared[:-1]) @ covariance  # [M - 1, d]
    robust[d:, :d] += shared
    robust[:d, d:] += shared.T
    robust[d:, d:] -= shared @ lever.T + lever @ shared.T
    scale = np.sqrt(np.maximum(np.diag(model) / np.maximum(np.diag(robust), MIN_VARIANCE), 1.0))
    robust *= scale[:, None] * scale
    moved = explained @ robust[:d, :d] @ explained.transpose(0, 2, 1)
    mixed = inverse @ users.shared[:-1] @ covariance @ explained.transpose(0, 2, 1)
    of_ratios = inverse @ spread @ inverse - mixed - mixed.transpose(0, 2, 1) + moved
    return SegmentErrors(model, robust, _logit_errors(prior, of_ratios))


class _Sums:
    """Sums over users: squared scores of the responses, and scores of the priors by segment."""

    def __init__(self, optimum: SegmentOptimum) -> None:
        s, m, d = optimum.likelihood.n_segments, optimum.likelihood.n_types, len(optimum.logits)
        self.optimum = optimum
        self.logits = optimum.all_logits
        self.prior = np.append(optimum.prior, optimum.likelihood.target[None], axis=0)
        self.responses = np.zeros((d, d))
        self.squares, self.shared = np.zeros((s + 1, m - 1, m - 1)), np.zeros((s + 1, m - 1, d))
        self.means, self.users = np.zeros((s + 1, m - 1)), np.zeros(s + 1)

    def add(self, rows: MixtureLikelihood, segment: Integers, inverse: Floats, cross: Floats) -> None:
        """Add users with their segments, given the inverse information of the priors and that shared."""
        n_segments = len(inverse)
        shares = rows.type_likelihoods(self.logits) * self.prior[segment]
        shares /= shares.sum(axis=1, keepdims=True)
        scores = rows.response_scores(self.logits, shares)
        away = (shares - self.prior[segment])[:, :-1]
        known = segment < n_segments
        at = segment[known]
        scores[known] -= np.einsum("nx,nxi->ni", np.einsum("nx,nxy->ny", away[known], inverse[at]), cross[at])
        weight = rows.squares if rows.squares is not None else rows.users
        self.responses += scores.T @ (scores * weight[:, None])
        for s in np.unique(segment):
            own = segment == s
            weighted = away[own] * weight[own, None]
            self.squares[s] += away[own].T @ weighted
            self.shared[s] += weighted.T @ scores[own]
            self.means[s] += weighted.sum(axis=0)
            self.users[s] += weight[own].sum()

    @property
    def centred(self) -> Floats:
        """Squared scores of the priors about their mean in the segment, `[S, M - 1, M - 1]`."""
        means = self.means / np.maximum(np.sqrt(self.users), MIN_VARIANCE)[:, None]
        return (self.squares - means[:, :, None] * means[:, None, :])[:-1]


def _invert(information: Floats) -> Floats:
    curvature, directions = np.linalg.eigh(information)
    return np.asarray((directions / np.maximum(curvature, MIN_CURVATURE)) @ directions.T)


def _pseudocounts(logits: Floats, pseudocount: float) -> Floats:
    success = 0.5 * (1 + np.tanh(0.5 * logits))
    return np.diag(2 * pseudocount * success * (1 - success))


def _joint(covariance: Floats, squares: Floats | None, lever: Floats) -> Floats:
    """Covariance of the responses, and of the common prior as far as it follows from the responses."""
    own = covariance if squares is None else covariance @ squares @ covariance
    d, m = len(own), len(lever)
    joint = np.zeros((d + m, d + m))
    joint[:d, :d] = own
    joint[d:, :d] = -lever @ own
    joint[:d, d:] = joint[d:, :d].T
    joint[d:, d:] = lever @ own @ lever.T
    return joint


def _common_slopes(prior: Floats) -> Floats:
    """Derivatives of the log-ratios of a prior by its entries, `[M - 1, M]`."""
    prior, m = np.maximum(prior, MIN_SHARE), len(prior)
    slopes = np.zeros((m - 1, m))
    slopes[:, :-1] = np.diag(1 / prior[:-1])
    slopes[:, -1] = -1 / prior[-1]
    return slopes


def _logit_errors(prior: Floats, covariance: Floats) -> Floats:
    """Standard errors of the logits of priors `[S, M]`, given the covariance of their log-ratios."""
    m = prior.shape[1]
    slopes = np.eye(m)[:, :-1] - prior[:, None, :-1]  # of log π by the log-ratios, [S, M, M - 1]
    variance = np.einsum("sxi,sij,sxj->sx", slopes, covariance, slopes)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)) / np.maximum(1 - prior, MIN_SHARE))
