"""Posterior samples of an instance: modes of the posterior, and importance-weighted samples around them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from math import lgamma, log, pi

import numpy as np
from scipy.special import expit, logit

from departing.fitting.likelihood import MIN_PROBABILITY, MixtureLikelihood, Parameters
from departing.fitting.optimisation import SAME_MAXIMUM, NewtonResult, newton_maximise
from departing.learning.files import check_shape
from departing.learning.hierarchical import HierarchicalLikelihood, extended
from departing.learning.instance_batch import BOUNDARY_COUNT, InstanceBatch
from departing.learning.segment_likelihood import SegmentedLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

# The prior: 2 pseudo-observations of each kind per probability, and 2 users per type. It keeps maxima away from 0 and
# 1 and is otherwise weak; set by hand.
PSEUDOCOUNT = 2.0
INITIAL_DEPART_ON_CLICK = 0.01  # start of inference: departure after a click is rare; only a start, set by hand
# Modes kept between blocks. Set by hand, raised from 5 with the first rule that values information; each costs one
# Newton maximisation per block.
MAX_MODES = 10
MAX_LOG_RATIO = 12.0  # modes this many nats below the best are dropped: less than e^-12 = 6e-6 of its mass
# Maxima within SAME_MAXIMUM nats are one within this squared Mahalanobis distance, that is 2 standard errors.
SAME_MODE_DISTANCE = 4.0
MAX_PERMUTED_TYPES = 4  # types up to which all relabellings are compared; 5! = 120 per pair would be slow
# Posterior precision in logits below which a direction is sampled with heavy tails: a standard error of 1/sqrt(60) =
# 0.13. Set by hand: higher values sample more directions by importance weights, with a smaller effective sample size.
WEAK_PRECISION = 60.0
DIFFERENCE_STEP = 1e-4  # logits; central differences: truncation error of order 1e-8, rounding of order 1e-12
MAX_START = 6.0  # logits: random starts are clipped to probabilities of 0.0025 to 0.9975
MAX_PROPOSAL = 8.0  # logits: proposals are clipped to probabilities of 3e-4 to 1 - 3e-4, unless the mode is beyond
PROPOSAL_SCALE = 1.2  # proposals are this much wider than the curvature implies, so that weights stay bounded
TAIL_DEGREES = 5  # degrees of freedom of the Student t proposals; heavier tails than normal, but finite variance
MIN_PRECISION = 0.3  # lower limit of a mode's precision, so that a flat direction has finite width; set by hand
MIN_TIGHT_PRECISION = 1.0  # the same along the directions that proposals maximise over; set by hand
EM_ITERATIONS, NEWTON_ITERATIONS = 20, 12  # of random starts, and of proposals; set by hand, more take longer
START_NOISE = (0.3, 1.0)  # logits: a start near the best mode, close to leave a saddle or wide to leave the basin
# Samples are drawn again until the effective sample size is this fraction, at most this many times. Set by hand.
MIN_ESS_FRACTION, MAX_ROUNDS = 0.3, 8
# A sample with more than this share of the weight is checked for being in the basin of another mode, and at most
# `MAX_STRAYS` are dropped. Set by hand: such samples come from the wrong proposal and would exclude everything else.
STRAY_SHARE, MAX_STRAYS = 0.2, 4
# Prior odds that departure is not sure, if no user ever stayed in any category; if one did, the odds are 1. Set by
# hand: higher odds spend more exploration on users who might stay.
UNSURE_ODDS = 0.02


@dataclass(frozen=True, eq=False)
class Mode:
    """A mode of the posterior in logits `[d]`: its share of the mass, log density, and precisions `[d]`."""

    likelihood: MixtureLikelihood
    logits: Floats
    share: float
    log_density: float
    precisions: Floats
    directions: Floats
    correction: float = 0.0  # of the log density, for what was maximised over before

    @cached_property
    def instance(self) -> Instance:
        """The instance at the mode."""
        return InstanceBatch.of_logits(self.likelihood, self.logits[None]).instance(0)

    @property
    def precision(self) -> Floats:
        """The observed information at the mode, `[d, d]`."""
        return np.asarray((self.directions * self.precisions) @ self.directions.T)

    @cached_property
    def neighbours(self) -> InstanceBatch:
        """The mode, the instances one `DIFFERENCE_STEP` ahead in each parameter, then one step back, `2d + 1`."""
        steps = DIFFERENCE_STEP * np.eye(len(self.logits))
        logits = np.concatenate([self.logits[None], self.logits + steps, self.logits - steps])
        return InstanceBatch.of_logits(self.likelihood, logits)


@dataclass(frozen=True, eq=False)
class PosteriorSamples:
    """Instances with weights `[n]` that sum to 1, and the index `owner[n]` of the mode each was proposed from."""

    batch: InstanceBatch
    weights: Floats
    modes: list[Mode]
    owner: Integers


@dataclass
class Posterior:
    """The posterior of an instance with `n_types` types.

    Modes are found by EM and Newton's method from several starts and kept in `pool` from one block to the next.
    Proposals follow a Student t distribution along the weak directions of a mode and are maximised over the tight
    ones; importance weights integrate these out (a Laplace approximation within each proposal).
    """

    n_categories: int
    n_types: int
    rng: np.random.Generator
    pool: list[Parameters] = field(default_factory=list)

    def state(self) -> list[dict[str, Floats]]:
        """Return everything needed to resume, except the random generator."""
        return [dict(vars(parameters)) for parameters in self.pool]

    def restore(self, state: list[dict[str, Floats]]) -> None:
        """Continue from a `state`; raise `ValueError` if an array has another shape."""
        for arrays in state:
            for name, array in arrays.items():
                check_shape(name, array, (self.n_categories, self.n_types)[name == "prior" :])
        self.pool = [Parameters(**arrays) for arrays in state]

    def add_category(self) -> None:
        """Add a category that nobody has been shown."""
        self.n_categories += 1
        self.pool = [extended(parameters) for parameters in self.pool]

    def sample(self, likelihood: MixtureLikelihood, n: int, starts: int) -> PosteriorSamples:
        """Sample `n` weighted instances; modes of small mass are over-represented on purpose."""
        modes = self._modes(likelihood, starts)
        proportions = np.sqrt([mode.share for mode in modes])
        proportions /= proportions.sum()
        positions = np.searchsorted(proportions.cumsum(), (np.arange(n) + self.rng.random()) / n)
        owner = np.minimum(positions, len(modes) - 1)
        rounds = [self._propose_all(modes, owner, proportions)]
        while _effective_size(rounds) < MIN_ESS_FRACTION * n and len(rounds) < MAX_ROUNDS:
            rounds.append(self._propose_all(modes, owner, proportions))
        logits, log_weights = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
        weights = np.exp(log_weights - log_weights.max())
        if len(rounds) > 1:
            kept, weights = _resample(weights, n, self.rng)
            logits, owner = logits[kept], np.tile(owner, len(rounds))[kept]
        priors = None
        if isinstance(likelihood, SegmentedLikelihood):
            priors, more = likelihood.sample_priors(logits, self.rng)
            weights = weights * np.exp(more - more.max())
        # Truncated importance sampling: a weight above sqrt(n) times the mean is usually sampling noise.
        weights = np.minimum(weights, weights.mean() * np.sqrt(n))
        used, owner = np.unique(owner, return_inverse=True)
        batch = self._sample_sure_departure(likelihood, InstanceBatch.of_logits(likelihood, logits))
        batch = batch if priors is None else replace(batch, segment_priors=priors)
        return PosteriorSamples(batch, weights / weights.sum(), [modes[mode] for mode in used.tolist()], owner)

    def _propose_all(self, modes: list[Mode], owner: Integers, proportions: Floats) -> tuple[Floats, Floats]:
        """Propose logits `[n, d]` from the owner of each sample, with log weights `[n]`."""
        logits, log_weights = [], []
        for mode in np.unique(owner).tolist():
            proposed, log_weight = self._propose(modes[mode], int((owner == mode).sum()))
            logits.append(proposed)
            log_weights.append(log_weight - np.log(proportions[mode]))
        all_logits, all_log_weights = np.concatenate(logits), np.concatenate(log_weights)
        self._drop_strays([modes[mode] for mode in np.sort(owner)], all_logits, all_log_weights)
        return all_logits, all_log_weights

    def _drop_strays(self, owners: list[Mode], logits: Floats, log_weights: Floats) -> None:
        """Drop dominating samples that lie in the basin of another mode than their own.

        Their own mode hardly ever proposes there, so their weight would exclude everything else.
        """
        for _ in range(MAX_STRAYS):
            i = int(log_weights.argmax())
            if np.exp(log_weights - log_weights[i]).sum() > 1 / STRAY_SHARE:
                break
            peak = newton_maximise(owners[i].likelihood, logits[i][None], PSEUDOCOUNT)
            if abs(peak.values[0] - owners[i].log_density) <= SAME_MAXIMUM:
                break
            log_weights[i] = -np.inf

    def mode(self, likelihood: MixtureLikelihood, starts: int) -> Instance:
        """Return the instance at the mode with the largest mass."""
        return self.best_mode(likelihood, starts).instance

    def best_mode(self, likelihood: MixtureLikelihood, starts: int) -> Mode:
        """Return the mode with the largest mass."""
        return max(self._modes(likelihood, starts), key=lambda mode: mode.share)

    def _sample_start(self) -> Parameters:
        k, m, rng = self.n_categories, self.n_types, self.rng
        prior = rng.dirichlet(np.full(m, PSEUDOCOUNT))
        click, depart = rng.beta(PSEUDOCOUNT, PSEUDOCOUNT, (2, k, m))
        return Parameters(prior, click, depart, np.full((k, m), INITIAL_DEPART_ON_CLICK))

    def sample_prior(self) -> Instance:
        """Sample an instance before anything is observed, without departure after a click."""
        start = self._sample_start()
        prior, click, depart = (each[None] for each in (start.prior, start.click, start.depart))
        shown = np.zeros(self.n_categories)
        return InstanceBatch.bounded(prior, click, depart, np.zeros_like(click), shown).instance(0)

    def log_evidence(self, likelihood: MixtureLikelihood, starts: int, fewer: "Posterior | None" = None) -> float:
        """Return the log marginal likelihood, by a Laplace approximation at every mode.

        Modes are also searched for near the best one of a posterior with one type `fewer`, with each type split.
        """
        if fewer is not None and fewer.pool:
            split = [self._split(fewer.pool[0], x) for x in range(fewer.n_types)]
            logits = np.clip([likelihood.to_logits(each) for each in split], -MAX_START, MAX_START)
            near = likelihood.run_em(logits, PSEUDOCOUNT, EM_ITERATIONS)
            self.pool += [likelihood.from_logits(each) for each in near]
        mode = self._modes(likelihood, starts)[0]
        log_mass = (
            mode.log_density + mode.correction - 0.5 * np.log(mode.precisions / (2 * pi)).sum() - log(mode.share)
        )
        # Densities are not normalised: each probability has the factor p²(1-p)², Beta(2, 2), and the prior over types
        # is Dirichlet(2, …, 2). A mode has M! relabellings, which cancel in the prior 1/M! over numbers of types,
        # Poisson(1); those that are the mode itself, because types coincide, are not further modes.
        same = sum(_coincide(mode.logits, mode.logits, mode.precision, self.n_types))
        log_prior = self.n_types * likelihood.n_responses * log(6) + lgamma(2 * self.n_types)
        if isinstance(likelihood, HierarchicalLikelihood):
            log_prior += likelihood.log_prior_correction
        return float(log_mass + log_prior - log(same))

    def _split(self, parameters: Parameters, x: int) -> Parameters:
        """Split a type into two of half its share, whose probabilities differ a little."""
        prior = np.append(parameters.prior, parameters.prior[x] / 2)
        prior[x] /= 2
        parts = []
        for part in (parameters.click, parameters.depart, parameters.depart_on_click):
            split = np.column_stack([part, part[:, x]])
            logits = logit(np.clip(split[:, [x, -1]], MIN_PROBABILITY, 1 - MIN_PROBABILITY))
            split[:, [x, -1]] = expit(
                logits + self.rng.normal(size=(len(part), 1)) * (START_NOISE[0], -START_NOISE[0])
            )
            parts.append(split)
        return Parameters(prior, *parts)

    def _permute_one_category(self, parameters: Parameters) -> Parameters:
        """Permute the types of one random category: a start for modes in which other types like it."""
        category, order = self.rng.integers(self.n_categories), self.rng.permutation(self.n_types)
        permuted = [np.array(part) for part in (parameters.click, parameters.depart, parameters.depart_on_click)]
        for part in permuted:
            part[category] = part[category, order]
        return Parameters(parameters.prior, *permuted)

    def _modes(self, likelihood: MixtureLikelihood, starts: int) -> list[Mode]:
        """Find the modes, the one with the largest mass first, and store them in the pool."""
        fresh = [likelihood.to_logits(self._sample_start()) for _ in range(starts)]
        known = [likelihood.to_logits(parameters) for parameters in self.pool]
        if self.pool:
            noise = self.rng.normal(size=likelihood.n_parameters) * self.rng.choice(START_NOISE)
            fresh.append(known[0] + noise)
            fresh += [likelihood.to_logits(self._permute_one_category(self.pool[0])) for _ in range(starts)]
        near = likelihood.run_em(np.clip(np.array(fresh), -MAX_START, MAX_START), PSEUDOCOUNT, EM_ITERATIONS)
        begin = np.concatenate([np.array(known).reshape(-1, near.shape[1]), near])
        peaks = newton_maximise(likelihood, begin, PSEUDOCOUNT)
        kept = _distinct(peaks, likelihood.n_types)
        precisions, directions = np.linalg.eigh(peaks.information[kept])
        precisions = np.maximum(precisions, MIN_PRECISION)
        log_mass = peaks.values[kept] - 0.5 * np.log(precisions).sum(axis=1)  # Laplace approximation
        corrections = np.zeros(len(kept))
        if isinstance(likelihood, SegmentedLikelihood):
            corrections = likelihood.corrections(peaks.logits[kept])
            log_mass = log_mass + corrections
        order = np.argsort(-log_mass, kind="stable")[:MAX_MODES]
        order = order[log_mass[order] > log_mass[order[0]] - MAX_LOG_RATIO]
        share = np.exp(log_mass[order] - log_mass[order[0]])
        share /= share.sum()
        logits, log_densities = peaks.logits[kept][order], peaks.values[kept][order]
        self.pool = [likelihood.from_logits(each) for each in logits]
        return [
            Mode(likelihood, *parts)
            for parts in zip(
                logits, share, log_densities, precisions[order], directions[order], corrections[order], strict=True
            )
        ]

    def _propose(self, mode: Mode, n: int) -> tuple[Floats, Floats]:
        """Propose logits `[n, d]` from one mode, with log weights `[n]`."""
        likelihood = mode.likelihood
        weak = mode.precisions < WEAK_PRECISION
        basis = np.ascontiguousarray(mode.directions[:, ~weak])
        width = PROPOSAL_SCALE / np.sqrt(mode.precisions[weak])
        tails = _antithetic(self.rng.standard_t(TAIL_DEGREES, size=(n - n // 2, int(weak.sum()))), n)
        start = mode.logits + (tails * width) @ mode.directions[:, weak].T
        start = np.clip(start, np.minimum(-MAX_PROPOSAL, mode.logits), np.maximum(MAX_PROPOSAL, mode.logits))
        if weak.any() and not weak.all():
            peaks = newton_maximise(likelihood, start, PSEUDOCOUNT, basis, NEWTON_ITERATIONS)
        else:
            values, _, information = likelihood.derivatives(start, PSEUDOCOUNT)
            peaks = NewtonResult(start, values, information)
        tight, inside = np.linalg.eigh(basis.T @ peaks.information @ basis)
        tight = np.maximum(tight, MIN_TIGHT_PRECISION)
        exponent = (TAIL_DEGREES + 1) // 2  # of the density of Student's t
        log_proposal = -exponent * np.log1p(tails**2 / TAIL_DEGREES).sum(axis=1) - np.log(width).sum()
        log_weights = peaks.values - 0.5 * np.log(tight).sum(axis=1) - log_proposal
        if isinstance(likelihood, SegmentedLikelihood):
            log_weights = log_weights + likelihood.corrections(peaks.logits)
        noise = _antithetic(self.rng.normal(size=(n - n // 2, tight.shape[1])), n)
        root = np.einsum("nrq,nq,nsq->nrs", inside, 1 / np.sqrt(tight), inside)
        return peaks.logits + np.einsum("dr,nrs,ns->nd", basis, root, noise), log_weights

    def _sample_sure_departure(self, likelihood: MixtureLikelihood, batch: InstanceBatch) -> InstanceBatch:
        """Where no user ever stayed in a category, sample whether departure is sure, for each instance."""
        depart = np.array(batch.depart)
        prior_odds = 1.0 if len(likelihood.depart_categories) else UNSURE_ODDS
        for category in np.setdiff1d(np.arange(self.n_categories), likelihood.depart_categories):
            departures = int(likelihood.sure_departures[category])
            # Marginal likelihood of n departures in a row under Beta(2, 2), over that of sure departure, which is 1.
            odds = prior_odds * 6 / ((departures + 2) * (departures + 3))
            unsure = np.flatnonzero(self.rng.random(len(batch)) < odds / (1 + odds))
            depart[unsure, category] = self.rng.beta(2 + departures, 2, len(unsure))[:, None]
        margin = 1 / (BOUNDARY_COUNT + likelihood.impressions)
        return replace(batch, depart=np.clip(depart, margin[:, None], 1.0))


def _antithetic(half: Floats, n: int) -> Floats:
    """Return `n` rows: those of `half`, then the same negated, so that their mean is exact to first order."""
    return np.concatenate([half, -half])[:n]


def _effective_size(rounds: list[tuple[Floats, Floats]]) -> float:
    """Return the effective sample size of all rounds of proposals."""
    log_weights = np.concatenate([each for _, each in rounds])
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


def _resample(weights: Floats, n: int, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """Keep the n/2 heaviest samples with their weights, and resample the others to n/2 of equal weight."""
    weights = weights / weights.sum()
    heavy = np.argsort(-weights, kind="stable")[: n // 2]
    light = np.setdiff1d(np.arange(len(weights)), heavy)
    rest = weights[light].sum()
    if rest <= 0:
        return heavy, weights[heavy]
    positions = rest * (np.arange(n - len(heavy)) + rng.random()) / (n - len(heavy))
    drawn = light[np.minimum(np.searchsorted(weights[light].cumsum(), positions), len(light) - 1)]
    return np.concatenate([heavy, drawn]), np.concatenate([weights[heavy], np.full(len(drawn), rest / len(drawn))])


def _distinct(peaks: NewtonResult, n_types: int) -> list[int]:
    """Return the indices of distinct maxima up to relabelling of types, the highest first.

    Unlike in a fit, maxima of equal height at different places are kept: each has its share of the posterior, which
    is wide while users are few.
    """
    kept: list[int] = []
    for i in np.argsort(-peaks.values, kind="stable").tolist():
        near = [j for j in kept if abs(peaks.values[i] - peaks.values[j]) <= SAME_MAXIMUM]
        if not any(_same_mode(peaks.logits[i], peaks.logits[j], peaks.information[j], n_types) for j in near):
            kept.append(i)
    return kept


def _same_mode(logits: Floats, other: Floats, information: Floats, n_types: int) -> bool:
    """Return True if two maxima of equal height agree up to relabelling of types, measured by the information."""
    return n_types > MAX_PERMUTED_TYPES or any(_coincide(logits, other, information, n_types))


def _coincide(logits: Floats, other: Floats, information: Floats, n_types: int) -> Iterator[bool]:
    """Yield for every order of the types whether two maxima then agree, measured by the information."""
    precisions, directions = np.linalg.eigh(information)
    for order in permutations(range(n_types)):
        difference = directions.T @ (_relabel(logits, order) - other)
        yield float((np.maximum(precisions, 0.0) * difference**2).sum()) < SAME_MODE_DISTANCE


def _relabel(logits: Floats, order: Sequence[int]) -> Floats:
    """Return logits with the types in another order."""
    m = len(order)
    probabilities = logits[: len(logits) - m + 1].reshape(-1, m)[:, list(order)]
    prior = np.append(logits[len(logits) - m + 1 :], 0.0)[list(order)]
    return np.concatenate([probabilities.reshape(-1), prior[:-1] - prior[-1]])
