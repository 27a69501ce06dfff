"""The value of a schedule, summed as geometric series: theory, section 2."""

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.model.instance import Floats, Instance
from departing.policy.protocol import check_category_range
from departing.policy.schedule import Schedule


def schedule_values(instance: Instance, policy: Schedule, after: int = 0) -> tuple[Floats, Floats]:
    """Bounds `[M]` on the expected clicks of every type under a schedule, `after` so many steps, for any `depart`.

    A user of type x shown category a for n steps stays throughout with chance `g^n`, g = 1 - leave[a, x],
    and clicks `P (1 - g^n) / (1 - g)` times on average. Every term is positive and computed without
    cancellation, so the rounding of each is bounded relative to itself; the bounds add these up.
    """
    segments = np.array(policy.phases, np.int64).reshape(-1, 2)
    shown = policy.phase_categories
    check_category_range(type(policy).__name__, shown, instance.n_categories)
    ends = segments[:, 1].cumsum() - after
    to_come = ends > 0
    segments, shown = segments[to_come], shown[np.append(to_come, True)]
    length = np.diff(ends[to_come], prepend=0).astype(np.float64)[:, None]
    here = log_here(instance)[segments[:, 0]] * length  # log of the chance to stay through each segment
    with np.errstate(over="ignore"):
        reached = np.vstack([np.zeros(instance.n_types), np.cumsum(here, axis=0)])
    finished = np.vstack([-np.expm1(here), np.ones(instance.n_types)])
    terms = np.exp(reached) * instance.fixed_values[shown] * finished
    depth = np.minimum(-reached, 750.0)
    slack = ROUNDING * (16 + (8 + np.arange(len(shown))[:, None]) * depth)
    value, error = terms.sum(axis=0), (terms * slack).sum(axis=0)
    error += ROUNDING * (16 + np.log2(len(shown))) * value
    error += UNDERFLOW * len(shown) * (1 + instance.fixed_values.max(axis=0))
    return np.maximum(value - error, 0.0), value + error


def log_here(instance: Instance) -> Floats:
    """The logarithm of the chance to be still here after one step, `[K, M]`, accurate at both ends."""
    go = instance.outcome_probabilities[:, 0] + instance.outcome_probabilities[:, 1]
    with np.errstate(divide="ignore"):
        return np.where(
            instance.departure_probabilities < 0.5,
            np.log1p(-np.minimum(instance.departure_probabilities, 0.5)),
            np.log(go),
        )
