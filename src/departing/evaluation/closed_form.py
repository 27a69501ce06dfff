"""Value of a schedule as a sum of geometric series: theory, section 2."""

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.evaluation.horizon import endless_values, log_stay_probabilities
from departing.model.counts import Booleans, Integers
from departing.model.instance import Floats, Instance
from departing.policy.protocol import check_category_range
from departing.policy.schedule import Schedule


def schedule_values(instance: Instance, policy: Schedule, after: int = 0) -> tuple[Floats, Floats]:
    """Bounds `[M]` on the expected reward of every type under a schedule from step `after` on, for any `depart`.

    A user of type x who is recommended category a for n steps stays throughout with probability `g^n`,
    `g = 1 - departure_probabilities[a, x]`, and clicks `P (1 - g^n) / (1 - g)` times on average. A horizon ends the
    last phase. Every term is positive and computed without cancellation, so the rounding error of each is bounded
    relative to itself; the bounds add these up.

    Roundings, where NumPy's functions have at most 2 (one unit in the last place): the departure probability
    has 3 and that of staying 4. Their logarithms amplify these by at most 1 / ln 2 and add 2; the length of a phase
    and its product add 2: fewer than 10 relative to the logarithm of a phase. Adding up i phases has i more; the
    exponential multiplies the total by the logarithm, `depth`. A term has 2 in the exponential, 5 in the fixed value,
    12 in `expm1` (10 of its argument) and 2 in the products: 21.
    """
    phases = np.array(policy.phases, np.int64).reshape(-1, 2)
    categories = policy.phase_categories
    check_category_range(type(policy).__name__, categories, instance.n_categories)
    ends = phases[:, 1].cumsum() - after
    left = None if instance.horizon is None else instance.horizon - after
    if left is not None and left <= 0:
        return np.zeros(instance.n_types), np.zeros(instance.n_types)
    remaining = ends > 0 if left is None else (ends > 0) & (ends < left)
    phases, categories = phases[remaining], _categories_of(categories, ends, remaining, left)
    length = np.diff(ends[remaining], prepend=0).astype(np.float64)[:, None]
    log_stay_step = log_stay_probabilities(instance)
    log_stay = log_stay_step[phases[:, 0]] * length  # through each phase
    with np.errstate(over="ignore"):
        log_reached = np.vstack([np.zeros(instance.n_types), np.cumsum(log_stay, axis=0)])
    last = np.ones(instance.n_types)
    if left is not None:
        last = -np.expm1(log_stay_step[categories[-1]] * (left - int(ends[remaining].max(initial=0))))
    completed = np.vstack([-np.expm1(log_stay), last])
    fixed = endless_values(instance)
    terms = np.exp(log_reached) * fixed[categories] * completed
    depth = np.minimum(-log_reached, 750.0)  # exp(-750) is zero in doubles
    relative_error = ROUNDING * (24 + (12 + np.arange(len(categories))[:, None]) * depth)
    value, error = terms.sum(axis=0), (terms * relative_error).sum(axis=0)
    error += ROUNDING * (16 + len(categories)) * value  # the sum adds one phase after the other
    error += UNDERFLOW * len(categories) * (1 + fixed.max(axis=0))
    return np.maximum(value - error, 0.0), value + error


def _categories_of(categories: Integers, ends: Integers, remaining: Booleans, left: int | None) -> Integers:
    """Categories of the `remaining` phases and of the last one: that in which the horizon ends, if there is one."""
    final = categories[-1] if left is None else categories[int(np.searchsorted(ends, left))]
    return np.append(categories[:-1][remaining], final)
