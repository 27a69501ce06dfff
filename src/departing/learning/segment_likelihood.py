"""SegmentedLikelihood: users' counts given click and departure probabilities, and a prior over types per segment."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats

# Concentrations of the priors of the segments around the common one, in users: from segments that differ as much as
# two draws of a uniform distribution to segments that differ by 0.4 % of the users. All are equally probable a
# priori; a factor of 4 between them changes the spread of the segments by 2.
CONCENTRATIONS = tuple(4.0**k for k in range(9))
INITIAL_CONCENTRATION = 16.0  # before anything is known; only a start
MIN_PRECISION = 0.1  # of a log-ratio, so that a flat direction has finite width; set by hand
MIN_PRIOR = 1e-9  # of a type in a segment, so that its value is defined


@dataclass(frozen=True)
class Arrow:
    """Information about logits and log-ratios of segments: an arrowhead matrix, since segments are independent.

    Attributes
    ----------
    centre : array [..., d, d]
        Information about the logits that all segments share.
    cross : array [..., S, d, r]
        Its part with the log-ratios of each segment.
    own : array [..., S, r, r]
        Information about the log-ratios of each segment.
    """

    __array_ufunc__ = None  # numpy arrays leave products to `__rmul__`

    centre: Floats
    cross: Floats
    own: Floats

    def __add__(self, other: "Arrow") -> "Arrow":
        return Arrow(self.centre + other.centre, self.cross + other.cross, self.own + other.own)

    def __rmul__(self, factor: float | Floats) -> "Arrow":
        """Product with a number, or with `factor[G, 1, …]`, which adds an axis in front."""
        numbers = np.asarray(factor, np.float64).reshape(-1)
        if np.ndim(factor) == 0:
            return Arrow(*(numbers[0] * part for part in (self.centre, self.cross, self.own)))
        parts = (self.centre, self.cross, self.own)
        return Arrow(*(numbers.reshape(-1, *[1] * part.ndim) * part for part in parts))

    @cached_property
    def eliminated(self) -> tuple[Floats, Floats]:
        """Inverse of `own` times the transpose of `cross`, `[..., S, r, d]`, and the information about the logits."""
        ratio: Floats = np.linalg.solve(self.own, np.swapaxes(self.cross, -1, -2)).astype(np.float64)
        return ratio, np.asarray(self.centre - np.einsum("...sdr,...sre->...de", self.cross, ratio))

    def variances(self, shared: Floats, ratios: Floats, segment: Integers) -> Floats:
        """Variances `[..., c]` of linear functions of the logits and of the log-ratios of one segment each.

        Their coefficients are `shared[k, c, d]` and `ratios[k, c, r]`, for `segment[c]`.
        """
        ratio, information = self.eliminated
        own = self.own[..., segment, :, :]
        scaled = np.linalg.solve(own, np.broadcast_to(ratios, own.shape[:-1])[..., None])[..., 0]
        rest = shared - np.einsum(
            "...crd,...cr->...cd", ratio[..., segment, :, :], np.broadcast_to(ratios, scaled.shape)
        )
        solved = np.linalg.solve(information, np.swapaxes(rest, -1, -2))
        return np.asarray((ratios * scaled).sum(axis=-1) + np.einsum("...cd,...dc->...c", rest, solved))


@dataclass(frozen=True, eq=False)
class SegmentedLikelihood(MixtureLikelihood):
    """Likelihood of a mixture whose prior over types depends on the segment, with the same responses for all.

    The rows are those of all segments together. Segment s has `segment_users[i]` users of the rows `segment_rows[i]`
    for i from `bounds[s]` to `bounds[s + 1]`. The last M - 1 logits are the common prior, to which the priors of the
    segments are drawn as by `concentration` users. As a function of the logits, the log-posterior is the maximum over
    the priors of the segments; `corrections` turn it into the integral.
    """

    bounds: Integers = None  # type: ignore[assignment]
    segment_rows: Integers = None  # type: ignore[assignment]
    segment_users: Floats = None  # type: ignore[assignment]
    concentration: float = INITIAL_CONCENTRATION

    @classmethod
    def of_segments(
        cls, parts: list[tuple[Integers, Integers]], n_types: int, concentration: float
    ) -> "SegmentedLikelihood":
        """Likelihood of `users[n]` users with distinct `counts[n, K, 4]` in each of the parts, the segments."""
        counts = np.concatenate([each for each, _ in parts])
        users = np.concatenate([each for _, each in parts]).astype(np.float64)
        distinct, rows = np.unique(counts.reshape(len(counts), -1), axis=0, return_inverse=True)
        rows = rows.reshape(-1)
        pooled = np.bincount(rows, users, len(distinct))
        plain = MixtureLikelihood.from_counts(distinct.reshape(-1, *counts.shape[1:]), pooled, n_types)
        own = {each.name: getattr(plain, each.name) for each in fields(MixtureLikelihood)}
        bounds = np.cumsum([0, *(len(each) for each, _ in parts)])
        return cls(**own, bounds=bounds, segment_rows=rows, segment_users=users, concentration=concentration)

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return len(self.bounds) - 1

    def _run(self, logits: Floats, pseudocount: float, derivatives: bool) -> tuple[Floats, ...]:
        """Call the kernel: values, corrections, priors, own, gradients, information and cross."""
        from departing.kernels.learning.segments import segmented_posterior

        (b, d), s, m = logits.shape, self.n_segments, self.n_types
        n = b if derivatives else 0
        priors, own = np.empty((b, s, m)), np.empty((b, s, m - 1, m - 1))
        more = np.empty((n, d)), np.empty((n, d, d)), np.empty((n, s, d, m - 1))
        arrays = np.empty(b), np.empty(b), priors, own, *more
        rows = self.bounds, self.segment_rows, self.segment_users, self.concentration
        segmented_posterior(
            np.ascontiguousarray(logits), *self.entries, *rows, self.n_responses, m, pseudocount, *arrays
        )
        return arrays

    def log_posterior(self, logits: Floats, pseudocount: float) -> Floats:
        """Log-posterior `[B]` at `logits[B, d]`, maximised over the priors of the segments."""
        return self._run(logits, pseudocount, False)[0]

    def derivatives(self, logits: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Log-posterior `[B]`, its gradient `[B, d]` and the observed information `[B, d, d]`."""
        values, _, _, own, gradients, centre, cross = self._run(logits, pseudocount, True)
        return values, gradients, Arrow(centre, cross, own).eliminated[1]

    def corrections(self, logits: Floats) -> Floats:
        """Log of the integral over the priors of the segments, less that of the integrand at its maximum, `[B]`."""
        return self._run(logits, 0.0, False)[1]

    def at(self, logits: Floats, pseudocount: float) -> tuple[Floats, Arrow]:
        """Priors of the segments `[S, M]` and the information of all parameters at `logits[d]`."""
        _, _, priors, own, _, centre, cross = self._run(logits[None], pseudocount, True)
        return priors[0], Arrow(centre[0], cross[0], own[0])

    def log_marginals(self, logits: Floats) -> Floats:
        """Log-likelihoods `[B, c]` at `logits[B, d]` by concentration, integrated over the priors of the segments."""
        columns = []
        for concentration in CONCENTRATIONS:
            values, corrections, *_ = self.with_concentration(concentration)._run(logits, 0.0, False)
            columns.append(values + corrections)
        return np.stack(columns, axis=1)

    def with_concentration(self, concentration: float) -> Self:
        """The same with another concentration."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return type(self)(**(own | {"concentration": concentration}))

    def likeliest_concentration(self, logits: Floats) -> float:
        """Concentration with the largest marginal likelihood at `logits[d]`."""
        return CONCENTRATIONS[int(self.log_marginals(logits[None])[0].argmax())]

    def sample_priors(self, logits: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Sample a concentration and the priors of the segments for each of `logits[B, d]`.

        Returns the priors `[B, S, M]` and log-weights `[B]`: logits that were sampled for the concentration of this
        likelihood are then samples for all concentrations.
        """
        marginals = self.log_marginals(logits)
        shares = np.exp(marginals - marginals.max(axis=1, keepdims=True))
        total = shares.sum(axis=1)
        values, corrections, *_ = self._run(logits, 0.0, False)
        log_weights = np.log(total) + marginals.max(axis=1) - values - corrections
        chosen = (shares.cumsum(axis=1) < (rng.random(len(logits)) * total)[:, None]).sum(axis=1)
        priors = np.empty((len(logits), self.n_segments, self.n_types))
        noise = rng.normal(size=priors.shape)[..., :-1]
        for index in np.unique(chosen):
            rows = chosen == index
            _, _, peak, own, *_ = self.with_concentration(CONCENTRATIONS[index])._run(logits[rows], 0.0, False)
            precisions, directions = np.linalg.eigh(own)
            scaled = noise[rows] / np.sqrt(np.maximum(precisions, MIN_PRECISION))
            deviation = np.einsum("bsqr,bsr->bsq", directions, scaled)
            ratio = np.log(peak)
            ratio[..., :-1] += deviation
            share = np.maximum(np.exp(ratio - ratio.max(axis=-1, keepdims=True)), MIN_PRIOR)
            priors[rows] = share / share.sum(axis=-1, keepdims=True)
        return priors, log_weights
