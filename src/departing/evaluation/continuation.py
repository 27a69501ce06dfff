"""Continuation values of a policy: expected remaining reward at all reachable counts, by type."""

from dataclasses import dataclass

import numpy as np

from departing.evaluation.closed_form import schedule_values
from departing.evaluation.forward import Truncation
from departing.evaluation.horizon import RemainingValues, endless_values
from departing.evaluation.traversal import first_level, traverse
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.policy.schedule import Schedule


@dataclass(frozen=True)
class ContinuationLevel:
    """Continuation values `values[n, M]` at the counts after some steps, and their rows after a click and a stay.

    `child[n, 2]` are rows of the next level, -1 for counts that are not followed.
    """

    values: Floats
    child: Integers


@dataclass(frozen=True)
class ContinuationValues:
    """Expected reward from now on of users under `policy`, by type.

    Counts are numbered by level, that is by steps; rare counts that are in no level have the number -1. `gained` is
    the expected reward of an average user at each step, and that of all later steps last.
    """

    instance: Instance
    policy: Policy
    levels: tuple[ContinuationLevel, ...]
    gained: Floats

    def values(self, step: int, rows: Integers, counts: Integers) -> Floats:
        """Values `[n, M]` of users in these rows of the level of a step; approximate for those in none."""
        values = np.empty((len(rows), self.instance.n_types))
        inside = rows >= 0
        if inside.any():
            values[inside] = self.levels[step].values[rows[inside]]
        if not inside.all():
            rare = counts[~inside]
            bounds = switch_probability_bounds(self.policy, rare, self.instance)
            remaining = RemainingValues(self.instance)
            values[~inside] = _approximate(remaining, step, recommended(self.policy, rare), bounds)
        return values

    def child_rows(self, step: int, rows: Integers, outcomes: Integers) -> Integers:
        """Rows in the next level of users who clicked or stayed."""
        children = np.full(len(rows), -1)
        inside = rows >= 0
        if inside.any():
            children[inside] = self.levels[step].child[rows[inside], outcomes[inside]]
        return children


def continuation_values(
    instance: Instance, policy: Policy, steps: int, gap: float, max_nodes: int
) -> ContinuationValues:
    """Compute continuation values for users of up to `steps` steps, at most those of the horizon.

    Those of a schedule are exact. Another policy is followed through the count graph until the remaining uncertainty
    is below a value of `gap` of an average user, or `max_nodes` counts are reached.
    """
    steps = steps if instance.horizon is None else min(steps, instance.horizon)
    levels, gained = (
        _schedule_levels(instance, policy, steps)
        if isinstance(policy, Schedule)
        else _count_levels(instance, policy, steps, gap, max_nodes)
    )
    return ContinuationValues(instance, policy, tuple(levels), np.array(gained))


def first_steps(instance: Instance, policy: Policy, steps: int, rare: float) -> tuple[Floats, Floats]:
    """Expected reward of every type in the first steps, and its probability to be active after them, `[M]`.

    Counts that less than a share `rare` of the users have are left out. At the horizon nobody is active.
    """
    gained = np.zeros(instance.n_types)
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        if level.step == instance.horizon:
            break
        if level.step == steps:
            return gained, level.weights.sum(axis=0)
        level.keep(level.weights @ instance.prior >= rare)
        gained += np.einsum("nx,nx->x", level.weights, instance.expected_reward[level.categories])
    return gained, np.zeros(instance.n_types)


def value_within(instance: Instance, policy: Policy, steps: int, gap: float, max_nodes: int) -> Floats:
    """Expected reward `[M]` of every type in its first `steps` steps: its value with that horizon.

    Exact for a schedule. The counts of another policy are followed until they are committed to a category within
    `gap` of the value of an average user, or `max_nodes` are expanded.
    """
    steps = steps if instance.horizon is None else min(steps, instance.horizon)
    gained, reward, leave = np.zeros(instance.n_types), instance.expected_reward, instance.departure_probabilities
    if isinstance(policy, Schedule):
        active = np.ones(instance.n_types)
        for a in policy.first_categories(steps):
            gained += active * reward[a]
            active = active * (1 - leave[a])
        return gained
    endless = endless_values(instance)
    spread = endless.max(axis=0) - endless.min(axis=0)
    truncation, lost = Truncation(gap, max_nodes), 0.0
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        if level.step == steps:
            break
        errors = (level.weights * level.switch_bounds) @ (instance.normalised_prior * spread)
        stop = truncation.rows(errors, lost)
        lost += float(errors[stop].sum())
        a = level.categories[stop]
        with np.errstate(divide="ignore"):  # a sure departure
            later = -np.expm1((steps - level.step) * np.log1p(-leave[a])) / leave[a]
        gained += np.einsum("nx,nx->x", level.weights[stop], reward[a] * later)
        level.keep(~stop)
        gained += np.einsum("nx,nx->x", level.weights, reward[level.categories])
    return gained


def _schedule_levels(instance: Instance, policy: Schedule, steps: int) -> tuple[list[ContinuationLevel], list[float]]:
    """Levels of one row, because a schedule depends on the number of steps only, and the rewards gained."""
    lower, upper = schedule_values(instance, policy, steps)
    categories = policy.first_categories(steps)
    values = [(lower + upper) / 2]
    for a in categories[::-1]:
        values.append(instance.expected_reward[a] + (1 - instance.departure_probabilities[a]) * values[-1])
    levels, gained, active = [], [], instance.normalised_prior
    for value, a in zip(values[:0:-1], categories, strict=True):
        gained.append(float(active @ instance.expected_reward[a]))
        levels.append(ContinuationLevel(value[None], np.zeros((1, 2), np.int64)))
        active = active * (1 - instance.departure_probabilities[a])
    last = ContinuationLevel(values[0][None], np.full((1, 2), -1))
    return [*levels, last], [*gained, float(active @ values[0])]


def _count_levels(
    instance: Instance, policy: Policy, steps: int, gap: float, max_nodes: int
) -> tuple[list[ContinuationLevel], list[float]]:
    """Follow all counts that matter forward, then compute their values backward; and the rewards gained.

    Where counts are not followed, users are taken to stay with the present category.
    """
    remaining = RemainingValues(instance)
    prior, truncation, lost = instance.normalised_prior, Truncation(gap, max_nodes), 0.0
    visited: list[tuple[Integers, Integers, Floats]] = []
    gained, staying = [0.0] * (steps + 1), np.zeros_like(instance.expected_reward)
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        worst, best = remaining.limits(level.step)
        errors = (level.weights * level.switch_bounds) @ (prior * (best - worst))
        stop = truncation.rows(errors, lost)
        if level.step == instance.horizon:
            stop[:] = True
        lost += float(errors[stop].sum())
        categories = level.categories
        values = _approximate(remaining, level.step, categories, level.switch_bounds)
        if level.step < steps:
            np.add.at(staying, categories[stop], level.weights[stop] * prior)
        else:
            gained[steps] += float(np.einsum("nx,nx,x->", level.weights[stop], values[stop], prior))
        level.keep(~stop)
        expanded = np.einsum("nx,nx,x->", level.weights, instance.expected_reward[level.categories], prior)
        gained[min(level.step, steps)] += float(expanded)
        if level.step < steps:
            gained[level.step] += float((staying * instance.expected_reward).sum())
            staying *= 1 - instance.departure_probabilities
        child = np.full((len(stop), 2), -1)
        child[~stop] = level.child
        visited.append((np.where(stop, -1, categories), child, values))
    for step in range(len(visited), steps):
        gained[step] = float((staying * instance.expected_reward).sum())
        staying *= 1 - instance.departure_probabilities
    gained[steps] += float((staying * remaining.fixed(steps)).sum())
    levels: list[ContinuationLevel] = []
    probabilities, following = instance.outcome_probabilities[:, [CLICK, STAY]], np.zeros((0, instance.n_types))
    for categories, child, values in reversed(visited):
        rows = np.flatnonzero(categories >= 0)
        if len(rows):
            shown, ahead = categories[rows], np.concatenate([following, np.zeros((1, instance.n_types))])[child[rows]]
            values[rows] = instance.expected_reward[shown] + (probabilities[shown] * ahead).sum(axis=1)
        levels.append(ContinuationLevel(values, child))
        following = values
    return levels[::-1], gained


def _approximate(remaining: RemainingValues, step: int, categories: Integers, switch_bounds: Floats) -> Floats:
    """Continuation values `[n, M]` without lookahead: the present category always, or the mean of best and worst."""
    worst, best = remaining.limits(step)
    return np.asarray((1 - switch_bounds) * remaining.fixed(step)[categories] + switch_bounds * ((best + worst) / 2))
