"""Draws of prior, click and depart that agree with what users did."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.fitting.optimisation import NewtonResult, newton_maximise
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

PSEUDO = 2.0  # yes and no that every chance has before anything is seen, and users of each type
POOL = 10  # modes that are kept
FAR = 12.0  # nats below the best at which a mode is not worth a draw
CLOSE = 4.0  # squared standard errors within which two modes are one
LABELS = 4  # types whose orders are tried
SAME = 0.05  # nats within which two modes are one that was found twice, or found with the types relabelled
WEAK = 60.0  # information below which a direction may be far from Gaussian
STEP = 1e-4  # of derivatives
FARTHEST = 8.0  # logit that a proposal may have
ENOUGH, MOST = 0.3, 8  # share of the draws that they must be worth, and how often to draw for that at most
HEAVY, STRAYS = 0.2, 4  # share of the weight from which a draw is looked at, and how many are dropped at most
MARGIN = 50.0  # a chance asked about n times is kept off 0 and 1 by one in so many and n


@dataclass(frozen=True, eq=False)
class Mode:
    """A peak of the posterior: where it is, how much of it it holds, and its curvature there."""

    evidence: MixtureLikelihood
    eta: Floats
    share: float
    height: float
    widths: Floats  # the curvature along each of the directions
    directions: Floats

    @cached_property
    def instance(self) -> Instance:
        """The instance at the peak."""
        return _instance_of(self.evidence.from_logits(self.eta), self.evidence.impressions)

    @property
    def curvature(self) -> Floats:
        """The information at the peak, `[d, d]`."""
        return np.asarray((self.directions * self.widths) @ self.directions.T)

    @cached_property
    def around(self) -> list[Instance]:
        """The instances a `STEP` ahead in every parameter, then those a step back."""
        moves = STEP * np.eye(len(self.eta))
        asked = self.evidence.impressions
        return [_instance_of(self.evidence.from_logits(self.eta + move), asked) for move in (*moves, *-moves)]

    @cached_property
    def around_arrays(self) -> tuple[Floats, Floats]:
        """Their priors `[2d, M]` and chances `[2d, K, 4, M]`."""
        return stacked(self.around)


@dataclass(frozen=True, eq=False)
class Draws:
    """Instances that may be true, weights that say how likely each is, and the mode that owns each."""

    instances: list[Instance]
    weights: Floats
    modes: list[Mode]
    owner: Integers


@dataclass
class Posterior:
    """What is known of an instance with so many types, from the evidence so far.

    Modes are found by EM and Newton's method from several starts and kept from one time to the next. Draws go along
    the weak directions of a mode with heavy tails, follow the ridge by maximising over the tight ones, and are
    resampled by their weights, with the tight directions integrated out.
    """

    n_categories: int
    n_types: int
    rng: np.random.Generator
    pool: list[Parameters] = field(default_factory=list)

    def draw(self, evidence: MixtureLikelihood, n: int, starts: int) -> Draws:
        """`n` instances with their weights; unlikely ones are among them on purpose."""
        modes = self._modes(evidence, starts)
        visits = np.sqrt([mode.share for mode in modes])
        visits /= visits.sum()
        places = np.searchsorted(visits.cumsum(), (np.arange(n) + self.rng.random()) / n)
        owner = np.minimum(places, len(modes) - 1)
        parts = [self._drawn(modes, owner, visits)]
        while _effective(parts) < ENOUGH * n and len(parts) < MOST:
            parts.append(self._drawn(modes, owner, visits))
        etas, weight = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        if len(parts) > 1:  # keep n of them, all with the weight that the resampling left them
            kept, share = _resample(np.exp(weight - weight.max()), n, self.rng)
            etas, owner = etas[kept], np.tile(owner, len(parts))[kept]
        else:
            share = np.exp(weight - weight.max())
        share = np.minimum(share, share.mean() * np.sqrt(n))  # one that outweighs all others is more often luck
        seen, owner = np.unique(owner, return_inverse=True)
        instances = [self._instance(evidence, eta) for eta in etas]
        return Draws(instances, share / share.sum(), [modes[mode] for mode in seen.tolist()], owner)

    def _drawn(self, modes: list[Mode], owner: Integers, visits: Floats) -> tuple[Floats, Floats]:
        """A proposal from the owner of each draw, `[n, d]`, and their log weights."""
        etas, weights = [], []
        for mode in np.unique(owner).tolist():
            proposed, weight = self._propose(modes[mode], int((owner == mode).sum()))
            etas.append(proposed)
            weights.append(weight - np.log(visits[mode]))
        drawn, weighed = np.concatenate(etas), np.concatenate(weights)
        self._drop_strays([modes[mode] for mode in np.sort(owner)], drawn, weighed)
        return drawn, weighed

    def _drop_strays(self, owners: list[Mode], etas: Floats, weights: Floats) -> None:
        """Drop draws that outweigh all others since they strayed to where another mode draws, and often.

        The proposals of their own mode hardly ever come there, so their weight would say that nothing else is true.
        """
        for _ in range(STRAYS):
            i = int(weights.argmax())
            if np.exp(weights - weights[i]).sum() > 1 / HEAVY:
                break
            peak = newton_maximise(owners[i].evidence, etas[i][None], PSEUDO)
            if abs(peak.values[0] - owners[i].height) <= SAME:
                break
            weights[i] = -np.inf

    def best(self, evidence: MixtureLikelihood, starts: int) -> Instance:
        """The instance at the highest peak."""
        return max(self._modes(evidence, starts), key=lambda mode: mode.share).instance

    def guess(self) -> Parameters:
        """Parameters from what is thought before anything is seen."""
        k, m, rng = self.n_categories, self.n_types, self.rng
        prior = rng.dirichlet(np.full(m, PSEUDO))
        click, depart = rng.beta(PSEUDO, PSEUDO, (2, k, m))
        return Parameters(prior, click, depart, np.full((k, m), 0.01))

    def imagine(self) -> Instance:
        """An instance before anything is seen."""
        guess = self.guess()
        return _instance_of(replace(guess, depart_on_click=np.zeros_like(guess.click)), np.zeros(self.n_categories))

    def _mistaken(self, parameters: Parameters) -> Parameters:
        """What if it is other types that like one of the categories?"""
        category, order = self.rng.integers(self.n_categories), self.rng.permutation(self.n_types)
        swapped = [np.array(part) for part in (parameters.click, parameters.depart, parameters.depart_on_click)]
        for part in swapped:
            part[category] = part[category, order]
        return Parameters(parameters.prior, *swapped)

    def _modes(self, evidence: MixtureLikelihood, starts: int) -> list[Mode]:
        fresh = [evidence.to_logits(self.guess()) for _ in range(starts)]
        known = [evidence.to_logits(parameters) for parameters in self.pool]
        if self.pool:  # one more from near the best, to leave a saddle; and some where types like other categories
            fresh.append(known[0] + self.rng.normal(size=evidence.n_parameters) * self.rng.choice([0.3, 1.0]))
            fresh += [evidence.to_logits(self._mistaken(self.pool[0])) for _ in range(starts)]
        near = evidence.run_em(np.clip(np.array(fresh), -6, 6), PSEUDO, 20)
        peaks = newton_maximise(evidence, np.concatenate([np.array(known).reshape(-1, near.shape[1]), near]), PSEUDO)
        kept = _distinct(peaks, evidence.n_types)
        curvature, directions = np.linalg.eigh(peaks.information[kept])
        curvature = np.maximum(curvature, 0.3)
        held = peaks.values[kept] - 0.5 * np.log(curvature).sum(axis=1)
        order = np.argsort(-held, kind="stable")[:POOL]
        order = order[held[order] > held[order[0]] - FAR]
        share = np.exp(held[order] - held[order[0]])
        share /= share.sum()
        etas, heights = peaks.logits[kept][order], peaks.values[kept][order]
        self.pool = [evidence.from_logits(eta) for eta in etas]
        return [
            Mode(evidence, *parts)
            for parts in zip(etas, share, heights, curvature[order], directions[order], strict=True)
        ]

    def _propose(self, mode: Mode, n: int) -> tuple[Floats, Floats]:
        """`n` proposals `[n, d]` from one mode, and their log weights."""
        evidence = mode.evidence
        weak = mode.widths < WEAK
        basis = np.ascontiguousarray(mode.directions[:, ~weak])
        width = 1.2 / np.sqrt(mode.widths[weak])
        tails = _mirrored(self.rng.standard_t(5, size=(n - n // 2, int(weak.sum()))), n)
        start = mode.eta + (tails * width) @ mode.directions[:, weak].T
        start = np.clip(start, np.minimum(-FARTHEST, mode.eta), np.maximum(FARTHEST, mode.eta))
        if weak.any() and not weak.all():
            peaks = newton_maximise(evidence, start, PSEUDO, basis, 12)
        else:
            values, _, informations = evidence.derivatives(start, PSEUDO)
            peaks = NewtonResult(start, values, informations)
        tight, inside = np.linalg.eigh(basis.T @ peaks.information @ basis)
        tight = np.maximum(tight, 1.0)
        proposed = -3 * np.log1p(tails**2 / 5).sum(axis=1) - np.log(width).sum()
        weight = peaks.values - 0.5 * np.log(tight).sum(axis=1) - proposed
        # The same noise for both of a pair, the other way round, so that their mean is right to first order.
        noise = _mirrored(self.rng.normal(size=(n - n // 2, tight.shape[1])), n)
        root = np.einsum("nrq,nq,nsq->nrs", inside, 1 / np.sqrt(tight), inside)
        return peaks.logits + np.einsum("dr,nrs,ns->nd", basis, root, noise), weight

    def _instance(self, evidence: MixtureLikelihood, eta: Floats) -> Instance:
        """The instance at `eta`; whether departure is sure where nobody ever stayed is drawn too."""
        found = evidence.from_logits(eta)
        depart = np.array(found.depart)
        doubt = (
            1.0 if len(evidence.depart_categories) else 0.02
        )  # where nobody ever stayed at all it will be sure everywhere
        for category in np.setdiff1d(np.arange(self.n_categories), evidence.depart_categories):
            misses = int(evidence.sure_departures[category])
            # Sure departure competes with a chance from the prior, which brings so many departures with:
            explained = doubt * 6 / ((misses + 2) * (misses + 3))
            if self.rng.random() < explained / (1 + explained):
                depart[category] = self.rng.beta(2 + misses, 2)
        return _instance_of(replace(found, depart=depart), evidence.impressions)


def _mirrored(half: Floats, n: int) -> Floats:
    """Rows and then the same rows with the other sign, `n` of them."""
    return np.concatenate([half, -half])[:n]


def stacked(instances: Sequence[Instance]) -> tuple[Floats, Floats]:
    """Priors `[n, M]` and chances `[n, K, 4, M]`."""
    return np.array([instance.prior for instance in instances]), np.array(
        [instance.outcome_probabilities for instance in instances]
    )


def _effective(parts: list[tuple[Floats, Floats]]) -> float:
    """How many draws of equal weight these are worth."""
    weight = np.concatenate([weights for _, weights in parts])
    share = np.exp(weight - weight.max())
    return float(share.sum() ** 2 / (share**2).sum())


def _resample(share: Floats, n: int, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """`n` of the draws, and their weights: heavy ones are kept as they are, of the light ones some stand for all."""
    share = share / share.sum()
    heavy = np.argsort(-share, kind="stable")[: n // 2]
    light = np.setdiff1d(np.arange(len(share)), heavy)
    rest = share[light].sum()
    if rest <= 0:
        return heavy, share[heavy]
    places = rest * (np.arange(n - len(heavy)) + rng.random()) / (n - len(heavy))
    chosen = light[np.minimum(np.searchsorted(share[light].cumsum(), places), len(light) - 1)]
    return np.concatenate([heavy, chosen]), np.concatenate([share[heavy], np.full(len(chosen), rest / len(chosen))])


def _distinct(peaks: NewtonResult, n_types: int) -> list[int]:
    """The peaks that are not one found twice, or found with the types relabelled; the highest first."""
    kept: list[int] = []
    for i in np.argsort(-peaks.values, kind="stable").tolist():
        near = [j for j in kept if abs(peaks.values[i] - peaks.values[j]) <= SAME]
        if not any(_alike(peaks.logits[i], peaks.logits[j], peaks.information[j], n_types) for j in near):
            kept.append(i)
    return kept


def _alike(eta: Floats, other: Floats, information: Floats, n_types: int) -> bool:
    """Whether two parameters are the same but for the order of types, as far as the information tells."""
    if n_types > LABELS:  # too many orders to try: peaks of the same height are taken for one
        return True
    curvature, directions = np.linalg.eigh(information)
    for order in permutations(range(n_types)):
        apart = directions.T @ (_relabelled(eta, order) - other)
        if float((np.maximum(curvature, 0.0) * apart**2).sum()) < CLOSE:
            return True
    return False


def _relabelled(eta: Floats, order: Sequence[int]) -> Floats:
    """Parameters with the types in another order."""
    m = len(order)
    chances = eta[: len(eta) - m + 1].reshape(-1, m)[:, list(order)]
    prior = np.append(eta[len(eta) - m + 1 :], 0.0)[list(order)]
    return np.concatenate([chances.reshape(-1), prior[:-1] - prior[-1]])


def _instance_of(parameters: Parameters, asked: Floats) -> Instance:
    """The instance, with chances kept off 0 and 1, the more so the fewer times categories were shown, `asked[K]`."""
    prior = np.maximum(parameters.prior, 1e-9)
    edge = (1 / (MARGIN + asked))[:, None]
    return Instance(
        prior=prior / prior.sum(),
        click=np.clip(parameters.click, edge / 10, 1 - edge),
        depart=np.clip(parameters.depart, edge, 1.0),
        depart_on_click=np.clip(parameters.depart_on_click, 0.0, 1 - edge),
    )
