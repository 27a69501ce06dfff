"""Draws of prior, click and depart that agree with what users did."""

from dataclasses import dataclass, field

import numpy as np

from departing.fitting.likelihood import Evidence, Parameters, Peaks, climb
from departing.model.instance import Floats, Instance

PSEUDO = 2.0  # yes and no that every chance has before anything is seen, and users of each type
POOL = 10  # modes that are kept
FAR = 12.0  # nats below the best at which a mode is not worth a draw
SAME = 0.05  # nats within which two modes are one that was found twice, or found with the types relabelled
WEAK = 60.0  # information below which a direction may be far from Gaussian
CLICK_RANGE, DEPART_RANGE = (0.003, 0.98), (0.02, 1.0)


@dataclass(frozen=True, eq=False)
class Modes:
    """Peaks of the posterior: where they are, how much of it each holds, and its axes there."""

    etas: Floats
    share: Floats
    curvature: Floats
    directions: Floats


@dataclass
class Posterior:
    """What is known of an instance with so many types, from the evidence so far.

    Modes are found by EM and Newton's method from several starts and kept from one time to the next. Draws go along the
    weak directions of a mode with heavy tails, follow the ridge by maximising over the tight ones, and are resampled
    by their weights, with the tight directions integrated out.
    """

    n_categories: int
    n_types: int
    rng: np.random.Generator
    pool: list[Parameters] = field(default_factory=list)
    effective: float = 1.0  # share of the proposals that the last draws were worth

    def draw(self, evidence: Evidence, n: int, starts: int) -> tuple[list[Instance], Floats]:
        """`n` instances with weights that say how likely each is; unlikely ones are among them on purpose."""
        modes = self._modes(evidence, starts)
        etas, weights = self._sample(evidence, modes, n)
        return [self._instance(evidence, eta) for eta in etas], weights

    def best(self, evidence: Evidence, starts: int) -> Instance:
        """The instance at the highest peak."""
        modes = self._modes(evidence, starts)
        return _instance_of(evidence.unpack(modes.etas[modes.share.argmax()]))

    def guess(self) -> Parameters:
        """Parameters from what is thought before anything is seen."""
        k, m, rng = self.n_categories, self.n_types, self.rng
        prior = rng.dirichlet(np.full(m, PSEUDO))
        click, depart = rng.beta(PSEUDO, PSEUDO, (2, k, m))
        return Parameters(prior, click, depart, np.full((k, m), 0.01))

    def imagine(self) -> Instance:
        """An instance before anything is seen."""
        guess = self.guess()
        return _instance_of(Parameters(guess.prior, guess.click, guess.depart, np.zeros_like(guess.click)))

    def _mistaken(self, parameters: Parameters) -> Parameters:
        """What if it is other types that like one of the categories?"""
        category, order = self.rng.integers(self.n_categories), self.rng.permutation(self.n_types)
        swapped = [np.array(part) for part in (parameters.click, parameters.depart, parameters.depart_on_click)]
        for part in swapped:
            part[category] = part[category, order]
        return Parameters(parameters.prior, *swapped)

    def _modes(self, evidence: Evidence, starts: int) -> Modes:
        fresh = [evidence.pack(self.guess()) for _ in range(starts)]
        known = [evidence.pack(parameters) for parameters in self.pool]
        if self.pool:  # one more from near the best, to leave a saddle; and some where types like other categories
            fresh.append(known[0] + self.rng.normal(size=evidence.n_parameters) * self.rng.choice([0.3, 1.0]))
            fresh += [evidence.pack(self._mistaken(self.pool[0])) for _ in range(starts)]
        near = evidence.approach(np.clip(np.array(fresh), -6, 6), PSEUDO, 20)
        peaks = climb(evidence, np.concatenate([np.array(known).reshape(-1, near.shape[1]), near]), PSEUDO)
        kept = _distinct(peaks)
        curvature, directions = np.linalg.eigh(peaks.informations[kept])
        curvature = np.maximum(curvature, 0.3)
        held = peaks.values[kept] - 0.5 * np.log(curvature).sum(axis=1)
        order = np.argsort(-held, kind="stable")[:POOL]
        order = order[held[order] > held[order[0]] - FAR]
        self.pool = [evidence.unpack(eta) for eta in peaks.etas[kept][order]]
        share = np.exp(held[order] - held[order[0]])
        return Modes(peaks.etas[kept][order], share / share.sum(), curvature[order], directions[order])

    def _sample(self, evidence: Evidence, modes: Modes, n: int) -> tuple[Floats, Floats]:
        """`n` draws `[n, d]` and their weights."""
        visits = np.sqrt(modes.share) / np.sqrt(modes.share).sum()
        places = np.searchsorted(visits.cumsum(), (np.arange(n) + self.rng.random()) / n)
        chosen = np.bincount(np.minimum(places, len(visits) - 1), minlength=len(visits))
        proposals, weights = [], []
        for mode in np.flatnonzero(chosen).tolist():
            etas, weight = self._propose(evidence, modes, mode, int(chosen[mode]))
            proposals.append(etas)
            weights.append(weight - np.log(visits[mode]))
        weight = np.concatenate(weights)
        share = np.exp(weight - weight.max())
        share /= share.sum()
        self.effective = 1 / float((share**2).sum()) / n
        return np.concatenate(proposals), share

    def _propose(self, evidence: Evidence, modes: Modes, mode: int, n: int) -> tuple[Floats, Floats]:
        """`n` proposals `[n, d]` from one mode, and their log weights."""
        curvature, directions = modes.curvature[mode], modes.directions[mode]
        weak = curvature < WEAK
        basis = np.ascontiguousarray(directions[:, ~weak])
        width = 1.2 / np.sqrt(curvature[weak])
        tails = self.rng.standard_t(5, size=(n, int(weak.sum())))
        start = np.clip(modes.etas[mode] + (tails * width) @ directions[:, weak].T, -8, 8)
        if weak.any() and not weak.all():
            peaks = climb(evidence, start, PSEUDO, basis, 12)
        else:
            values, _, informations = evidence.slopes(start, PSEUDO)
            peaks = Peaks(start, values, informations)
        tight, inside = np.linalg.eigh(basis.T @ peaks.informations @ basis)
        tight = np.maximum(tight, 1.0)
        proposed = -3 * np.log1p(tails**2 / 5).sum(axis=1) - np.log(width).sum()
        weight = peaks.values - 0.5 * np.log(tight).sum(axis=1) - proposed
        noise = self.rng.normal(size=tight.shape) / np.sqrt(tight)
        return peaks.etas + np.einsum("dr,nrq,nq->nd", basis, inside, noise), weight

    def _instance(self, evidence: Evidence, eta: Floats) -> Instance:
        """The instance at `eta`; whether departure is sure where nobody ever stayed is drawn too."""
        found = evidence.unpack(eta)
        depart = np.array(found.depart)
        for category in np.setdiff1d(np.arange(self.n_categories), evidence.departing):
            misses = int(evidence.never_stayed[category])
            # Sure departure is as likely at first as a chance from the prior, which brings so many departures with:
            explained = 6 / ((misses + 2) * (misses + 3))
            if self.rng.random() < explained / (1 + explained):
                depart[category] = self.rng.beta(2 + misses, 2)
        return _instance_of(Parameters(found.prior, found.click, depart, found.depart_on_click))


def _distinct(peaks: Peaks) -> list[int]:
    """The peaks that are not one found twice, the highest first."""
    kept: list[int] = []
    for i in np.argsort(-peaks.values, kind="stable").tolist():
        if all(abs(peaks.values[i] - peaks.values[j]) > SAME for j in kept):
            kept.append(i)
    return kept


def _instance_of(parameters: Parameters) -> Instance:
    prior = np.maximum(parameters.prior, 1e-9)
    return Instance(
        prior=prior / prior.sum(),
        click=np.clip(parameters.click, *CLICK_RANGE),
        depart=np.clip(parameters.depart, *DEPART_RANGE),
        depart_on_click=np.clip(parameters.depart_on_click, 0.0, 0.98),
    )
