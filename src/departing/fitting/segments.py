"""Likelihood of a latent class model with concomitant variables: a prior over types for each segment of the users.

The priors of the segments are drawn towards the common prior: that of a segment has a Dirichlet distribution whose
parameters are the common prior times a concentration, which counts like so many users of the common prior.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from departing.fitting.likelihood import BATCH_CELLS, MixtureLikelihood
from departing.kernels.fitting.segments import MIN_SHARE as MIN_SHARE
from departing.kernels.fitting.segments import add_derivatives, row_likelihoods, segment_modes
from departing.model.counts import Booleans, Integers
from departing.model.instance import Floats

MAX_CONCENTRATION = 1e12  # in the place of infinity: far above any number of users

Modes = tuple[Floats, Floats, Floats]


@dataclass(frozen=True, eq=False)
class SegmentedLikelihood:
    """Log-posterior of the logits of the responses, at its maximum over the priors of the segments.

    Attributes
    ----------
    likelihood : MixtureLikelihood
        Rows in the order of the segments, those of unknown segment last.
    segment : int array [N]
        Segment of each row; `n_segments` if it is unknown.
    n_segments : int
        Number of segments S.
    target : array [M]
        Common prior.
    concentration : float
        Users of the common prior that are added to every segment.
    """

    likelihood: MixtureLikelihood
    segment: Integers
    n_segments: int
    target: Floats
    concentration: float

    @classmethod
    def of(cls, likelihood: MixtureLikelihood, segment: Integers, n_segments: int, target: Floats) -> Self:
        """Likelihood of rows with the segments `segment[N]`, -1 if unknown, all with the common prior."""
        place = np.where(segment < 0, n_segments, segment)
        order = np.argsort(place, kind="stable")
        return cls(likelihood.rows(order), place[order], n_segments, target, np.inf)

    @property
    def n_types(self) -> int:
        """Number of types M."""
        return self.likelihood.n_types

    @property
    def n_parameters(self) -> int:
        """Number of logits of the responses."""
        return self.likelihood.n_responses * self.n_types

    @property
    def users(self) -> Floats:
        """Number of users of each row, `[N]`."""
        return self.likelihood.users

    @cached_property
    def bounds(self) -> Integers:
        """First row of each segment, of the unknown one and the number of rows, `[S + 2]`."""
        return np.searchsorted(self.segment, np.arange(self.n_segments + 2))

    @cached_property
    def segment_users(self) -> Floats:
        """Number of users of each segment, `[S]`, without those of unknown segment."""
        return np.asarray(np.bincount(self.segment, self.users, self.n_segments + 1)[:-1], np.float64)

    @cached_property
    def share(self) -> Floats:
        """Share of each segment in the users of known segment, `[S]`."""
        return np.asarray(self.segment_users / self.segment_users.sum())

    def with_prior(self, target: Floats, concentration: float) -> Self:
        """The same users with another distribution of the priors."""
        return replace(self, target=target, concentration=concentration)

    def rows(self, chosen: slice | Integers | Booleans) -> Self:
        """Likelihood of some of the rows, in order."""
        return replace(self, likelihood=self.likelihood.rows(chosen), segment=self.segment[chosen])

    def reweighted(self, users: Floats) -> Self:
        """Likelihood with other numbers of users of the rows, without the rows that have none."""
        kept = users > 0
        return replace(self, likelihood=self.likelihood.reweighted(users), segment=self.segment[kept])

    def batches(self, width: int) -> Iterator[tuple[MixtureLikelihood, Integers]]:
        """Rows in order with their segments, so many that a matrix of `width` numbers per row is small."""
        first = 0
        for batch in self.likelihood.batches(max(width, self.likelihood.n_responses)):
            yield batch, self.segment[first : first + len(batch.users)]
            first += len(batch.users)

    def row_likelihoods(self, logits: Floats) -> tuple[Floats, Floats]:
        """Likelihood of each row by type over the largest, `[N, M]`, and the logarithm of the largest, `[N]`."""
        rows = self.likelihood
        weight, top = np.empty((len(rows.users), rows.n_types)), np.empty(len(rows.users))
        row_likelihoods(logits, *rows.entries, rows.n_responses, rows.n_types, weight, top)
        return weight, top

    def modes(self, weight: Floats, initial: Floats | None = None) -> Modes:
        """Priors `[S + 1, M]` of the largest log-posterior given the likelihoods by type, the common one last.

        Also returns the log-posterior of each segment, `[S + 1]`, and the log-determinants of the information, `[S]`.
        """
        n_segments = self.n_segments
        prior = np.tile(np.maximum(self.target, MIN_SHARE), (n_segments + 1, 1))
        values, determinants = np.empty(n_segments + 1), np.empty(n_segments)
        if initial is not None:
            prior[:] = initial
        if np.isinf(self.concentration):
            values[:] = np.bincount(self.segment, self.users * np.log(weight @ self.target), n_segments + 1)
            return np.tile(self.target, (n_segments + 1, 1)), values, np.full(n_segments, np.inf)
        segment_modes(self.bounds, weight, self.users, self.concentration, self.target, prior, values, determinants)
        # Relative to the density of the common prior: minus the concentration times the divergence from it.
        values[:-1] -= self.concentration * float(self.target @ np.log(np.maximum(self.target, MIN_SHARE)))
        return prior, values, determinants

    def priors(self, logits: Floats) -> Floats:
        """Priors of the segments `[S, M]` at the logits of the responses `[d]`."""
        return self.modes(self.row_likelihoods(logits)[0])[0][:-1]

    def log_likelihood(self, logits: Floats, prior: Floats) -> float:
        """Log-likelihood of all users with the priors `[S, M]` of the segments."""
        weight, top = self.row_likelihoods(logits)
        own = np.append(prior, self.target[None], axis=0)[self.segment]
        return float(self.users @ (top + np.log((weight * own).sum(axis=1))))

    def log_posterior(self, logits: Floats, pseudocount: float) -> Floats:
        """Log-posterior `[B]` at `logits[B, d]`."""
        return np.array([self._value(each, pseudocount)[0] for each in logits])

    def _value(self, logits: Floats, pseudocount: float) -> tuple[float, Floats, Floats]:
        """Log-posterior, likelihoods by type and priors of the segments."""
        weight, top = self.row_likelihoods(logits)
        prior, values, _ = self.modes(weight)
        pseudo = -np.logaddexp(0.0, -logits).sum() - np.logaddexp(0.0, logits).sum()
        return float(self.users @ top + values.sum() + pseudocount * pseudo), weight, prior

    def gradient(self, logits: Floats, pseudocount: float) -> tuple[float, Floats]:
        """Log-posterior at `logits[d]` and its gradient `[d]`."""
        value, weight, prior = self._value(logits, pseudocount)
        gradient, _, _ = self._derivatives(logits, pseudocount, weight, prior, False)
        return value, gradient

    def derivatives(self, logits: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Log-posterior `[B]` at `logits[B, d]`, its gradient `[B, d]` and observed information `[B, d, d]`."""
        parts = []
        for each in logits:
            value, weight, prior = self._value(each, pseudocount)
            gradient, information, cross = self._derivatives(each, pseudocount, weight, prior, True)
            explained = np.linalg.solve(self.prior_information(weight, prior), cross)
            information -= np.einsum("sxi,sxj->ij", cross, explained)
            parts.append((value, gradient, information))
        return tuple(np.array(each) for each in zip(*parts, strict=True))  # type: ignore[return-value]

    def _derivatives(
        self, logits: Floats, pseudocount: float, weight: Floats, prior: Floats, second: bool
    ) -> tuple[Floats, Floats, Floats]:
        """Gradient `[d]`, information `[d, d]`, and that with the log-ratios of the priors, `[S, M - 1, d]`."""
        rows, d = self.likelihood, len(logits)
        success = 0.5 * (1 + np.tanh(0.5 * logits))
        gradient = pseudocount * (1 - 2 * success)
        information = np.zeros((d, d) if second else (0, 0))
        cross = np.zeros((self.n_segments, rows.n_types - 1, d) if second else (0, 0, 0))
        arrays: tuple[Any, ...] = (prior, weight, gradient, information, cross)
        numbers = rows.n_responses, rows.n_types
        add_derivatives(logits, rows.users, self.bounds, *rows.entries, *numbers, *arrays)
        if second:
            information[np.diag_indices(d)] += 2 * pseudocount * success * (1 - success)
        return gradient, information, cross

    def blocks(self, logits: Floats, prior: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Observed information at the maximum: of the responses `[d, d]`, shared `[S, M-1, d]`, of the priors."""
        weight, _ = self.row_likelihoods(logits)
        both = np.append(prior, self.target[None], axis=0)
        _, information, cross = self._derivatives(logits, pseudocount, weight, both, True)
        return information, cross, self.prior_information(weight, both)

    def prior_information(self, weight: Floats, prior: Floats) -> Floats:
        """Observed information about the log-ratios of every segment's prior, `[S, M - 1, M - 1]`."""
        m, n_segments = self.n_types, self.n_segments
        own = prior[:-1, :-1]
        total = (self.segment_users + min(self.concentration, MAX_CONCENTRATION))[:, None, None]
        information = total * (own[:, :, None] * np.eye(m - 1) - own[:, :, None] * own[:, None, :])
        size = max(BATCH_CELLS // m**2, 1)
        for first in range(0, len(self.users), size):
            part = slice(first, first + size)
            segment = self.segment[part]
            shares = weight[part] * prior[segment]
            shares = (shares / shares.sum(axis=1, keepdims=True))[:, :-1]
            for x in range(m - 1):
                for y in range(m - 1):
                    missing = self.users[part] * shares[:, x] * ((x == y) - shares[:, y])
                    information[:, x, y] -= np.bincount(segment, missing, n_segments + 1)[:-1]
        return np.asarray(information)
