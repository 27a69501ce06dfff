"""Optimal policies of segments, and what it is worth to know the segment of a user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.fitting.fit import Fit
from departing.model.instance import Floats
from departing.planning.plan import plan
from departing.policy.protocol import Policy, recommended

MAX_SEGMENTS = 12  # segments that are planned for, those with the most users: rows of a table that is read as a whole
SECONDS, GAP = 5.0, 1e-3  # of one plan; the gap is relative to the value of the best fixed policy
MAX_NODES = 20_000  # of an evaluation: enough for a percentage


@dataclass(frozen=True)
class SegmentPlans:
    """Optimal policies of the largest segments of a fit.

    Attributes
    ----------
    index : tuple of int
        Indices of the segments, that with the most users first.
    first : tuple of str
        Category that the optimal policy of each segment shows first.
    values, common_values : float array [n]
        Expected reward per user of each segment under its own optimal policy, and under the common one.
    shares : float array [n]
        Shares of the segments among the users whose segment is known.
    """

    index: tuple[int, ...]
    first: tuple[str, ...]
    values: Floats
    common_values: Floats
    shares: Floats

    @property
    def gain(self) -> float:
        """Expected reward per user of these segments that their own policies add to the common one."""
        return float(self.shares @ (self.values - self.common_values) / self.shares.sum())

    @property
    def common_value(self) -> float:
        """Expected reward per user of these segments under the common policy."""
        return float(self.shares @ self.common_values / self.shares.sum())


def plan_segments(fit: Fit, common: Policy, allowed: Sequence[int]) -> SegmentPlans | None:
    """Plan for each of the largest segments of a fit, and evaluate the common policy there; None without segments."""
    instance, segments = fit.instance, fit.instance.segments
    if segments is None:
        return None
    index = np.argsort(-segments.share, kind="stable")[:MAX_SEGMENTS].tolist()
    gap, start = GAP * instance.best_fixed[1], np.zeros((1, instance.n_categories, 4), np.int64)
    first, values, common_values = list[str](), list[float](), list[float]()
    made: dict[bytes, Any] = {}  # segments may have equal priors
    for i in index:
        own = instance.in_segment(segments.names[i])
        key = segments.prior[i].tobytes()
        if key not in made:
            best = plan(own, gap, SECONDS, allowed=allowed)
            under_common = evaluate(own, common, gap, MAX_NODES).value
            # The common policy is a candidate too: no segment loses by a policy of its own.
            made[key] = best, max(best.value, under_common), under_common
        best, value, under_common = made[key]
        first.append(instance.categories[int(recommended(best.policy, start)[0])])
        values.append(value)
        common_values.append(under_common)
    return SegmentPlans(tuple(index), tuple(first), np.array(values), np.array(common_values), segments.share[index])
