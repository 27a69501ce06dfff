"""The maximum of the likelihood: EM to come near, Newton's method to arrive."""

from dataclasses import dataclass, replace

import numpy as np

from departing.fitting.likelihood import Evidence, Parameters, climb
from departing.model.instance import Floats

SAMPLE = 5_000  # users from whom the way to the maximum is found, where there are more rows than that
FINALISTS = 4  # starts that go on with everybody
NEAR = 30  # rounds of EM
ONE = 0.05  # nats within which two maxima are taken for one


@dataclass(frozen=True, eq=False)
class Solution:
    """The highest point found, `eta`, and lower maxima `others[n, d]`, their `depths` nats below."""

    evidence: Evidence
    eta: Floats
    others: Floats
    depths: Floats

    @property
    def parameters(self) -> Parameters:
        """The point as parameters."""
        return self.evidence.unpack(self.eta)


def maximise(evidence: Evidence, starts: Floats, pseudo: float, rng: np.random.Generator | None = None) -> Solution:
    """Go uphill from `starts[n, d]`; with `rng` most of the way with a sample of users only, if there are many."""
    etas = starts
    if rng is not None:
        some = _sample(evidence, rng)
        etas = some.approach(etas, pseudo, NEAR)
        if some is not evidence:
            peaks = climb(some, etas, pseudo)
            etas = peaks.etas[_distinct(peaks.values)[:FINALISTS]]
    peaks = climb(evidence, etas, pseudo)
    first, *rest = _distinct(peaks.values)
    return Solution(evidence, peaks.etas[first], peaks.etas[rest], peaks.values[first] - peaks.values[rest])


def _sample(evidence: Evidence, rng: np.random.Generator) -> Evidence:
    """The evidence of some of the users, or all of it if it has few rows."""
    if len(evidence.users) <= SAMPLE:
        return evidence
    users = rng.binomial(evidence.users.astype(np.int64), min(1.0, SAMPLE / evidence.users.sum())).astype(np.float64)
    kept = users > 0
    return replace(evidence, users=users[kept], yes=evidence.yes[kept], asked=evidence.asked[kept])


def _distinct(values: Floats) -> list[int]:
    """Places of different values, the largest first; the same value is the same maximum, perhaps relabelled."""
    kept: list[int] = []
    for i in np.argsort(-values, kind="stable").tolist():
        if not kept or values[kept[-1]] - values[i] > ONE:
            kept.append(i)
    return kept
