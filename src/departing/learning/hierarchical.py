"""Hierarchical prior of categories that are added: their logits are near those of the other categories, by type."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import log, pi
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, log_expit, logit

from departing.fitting.likelihood import MIN_PROBABILITY, Entries, MixtureLikelihood, Parameters
from departing.learning.segment_likelihood import SegmentedLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats

PRIOR_VARIANCE = 1.29  # of a logit under Beta(2, 2), the prior of all other probabilities: 2 (π²/6 - 1)
# A category that no user stayed in, or in which no user departed at a click, is taken to differ from the others if
# at least this share of them do otherwise; set by hand.
MAJORITY = 0.5


class HierarchicalPrior(NamedTuple):
    """Normal prior of r responses of added categories: row i of `coefficients @ logits` is normal around 0.

    The row is the logit of response `responses[i]` less the mean over the earlier categories and a further one with
    logit 0, and has the precision `precisions[i]`, for every type.
    """

    responses: Integers
    coefficients: Floats
    precisions: Floats


@dataclass(frozen=True, eq=False)
class HierarchicalLikelihood(MixtureLikelihood):
    """Likelihood of a mixture with a hierarchical prior over the responses of the `added` categories.

    It takes the place of the pseudo-observations, so it applies where `pseudocount` is above 0. `variances` are those
    of a logit between categories: of clicks, departures after a no-click and departures after a click.
    """

    added: tuple[int, ...] = ()
    variances: tuple[float, float, float] = (PRIOR_VARIANCE,) * 3

    @cached_property
    def prior(self) -> HierarchicalPrior:
        """The prior of all responses of added categories that have earlier categories to learn from."""
        groups = np.arange(self.n_categories), self.depart_categories, self.depart_on_click_categories
        responses, rows, precisions, first = [], [], [], 0
        for categories, variance in zip(groups, self.variances, strict=True):
            for position in np.flatnonzero(np.isin(categories, self.added)).tolist():
                earlier = np.flatnonzero(categories < categories[position])
                if len(earlier):
                    row = np.zeros(self.n_responses)
                    row[first + earlier] = -1 / (len(earlier) + 1)
                    row[first + position] = 1.0
                    responses.append(first + position)
                    rows.append(row)
                    precisions.append(1 / variance)
            first += len(categories)
        shape = len(responses), self.n_responses
        return HierarchicalPrior(np.array(responses, np.int64), np.reshape(rows, shape), np.array(precisions))

    @property
    def log_prior_correction(self) -> float:
        """Log of the constant of this prior over that of Beta(2, 2) of the same responses."""
        return self.n_types * float((0.5 * np.log(self.prior.precisions / (2 * pi)) - log(6)).sum())

    def _by_type(self, logits: Floats) -> tuple[Floats, Floats]:
        """Logits of responses `[B, F, M]` at `logits[B, d]`, and deviations from the prior mean `[B, r, M]`."""
        z = logits[:, : self.n_responses * self.n_types].reshape(len(logits), -1, self.n_types)
        return z, np.einsum("rf,bfx->brx", self.prior.coefficients, z)

    def _log_prior(self, logits: Floats, pseudocount: float) -> Floats:
        z, deviations = self._by_type(logits)
        own = z[:, self.prior.responses]
        normal = -0.5 * np.einsum("r,brx->b", self.prior.precisions, deviations**2)
        return np.asarray(normal - pseudocount * (log_expit(own) + log_expit(-own)).sum(axis=(1, 2)))

    def log_posterior(self, logits: Floats, pseudocount: float) -> Floats:
        """Log-posterior `[B]` at `logits[B, d]`."""
        values = super().log_posterior(logits, pseudocount)
        return values if pseudocount == 0 else values + self._log_prior(logits, pseudocount)

    def derivatives(self, logits: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Log-posterior `[B]`, its gradient `[B, d]` and the observed information `[B, d, d]`."""
        values, gradients, information = super().derivatives(logits, pseudocount)
        (responses, coefficients, precisions), m = self.prior, self.n_types
        if pseudocount == 0 or not len(responses):
            return values, gradients, information
        z, deviations = self._by_type(logits)
        slope = -np.einsum("rf,r,brx->bfx", coefficients, precisions, deviations)
        p = expit(z[:, responses])
        slope[:, responses] -= pseudocount * (1 - 2 * p)
        gradients[:, : slope[0].size] += slope.reshape(len(logits), -1)
        curvature = coefficients.T @ (precisions[:, None] * coefficients)
        place = np.arange(self.n_responses) * m
        for x in range(m):
            information[:, (place + x)[:, None], place + x] += curvature
            own = responses * m + x
            information[:, own, own] -= 2 * pseudocount * (p * (1 - p))[:, :, x]
        return values + self._log_prior(logits, pseudocount), gradients, information


@dataclass(frozen=True, eq=False)
class HierarchicalSegmentedLikelihood(HierarchicalLikelihood, SegmentedLikelihood):
    """The same with a prior over types for each segment."""


def with_hierarchical_prior(
    likelihood: MixtureLikelihood, added: tuple[int, ...], fitted: Parameters | None
) -> MixtureLikelihood:
    """Return `likelihood` with the hierarchical prior of the `added` categories, its variances from a `fitted` model.

    The variance of a logit between categories is that of the other categories, pooled over types, together with
    one observation of the variance of Beta(2, 2).
    """
    if not added:
        return likelihood
    likelihood = _free_departures(likelihood, added)
    own = {each.name: getattr(likelihood, each.name) for each in fields(likelihood)}
    segmented = isinstance(likelihood, SegmentedLikelihood)
    hierarchical: HierarchicalLikelihood = (HierarchicalSegmentedLikelihood if segmented else HierarchicalLikelihood)(
        **own, added=added
    )
    if fitted is None:
        return hierarchical
    others = np.setdiff1d(np.arange(likelihood.n_categories), added)
    groups = likelihood.depart_categories, likelihood.depart_on_click_categories
    tables = (
        fitted.click[others],
        fitted.depart[np.intersect1d(others, groups[0])],
        fitted.depart_on_click[np.intersect1d(others, groups[1])],
    )
    return replace(hierarchical, variances=(_variance(tables[0]), _variance(tables[1]), _variance(tables[2])))


def _variance(probabilities: Floats) -> float:
    """Variance of the logits of `probabilities[k, M]` between categories, pooled over types."""
    k, m = probabilities.shape
    if k < 2:
        return PRIOR_VARIANCE
    logits = _logits(probabilities)
    squares = float(((logits - logits.mean(axis=0)) ** 2).sum())
    return float((squares + PRIOR_VARIANCE) / (m * (k - 1) + 1))


def _logits(probabilities: Floats) -> Floats:
    return np.asarray(logit(np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)))


def _free_departures(likelihood: MixtureLikelihood, added: tuple[int, ...]) -> MixtureLikelihood:
    """Estimate the departures of added categories where those of most other categories are estimated."""
    k, others = likelihood.n_categories, np.setdiff1d(np.arange(likelihood.n_categories), added)
    free = likelihood.depart_categories, likelihood.depart_on_click_categories
    more = [
        np.setdiff1d(added, each) if np.isin(others, each).mean() >= MAJORITY else np.zeros(0, np.int64)
        for each in free
    ]
    if not any(map(len, more)):
        return likelihood
    successes, trials = likelihood.successes, likelihood.trials
    n = [k, len(free[0]), len(free[1])]
    parts = [np.split(table, np.cumsum(n)[:2], axis=1) for table in (successes, trials)]
    clicks, no_clicks = successes[:, :k], trials[:, :k] - successes[:, :k]
    # So far no user stayed after a no-click there: every one is a departure; and none departed at a click.
    for i, (own, all_trials) in enumerate(((no_clicks, no_clicks), (np.zeros_like(clicks), clicks))):
        parts[0][1 + i] = np.concatenate([parts[0][1 + i], own[:, more[i]]], axis=1)
        parts[1][1 + i] = np.concatenate([parts[1][1 + i], all_trials[:, more[i]]], axis=1)
    categories = [np.concatenate([each, new]) for each, new in zip(free, more, strict=True)]
    for table in parts:
        for i, each in enumerate(categories):
            table[1 + i] = table[1 + i][:, np.argsort(each)]
    return replace(
        likelihood,
        entries=_entries(*(np.concatenate(table, axis=1) for table in parts)),
        depart_categories=np.sort(categories[0]),
        depart_on_click_categories=np.sort(categories[1]),
    )


def _entries(successes: Floats, trials: Floats) -> Entries:
    row, response = np.nonzero(trials)
    start = np.append(0, np.cumsum(np.bincount(row, minlength=len(trials))))
    return Entries(start, response, successes[row, response], trials[row, response])


def extended(parameters: Parameters) -> Parameters:
    """Return parameters with one more category, whose logits are the mean of the others."""
    fields_: dict[str, Any] = {"prior": parameters.prior}
    for name in ("click", "depart", "depart_on_click"):
        table = getattr(parameters, name)
        fields_[name] = np.concatenate([table, expit(_logits(table).mean(axis=0))[None]])
    return Parameters(**fields_)
