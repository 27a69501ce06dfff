"""How likely a policy that goes by the belief ever changes its category."""

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats

UNBOUNDED = 1e90  # the rivalry where a type may be better off with another category


def switch_bounds(beliefs: Floats, prior: Floats, categories: Integers, rivalry: Floats) -> Floats:
    """Bounds `[n, M]` on the chance that a user of each type is ever shown another category than `categories[n]`.

    `rivalry[K, M, M]` is such that leaving category a takes `Σ_y c[a,x,y] b_y / b_x ≥ 1`. Under type x this sum is a
    martingale, so by Ville's inequality it ever reaches 1 with chance at most its present value.
    """
    floor = np.maximum(beliefs, np.where(prior > 0, 1e-300, 0.0))  # a belief may underflow to 0
    evidence = np.empty_like(beliefs)
    for a in np.unique(categories):
        rows = categories == a
        evidence[rows] = floor[rows] @ rivalry[a].T
    bounds = np.divide(evidence, beliefs, out=np.ones_like(beliefs), where=beliefs > 1e-200)
    return np.asarray(np.minimum(1.0, bounds * (1 + 1e-6)))  # the factor covers the rounding of beliefs
