"""Alternatives as vectors: logits of the probabilities that are neither 0 nor 1, and of the prior."""

from dataclasses import dataclass

import numpy as np

from departing.model.instance import Floats, Instance

# Ranges in which alternatives are searched, as wide as the instances of the studies; the instance's own probabilities
# widen them. Long stays would make the optimal value unbounded.
RANGES = {"click": (0.05, 0.95), "depart": (0.15, 0.98), "depart_on_click": (0.005, 0.5)}
MAX_PRIOR_LOGIT = 5.0
WIDER = 0.5  # logits by which a range extends beyond a probability of the instance


def _logit(p: Floats | float) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-np.asarray(p)))


@dataclass(frozen=True, eq=False)
class Batch:
    """S instances as arrays: `priors[S, M]`, `probabilities[S, K, 4, M]` and values of fixed policies `[S, K, M]`."""

    priors: Floats
    probabilities: Floats
    fixed: Floats


class ParameterSpace:
    """Instances with the same possible outcomes as `instance`, as vectors of logits in a box.

    Attributes
    ----------
    centre : array [n]
        Vector of the instance.
    low, high : array [n]
        Corners of the box.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._free, centre, low, high = [], [], [], []
        for name, (least, most) in RANGES.items():
            table = getattr(instance, name)
            free = (table > 0) & (table < 1)
            own = _logit(table[free])
            self._free.append((name, free))
            centre.append(own)
            low.append(np.minimum(_logit(least), own - WIDER))
            high.append(np.maximum(_logit(most), own + WIDER))
        prior = np.log(np.maximum(instance.normalised_prior, 1e-3))
        centre.append(prior[:-1] - prior[-1])
        low.append(np.full(len(prior) - 1, -MAX_PRIOR_LOGIT))
        high.append(np.full(len(prior) - 1, MAX_PRIOR_LOGIT))
        self.centre, self.low, self.high = (np.concatenate(parts) for parts in (centre, low, high))

    def __len__(self) -> int:
        return len(self.centre)

    def _tables(self, vectors: Floats) -> tuple[dict[str, Floats], Floats]:
        """Tables `[S, K, M]` by name, and priors `[S, M]`."""
        tables, start = {}, 0
        for name, free in self._free:
            n = int(free.sum())
            table = np.repeat(getattr(self.instance, name)[None], len(vectors), axis=0)
            table[:, free] = 1 / (1 + np.exp(-vectors[:, start : start + n]))
            tables[name] = table
            start += n
        logits = np.hstack([vectors[:, start:], np.zeros((len(vectors), 1))])
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return tables, shares / shares.sum(axis=1, keepdims=True)

    def batch(self, vectors: Floats) -> Batch:
        """Instances of `vectors[S, n]` as arrays."""
        tables, priors = self._tables(vectors)
        p, d, last = tables["click"], tables["depart"], tables["depart_on_click"]
        outcomes = np.stack([p * (1 - last), (1 - p) * (1 - d), (1 - p) * d, p * last], axis=2)
        return Batch(priors, outcomes, p / ((1 - p) * d + p * last))

    def instance_at(self, vector: Floats) -> Instance:
        """Instance of `vector[n]`."""
        tables, priors = self._tables(vector[None])
        return self.instance.replace(prior=priors[0], **{name: table[0] for name, table in tables.items()})

    def sample(self, rng: np.random.Generator, number: int) -> Floats:
        """Random starts of the search, `[number, n]`: some categories drawn again, or everything moved a little."""
        starts = np.repeat(self.centre[None], number, axis=0)
        categories = np.concatenate([np.nonzero(free)[0] for _, free in self._free])
        for start in starts:
            redrawn = rng.random(self.instance.n_categories) < rng.choice([0.34, 0.67, 1.0])
            if rng.random() < 0.2:
                redrawn[:] = False
            chosen = np.flatnonzero(redrawn[categories])
            start[chosen] = rng.logistic(size=len(chosen))
            if rng.random() < 0.4 or not len(chosen):
                start += rng.normal(size=len(start)) * rng.choice([0.1, 0.3, 1.0])
        return np.asarray(np.clip(starts, self.low, self.high))
