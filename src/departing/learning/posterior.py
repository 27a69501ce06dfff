"""Draws of prior, click and depart that agree with what users did."""

from dataclasses import dataclass, field

import numpy as np

from departing.fitting.likelihood import Evidence, Parameters, Peaks, climb
from departing.model.instance import Floats, Instance

PSEUDO = 2.0  # yes and no that every chance has before anything is seen, and users of each type
POOL = 5  # modes that are kept
FAR = 12.0  # nats below the best at which a mode is not worth a draw
SAME = 0.05  # nats within which two modes are one that was found twice, or found with the types relabelled
WEAK = 60.0  # information below which a direction may be far from Gaussian
LEAST, MOST = 64, 256  # proposals for one set of draws
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

    def draw(self, evidence: Evidence, n: int, starts: int) -> list[Instance]:
        """`n` instances, each as likely as the evidence says."""
        modes = self._modes(evidence, starts)
        return [self._instance(evidence, eta) for eta in self._sample(evidence, modes, n)]

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

    def _modes(self, evidence: Evidence, starts: int) -> Modes:
        fresh = [evidence.pack(self.guess()) for _ in range(starts)]
        known = [evidence.pack(parameters) for parameters in self.pool]
        if known:  # one more from near the best, to leave a saddle or a bad neighbourhood
            fresh.append(known[0] + self.rng.normal(size=evidence.n_parameters) * self.rng.choice([0.3, 1.0]))
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

    def _sample(self, evidence: Evidence, modes: Modes, n: int) -> Floats:
        """`n` draws `[n, d]`."""
        proposals, weights, spreads = [], [], []
        total = 0
        while total < MOST:
            chosen = self.rng.multinomial(LEAST, modes.share)
            for mode in np.flatnonzero(chosen):
                etas, weight, spread = self._propose(evidence, modes, mode, int(chosen[mode]))
                proposals.append(etas)
                weights.append(weight)
                spreads.append(spread)
            total += LEAST
            weight = np.concatenate(weights)
            shares = np.exp(weight - weight.max())
            shares /= shares.sum()
            self.effective = 1 / float((shares**2).sum()) / total
            if self.effective * total >= 1.5 * n:
                break
        places = np.searchsorted(shares.cumsum(), (np.arange(n) + self.rng.random()) / n)
        chosen = np.minimum(places, total - 1)
        tight = np.concatenate(spreads)[chosen]
        etas = np.concatenate(proposals)[chosen]
        noise = self.rng.normal(size=(n, tight.shape[2]))
        return np.asarray(etas + np.einsum("ndr,nr->nd", tight, noise))

    def _propose(self, evidence: Evidence, modes: Modes, mode: int, n: int) -> tuple[Floats, Floats, Floats]:
        """Proposals `[n, d]` from one mode, their log weights, and the spread `[n, d, d]` in the tight directions."""
        curvature, directions = modes.curvature[mode], modes.directions[mode]
        d = len(curvature)
        weak = curvature < WEAK
        spread = np.zeros((n, d, d))
        if not weak.any():
            spread[:] = directions / np.sqrt(curvature)
            return np.repeat(modes.etas[mode : mode + 1], n, axis=0), np.zeros(n), spread
        width = 1.2 / np.sqrt(curvature[weak])
        tails = self.rng.standard_t(5, size=(n, int(weak.sum())))
        start = np.clip(modes.etas[mode] + (tails * width) @ directions[:, weak].T, -8, 8)
        basis = np.ascontiguousarray(directions[:, ~weak])
        peaks = climb(evidence, start, PSEUDO, basis, 12) if basis.shape[1] else Peaks(
            start, evidence.value(start, PSEUDO), np.zeros((n, d, d))
        )
        tight, inside = np.linalg.eigh(basis.T @ peaks.informations @ basis)
        tight = np.maximum(tight, 1.0)
        spread[:, :, : basis.shape[1]] = (basis @ inside) / np.sqrt(tight)[:, None, :]
        proposed = -3 * np.log1p(tails**2 / 5).sum(axis=1)
        # A mode holds more proposals the more of the posterior it has, so its own constant cancels out.
        constant = peaks.values.max() if not len(peaks.values) else 0.0
        weight = peaks.values - 0.5 * np.log(tight).sum(axis=1) - proposed + np.log(width).sum() - constant
        return peaks.etas, weight, spread

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
