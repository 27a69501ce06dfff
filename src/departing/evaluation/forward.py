"""Pushing weights through merged counts: the exact value and distribution of any policy."""

from typing import Any

import numpy as np
import numpy.typing as npt

from departing.evaluation.bounds import ROUNDING, UNDERFLOW
from departing.model.counts import Integers, clicks
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds

WIDEST = 2**20
Booleans = npt.NDArray[np.bool_]
Weights = npt.NDArray[Any]  # of chances or of users


class Leavers:
    """Chances of leaving after so many clicks and so many steps, for every type: rows of `[M]`."""

    def __init__(self, n_types: int) -> None:
        self.returns = np.zeros((64, n_types))
        self.steps: list[Floats] = [np.zeros(n_types)]
        self.survival: list[Floats] = []

    def add(self, clicks_so_far: Integers, departing: Floats, clicking: Floats) -> None:
        """Users with `clicks_so_far[n]` leave without (`departing[n, M]`) or with a last click (`clicking`)."""
        most = int(clicks_so_far.max(initial=0)) + 1
        while most >= len(self.returns):
            self.returns = np.vstack([self.returns, np.zeros_like(self.returns)])
        np.add.at(self.returns, clicks_so_far, departing)
        np.add.at(self.returns, clicks_so_far + 1, clicking)
        self.steps.append((departing + clicking).sum(axis=0))


class Frontier:
    """The users who are still here after some steps: their distinct counts and what is at each of them."""

    def __init__(self, instance: Instance, weights: Weights) -> None:
        self.counts = np.zeros((1, instance.n_categories, 4), np.int64)
        self.weights = weights[None]
        self._opens = np.asarray((instance.outcome_probabilities[:, :2] > 0).any(axis=2))

    def __len__(self) -> int:
        return len(self.counts)

    def keep(self, rows: Booleans) -> None:
        """Drop all other rows."""
        self.counts, self.weights = self.counts[rows], self.weights[rows]

    def advance(self, categories: Integers, flows: Weights) -> Integers:
        """Move on by one step: `flows[n, 2, M]` go to the counts after a click and after a stay, `child[n, 2]`."""
        if len(self.counts) <= 1:  # a chain, as under sure departure: nothing to merge, and no need to import numba
            outcomes = np.flatnonzero(self._opens[categories].any(axis=0))
            n = len(outcomes)
            child = np.full((len(self.counts), 2), -1, np.int64)
            child[:, outcomes] = rows = np.arange(n)
            self.counts = self.counts.repeat(n, axis=0)
            self.counts[rows, categories.repeat(n), outcomes] += 1
            self.weights = flows[:, outcomes].reshape(n, flows.shape[2])
            return child
        from departing.kernels.evaluation.count_graph import expand, gather

        child, children = expand(self.counts, categories, self._opens)
        self.counts, self.weights = children, gather(child, flows, len(children))
        return np.asarray(child)


def forward_pass(instance: Instance, policy: Policy, tolerance: float, nodes: int) -> tuple[Floats, Floats]:
    """Bounds `[M]` on the expected clicks of every type, pushed through the counts until within `tolerance`.

    What a user of type x brings from here on lies between the worst and the best fixed category, `worst[x]`
    and `best[x]`; and if another category than the present a is shown with chance at most δ, between
    `(1 - δ) v + δ worst` and `(1 - δ) v + δ best` where v is the value of showing a for ever. Counts whose
    bounds are close together, times their weight, are closed with these bounds and not pushed on. When
    `nodes` counts have been expanded all that is left is.
    """
    best, worst = instance.fixed_values.max(axis=0), instance.fixed_values.min(axis=0)
    frontier = Frontier(instance, np.ones(instance.n_types))
    gained, closed = np.zeros(instance.n_types), np.zeros((2, instance.n_types))
    go, limits = instance.outcome_probabilities[:, [CLICK, STAY]], np.stack([worst, best])
    expanded, levels, widest, lost, before = 0, 0, 0, 0.0, np.inf
    while len(frontier):
        categories = recommended(policy, frontier.counts)
        moving = frontier.weights * switch_probability_bounds(policy, frontier.counts, instance)
        share = moving @ (instance.prior * (best - worst))
        total = float(share.sum())
        if total + lost <= tolerance or expanded >= nodes:
            close = np.ones(len(frontier), bool)
        else:
            close = negligible(share, total, before, tolerance / 2, lost)
        staying = np.einsum(
            "nx,nx->x", frontier.weights[close] - moving[close], instance.fixed_values[categories[close]]
        )
        closed += staying + moving[close].sum(axis=0) * limits
        lost += float(share[close].sum())
        frontier.keep(~close)
        categories = categories[~close]
        before, levels, expanded = total, levels + 1, expanded + len(frontier)
        widest = max(widest, len(close))
        gained += np.einsum("nx,nx->x", frontier.weights, instance.click[categories])
        frontier.advance(categories, frontier.weights[:, None] * go[categories])
    # Per level: at most 2K parents are added up and three factors rounded; per sum: one rounding a row.
    rounding = ROUNDING * (128 + widest + levels * (2 * instance.n_categories + 6))
    lost_digits = UNDERFLOW * 4 * (1 + levels * widest) * (1 + best)
    lower, upper = (gained + closed[0]) * (1 - rounding), (gained + closed[1]) * (1 + rounding)
    return np.maximum(lower - lost_digits, 0.0), upper + lost_digits


def follow(instance: Instance, policy: Policy, tolerance: float, nodes: int) -> tuple[Leavers, float]:
    """How users leave, pushed through the counts until at most `tolerance` of them are left, and that share."""
    frontier = Frontier(instance, np.ones(instance.n_types))
    leavers, lost = Leavers(instance.n_types), np.zeros(instance.n_types)
    go = instance.outcome_probabilities[:, [CLICK, STAY]]
    expanded, before = 0, np.inf
    while len(frontier):
        leavers.survival.append(frontier.weights.sum(axis=0) + lost)
        share = frontier.weights @ instance.prior
        total, left = float(share.sum()), float(lost @ instance.prior)
        if total + left <= tolerance or expanded >= nodes:
            return leavers, total + left
        close = negligible(share, total, before, tolerance / 2, left)
        lost += frontier.weights[close].sum(axis=0)
        frontier.keep(~close)
        before, expanded = total, expanded + len(frontier)
        categories = recommended(policy, frontier.counts)
        departing = frontier.weights * instance.outcome_probabilities[categories, DEPART]
        clicking = frontier.weights * instance.outcome_probabilities[categories, CLICK_DEPART]
        leavers.add(clicks(frontier.counts), departing, clicking)
        frontier.advance(categories, frontier.weights[:, None] * go[categories])
    return leavers, float(lost @ instance.prior)


def negligible(share: Floats, total: float, before: float, budget: float, lost: float) -> Booleans:
    """The rows to close now: the smallest, within an even part of the budget for each of the levels to come.

    Rows are told apart by the power of two below their share, which spares sorting them.
    """
    to_come = 1.0
    if 0 < budget < total < before < np.inf:
        to_come += np.log(total / budget) / np.log(before / total)
    allowance = max(budget - lost, 0.0) / to_come
    power = np.frexp(share)[1]
    power[share == 0] = -1100  # below every other
    lowest = int(power.min(initial=0))
    sums = np.bincount(power - lowest, weights=share).cumsum()
    rows = np.bincount(power - lowest).cumsum()
    affordable = int(np.searchsorted(sums, allowance, side="right"))
    needed = int(np.searchsorted(rows, len(share) - WIDEST))
    return np.asarray(power < lowest + max(affordable, needed + 1 if len(share) > WIDEST else 0))
