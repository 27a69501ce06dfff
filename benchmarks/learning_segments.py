"""Segments in learning: what Bayes gains by them where they are informative, and loses where they are not."""

from collections.abc import Iterator
from statistics import mean, stdev

import numpy as np

import departing as dp
from benchmarks.common import Row
from departing.learning.library import learner_from_dict
from departing.model.examples import hard
from departing.simulation.regret_curve import plan_optimum

USERS, EARLY, SEEDS = 10**5, 10**4, range(30)
AWARE = {"kind": "bayes", "types": 2}
IGNORING = AWARE | {"segments": "ignored"}
# Deviations of a mean, in standard errors, that the gain may have from the value of the segments.
MAX_DEVIATION = 4.0
MAX_LOSS = 0.01  # of the clicks, where segments carry no information


def _site(click, depart, *priors):
    share = np.full(len(priors), 1 / len(priors))
    segments = dp.Segments([f"segment {i}" for i in range(len(priors))], share, priors)
    return dp.Instance(None, click, depart, segments=segments)


UNSURE = ([[0.6, 0.2], [0.3, 0.5]], [[0.5, 0.6], [0.8, 0.7]])
SITES = {
    "sure departure, 2 segments": _site(hard().click, 1.0, [0.16, 0.84], [0.0084, 0.9916]),
    "sure departure, 2 equal segments": _site(hard().click, 1.0, *[[0.0842, 0.9158]] * 2),
    "unsure departure, 2 segments": _site(*UNSURE, [0.8, 0.2], [0.3, 0.7]),
    "unsure departure, 4 equal segments": _site(*UNSURE, *[[0.5, 0.5]] * 4),
}


def run(site: dp.Instance, spec: dict[str, object], seed: int, optimum: dp.Bounds) -> tuple[float, float, float]:
    """Regret after EARLY and after USERS users, and the value of the policy of the last user."""
    learner = learner_from_dict(spec, site, USERS, seed)
    result = dp.simulate(site, learner, USERS, seed, optimum=optimum)
    curve = result.regret_curve
    regret = dict(zip(curve.checkpoints.tolist(), curve.regret.tolist(), strict=True))
    assert curve.policy_segments is not None
    largest = max(range(len(curve.segment_values)), key=lambda i: _position(curve.policy_segments[i]))
    return regret[EARLY], regret[USERS], curve.segment_values[largest]


def _position(segment) -> tuple[int, int]:
    """The last interval, and in it the policy of most users."""
    return segment.interval, segment.users


def _mean(values: list[float]) -> tuple[float, float]:
    return mean(values), stdev(values) / len(values) ** 0.5


def measure(name: str, seeds=SEEDS) -> dict[str, tuple[float, float]]:
    """Means over the seeds, with standard errors: gains in clicks per user, and the loss as a share of the clicks."""
    site = SITES[name]
    optimum, ignoring = plan_optimum(site, USERS), plan_optimum(site.in_segment(None), USERS)
    runs = [(run(site, AWARE, seed, optimum), run(site, IGNORING, seed, optimum)) for seed in seeds]
    late = USERS - EARLY
    return {
        "value": (optimum.value - ignoring.value, 0.0),
        "final": _mean([aware[2] - other[2] for aware, other in runs]),
        "late": _mean([((other[1] - other[0]) - (aware[1] - aware[0])) / late for aware, other in runs]),
        "sum": _mean([(other[1] - aware[1]) / USERS for aware, other in runs]),
        "regret": _mean([aware[1] for aware, _ in runs]),
        "regret, ignoring": _mean([other[1] for _, other in runs]),
        "loss": _mean([(aware[1] - other[1]) / (USERS * optimum.value) for aware, other in runs]),
    }


def rows() -> Iterator[Row]:
    """Gain of the final policy relative to the value of the segments, or the loss where they have none."""
    for name in SITES:
        found = measure(name)
        note = ", ".join(f"{key} {value:.4g} ± {error:.2g}" for key, (value, error) in found.items())
        if found["value"][0] > 1e-6:
            gain, error = found["final"]
            deviation = abs(gain - found["value"][0]) / max(error, 1e-9)
            yield Row(f"{name}: gain less value, standard errors", deviation, "", MAX_DEVIATION, False, note)
        else:
            yield Row(f"{name}: loss by segments", 100 * found["loss"][0], "%", 100 * MAX_LOSS, False, note)
