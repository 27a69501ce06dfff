"""Value of a schedule as a sum of geometric series: theory, section 2."""

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.model.instance import Floats, Instance
from departing.policy.protocol import check_category_range
from departing.policy.schedule import Schedule


def schedule_values(instance: Instance, policy: Schedule, after: int = 0) -> tuple[Floats, Floats]:
    """Bounds `[M]` on the expected clicks of every type under a schedule from step `after` on, for any `depart`.

    A user of type x who is recommended category a for n steps stays throughout with probability `g^n`,
    `g = 1 - departure_probabilities[a, x]`, and clicks `P (1 - g^n) / (1 - g)` times on average. Every term is
    positive and computed without cancellation, so the rounding error of each is bounded relative to itself; the
    bounds add these up.

    Roundings, where NumPy's functions have at most 2 (one unit in the last place): the departure probability
    has 3 and that of staying 4. Their logarithms amplify these by at most 1 / ln 2 and add 2; the length of a phase
    and its product add 2: fewer than 10 relative to the logarithm of a phase. Adding up i phases has i more; the
    exponential multiplies the total by the logarithm, `depth`. A term has 2 in the exponential, 4 in the fixed value,
    12 in `expm1` (10 of its argument) and 2 in the products: 20.
    """
    phases = np.array(policy.phases, np.int64).reshape(-1, 2)
    categories = policy.phase_categories
    check_category_range(type(policy).__name__, categories, instance.n_categories)
    ends = phases[:, 1].cumsum() - after
    remaining = ends > 0
    phases, categories = phases[remaining], categories[np.append(remaining, True)]
    length = np.diff(ends[remaining], prepend=0).astype(np.float64)[:, None]
    log_stay = log_stay_probabilities(instance)[phases[:, 0]] * length  # through each phase
    with np.errstate(over="ignore"):
        log_reached = np.vstack([np.zeros(instance.n_types), np.cumsum(log_stay, axis=0)])
    completed = np.vstack([-np.expm1(log_stay), np.ones(instance.n_types)])
    terms = np.exp(log_reached) * instance.fixed_values[categories] * completed
    depth = np.minimum(-log_reached, 750.0)  # exp(-750) is zero in doubles
    relative_error = ROUNDING * (24 + (12 + np.arange(len(categories))[:, None]) * depth)
    value, error = terms.sum(axis=0), (terms * relative_error).sum(axis=0)
    error += ROUNDING * (16 + len(categories)) * value  # the sum adds one phase after the other
    error += UNDERFLOW * len(categories) * (1 + instance.fixed_values.max(axis=0))
    return np.maximum(value - error, 0.0), value + error


def log_stay_probabilities(instance: Instance) -> Floats:
    """Logarithm of the probability not to depart at one step, `[K, M]`, accurate near 0 and near 1."""
    departing = instance.departure_probabilities
    staying = instance.outcome_probabilities[:, 0] + instance.outcome_probabilities[:, 1]
    with np.errstate(divide="ignore"):
        return np.where(departing < 0.5, np.log1p(-np.minimum(departing, 0.5)), np.log(staying))
