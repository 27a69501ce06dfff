"""Forward passes through the count graph: the exact value and distribution of any policy."""

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.evaluation.departures import Departures, new_departures
from departing.evaluation.horizon import RemainingValues
from departing.evaluation.traversal import Booleans, first_level, traverse
from departing.model.counts import clicks
from departing.model.instance import Floats, Instance
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy

# Counts of one level that are followed; the lightest beyond it are truncated. Bounds the memory at
# 2^20 * 8 * (4 K + M) bytes, at the price of a wider gap.
MAX_LEVEL_ROWS = 2**20


class Truncation:
    """Choice of the counts at which a forward pass stops: their errors together stay within `gap`.

    When `max_nodes` nodes have been expanded it stops everywhere.
    """

    def __init__(self, gap: float, max_nodes: int) -> None:
        self.gap, self.max_nodes = gap, max_nodes
        self.expanded, self.previous = 0, np.inf

    def rows(self, errors: Floats, lost: float) -> Booleans:
        """Rows of a level to stop at, given the error `errors[n]` of stopping there and the error `lost` so far."""
        total = float(errors.sum())
        if total + lost <= self.gap or self.expanded >= self.max_nodes:
            stop = np.ones(len(errors), bool)
        else:
            stop = _negligible(errors, total, self.previous, self.gap / 2, lost)
        self.previous, self.expanded = total, self.expanded + int(np.count_nonzero(~stop))
        return stop


def forward_pass(instance: Instance, policy: Policy, gap: float, max_nodes: int) -> tuple[Floats, Floats, float]:
    """Bounds `[M]` on the expected reward of every type, and a lower bound on that of an average user.

    The bounds are at most `gap` apart on average over the prior.

    The continuation value of a user of type x lies between `worst[x]` and `best[x]`, without a horizon those of
    the worst and the best fixed category; and if another category than the present a is recommended with
    probability at most δ, between `(1 - δ) v + δ worst` and `(1 - δ) v + δ best` where v is the value of always
    recommending a. Counts whose bounds are close together, times their weight, are given these bounds and not
    followed. After `max_nodes` expanded nodes all that remain are. There the value of an alpha-vector policy
    under its own instance is at least its best vector's.
    """
    own = policy if isinstance(policy, Alpha) and policy.successors is not None else None
    own = own if own is not None and instance.horizon is None and own.instance == instance else None
    prior, above = instance.normalised_prior, 0.0  # above: what the vectors add to the lower bound
    remaining = RemainingValues(instance)
    gained, stopped = np.zeros(instance.n_types), np.zeros((2, instance.n_types))
    truncation = Truncation(gap, max_nodes)
    levels, widest, lost = 0, 0, 0.0
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        if level.step == instance.horizon:
            break
        worst, best = limits = remaining.limits(level.step)
        switching = level.weights * level.switch_bounds
        errors = switching @ (instance.prior * (best - worst))
        stop = truncation.rows(errors, lost)
        levels, widest = levels + 1, max(widest, len(errors))
        if stop.any():
            fixed = remaining.fixed(level.step)[level.categories[stop]]
            staying = np.einsum("nx,nx->x", level.weights[stop] - switching[stop], fixed)
            stopped += staying + switching[stop].sum(axis=0) * limits
            if own is not None:
                rows = level.weights[stop]
                lower = (rows - switching[stop]) * fixed + switching[stop] * worst
                above += float(np.maximum(own.value_lower_bounds(rows * prior) - lower @ prior, 0.0).sum())
            lost += float(errors[stop].sum())
            level.keep(~stop)
        gained += np.einsum("nx,nx->x", level.weights, instance.expected_reward[level.categories])
    # Terms are positive, and differences exact up to one rounding, so roundings add up. For each level: 3 in an
    # outcome probability and 1 in its product with a weight, at most 2K - 1 additions of parents, 1 addition to the
    # total. For the sum of a level: one addition for each row. Fixed values (17), products and this bound: below 128.
    rounding = ROUNDING * (128 + widest + levels * (2 * instance.n_categories + 6))
    underflow = UNDERFLOW * 4 * (1 + levels * widest) * (1 + remaining.endless.max(axis=0))
    lower, upper = (gained + stopped[0]) * (1 - rounding), (gained + stopped[1]) * (1 + rounding)
    lower = np.maximum(lower - underflow, 0.0)
    return lower, upper + underflow, float(prior @ lower + above) * (1 - rounding)


def departure_distribution(
    instance: Instance, policy: Policy, gap: float, max_nodes: int
) -> tuple[Departures, float]:
    """Distribution of departures, followed until at most `gap` of the users remain, and the share that remains.

    A user who is recommended another category than the present one with probability at most δ counts as committed to
    it with weight 1 - δ; the rest remains.
    """
    departures, lost = new_departures(instance), np.zeros(instance.n_types)
    truncation = Truncation(gap / 2, max_nodes)
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        if level.step == instance.horizon:
            departures.end(clicks(level.counts), level.weights)
            break
        switching = level.weights * level.switch_bounds
        stop = truncation.rows(switching @ instance.prior, float(lost @ instance.prior))
        if stop.any():
            committed = (level.weights - switching)[stop]
            departures.commit(clicks(level.counts[stop]), level.categories[stop], committed)
            lost += switching[stop].sum(axis=0)
            level.keep(~stop)
        departures.add_level(clicks(level.counts), level.categories, level.weights, lost)
    return departures, departures.finish(gap / 2, lost)


def _negligible(errors: Floats, total: float, previous: float, budget: float, lost: float) -> Booleans:
    """Rows with the smallest errors, within an even part of the budget for each of the levels to come.

    The number of these is extrapolated from the decrease since the `previous` level. Rows are grouped by the power of
    two below their error, which avoids sorting them.
    """
    to_come = 1.0
    if 0 < budget < total < previous < np.inf:
        to_come += np.log(total / budget) / np.log(previous / total)
    allowance = max(budget - lost, 0.0) / to_come
    power = np.frexp(errors)[1]
    power[errors == 0] = -1100  # below the exponent of every positive double
    lowest = int(power.min(initial=0))
    sums = np.bincount(power - lowest, weights=errors).cumsum()
    rows = np.bincount(power - lowest).cumsum()
    affordable = int(np.searchsorted(sums, allowance, side="right"))
    needed = int(np.searchsorted(rows, len(errors) - MAX_LEVEL_ROWS))
    return np.asarray(power < lowest + max(affordable, needed + 1 if len(errors) > MAX_LEVEL_ROWS else 0))
